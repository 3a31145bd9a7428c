-- no-transaction
-- Adds the tags of the pets that existed before 0018, a thousand pets at a time, so that no change of a pet waits for
-- longer than a thousand need. The share lock keeps a pet from being changed between the reading and the writing of its
-- tags. If this is interrupted, it begins again, and skips what it has added.
--
-- In a transaction, as behind a transaction pooler, it cannot commit in between: there, changes of pets wait until the
-- end of the migration. A transaction is older than its current statement.
do $$
declare
    last_id bigint := 0;
    next_id bigint;
    may_commit boolean := now() = statement_timestamp();
begin
    loop
        with page as (
            select id, tag_names from pets where id > last_id order by id limit 1000 for share
        ), tags as (
            insert into pet_tags (tag, pet_id)
            select tag, id from page cross join lateral pet_search_names(tag_names) as tag
            on conflict do nothing
        )
        select max(id) into next_id from page;
        exit when next_id is null;
        last_id := next_id;
        if may_commit then
            commit;
        end if;
    end loop;
end
$$;
