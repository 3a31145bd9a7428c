-- Shares of webhooks, new secrets, tests and attempts. .github/decisions/0023-webhooks.md states the design.

alter table webhooks
    -- True if the last answer was a failure or slow: then the webhook has a smaller share of the requests.
    add column is_slow          boolean not null default false,
    -- Key before the last rotation, with which requests are signed, too, until its overlap ends.
    add column old_secret       bytea,
    add column old_secret_until timestamptz,
    -- A test is in progress until then at the latest.
    add column test_until       timestamptz;

-- Last attempts of each webhook, in one row, which a turn writes once: an array, the newest first.
create table webhook_attempts (
    webhook_id bigint primary key references webhooks on delete cascade,
    attempts   jsonb not null
);

-- Tests are no longer deliveries.
delete from webhook_retries where kind = 'test';
