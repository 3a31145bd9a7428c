-- What this database is called in the place that its images are kept in. Bytes that no row has are deleted
-- only where the place says that it belongs to this database: one that came upon another's place, by a
-- wrong URL or a copied configuration, knows none of the bytes there and must not take them for leftovers.
create table image_place (
    id      uuid    not null default gen_random_uuid(),

    -- One row.
    is_only boolean primary key default true,
    constraint image_place_has_one_row check (is_only)
);

insert into image_place default values;
