-- Webhooks: URLs that are told of changes. .github/decisions/0023-webhooks.md states the design.

create table webhooks (
    id           bigint generated always as identity primary key,
    url          text        not null,
    -- Key of the signatures. It has to be readable.
    secret       bytea       not null,
    -- Wanted kinds of changes; empty for all.
    kinds        text[]      not null,
    created_at   timestamptz not null default now(),
    -- Every wanted change up to it is delivered, or in webhook_retries.
    position     bigint      not null,
    enabled      boolean     not null default true,
    -- Time of the next turn at the earliest.
    next_at      timestamptz not null default now(),
    -- Random number of the turn in progress, and the time at which another may begin even so.
    lease        bigint,
    leased_until timestamptz
);

-- Deliveries that have failed, or wait behind one of the same resource.
create table webhook_retries (
    webhook_id bigint      not null references webhooks on delete cascade,
    position   bigint      not null,
    -- Resource of the change; 'test' for a test.
    kind       text        not null,
    resource   text        not null,
    attempts   integer     not null,
    next_at    timestamptz not null,
    last_error text,
    -- Deliveries are parked a day after it.
    created_at timestamptz not null default now(),
    parked_at  timestamptz,
    primary key (webhook_id, position)
);
