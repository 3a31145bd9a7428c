-- Use of the limits of callers: a replica leases requests of the current slice, one second of this database's clock.
-- .github/decisions/0001-leased-slices.md states the algorithm.

create table limit_usage (
    -- 'caller:7', or 'address:192.0.2.1' for an anonymous caller.
    key           text      primary key,
    -- UTC day that day_used counts.
    day           date      not null default (now() at time zone 'utc')::date,
    day_used      bigint    not null default 0,
    -- UTC day that `day` was before a step of the clock, and its use: a day that the clock left is resumed.
    left_day      date,
    left_day_used bigint,
    -- Newest slice, in seconds since 1970. Moves backward only if this clock is late by more than a slice.
    slice         bigint    not null default 0,
    -- Requests leased in each of the 61 slices up to `slice`, oldest first. Any 60 s touch at most 61 slices.
    slices        integer[] not null default array_fill(0, array[61]),
    -- Last statement of each replica, the latest first, of at most 32. Four elements each: replica (a random number),
    -- number of the statement, its slice, its grant.
    statements    bigint[]  not null default '{}'
) with (fillfactor = 50);

create index limit_usage_by_day on limit_usage (day); -- for the purge

-- Leases requests to callers. The keys must be sorted, so that two replicas never deadlock. In PL/pgSQL, because one
-- statement of plain SQL takes twice as long. Each expression is prepared again in each transaction, so there are few;
-- and variables cost less than a record.
-- `latests`: latest slice that the clock can show unless it was set forward, by the replica's own clock; beyond it, a row is
-- returned as it is, with is_ahead. `last_befores`: last slice before a step forward; what a row has used up to it counts as used
-- now.
create function lease_requests(
    keys text[], per_minutes bigint[], per_days bigint[], waitings bigint[], wanteds bigint[],
    returned_slices bigint[], returneds bigint[], replicas bigint[], numbers bigint[], unconfirmeds bigint[],
    latests bigint[], last_befores bigint[]
) returns table (
    granted bigint, slice bigint, slice_ends_in double precision, slice_used bigint, last_slice_used bigint,
    -- Use of the 61 slices, and the time until a slice leaves them and the limit has capacity for more.
    minute_used bigint, minute_frees_in double precision,
    day_used bigint, day_ends_in double precision,
    is_ahead boolean
) language plpgsql as $$
declare
    -- The row.
    row_day date; row_slice bigint; used integer[]; executed bigint[];
    is_before_step boolean; resumed_day date; resumed_used bigint;
    clock double precision; second bigint; today date;
    -- Position of the replica's last statement in `executed`, and its number.
    stored integer; last_number bigint;
    waiting bigint; wanted bigint; returned bigint; returned_slice bigint;
    place integer; n integer; gone bigint; room bigint; excess bigint;
begin
    for i in 1..cardinality(keys) loop
        select l.day, l.day_used, l.slice, l.slices, l.statements into row_day, day_used, row_slice, used, executed
        from limit_usage l where l.key = keys[i] for update;
        if not found then
            -- The caller's first request since the purge.
            insert into limit_usage (key) values (keys[i]) on conflict do nothing;
            select l.day, l.day_used, l.slice, l.slices, l.statements into row_day, day_used, row_slice, used, executed
            from limit_usage l where l.key = keys[i] for update;
        end if;
        -- Behind the lock: the row may have been waited for.
        clock := extract(epoch from clock_timestamp());
        second := floor(clock);
        today := date 'epoch' + (second / 86400)::int;
        is_before_step := row_slice <= last_befores[i]; -- or null
        if second > latests[i] and is_before_step is not true then
            return query select 0::bigint, second, 0::float8, 0::bigint, 0::bigint, 0::bigint, 0::float8, 0::bigint,
                                0::float8, true;
            continue;
        end if;
        waiting := waitings[i]; wanted := wanteds[i];
        returned := returneds[i]; returned_slice := returned_slices[i];

        -- Where the replica's last statement is, or would be appended.
        stored := coalesce(array_position(executed, replicas[i]), cardinality(executed) + 1);
        last_number := coalesce(executed[stored + 1], 0);
        if last_number = 0 then
            -- The replica's first statement, or the first for long: what it returns may have been returned before.
            returned := 0;
        elsif last_number >= numbers[i] then
            -- Executed after a later one: its response was given up, so it neither leases nor returns.
            waiting := 0; wanted := 0; returned := 0;
        elsif last_number >= unconfirmeds[i] then
            -- The statement with the lost response was executed: it has returned the rest, and its grant is unused.
            returned_slice := executed[stored + 2];
            returned := executed[stored + 3];
        end if;
        if returned > 0 then
            place := least(61 - (row_slice - returned_slice), 62);
            if place between 1 and 61 then used[place] := greatest(used[place] - returned, 0); end if;
            if row_day = date 'epoch' + (returned_slice / 86400)::int then
                day_used := greatest(day_used - returned, 0);
            end if;
        end if;

        -- The window moves on to the current slice, which is never behind the row's.
        minute_used := 0;
        foreach n in array used loop minute_used := minute_used + n; end loop;
        slice := greatest(row_slice, second);
        if is_before_step or row_slice > second + 1 then
            -- A new primary whose clock is late, or a step forward: the whole window counts as used just now.
            slice := second;
            used := array_fill(0, array[60]) || minute_used::int;
            -- The slices of earlier grants will come again: nothing of those may be returned to them.
            executed := '{}';
        elsif slice >= row_slice + 61 then
            used := array_fill(0, array[61]);
            minute_used := 0;
        elsif slice > row_slice then
            place := slice - row_slice;
            for j in 1..place loop minute_used := minute_used - used[j]; end loop;
            used := used[place + 1:] || array_fill(0, array[place]);
        end if;
        if row_day <> today then
            select l.left_day, l.left_day_used into resumed_day, resumed_used from limit_usage l where l.key = keys[i];
            update limit_usage l set left_day = row_day, left_day_used = lease_requests.day_used where l.key = keys[i];
            if resumed_day = today then
                day_used := resumed_used;
            elsif row_day < today then
                day_used := 0;
            end if; -- Otherwise the use of today is unknown: that of the later day counts.
            row_day := today;
        end if;

        -- Beyond the requests that wait, at most half of the rest, so that replicas do not starve each other.
        room := greatest(least(per_minutes[i] - minute_used, per_days[i] - day_used), 0);
        granted := least(room, waiting + least(wanted - waiting, greatest(room - waiting, 0) / 2));
        used[61] := used[61] + granted;
        minute_used := minute_used + granted;
        day_used := day_used + granted;
        if numbers[i] > last_number then
            executed := (array[replicas[i], numbers[i], slice, granted]
                             || executed[:stored - 1] || executed[stored + 4:])[:128];
        end if;
        update limit_usage l
        set day = row_day, day_used = lease_requests.day_used, slice = lease_requests.slice, slices = used,
            statements = executed
        where l.key = keys[i];

        slice_used := used[61]; last_slice_used := used[60];
        slice_ends_in := slice + 1 - clock;
        day_ends_in := (row_day - date 'epoch' + 1) * 86400::double precision - clock;
        is_ahead := false;
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
