-- Webhooks: URLs that are told of changes. .github/decisions/0023-webhooks.md states the design.

create table webhooks (
    id               bigint      generated always as identity primary key,
    url              text        not null,
    -- Key of the signatures. It has to be readable.
    secret           bytea       not null,
    -- Wanted kinds of changes; empty for all.
    kinds            text[]      not null,
    created_at       timestamptz not null default now(),
    -- Every wanted change up to it is delivered, or in webhook_retries.
    position         bigint      not null,
    enabled          boolean     not null default true,
    -- Time of the next turn at the earliest.
    next_at          timestamptz not null default now(),
    -- Random number of the turn in progress, and the time at which another may begin even so.
    lease            bigint,
    leased_until     timestamptz,
    -- Key before the last rotation, with which requests are signed, too, until its overlap ends.
    old_secret       bytea,
    old_secret_until timestamptz,
    -- A test is in progress until then at the latest.
    test_until       timestamptz
);

-- Deliveries that have failed, or wait behind one of the same resource.
create table webhook_retries (
    webhook_id bigint      not null references webhooks on delete cascade,
    position   bigint      not null,
    -- Resource of the change.
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

-- The first delivery of each resource decides whether a webhook has something to deliver; those that were given up are counted and
-- deleted.
create index webhook_retries_waiting on webhook_retries (webhook_id, kind, resource, position) where parked_at is null;
create index webhook_retries_parked on webhook_retries (webhook_id, parked_at) where parked_at is not null;

-- Last attempts of each webhook, in one row, which a turn writes once: an array, the newest first.
create table webhook_attempts (
    webhook_id bigint primary key references webhooks on delete cascade,
    attempts   jsonb not null
);
