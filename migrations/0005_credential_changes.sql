-- Every process remembers credentials for a while. These tell it, at the commit of a change, which one to
-- look up anew: the hash, in hexadecimal, or '*' for all, since a caller may have any number.

create function notify_credential_changed() returns trigger language plpgsql as $$
begin
    perform pg_notify('credentials', encode(coalesce(new.hash, old.hash), 'hex'));
    return null;
end
$$;

create trigger credentials_changed after insert or update or delete on credentials
    for each row execute function notify_credential_changed();

create function notify_callers_changed() returns trigger language plpgsql as $$
begin
    perform pg_notify('credentials', '*');
    return null;
end
$$;

create trigger callers_changed after update or delete on callers
    for each statement execute function notify_callers_changed();
