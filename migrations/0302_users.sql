-- User accounts. Each has a caller of its own, since plans, scopes, credentials and orders belong to callers.

create sequence user_ids as bigint minvalue 1 maxvalue 9007199254740991;

create table users (
    id            bigint  primary key default nextval('user_ids'),
    caller_id     bigint  not null references callers on delete cascade,
    username      text    not null,
    -- The username without case, as the service folds it: lower() depends on the locale of the database.
    folded        text    not null,
    first_name    text, last_name text, email text, phone text,
    user_status   integer not null default 0,
    -- PHC string: Argon2id with its parameters and salt. Null if login is not possible.
    password_hash text,
    created_at    timestamptz not null default now(),
    constraint users_caller_unique unique (caller_id),
    constraint users_username_unique unique (folded),
    constraint users_username_length check (char_length(username) between 1 and 64)
);
