-- The founding schema: pets.
--
-- One row a pet. What a client sends in category, tags and photo_urls comes back as sent, so they are
-- kept whole: a category and a tag are an optional number and an optional name, and nothing else in the
-- database refers to them.

-- Identifiers that the server gives. Clients may choose any of the same range, also the next ones here:
-- the insert steps over those in use.
create sequence pet_ids as bigint minvalue 1 maxvalue 9007199254740991;

-- One sequence for the versions of all pets: a pet that was deleted and made anew under its old id never
-- has a version that some client still holds as an ETag.
create sequence pet_versions as bigint;

-- Immutable, so that a generated column may use it. Tags without a name leave a null in the array, which
-- no search finds.
create function pet_tag_names(tags jsonb) returns text[]
    language sql immutable strict parallel safe
    as $$ select array(select tag ->> 'name' from jsonb_array_elements(tags) as tag) $$;

create table pets (
    id         bigint primary key,
    version    bigint not null default nextval('pet_versions'),
    status     text   not null,
    name       text   not null,
    category   jsonb,
    photo_urls text[] not null,
    tags       jsonb  not null,
    tag_names  text[] not null generated always as (pet_tag_names(tags)) stored,

    constraint pets_id_in_range check (id between 1 and 9007199254740991),
    constraint pets_status_known check (status in ('available', 'pending', 'sold')),
    constraint pets_name_length check (char_length(name) between 1 and 255)
);

-- findByStatus: one index a status, already in the order of the answer. Not one over (status, id): as the
-- table is in the order of id too, PostgreSQL knows a scan of these to be as cheap as it is.
create index pets_by_status_available on pets (id) where status = 'available';
create index pets_by_status_pending on pets (id) where status = 'pending';
create index pets_by_status_sold on pets (id) where status = 'sold';

-- findByTags.
-- Entries go into the index at once, not first into a list that every search would have to read through.
create index pets_by_tag_name on pets using gin (tag_names) with (fastupdate = off);
