-- Use of the limits of callers: a replica leases requests of the current slice, one second of this database's clock.
-- .github/decisions/0001-leased-slices.md states the algorithm.

create table limit_usage (
    -- 'caller:7', or 'address:192.0.2.1' for an anonymous caller.
    key           text      primary key,
    -- UTC day that day_used counts.
    day           date      not null default (now() at time zone 'utc')::date,
    day_used      bigint    not null default 0,
    -- Newest slice, in seconds since 1970. Moves backward only if this clock is late by more than a slice.
    slice         bigint    not null default 0,
    -- Requests leased in each of the 61 slices up to `slice`, oldest first. Any 60 s touch at most 61 slices.
    slices        integer[] not null default array_fill(0, array[61])
) with (fillfactor = 50);

create index limit_usage_by_day on limit_usage (day); -- for the purge

-- Leases requests to callers. The keys must be sorted, so that two replicas never deadlock. In PL/pgSQL, because one
-- statement of plain SQL takes twice as long. Each expression is prepared again in each transaction, so there are few;
-- and variables cost less than a record.
create function lease_requests(
    keys text[], per_minutes bigint[], per_days bigint[], waitings bigint[], wanteds bigint[],
    returned_slices bigint[], returneds bigint[]
) returns table (
    granted bigint, slice bigint, slice_ends_in double precision, slice_used bigint, last_slice_used bigint,
    -- Use of the 61 slices, and the time until a slice leaves them and the limit has capacity for more.
    minute_used bigint, minute_frees_in double precision,
    day_used bigint, day_ends_in double precision
) language plpgsql as $$
declare
    -- The row.
    row_day date; row_slice bigint; used integer[];
    clock double precision; second bigint; today date;
    place integer; n integer; gone bigint; room bigint; excess bigint;
begin
    for i in 1..cardinality(keys) loop
        select l.day, l.day_used, l.slice, l.slices into row_day, day_used, row_slice, used
        from limit_usage l where l.key = keys[i] for update;
        if not found then
            -- The caller's first request since the purge.
            insert into limit_usage (key) values (keys[i]) on conflict do nothing;
            select l.day, l.day_used, l.slice, l.slices into row_day, day_used, row_slice, used
            from limit_usage l where l.key = keys[i] for update;
        end if;
        -- Behind the lock: the row may have been waited for.
        clock := extract(epoch from clock_timestamp());
        second := floor(clock);
        today := date 'epoch' + (second / 86400)::int;

        if returneds[i] > 0 then
            place := least(61 - (row_slice - returned_slices[i]), 62);
            if place between 1 and 61 then used[place] := greatest(used[place] - returneds[i], 0); end if;
            if row_day = date 'epoch' + (returned_slices[i] / 86400)::int then
                day_used := greatest(day_used - returneds[i], 0);
            end if;
        end if;

        -- The window moves on to the current slice, which is never behind the row's.
        minute_used := 0;
        foreach n in array used loop minute_used := minute_used + n; end loop;
        slice := greatest(row_slice, second);
        if row_slice > second + 1 then
            -- A new primary whose clock is late: the whole window counts as used just now.
            slice := second;
            used := array_fill(0, array[60]) || minute_used::int;
        elsif slice >= row_slice + 61 then
            used := array_fill(0, array[61]);
            minute_used := 0;
        elsif slice > row_slice then
            place := slice - row_slice;
            for j in 1..place loop minute_used := minute_used - used[j]; end loop;
            used := used[place + 1:] || array_fill(0, array[place]);
        end if;
        if row_day <> today then
            if row_day < today then day_used := 0; end if; -- Otherwise the use of today is unknown: that of the later day counts.
            row_day := today;
        end if;

        -- Beyond the requests that wait, at most half of the rest, so that replicas do not starve each other.
        room := greatest(least(per_minutes[i] - minute_used, per_days[i] - day_used), 0);
        granted := least(room, waitings[i] + least(wanteds[i] - waitings[i], greatest(room - waitings[i], 0) / 2));
        used[61] := used[61] + granted;
        minute_used := minute_used + granted;
        day_used := day_used + granted;
        update limit_usage l
        set day = row_day, day_used = lease_requests.day_used, slice = lease_requests.slice, slices = used
        where l.key = keys[i];

        slice_used := used[61]; last_slice_used := used[60];
        slice_ends_in := slice + 1 - clock;
        day_ends_in := (row_day - date 'epoch' + 1) * 86400::double precision - clock;
        minute_frees_in := 0;
        gone := 0;
        excess := greatest(minute_used - per_minutes[i], 0);
        for j in 1..61 loop
            gone := gone + used[j];
            if gone > excess then
                minute_frees_in := slice_ends_in + j - 1;
                exit;
            end if;
        end loop;
        return next;
    end loop;
end $$;

-- Requests of callers by UTC day, for people. Without a foreign key: a caller may be deleted while its counts are written. Rows are
-- updated each second, in the room that the fill factor leaves.
create table caller_usage (
    caller_id bigint not null,
    day       date   not null,
    admitted  bigint not null,
    refused   bigint not null,
    primary key (caller_id, day)
) with (fillfactor = 50);

create index caller_usage_by_day on caller_usage (day); -- for the purge
