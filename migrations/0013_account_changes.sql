-- Anybody may make accounts and delete them: that must not empty every process's memory of credentials. The caller
-- of an account is shown by its credentials alone, and those that go with it are told one by one. Other callers
-- may be known by an outside issuer's tokens, which are no rows of ours: with one of them all is looked up anew.

drop trigger callers_changed on callers;

create trigger callers_changed after update on callers
    for each statement execute function notify_callers_changed();

create trigger callers_deleted after delete on callers
    for each row when (old.name not like 'user:%') execute function notify_callers_changed();
