//! Queries on the images of pets. Their bytes are in the image store.
//!
//! Invariants:
//! - The bytes of each key in a row are in the image store, and no key is ever reused. Therefore bytes are written
//!   before their row, and deleted after the row; a trigger keeps their keys in `image_leftovers` in between.

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgExecutor};

use super::{connect::Connection, deadline::with_timeout, error::Error};
use crate::domain::{
    id::PetId,
    image::{Facts, ImageId, ImageType, RenderingWidth},
};

/// SHA-256 of an image's bytes.
pub type ContentHash = [u8; 32];

/// Bytes of an image: their hash, location and properties.
#[derive(Debug, Clone)]
pub struct Content {
    /// SHA-256 of the bytes.
    pub sha256: ContentHash,
    /// Key in the image store.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// Media type, width and height.
    pub facts: Facts,
}

/// Image of a pet.
#[derive(Debug, Clone)]
pub struct Image {
    /// Identifier.
    pub id: ImageId,
    /// Time of the upload.
    pub created_at: DateTime<Utc>,
    /// Bytes.
    pub content: Content,
}

/// Smaller version of an image.
#[derive(Debug, Clone)]
pub struct Rendering {
    /// Key in the image store.
    pub key: String,
    /// Media type.
    pub kind: ImageType,
    /// Size in bytes.
    pub size: u64,
}

#[derive(FromRow)]
struct ImageRow {
    id: Vec<u8>,
    created_at: DateTime<Utc>,
    sha256: Vec<u8>,
    key: String,
    media_type: String,
    size: i64,
    width: i32,
    height: i32,
}

impl TryFrom<ImageRow> for Image {
    type Error = Error;

    fn try_from(row: ImageRow) -> Result<Self, Error> {
        let corrupt = |field: &str| Error::Corrupt(format!("{field} of image content {}", row.key));
        let length = |length: i32| u32::try_from(length).map_err(|_| corrupt("width or height"));
        Ok(Self {
            id: ImageId::from_bytes(row.id.try_into().map_err(|_| corrupt("image id"))?),
            created_at: row.created_at,
            content: Content {
                size: size(row.size)?,
                facts: Facts {
                    kind: kind(&row.media_type)?,
                    width: length(row.width)?,
                    height: length(row.height)?,
                },
                sha256: row.sha256.try_into().map_err(|_| corrupt("hash"))?,
                key: row.key,
            },
        })
    }
}

fn kind(media_type: &str) -> Result<ImageType, Error> {
    let unknown = |_| Error::Corrupt(format!("media type {media_type:?} of an image"));
    media_type.parse().map_err(unknown)
}

fn size(size: i64) -> Result<u64, Error> {
    u64::try_from(size).map_err(|_| Error::Corrupt(format!("size {size} of an image")))
}

/// Inserts an image of a pet; the transaction must have locked the row of the pet. Returns the key of the bytes in the
/// image store, which differs from that of `content` if the same bytes are already stored.
pub async fn insert(
    transaction: &mut Connection,
    pet: PetId,
    id: ImageId,
    content: &Content,
) -> Result<String, Error> {
    let Facts {
        kind,
        width,
        height,
    } = content.facts;
    // Locks an existing row of the content too, so that it is not deleted before this transaction ends.
    let key: String = with_timeout(
        sqlx::query_scalar(
            "insert into image_contents as content (sha256, key, media_type, size, width, height)
             values ($1, $2, $3, $4, $5, $6)
             on conflict (sha256) do update set sha256 = excluded.sha256
             returning content.key",
        )
        .bind(&content.sha256[..])
        .bind(&content.key)
        .bind(kind.as_str())
        .bind(i64::try_from(content.size).unwrap_or(i64::MAX))
        .bind(i32::try_from(width).unwrap_or(i32::MAX))
        .bind(i32::try_from(height).unwrap_or(i32::MAX))
        .fetch_one(&mut *transaction),
    )
    .await?;
    with_timeout(
        sqlx::query("insert into images (id, pet_id, sha256) values ($1, $2, $3)")
            .bind(&id.as_bytes()[..])
            .bind(pet.get())
            .bind(&content.sha256[..])
            .execute(transaction),
    )
    .await?;
    Ok(key)
}

/// Returns the images of a pet, oldest first.
pub async fn list(executor: impl PgExecutor<'_>, pet: PetId) -> Result<Vec<Image>, Error> {
    let rows = with_timeout(
        sqlx::query_as::<_, ImageRow>(
            "select id, created_at, sha256, key, media_type, size, width, height
             from images join image_contents using (sha256)
             where pet_id = $1
             order by created_at, id",
        )
        .bind(pet.get())
        .fetch_all(executor),
    )
    .await?;
    rows.into_iter().map(Image::try_from).collect()
}

/// Returns the number of images of a pet.
pub async fn count(executor: impl PgExecutor<'_>, pet: PetId) -> Result<i64, Error> {
    with_timeout(
        sqlx::query_scalar("select count(*) from images where pet_id = $1")
            .bind(pet.get())
            .fetch_one(executor),
    )
    .await
}

/// Returns an image of a pet.
pub async fn find(
    executor: impl PgExecutor<'_>,
    pet: PetId,
    id: ImageId,
) -> Result<Option<Image>, Error> {
    with_timeout(
        sqlx::query_as::<_, ImageRow>(
            "select id, created_at, sha256, key, media_type, size, width, height
             from images join image_contents using (sha256)
             where id = $1 and pet_id = $2",
        )
        .bind(&id.as_bytes()[..])
        .bind(pet.get())
        .fetch_optional(executor),
    )
    .await?
    .map(Image::try_from)
    .transpose()
}

/// Deletes an image of a pet. Returns false if the pet has no such image.
pub async fn delete(executor: impl PgExecutor<'_>, pet: PetId, id: ImageId) -> Result<bool, Error> {
    let result = with_timeout(
        sqlx::query("delete from images where id = $1 and pet_id = $2")
            .bind(&id.as_bytes()[..])
            .bind(pet.get())
            .execute(executor),
    )
    .await?;
    Ok(result.rows_affected() == 1)
}

/// Returns the rendering of a content at this width, if it exists.
pub async fn find_rendering(
    executor: impl PgExecutor<'_>,
    sha256: &ContentHash,
    width: RenderingWidth,
) -> Result<Option<Rendering>, Error> {
    let row: Option<(String, String, i64)> = with_timeout(
        sqlx::query_as(
            "select key, media_type, size from image_renderings where sha256 = $1 and width = $2",
        )
        .bind(&sha256[..])
        .bind(i32::try_from(width.get()).unwrap_or(i32::MAX))
        .fetch_optional(executor),
    )
    .await?;
    row.map(|(key, media_type, bytes)| {
        Ok(Rendering {
            key,
            kind: kind(&media_type)?,
            size: size(bytes)?,
        })
    })
    .transpose()
}

/// Inserts a rendering. Returns false if the content has been deleted, or if the rendering exists already.
pub async fn insert_rendering(
    transaction: &mut Connection,
    sha256: &ContentHash,
    width: RenderingWidth,
    rendering: &Rendering,
) -> Result<bool, Error> {
    let result = with_timeout(
        sqlx::query(
            // Locks the content, so that its deletion waits and then finds this rendering.
            "insert into image_renderings (sha256, width, key, media_type, size)
             select sha256, $2::integer, $3::text, $4::text, $5::bigint from image_contents where sha256 = $1 for update
             on conflict (sha256, width) do nothing",
        )
        .bind(&sha256[..])
        .bind(i32::try_from(width.get()).unwrap_or(i32::MAX))
        .bind(&rendering.key)
        .bind(rendering.kind.as_str())
        .bind(i64::try_from(rendering.size).unwrap_or(i64::MAX))
        .execute(transaction),
    )
    .await?;
    Ok(result.rows_affected() == 1)
}

/// Deletes the row of a rendering after its bytes were lost.
pub async fn delete_rendering(executor: impl PgExecutor<'_>, key: &str) -> Result<(), Error> {
    with_timeout(
        sqlx::query("delete from image_renderings where key = $1")
            .bind(key)
            .execute(executor),
    )
    .await?;
    Ok(())
}

/// Returns the next 100 keys, after `after`, of bytes that are no longer referenced.
pub async fn orphaned_keys(
    executor: impl PgExecutor<'_>,
    after: &str,
) -> Result<Vec<String>, Error> {
    with_timeout(
        sqlx::query_scalar("select key from image_leftovers where key > $1 order by key limit 100")
            .bind(after)
            .fetch_all(executor),
    )
    .await
}

/// Deletes the keys of bytes that have been deleted from the image store.
pub async fn delete_orphaned_keys(
    executor: impl PgExecutor<'_>,
    keys: &[String],
) -> Result<(), Error> {
    with_timeout(
        sqlx::query("delete from image_leftovers where key = any ($1)")
            .bind(keys)
            .execute(executor),
    )
    .await?;
    Ok(())
}

/// Returns those of `keys` that are in no row.
pub async fn keys_without_rows(
    executor: impl PgExecutor<'_>,
    keys: &[String],
) -> Result<Vec<String>, Error> {
    with_timeout(
        sqlx::query_scalar(
            "select key from unnest($1::text[]) as key
             where not exists (select from image_contents content where content.key = key.key)
               and not exists (select from image_renderings rendering where rendering.key = key.key)",
        )
        .bind(keys)
        .fetch_all(executor),
    )
    .await
}

/// Returns the name of this database in the image store. It includes the server, so that a dump restored elsewhere is
/// another database.
pub async fn database_name(executor: impl PgExecutor<'_>) -> Result<String, Error> {
    with_timeout(
        sqlx::query_scalar(
            "select format('%s/%s/%s', id, system_identifier, pg_database.oid)
             from image_place, pg_control_system(), pg_database
             where datname = current_database()",
        )
        .fetch_one(executor),
    )
    .await
}
