-- API keys: no hints of chosen ones, and the time of the last use.

-- A hint has eight characters. Of a key that was chosen rather than generated (BOOTSTRAP_API_KEY and the demo keys), this
-- can be half. Generated keys begin with pik_, and their hints reveal 4 of 32 random characters.
update credentials set hint = ''
where kind = 'api_key'
  and (hint not like 'pik\_%' or caller_id in (select id from callers where name = 'bootstrap'));

-- To the minute.
alter table credentials add column last_used_at timestamptz;

-- As in 0005, except that a new time of the last use alone is not a change: otherwise each key in use would leave the
-- caches of all replicas every minute.
create or replace function notify_credential_changed() returns trigger language plpgsql as $$
begin
    if tg_op = 'UPDATE' and new.last_used_at is distinct from old.last_used_at then
        return null;
    end if;
    perform pg_notify('credentials', encode(coalesce(new.hash, old.hash), 'hex'));
    return null;
end
$$;
