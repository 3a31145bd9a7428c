-- First responses to requests with an Idempotency-Key, replayed for 24 hours. Each is stored in the transaction of its
-- change, so that neither exists without the other.

create table idempotency_keys (
    caller      text        not null,
    key         text        not null,
    -- SHA-256 of the request: the same key with another request is an error of the client.
    fingerprint bytea       not null,
    -- Status, headers and body of the response.
    answer      jsonb       not null,
    created_at  timestamptz not null default now(),
    primary key (caller, key)
);

create index idempotency_keys_by_age on idempotency_keys (created_at); -- for the purge
