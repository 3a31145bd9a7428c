-- Record of changes: audit trail and feed. .github/decisions/0021-record-of-changes.md states the design.

-- Changes that are not published yet. Without an index: a writer waits for nothing else.
create table new_changes (
    -- Drawn behind the lock of the changed row. The sequence has no cache, so that the numbers are in the order of their use.
    seq        bigint generated always as identity,
    at         timestamptz not null default clock_timestamp(),
    kind       text        not null,
    -- Identifier of the resource; those of images are not numbers.
    resource   text        not null,
    action     text        not null,
    -- Version of a pet after the change.
    version    bigint,
    -- Caller that an order or an account belongs to. No foreign key: the record outlives the caller.
    owner      bigint,
    -- Name of the caller that made the change: it may be deleted later.
    actor      text,
    request_id text,
    data       jsonb
);

-- Published changes. Positions are microseconds since 1970, or the last position + 1 if that is greater, so that they are not
-- given again after a restore or a failover.
create table changes (
    position   bigint      primary key,
    at         timestamptz not null,
    kind       text        not null,
    resource   text        not null,
    action     text        not null,
    version    bigint,
    owner      bigint,
    actor      text,
    request_id text,
    data       jsonb
);

create index changes_by_resource on changes (kind, resource, position); -- for the history of a resource

-- The last position, locked while changes are published.
create table changes_clock (
    is_only  boolean primary key default true,
    position bigint  not null,
    constraint changes_clock_has_one_row check (is_only)
);

-- A first row, so that the newest position always has a row and every cursor can be checked.
with first as (
    insert into changes (position, at, kind, resource, action)
    select (extract(epoch from now()) * 1000000)::bigint, now(), 'feed', '', 'created'
    returning position
)
insert into changes_clock (position) select position from first;
