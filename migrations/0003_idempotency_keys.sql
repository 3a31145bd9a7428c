-- The first answer to a request with an Idempotency-Key, kept for 24 hours to be given again. Its row is
-- written in the transaction that made the change, so there is never one without the other.

create table idempotency_keys (
    caller      text        not null,
    key         text        not null,
    -- SHA-256 of what was asked: the same key with another request is a mistake of the client.
    fingerprint bytea       not null,
    -- What was answered: status, headers and body.
    answer      jsonb       not null,
    created_at  timestamptz not null default now(),

    primary key (caller, key)
);

-- For the sweep of what is older than a day.
create index idempotency_keys_by_age on idempotency_keys (created_at);
