-- Where an import gathers its pets: they become pets all at once, in one transaction, when the last of
-- the file has been read and found good, so that no import is ever half done.
--
-- Unlogged, both: what is gathered is in the file, too, and writing it twice would cost a third of the
-- time. A crash of PostgreSQL empties both, and the import begins anew; a crash of the import empties
-- neither, and it goes on.

-- The import that goes on, if one does: at most one, which a lock of the session sees to.
create unlogged table pet_imports (
    -- SHA-256 of the file: another file, or the same one mended, is another import.
    file    bytea  primary key,
    -- How many records of it have been gathered.
    records bigint not null default 0
);

create unlogged table pet_import_rows (
    -- Where it stands in the file, for messages.
    line       bigint  not null,
    id         bigint  not null,
    -- Whether the server gave the identifier, and may give another.
    by_server  boolean not null,
    status     text    not null,
    name       text    not null,
    category   jsonb,
    photo_urls text[]  not null,
    tags       jsonb   not null
);
