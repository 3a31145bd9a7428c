-- Numbers the lease statements of each replica, in place of an identifier of the row's last lease: a statement with a lost
-- response is undone even if other replicas have leased since, and one that is executed late has no effect.

alter table limit_usage drop column lease_id, drop column lease_granted;
-- The last statement of each replica, the latest first, of at most 32 replicas. Four elements each: replica (a random
-- identifier), number of the statement, its slice, its grant.
alter table limit_usage add column statements bigint[] not null default '{}';

drop function lease_requests;

-- Leases requests to callers, in the order of their keys, so that two replicas never deadlock. The contract, "Plans and
-- limits", states the algorithm.
create function lease_requests(
    keys text[], per_minutes bigint[], per_days bigint[], waitings bigint[], wanteds bigint[],
    returned_slices bigint[], returneds bigint[], replicas bigint[], numbers bigint[], unconfirmeds bigint[]
) returns table (
    -- Position of the request in the arrays.
    request bigint, granted bigint, slice bigint, slice_ends_in double precision, slice_used bigint, last_slice_used bigint,
    -- Use of the 61 slices, and the time until a slice leaves them and the limit has capacity for more.
    minute_used bigint, minute_frees_in double precision,
    day_used bigint, day_ends_in double precision
) language plpgsql as $$
declare
    asked record;
    u limit_usage;
    clock double precision;
    second bigint;
    today date;
    now_used integer[];
    stored integer;
    place integer;
    n integer;
    gone bigint;
    room bigint;
begin
    for asked in
        select * from unnest(keys, per_minutes, per_days, waitings, wanteds, returned_slices, returneds,
                             replicas, numbers, unconfirmeds) with ordinality
            as a (key, per_minute, per_day, waiting, wanted, returned_slice, returned,
                  replica, number, unconfirmed, position)
        order by 1
    loop
        select * into u from limit_usage l where l.key = asked.key for update;
        if not found then
            -- The caller's first request since the purge.
            insert into limit_usage (key) values (asked.key) on conflict do nothing;
            select * into u from limit_usage l where l.key = asked.key for update;
        end if;
        -- Behind the lock: the row may have been waited for.
        clock := extract(epoch from clock_timestamp());
        second := floor(clock);
        today := date 'epoch' + (second / 86400)::int;
        request := asked.position;
        now_used := u.slices;
        day_used := u.day_used;

        -- Where the replica's last statement is, or would be appended.
        stored := coalesce(array_position(u.statements, asked.replica), cardinality(u.statements) + 1);
        if u.statements[stored] is null then
            -- The replica's first statement, or the first for long: what it returns may have been returned before.
            asked.returned := 0;
        elsif u.statements[stored + 1] >= asked.number then
            -- Executed after a later one: its response was given up, so it neither leases nor returns.
            asked.waiting := 0;
            asked.wanted := 0;
            asked.returned := 0;
            asked.number := 0;
        elsif u.statements[stored + 1] >= asked.unconfirmed then
            -- The statement with the lost response was executed: it has returned the rest, and its grant is unused.
            asked.returned_slice := u.statements[stored + 2];
            asked.returned := u.statements[stored + 3];
        end if;
        if asked.returned > 0 then
            place := least(61 - (u.slice - asked.returned_slice), 62);
            if place between 1 and 61 then
                now_used[place] := greatest(now_used[place] - asked.returned, 0);
            end if;
            if u.day = date 'epoch' + (asked.returned_slice / 86400)::int then
                day_used := greatest(day_used - asked.returned, 0);
            end if;
        end if;

        -- The window moves on to the current slice, which is never behind the row's.
        minute_used := 0;
        foreach n in array now_used loop
            minute_used := minute_used + n;
        end loop;
        slice := greatest(u.slice, second);
        if u.slice > second + 1 then
            -- A new primary whose clock is late: the whole window counts as used just now.
            slice := second;
            now_used := array_fill(0, array[60]) || minute_used::int;
            -- The slices of earlier grants will come again: nothing of those may be returned to them.
            u.statements := '{}';
        elsif slice >= u.slice + 61 then
            now_used := array_fill(0, array[61]);
            minute_used := 0;
        elsif slice > u.slice then
            place := slice - u.slice;
            for i in 1..place loop
                minute_used := minute_used - now_used[i];
            end loop;
            now_used := now_used[place + 1:] || array_fill(0, array[place]);
        end if;
        if u.day < today or u.day > today + 1 then
            if u.day < today then
                day_used := 0;
            end if;
            u.day := today;
        end if;

        -- Beyond the requests that wait, at most half of the rest, so that replicas do not starve each other.
        room := greatest(least(asked.per_minute - minute_used, asked.per_day - day_used), 0);
        granted := least(room, asked.waiting + least(asked.wanted - asked.waiting, greatest(room - asked.waiting, 0) / 2));
        now_used[61] := now_used[61] + granted;
        minute_used := minute_used + granted;
        day_used := day_used + granted;
        if asked.number > coalesce(u.statements[stored + 1], 0) then
            u.statements := (array[asked.replica, asked.number, slice, granted]
                             || u.statements[:stored - 1] || u.statements[stored + 4:])[:128];
        end if;
        update limit_usage l
        set day = u.day, day_used = lease_requests.day_used, slice = lease_requests.slice, slices = now_used,
            statements = u.statements
        where l.key = asked.key;
        slice_used := now_used[61];
        last_slice_used := now_used[60];
        slice_ends_in := slice + 1 - clock;
        gone := 0;
        minute_frees_in := 0;
        for i in 1..61 loop
            gone := gone + now_used[i];
            if gone > 0 and (asked.per_minute is null or minute_used - gone < asked.per_minute) then
                minute_frees_in := slice_ends_in + i - 1;
                exit;
            end if;
        end loop;
        day_ends_in := (u.day - date 'epoch' + 1) * 86400::double precision - clock;
        return next;
    end loop;
end
$$;
