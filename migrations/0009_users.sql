-- User accounts, and the sessions that they log in to.
--
-- Each account is a caller of its own, 'user:' and its number: plans, limits, scopes, credentials and orders
-- are a caller's, whoever it is. The caller does not have the name that a person chose: operators name callers
-- as they like, names of accounts change, and log lines hold no more than a number.

create sequence user_ids as bigint minvalue 1 maxvalue 9007199254740991;

create table users (
    id            bigint  primary key default nextval('user_ids'),
    caller_id     bigint  not null references callers on delete cascade,
    username      text    not null,
    -- Without its case, as the service folds it: PostgreSQL's lower() does so by the locale of the
    -- database, and in "C" for ASCII alone.
    folded        text    not null,
    first_name    text,
    last_name     text,
    email         text,
    phone         text,
    user_status   integer not null default 0,
    -- A PHC string: argon2id with its parameters and salt. Null: nobody can log in.
    password_hash text,
    created_at    timestamptz not null default now(),

    constraint users_caller_unique unique (caller_id),
    constraint users_username_unique unique (folded),
    constraint users_username_length check (char_length(username) between 1 and 64)
);

-- A session is a credential like any other, and ends by itself.
alter table credentials
    drop constraint credentials_kind_known,
    add constraint credentials_kind_known
        check (kind in ('api_key', 'client_secret', 'access_token', 'session')),
    add constraint credentials_sessions_end check (kind <> 'session' or expires_at is not null);

-- For the sweep of sessions that have ended.
create index credentials_sessions_by_expiry on credentials (expires_at) where kind = 'session';
