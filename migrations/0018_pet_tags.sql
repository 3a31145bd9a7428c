-- The names of the tags of each pet, in the order of a search by tag: a search reads one range of the primary key for
-- each name, and no more of it than the page needs. The GIN index of 0001 has no order, so that PostgreSQL chose between
-- it and a scan of all pets by a guess at the frequency of the name. Replicas of the previous release still use that
-- index; the next release drops it.
--
-- Statement triggers keep this table, so that those replicas and plain SQL are included. 0019 adds the existing pets.

create table pet_tags (
    -- Compared by bytes, which is the fastest comparison, and never changes with the operating system.
    tag    text   collate "C" not null,
    -- No foreign key: it would cost a lookup per row, and the triggers delete the rows of a deleted pet.
    pet_id bigint not null,

    primary key (tag, pet_id)
);

-- The names of a pet by which it can be found. The API accepts no longer ones; plain SQL does, but an index entry has
-- at most 2,704 bytes.
create function pet_search_names(tag_names text[]) returns setof text
    language sql immutable parallel safe
    as $$ select distinct tag from unnest(tag_names) as tag where char_length(tag) between 1 and 255 $$;

create function add_pet_tags() returns trigger language plpgsql as $$
begin
    insert into pet_tags (tag, pet_id)
    select tag, id from added cross join lateral pet_search_names(tag_names) as tag
    on conflict do nothing;
    return null;
end
$$;

create function delete_pet_tags() returns trigger language plpgsql as $$
begin
    delete from pet_tags
    using (select id, tag from deleted cross join lateral pet_search_names(tag_names) as tag) former
    where pet_tags.tag = former.tag and pet_id = former.id;
    return null;
end
$$;

create function change_pet_tags() returns trigger language plpgsql as $$
begin
    -- Most changes leave the tags as they are.
    if exists (select id, tag_names from added except select id, tag_names from deleted) then
        delete from pet_tags
        using (
            select id, tag from deleted cross join lateral pet_search_names(tag_names) as tag
            except
            select id, tag from added cross join lateral pet_search_names(tag_names) as tag
        ) former
        where pet_tags.tag = former.tag and pet_id = former.id;

        insert into pet_tags (tag, pet_id)
        select tag, id from added cross join lateral pet_search_names(tag_names) as tag
        on conflict do nothing;
    end if;
    return null;
end
$$;

create function delete_all_pet_tags() returns trigger language plpgsql as $$
begin
    truncate pet_tags;
    return null;
end
$$;

create trigger pets_added_tags after insert on pets referencing new table as added
    for each statement execute function add_pet_tags();
create trigger pets_deleted_tags after delete on pets referencing old table as deleted
    for each statement execute function delete_pet_tags();
create trigger pets_changed_tags after update on pets referencing old table as deleted new table as added
    for each statement execute function change_pet_tags();
create trigger pets_truncated_tags after truncate on pets
    for each statement execute function delete_all_pet_tags();
