//! Queries on the images of pets. Their bytes are in the image store.
//!
//! Invariant: the bytes of each key in a row are in the image store, and no key is ever reused. Therefore bytes are
//! written before their row, and deleted after the row; a trigger keeps their keys in `image_leftovers` in between.

use chrono::{DateTime, Utc};
use sqlx::{FromRow, Row as _, postgres::PgRow};

use super::{
    connect::Connection,
    deadline::with_timeout,
    error::Error,
    record::{self, Record},
};
use crate::domain::{
    change::{Action, Initiator},
    id::PetId,
    image::{Facts, ImageId, ImageType, RenderingWidth},
    image_store::StoreOwner,
};

/// SHA-256 of an image's bytes.
pub type ContentHash = [u8; 32];

/// Bytes of an image: their hash, location and properties.
#[derive(Debug, Clone, FromRow)]
pub struct Content {
    /// SHA-256 of the bytes.
    pub sha256: ContentHash,
    /// Key in the image store.
    pub key: String,
    /// Size in bytes.
    #[sqlx(try_from = "i64")]
    pub size: u64,
    /// Media type, width and height.
    #[sqlx(flatten)]
    pub facts: Facts,
}

/// Image of a pet.
#[derive(Debug, Clone, FromRow)]
pub struct Image {
    /// Identifier.
    pub id: ImageId,
    /// Time of the upload.
    pub created_at: DateTime<Utc>,
    /// Bytes.
    #[sqlx(flatten)]
    pub content: Content,
}

/// Smaller version of an image.
#[derive(Debug, Clone, FromRow)]
pub struct Rendering {
    /// Key in the image store.
    pub key: String,
    /// Media type.
    #[sqlx(rename = "media_type")]
    pub kind: ImageType,
    /// Size in bytes.
    #[sqlx(try_from = "i64")]
    pub size: u64,
}

impl FromRow<'_, PgRow> for Facts {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let length = |column| {
            let length: i32 = row.try_get(column)?;
            u32::try_from(length).map_err(|error| sqlx::Error::Decode(error.into()))
        };
        Ok(Self {
            kind: row.try_get("media_type")?,
            width: length("width")?,
            height: length("height")?,
        })
    }
}

/// Inserts an image of a pet; the transaction must have locked the row of the pet. Returns the key of the bytes in the
/// image store, which differs from that of `content` if the same bytes are already stored.
pub async fn insert(
    transaction: &mut Connection,
    pet: PetId,
    id: ImageId,
    content: &Content,
    initiator: &Initiator,
) -> Result<String, Error> {
    // Locks an existing row of the content too, so that it is not deleted before this transaction ends.
    let query = sqlx::query_scalar(
        "insert into image_contents as content (sha256, key, media_type, size, width, height)
         values ($1, $2, $3, $4, $5, $6)
         on conflict (sha256) do update set sha256 = excluded.sha256
         returning content.key",
    )
    .bind(content.sha256)
    .bind(&content.key)
    .bind(content.facts.kind.as_str())
    .bind(i64::try_from(content.size).unwrap_or(i64::MAX))
    .bind(i32::try_from(content.facts.width).unwrap_or(i32::MAX))
    .bind(i32::try_from(content.facts.height).unwrap_or(i32::MAX));
    let key = with_timeout(query.fetch_one(&mut *transaction)).await?;
    let query = sqlx::query("insert into images (id, pet_id, sha256) values ($1, $2, $3)")
        .bind(id.0)
        .bind(pet.get())
        .bind(content.sha256);
    with_timeout(query.execute(&mut *transaction)).await?;
    let record = Record::of_image(id, (pet, content.size), Action::Created, initiator);
    record::write(transaction, &[record]).await?;
    Ok(key)
}

/// Returns the images of a pet, oldest first.
pub async fn list(connection: &mut Connection, pet: PetId) -> Result<Vec<Image>, Error> {
    let query = sqlx::query_as(
        "select id, created_at, sha256, key, media_type, size, width, height
         from images join image_contents using (sha256)
         where pet_id = $1
         order by created_at, id",
    );
    with_timeout(query.bind(pet.get()).fetch_all(connection)).await
}

/// Returns the number of images of a pet.
pub async fn count(connection: &mut Connection, pet: PetId) -> Result<i64, Error> {
    let query = sqlx::query_scalar("select count(*) from images where pet_id = $1");
    with_timeout(query.bind(pet.get()).fetch_one(connection)).await
}

/// Returns an image of a pet.
pub async fn find(
    connection: &mut Connection,
    pet: PetId,
    id: ImageId,
) -> Result<Option<Image>, Error> {
    let query = sqlx::query_as(
        "select id, created_at, sha256, key, media_type, size, width, height
         from images join image_contents using (sha256)
         where id = $1 and pet_id = $2",
    )
    .bind(id.0)
    .bind(pet.get());
    with_timeout(query.fetch_optional(connection)).await
}

/// Deletes an image of a pet; the transaction must have locked the row of the pet.
pub async fn delete(
    transaction: &mut Connection,
    pet: PetId,
    image: &Image,
    initiator: &Initiator,
) -> Result<(), Error> {
    let query = sqlx::query("delete from images where id = $1 and pet_id = $2")
        .bind(image.id.0)
        .bind(pet.get());
    with_timeout(query.execute(&mut *transaction)).await?;
    let facts = (pet, image.content.size);
    let record = Record::of_image(image.id, facts, Action::Deleted, initiator);
    record::write(transaction, &[record]).await
}

/// Returns the rendering of a content at this width, if it exists.
pub async fn find_rendering(
    connection: &mut Connection,
    sha256: &ContentHash,
    width: RenderingWidth,
) -> Result<Option<Rendering>, Error> {
    let query = sqlx::query_as(
        "select key, media_type, size from image_renderings where sha256 = $1 and width = $2",
    )
    .bind(sha256)
    .bind(i32::try_from(width.get()).unwrap_or(i32::MAX));
    with_timeout(query.fetch_optional(connection)).await
}

/// Inserts a rendering. Returns false if the content has been deleted, or if the rendering exists already.
pub async fn insert_rendering(
    transaction: &mut Connection,
    sha256: &ContentHash,
    width: RenderingWidth,
    rendering: &Rendering,
) -> Result<bool, Error> {
    // Locks the content, so that its deletion waits and then finds this rendering.
    let query = sqlx::query(
        "insert into image_renderings (sha256, width, key, media_type, size)
         select sha256, $2::integer, $3::text, $4::text, $5::bigint from image_contents where sha256 = $1 for update
         on conflict (sha256, width) do nothing",
    )
    .bind(sha256)
    .bind(i32::try_from(width.get()).unwrap_or(i32::MAX))
    .bind(&rendering.key)
    .bind(rendering.kind.as_str())
    .bind(i64::try_from(rendering.size).unwrap_or(i64::MAX));
    let inserted = with_timeout(query.execute(transaction)).await?;
    Ok(inserted.rows_affected() == 1)
}

/// Deletes the row of a rendering after its bytes were lost.
pub async fn delete_rendering(connection: &mut Connection, key: &str) -> Result<(), Error> {
    let query = sqlx::query("delete from image_renderings where key = $1").bind(key);
    with_timeout(query.execute(connection)).await.map(drop)
}

/// Returns the next 100 keys, after `after`, of bytes that are no longer referenced.
pub async fn orphaned_keys(connection: &mut Connection, after: &str) -> Result<Vec<String>, Error> {
    let query =
        sqlx::query_scalar("select key from image_leftovers where key > $1 order by key limit 100");
    with_timeout(query.bind(after).fetch_all(connection)).await
}

/// Deletes the keys of bytes that have been deleted from the image store.
pub async fn delete_orphaned_keys(
    connection: &mut Connection,
    keys: &[String],
) -> Result<(), Error> {
    let query = sqlx::query("delete from image_leftovers where key = any ($1)").bind(keys);
    with_timeout(query.execute(connection)).await.map(drop)
}

/// Returns those of `keys` that are in no row.
pub async fn keys_without_rows(
    connection: &mut Connection,
    keys: &[String],
) -> Result<Vec<String>, Error> {
    let query = sqlx::query_scalar(
        "select key from unnest($1::text[]) as key
         where not exists (select from image_contents content where content.key = key.key)
           and not exists (select from image_renderings rendering where rendering.key = key.key)",
    );
    with_timeout(query.bind(keys).fetch_all(connection)).await
}

/// Returns the keys of up to ten images.
pub async fn first_keys(connection: &mut Connection) -> Result<Vec<String>, Error> {
    let query = sqlx::query_scalar("select key from image_contents limit 10");
    with_timeout(query.fetch_all(connection)).await
}

/// Generates the nonce of the next sweep, unless there is one already.
pub async fn begin_sweep(connection: &mut Connection) -> Result<StoreOwner, Error> {
    let query = sqlx::query_as(
        "update image_place set next_nonce = coalesce(next_nonce, gen_random_uuid())
         from (select next_nonce is null as is_new from image_place for update) as before,
              pg_control_system(), pg_database
         where datname = current_database()
         returning format('%s/%s/%s', id, system_identifier, pg_database.oid) as database,
                   nonce::text, next_nonce::text, is_new",
    );
    let (database, nonce, next_nonce, is_new) = with_timeout(query.fetch_one(connection)).await?;
    Ok(StoreOwner {
        database,
        nonce,
        next_nonce,
        is_new,
    })
}

/// Records that the next nonce is in the store, unless another replica has done so.
pub async fn complete_sweep(connection: &mut Connection, owner: &StoreOwner) -> Result<(), Error> {
    let query = sqlx::query(
        "update image_place set nonce = next_nonce, next_nonce = null where next_nonce::text = $1",
    );
    with_timeout(query.bind(&owner.next_nonce).execute(connection))
        .await
        .map(drop)
}
