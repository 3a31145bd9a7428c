-- Images of pets. Their bytes are in the image store, under keys that are never used again: the deletion of bytes
-- cannot meet an upload that writes under the same key.

-- Bytes of images, one row for all images with the same bytes.
create table image_contents (
    sha256     bytea   primary key,
    key        text    not null,
    media_type text    not null,
    size       bigint  not null,
    width      integer not null, height integer not null,
    constraint image_contents_key_unique unique (key),
    constraint image_contents_sha256_is_sha256 check (octet_length(sha256) = 32),
    constraint image_contents_media_type_known
        check (media_type in ('image/png', 'image/jpeg', 'image/gif', 'image/webp')),
    constraint image_contents_size_positive check (size > 0),
    constraint image_contents_has_pixels check (width > 0 and height > 0)
);

create table images (
    -- 128 random bits: the id alone gives access to the image.
    id         bytea       primary key,
    pet_id     bigint      not null references pets on delete cascade,
    sha256     bytea       not null references image_contents,
    created_at timestamptz not null default now(),
    constraint images_id_is_128_bits check (octet_length(id) = 16)
);

create index images_by_pet on images (pet_id, created_at);
create index images_by_content on images (sha256);

-- Smaller versions of contents, made on request and deleted with the content.
create table image_renderings (
    sha256     bytea       not null references image_contents,
    width      integer     not null,
    key        text        not null,
    media_type text        not null,
    size       bigint      not null,
    created_at timestamptz not null default now(),
    primary key (sha256, width),
    constraint image_renderings_key_unique unique (key)
);

-- Keys of bytes to delete. A key is added in the transaction that deletes its row, and removed after its bytes.
create table image_leftovers (key text primary key);

-- Deletes contents without images, also of deleted pets. Locks the contents first, in one order, as an upload of the
-- same content does: the later of the two sees the earlier one's changes, since each statement has a new snapshot.
create function drop_image_contents() returns trigger language plpgsql as $$
declare unused bytea[];
begin
    perform 1 from image_contents where sha256 in (select sha256 from gone) order by sha256 for update;
    unused := array(select distinct sha256 from gone
                    where not exists (select from images where images.sha256 = gone.sha256));
    with renderings as (delete from image_renderings where sha256 = any (unused) returning key)
    insert into image_leftovers select key from renderings;
    with contents as (delete from image_contents where sha256 = any (unused) returning key)
    insert into image_leftovers select key from contents;
    return null;
end $$;

create trigger images_deleted after delete on images referencing old table as gone
    for each statement execute function drop_image_contents();

-- Identity of this database in the marker of its image store. Bytes without a row are deleted only from a store with
-- this id: after a wrong URL or a copied configuration, all bytes of another database would seem orphaned. A physical
-- copy of the cluster has the same id, so each sweep writes a new nonce to the store and to this row: if the store has
-- another nonce, a copy sweeps it, and nothing is deleted.
create table image_place (
    id         uuid    not null default gen_random_uuid(),
    is_only    boolean primary key default true,
    -- Nonce of the last completed sweep.
    nonce      uuid,
    -- Nonce of the sweep that begins, committed before it is written to the store.
    next_nonce uuid,
    constraint image_place_has_one_row check (is_only)
);

insert into image_place default values;
