//! Images in PostgreSQL: which pet has which, and under which keys their bytes are. The bytes themselves
//! are elsewhere.
//!
//! Invariant: a key in a row is one whose bytes are stored, and no key is ever given twice. So bytes are
//! written before their row, and deleted after the transaction that took the row away; a trigger leaves
//! their keys in `image_leftovers` then.

use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgExecutor};

use super::{Connection, Error, bounded};
use crate::domain::{
    id::PetId,
    image::{Facts, ImageId, ImageType, RenderingWidth},
};

/// SHA-256 of an image's bytes.
pub type ContentHash = [u8; 32];

/// The bytes of an image, and where they are.
#[derive(Debug, Clone)]
pub struct Content {
    /// What they are known by.
    pub sha256: ContentHash,
    /// Where they are stored.
    pub key: String,
    /// How many.
    pub size: u64,
    /// What they are.
    pub facts: Facts,
}

/// An image of a pet.
#[derive(Debug, Clone)]
pub struct Image {
    /// Identifier.
    pub id: ImageId,
    /// When it was uploaded.
    pub created_at: DateTime<Utc>,
    /// Its bytes.
    pub content: Content,
}

/// A smaller version of a content.
#[derive(Debug, Clone)]
pub struct Rendering {
    /// Where its bytes are stored.
    pub key: String,
    /// What they are.
    pub kind: ImageType,
    /// How many.
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
        let side = |side: i32| u32::try_from(side).map_err(|_| corrupt("a side"));
        Ok(Self {
            id: ImageId::from_bytes(row.id.try_into().map_err(|_| corrupt("an id"))?),
            created_at: row.created_at,
            content: Content {
                size: size(row.size)?,
                facts: Facts {
                    kind: kind(&row.media_type)?,
                    width: side(row.width)?,
                    height: side(row.height)?,
                },
                sha256: row.sha256.try_into().map_err(|_| corrupt("the hash"))?,
                key: row.key,
            },
        })
    }
}

fn kind(media_type: &str) -> Result<ImageType, Error> {
    let unknown = |_| Error::Corrupt(format!("the media type {media_type:?} of an image"));
    media_type.parse().map_err(unknown)
}

fn size(size: i64) -> Result<u64, Error> {
    u64::try_from(size).map_err(|_| Error::Corrupt(format!("the size {size} of an image")))
}

/// Stores that these bytes are an image of a pet, whose row the transaction has locked. Gives the key that
/// they are stored under: another than theirs, when the same bytes are stored already.
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
    // Locks the content's row also where it is there already: it stays until this transaction ends.
    let key: String = bounded(
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
    bounded(
        sqlx::query("insert into images (id, pet_id, sha256) values ($1, $2, $3)")
            .bind(&id.as_bytes()[..])
            .bind(pet.get())
            .bind(&content.sha256[..])
            .execute(transaction),
    )
    .await?;
    Ok(key)
}

/// The images of a pet, oldest first.
pub async fn of_pet(executor: impl PgExecutor<'_>, pet: PetId) -> Result<Vec<Image>, Error> {
    let rows = bounded(
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

/// How many images a pet has.
pub async fn count(executor: impl PgExecutor<'_>, pet: PetId) -> Result<i64, Error> {
    bounded(
        sqlx::query_scalar("select count(*) from images where pet_id = $1")
            .bind(pet.get())
            .fetch_one(executor),
    )
    .await
}

/// An image of a pet, if it has it.
pub async fn find(
    executor: impl PgExecutor<'_>,
    pet: PetId,
    id: ImageId,
) -> Result<Option<Image>, Error> {
    bounded(
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

/// Deletes an image of a pet. `false`: the pet has no such image.
pub async fn delete(executor: impl PgExecutor<'_>, pet: PetId, id: ImageId) -> Result<bool, Error> {
    let done = bounded(
        sqlx::query("delete from images where id = $1 and pet_id = $2")
            .bind(&id.as_bytes()[..])
            .bind(pet.get())
            .execute(executor),
    )
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The rendering of a content at a width, if it is made.
pub async fn find_rendering(
    executor: impl PgExecutor<'_>,
    sha256: &ContentHash,
    width: RenderingWidth,
) -> Result<Option<Rendering>, Error> {
    let row: Option<(String, String, i64)> = bounded(
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

/// Stores that a rendering is made. `false`: the content is gone, or the rendering was there already.
pub async fn insert_rendering(
    transaction: &mut Connection,
    sha256: &ContentHash,
    width: RenderingWidth,
    rendering: &Rendering,
) -> Result<bool, Error> {
    let done = bounded(
        sqlx::query(
            // Locks the content, so that it does not go before its rendering is seen to be there.
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
    Ok(done.rows_affected() == 1)
}

/// Forgets a rendering whose bytes are lost.
pub async fn forget_rendering(executor: impl PgExecutor<'_>, key: &str) -> Result<(), Error> {
    bounded(
        sqlx::query("delete from image_renderings where key = $1")
            .bind(key)
            .execute(executor),
    )
    .await?;
    Ok(())
}

/// The next 100 keys, behind one, whose bytes nothing needs any more.
pub async fn leftovers(executor: impl PgExecutor<'_>, after: &str) -> Result<Vec<String>, Error> {
    bounded(
        sqlx::query_scalar("select key from image_leftovers where key > $1 order by key limit 100")
            .bind(after)
            .fetch_all(executor),
    )
    .await
}

/// Forgets keys whose bytes are deleted.
pub async fn forget_leftovers(executor: impl PgExecutor<'_>, keys: &[String]) -> Result<(), Error> {
    bounded(
        sqlx::query("delete from image_leftovers where key = any ($1)")
            .bind(keys)
            .execute(executor),
    )
    .await?;
    Ok(())
}

/// Those of some keys that no row has.
pub async fn unknown_keys(
    executor: impl PgExecutor<'_>,
    keys: &[String],
) -> Result<Vec<String>, Error> {
    bounded(
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

/// What this database is called in the place of its images. It has the server in it: a copy that another
/// server restored from a dump is another database.
pub async fn database_name(executor: impl PgExecutor<'_>) -> Result<String, Error> {
    bounded(
        sqlx::query_scalar(
            "select format('%s/%s/%s', id, system_identifier, pg_database.oid)
             from image_place, pg_control_system(), pg_database
             where datname = current_database()",
        )
        .fetch_one(executor),
    )
    .await
}
