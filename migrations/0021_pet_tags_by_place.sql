-- Deletes the entries of pet_tags by ctid. The joins of 0018 have two plans, and statistics of pet_tags decide between
-- them: one reads the whole table for each change of a pet.

create or replace function delete_pet_tags() returns trigger language plpgsql as $$
begin
    delete from pet_tags where ctid = any (array(
        select found.ctid
        from deleted
        cross join lateral pet_search_names(tag_names) as former
        cross join lateral (select ctid from pet_tags where tag = former and pet_id = id offset 0) found
    ));
    return null;
end
$$;

create or replace function change_pet_tags() returns trigger language plpgsql as $$
begin
    -- Most changes leave the tags as they are.
    if exists (select id, tag_names from added except select id, tag_names from deleted) then
        delete from pet_tags where ctid = any (array(
            select found.ctid
            from (
                select id, tag from deleted cross join lateral pet_search_names(tag_names) as tag
                except
                select id, tag from added cross join lateral pet_search_names(tag_names) as tag
            ) former
            cross join lateral (
                select ctid from pet_tags where tag = former.tag and pet_id = former.id offset 0
            ) found
        ));

        insert into pet_tags (tag, pet_id)
        select tag, id from added cross join lateral pet_search_names(tag_names) as tag
        on conflict do nothing;
    end if;
    return null;
end
$$;
