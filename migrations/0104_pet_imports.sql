-- Staged pets of an import, added in one transaction once the whole file has been read. Unlogged: they are in the file
-- too, and logging takes a third of the time. A crash of PostgreSQL empties the tables, and the import starts again;
-- after a crash of the import alone, it resumes.

-- The import in progress. An advisory lock ensures that there is at most one.
create unlogged table pet_imports (
    -- SHA-256 of the file: a corrected file is another import.
    file    bytea  primary key,
    -- Number of staged records.
    records bigint not null default 0
);

create unlogged table pet_import_rows (
    -- Line of the file, for messages.
    line       bigint  not null,
    id         bigint  not null,
    -- True if the service assigned the id, and may assign another.
    by_server  boolean not null,
    status     text    not null, name text not null, category jsonb, photo_urls text[] not null, tags jsonb not null
);
