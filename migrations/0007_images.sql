-- Images of pets. Their bytes lie outside the database, each under a key that is given once and never
-- again: whoever deletes the bytes of a key cannot meet an upload that has just written there.

-- The bytes of an image, once for all images with the same.
create table image_contents (
    sha256     bytea  primary key,
    key        text   not null,
    media_type text   not null,
    size       bigint not null,
    width      integer not null,
    height     integer not null,

    constraint image_contents_key_unique unique (key),
    constraint image_contents_sha256_is_sha256 check (octet_length(sha256) = 32),
    constraint image_contents_media_type_known
        check (media_type in ('image/png', 'image/jpeg', 'image/gif', 'image/webp')),
    constraint image_contents_size_positive check (size > 0),
    constraint image_contents_has_pixels check (width > 0 and height > 0)
);

create table images (
    -- 128 random bits: who knows it may see the image.
    id         bytea       primary key,
    pet_id     bigint      not null references pets on delete cascade,
    sha256     bytea       not null references image_contents,
    created_at timestamptz not null default now(),

    constraint images_id_is_128_bits check (octet_length(id) = 16)
);

create index images_by_pet on images (pet_id, created_at);
create index images_by_content on images (sha256);

-- Smaller versions of a content that somebody has asked for; they go with it.
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

-- Bytes that nothing needs any more. A key gets here in the transaction that takes its last reference away,
-- and leaves once the bytes are deleted, after that transaction's end.
create table image_leftovers (
    key text primary key
);

-- Takes away the contents that no image has any more, whatever took the images away: a pet's end does, too.
-- A content's row is locked first, in one order, as an upload of the same content locks it: whoever comes
-- second sees what the first one did. (Each statement in here sees what was committed before it began.)
create function drop_image_contents() returns trigger language plpgsql as $$
declare
    unused bytea[];
begin
    perform 1 from image_contents
    where sha256 in (select sha256 from gone) order by sha256 for update;

    unused := array(
        select distinct sha256 from gone
        where not exists (select from images where images.sha256 = gone.sha256)
    );
    with renderings as (
        delete from image_renderings where sha256 = any (unused) returning key
    )
    insert into image_leftovers select key from renderings;
    with contents as (
        delete from image_contents where sha256 = any (unused) returning key
    )
    insert into image_leftovers select key from contents;
    return null;
end
$$;

create trigger images_deleted after delete on images
    referencing old table as gone
    for each statement execute function drop_image_contents();
