-- The founding schema: who may call, and what shows it.

create table callers (
    id         bigint generated always as identity primary key,
    name       text        not null,
    plan       text        not null,
    scopes     text[]      not null,
    created_at timestamptz not null default now(),

    constraint callers_name_unique unique (name),
    constraint callers_plan_known check (plan in ('free', 'pro', 'enterprise'))
);

-- Every secret that stands for a caller, of whatever kind. A secret itself is never stored: it has 190 and
-- more random bits, so a plain SHA-256 of it cannot be guessed back, and finding it is one index look-up.
create table credentials (
    id         bigint generated always as identity primary key,
    caller_id  bigint      not null references callers on delete cascade,
    kind       text        not null,
    hash       bytea       not null,
    -- The first characters, for a person to tell keys apart by.
    hint       text        not null,
    -- What the credential may do of what its caller may; null is all of it.
    scopes     text[],
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz,

    constraint credentials_hash_unique unique (hash),
    constraint credentials_hash_is_sha256 check (octet_length(hash) = 32),
    constraint credentials_kind_known check (kind in ('api_key'))
);

create index credentials_by_caller on credentials (caller_id);
