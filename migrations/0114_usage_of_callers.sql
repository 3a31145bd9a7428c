-- Requests of callers by UTC day.

-- Without a foreign key: a caller may be deleted while its counts are written. Rows are updated each second, in the room that
-- the fill factor leaves.
create table caller_usage (
    caller_id bigint not null,
    day       date   not null,
    admitted  bigint not null,
    refused   bigint not null,
    primary key (caller_id, day)
) with (fillfactor = 50);

create index caller_usage_by_day on caller_usage (day); -- for the purge
