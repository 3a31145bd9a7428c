-- Callers and their credentials: API keys, OAuth clients, access tokens and sessions.

create table callers (
    id          bigint generated always as identity primary key,
    -- The caller of a user account is named 'user:' and the id of the account. No other caller may have such a name, nor that of
    -- the command line in the record of changes, `operator`.
    name        text        not null,
    plan        text        not null,
    scopes      text[]      not null,
    created_at  timestamptz not null default now(),
    -- Until this is null again, the service refuses the caller's credentials and an issuer's tokens for it.
    disabled_at timestamptz,
    constraint callers_name_unique unique (name),
    constraint callers_plan_known check (plan in ('free', 'pro', 'enterprise'))
);

-- Callers by the beginning of their names, compared by bytes.
create index callers_by_name on callers (name collate "C");
-- The administrators, of which one has to be left.
create index callers_administrators on callers (id) where scopes @> '{admin}' and disabled_at is null;

-- Secrets are stored as SHA-256 only: a generated one has at least 190 random bits, so it cannot be guessed from its
-- hash, and a lookup is one access to an index.
create table credentials (
    id           bigint generated always as identity primary key,
    caller_id    bigint      not null references callers on delete cascade,
    -- A client secret authenticates no requests: it is exchanged for access tokens.
    kind         text        not null,
    hash         bytea       not null,
    -- First eight characters, to tell secrets apart. Empty for a chosen secret, of which they can be half.
    hint         text        not null,
    -- Scopes that the credential is restricted to; null for all of its caller.
    scopes       text[],
    created_at   timestamptz not null default now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    -- Public identifier of an OAuth client.
    client_id    text,
    -- OAuth client of an access token.
    issued_by    bigint references credentials on delete cascade,
    last_used_at timestamptz,
    -- Name of an API key, for people.
    name         text,
    -- Time at which another key replaced it: a key has one successor.
    rotated_at   timestamptz,
    constraint credentials_hash_unique unique (hash),
    constraint credentials_hash_is_sha256 check (octet_length(hash) = 32),
    constraint credentials_kind_known check (kind in ('api_key', 'client_secret', 'access_token', 'session')),
    constraint credentials_client_id_unique unique (client_id),
    constraint credentials_client_id_of_clients check ((kind = 'client_secret') = (client_id is not null)),
    constraint credentials_issued_by_of_tokens check ((kind = 'access_token') = (issued_by is not null)),
    constraint credentials_sessions_end check (kind <> 'session' or expires_at is not null)
);

create index credentials_by_caller on credentials (caller_id);
-- For lists of the keys, clients and sessions of all callers.
create index credentials_by_kind on credentials (kind, id);
create index credentials_by_issuer on credentials (issued_by) where issued_by is not null;
-- For the purges of expired access tokens and sessions.
create index credentials_access_tokens_by_expiry on credentials (expires_at) where kind = 'access_token';
create index credentials_sessions_by_expiry on credentials (expires_at) where kind = 'session';

-- Every process caches credentials. A notification at the commit of a change names the credential to evict: its hash in
-- hexadecimal, or '*' for all, since a caller may have any number.
create function notify_credential_changed() returns trigger language plpgsql as $$ begin
    -- Otherwise each key in use would leave the caches of all replicas every minute.
    if tg_op = 'UPDATE' and new.last_used_at is distinct from old.last_used_at then
        return null;
    end if;
    perform pg_notify('credentials', encode(coalesce(new.hash, old.hash), 'hex'));
    return null;
end $$;
create function notify_callers_changed() returns trigger language plpgsql as $$ begin
    perform pg_notify('credentials', '*');
    return null;
end $$;

create trigger credentials_changed after insert or update or delete on credentials
    for each row execute function notify_credential_changed();
create trigger callers_changed after update on callers for each statement execute function notify_callers_changed();
-- Sign-up is open, so accounts that come and go must not empty the caches; their credentials are all rows of this
-- database, which are notified one by one. Other callers may also be cached with an issuer's tokens.
create trigger callers_deleted after delete on callers
    for each row when (old.name not like 'user:%') execute function notify_callers_changed();
