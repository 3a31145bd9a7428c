-- The order in which pets were created, whatever their ids: the newest first. Pets of before have 0, and come last.

-- Two steps: the default of existing rows is a constant, so that none of them is written.
alter table pets add column created_order bigint not null default 0;
-- The sequence of versions, which only ascends, too. A deleted pet that is created again is a new one.
alter table pets alter column created_order set default nextval('pet_versions');
-- Of the pet, as its status is.
alter table pet_tags add column created_order bigint not null default 0;

create or replace function add_pet_tags() returns trigger language plpgsql as $$ begin
    insert into pet_tags (tag, pet_id, status, created_order)
    select distinct tag, id, added.status, added.created_order from added cross join lateral unnest(tag_names) as tag
    where char_length(tag) between 1 and 255
    order by tag, id;
    return null;
end $$;

create or replace function change_pet_tags() returns trigger language plpgsql as $$ begin
    -- Most changes leave the tags and the status as they are.
    if exists (select id, status, tag_names from added except select id, status, tag_names from deleted) then
        delete from pet_tags where ctid = any (array(
            select found.ctid from (
                select id, tag from deleted cross join lateral pet_search_names(tag_names) as tag
                except
                select id, tag from added cross join lateral pet_search_names(tag_names) as tag
            ) former
            cross join lateral (select ctid from pet_tags where tag = former.tag and pet_id = former.id offset 0) found
        ));
        insert into pet_tags (tag, pet_id, status, created_order)
        select tag, id, added.status, added.created_order from added cross join lateral pet_search_names(tag_names) as tag
        on conflict (tag, pet_id) do update set status = excluded.status
            where pet_tags.status is distinct from excluded.status;
    end if;
    return null;
end $$;
