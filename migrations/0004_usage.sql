-- What callers have used of their plans.
--
-- A bucket is whoever a limit is counted for: 'caller:7', or 'address:192.0.2.1' for those without a name.

-- Requests of a UTC day, by this database's clock. Durable: a restart admits nothing twice.
create table daily_usage (
    bucket  text   not null,
    day     date   not null,
    used    bigint not null,
    -- How many the statement that wrote this row was given; read by that statement alone.
    granted bigint not null,

    primary key (bucket, day)
);

-- For the sweep of days that are over.
create index daily_usage_by_day on daily_usage (day);

-- Times of admission in the last minute, oldest first, when several replicas share a limit. Unlogged: it is
-- worth a minute at most. A crash of PostgreSQL empties it; then each replica's own log stands in.
create unlogged table minute_usage (
    bucket   text          primary key,
    admitted timestamptz[] not null
) with (fillfactor = 50);

-- One decision over both windows: when one refuses, the other is not spent. The row of the bucket is locked
-- first, so all replicas decide one after the other, and the clock is read behind that lock.
create function admit_request(
    who text, per_minute bigint, per_day bigint,
    out admitted boolean, out admitted_at timestamptz, out minute_used bigint,
    out minute_free_in double precision,
    out day date, out day_used bigint, out day_ends_in double precision
) language plpgsql as $$
declare
    log timestamptz[];
begin
    -- For this transaction alone, which may come through a pooler. After a crash of PostgreSQL a count may
    -- lack its last moments, which no client was promised.
    perform set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '250ms', true);

    insert into minute_usage as m (bucket, admitted) values (who, '{}')
    on conflict (bucket) do update set bucket = excluded.bucket
    returning m.admitted into log;

    admitted_at := clock_timestamp();
    day := (admitted_at at time zone 'utc')::date;
    day_ends_in := extract(epoch from (day + 1)::timestamp - (admitted_at at time zone 'utc'));
    log := array(select t from unnest(log) with ordinality as l (t, n)
                 where t > admitted_at - interval '60 seconds' order by n);
    select coalesce(sum(used), 0) into day_used
    from daily_usage d where d.bucket = who and d.day = admit_request.day;

    admitted := (per_minute is null or cardinality(log) < per_minute)
                and (per_day is null or day_used < per_day);
    if admitted then
        if per_minute is not null then
            log := log || admitted_at;
        end if;
        day_used := day_used + 1;
        insert into daily_usage as d (bucket, day, used, granted) values (who, admit_request.day, 1, 1)
        on conflict on constraint daily_usage_pkey do update set used = d.used + 1, granted = 1;
    end if;
    update minute_usage m set admitted = log where m.bucket = who;
    minute_used := cardinality(log);
    -- The admission whose leaving makes room: not the oldest when a plan became smaller.
    minute_free_in := coalesce(extract(epoch from
        log[greatest(minute_used - coalesce(per_minute, minute_used), 0) + 1]
        + interval '60 seconds' - admitted_at), 0);
end
$$;

-- Undoes one admission; locks in the same order.
create function take_back_request(who text, at timestamptz, on_day date) returns void
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '250ms', true);
    update minute_usage set admitted = array_remove(admitted, at) where bucket = who;
    update daily_usage set used = greatest(used - 1, 0) where bucket = who and day = on_day;
end
$$;
