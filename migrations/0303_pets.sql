-- Pets, with the names of their tags and their folded names for searches, and the names of tags in use for suggestions.

-- Ids that the service assigns. Clients may choose any id of the same range; an insert skips those in use.
create sequence pet_ids as bigint minvalue 1 maxvalue 9007199254740991;
-- Common to all pets: a pet that is created again under its old id has no version that a client holds as an ETag.
create sequence pet_versions as bigint;

-- Immutable, so that a generated column may use it. A tag without a name is a null in the array. PostgreSQL plans a function in SQL again
-- in each statement that adds or changes pets, which takes a fifth of the time to add one pet; one in PL/pgSQL is planned once for each
-- connection. A loop, since a query would start the executor for each pet.
create function pet_tag_names(details json) returns text[] language plpgsql immutable strict parallel safe as $$
declare tags jsonb := coalesce(details -> 'tags', '[]'); names text[] := '{}';
begin
    for i in 0 .. jsonb_array_length(tags) - 1 loop names := names || (tags -> i ->> 'name'); end loop;
    return names;
end $$;

create table pets (
    id          bigint primary key,
    version     bigint not null default nextval('pet_versions'),
    status      text   not null,
    -- The pet as clients read it, but id and status: {"category":…,"name":…,"photoUrls":[…],"tags":[…]}. Not jsonb, which is converted to
    -- text for each read. Without compression, pg_column_size returns the size that a client gets, and reads nothing: finds end a page by it.
    details     json   not null,
    -- The name without case, as the service folds it: lower() depends on the locale of the database. Null until the service has
    -- folded it: for pets that plain SQL or a restore has added or renamed.
    folded_name text collate "C",
    tag_names   text[] not null generated always as (pet_tag_names(details)) stored,
    constraint pets_id_in_range check (id between 1 and 9007199254740991),
    constraint pets_status_known check (status in ('available', 'pending', 'sold')),
    -- The service has checked what it has folded: to parse it again would take an eighth of the time to add a pet, or to order one.
    constraint pets_details_valid check (json_typeof(details) = 'object' and (folded_name is not null or (
        (jsonb_typeof(details::jsonb -> 'name'), jsonb_typeof(details::jsonb -> 'photoUrls'), jsonb_typeof(details::jsonb -> 'tags'))
            is not distinct from ('string', 'array', 'array')
        and char_length(details ->> 'name') between 1 and 255 and not details::jsonb ?| '{id,status}')))
);
alter table pets alter column details set storage external;

-- A search names the status and the id together, so that no other index can be used for it.
create index pets_by_status on pets (status, id);
-- For searches by a prefix of the name. An expression, so that no other index has its order.
create index pets_by_name on pets ((status || ':' || folded_name), id);

-- Names of tags in the order of a search, which reads one range of the primary key per name, no longer than its page.
-- Statement triggers maintain the table, so that changes by plain SQL are included.
create table pet_tags (
    -- Compared by bytes, which is the fastest comparison and does not change with the operating system.
    tag    text   collate "C" not null,
    -- No foreign key: it would cost a lookup per row, and the triggers delete the rows of a deleted pet.
    pet_id bigint not null,
    -- Of the pet.
    status text   not null,
    primary key (tag, pet_id)
);

-- Pets with a status and a tag are one range of it. An expression, so that no other index has its order; PostgreSQL does not end the scan of
-- an index by status and tag at the tag.
create index pet_tags_by_status on pet_tags ((status || ':' || tag), pet_id);

-- The API accepts no longer names. Plain SQL does, but an index entry has at most 2,704 bytes.
create function pet_search_names(tag_names text[]) returns setof text language sql immutable parallel safe
    as $$ select distinct tag from unnest(tag_names) as tag where char_length(tag) between 1 and 255 $$;

-- Distinct once for all rows, and in the order of the index: "on conflict" looks up each row first, and writes it in two steps. A new
-- pet has no row here, since the triggers delete those of a deleted one.
create function add_pet_tags() returns trigger language plpgsql as $$ begin
    insert into pet_tags (tag, pet_id, status)
    select distinct tag, id, added.status from added cross join lateral unnest(tag_names) as tag
    where char_length(tag) between 1 and 255
    order by tag, id;
    return null;
end $$;

-- Deletes by ctid: a join has two plans, and with some statistics PostgreSQL reads the whole table for each change.
create function delete_pet_tags() returns trigger language plpgsql as $$ begin
    delete from pet_tags where ctid = any (array(
        select found.ctid from deleted cross join lateral pet_search_names(tag_names) as former
        cross join lateral (select ctid from pet_tags where tag = former and pet_id = id offset 0) found
    ));
    return null;
end $$;
create function change_pet_tags() returns trigger language plpgsql as $$ begin
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
        insert into pet_tags (tag, pet_id, status)
        select tag, id, added.status from added cross join lateral pet_search_names(tag_names) as tag
        on conflict (tag, pet_id) do update set status = excluded.status
            where pet_tags.status is distinct from excluded.status;
    end if;
    return null;
end $$;
create function delete_all_pet_tags() returns trigger language plpgsql as $$ begin
    truncate pet_tags;
    return null;
end $$;

create trigger pets_added_tags after insert on pets referencing new table as added
    for each statement execute function add_pet_tags();
create trigger pets_deleted_tags after delete on pets referencing old table as deleted
    for each statement execute function delete_pet_tags();
create trigger pets_changed_tags after update on pets referencing old table as deleted new table as added
    for each statement execute function change_pet_tags();
create trigger pets_truncated_tags after truncate on pets for each statement execute function delete_all_pet_tags();

-- Names of tags for suggestions. The service compares them with the tags of pets, some at a time: to do this with each change would cost
-- each change a statement.
create table tag_names (
    name        text collate "C" primary key,
    -- The name without case, as the service folds it.
    folded_name text collate "C" not null
);
create index tag_names_by_folded_name on tag_names (folded_name, name);
