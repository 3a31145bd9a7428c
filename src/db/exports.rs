//! All pets, as `COPY` gives them: one snapshot, in the order of identifiers.

use futures_util::{Stream, TryStreamExt};
use sqlx::PgConnection;

use super::Error;

/// How an export is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A JSON object a line, as the API answers it.
    Ndjson,
    /// A heading and a record a pet; `category`, `photoUrls` and `tags` hold JSON.
    Csv,
}

/// Every pet, in pieces that end where PostgreSQL ends them: with a record.
pub async fn copy(
    connection: &mut PgConnection,
    format: Format,
) -> Result<impl Stream<Item = Result<impl AsRef<[u8]>, Error>>, Error> {
    let statement = match format {
        Format::Ndjson => NDJSON,
        Format::Csv => CSV,
    };
    Ok(connection
        .copy_out_raw(statement)
        .await?
        .map_err(Error::from))
}

/// A single column in a "CSV" whose quote and delimiter no JSON holds unescaped: the text as it is.
const NDJSON: &str = r#"
    copy (
        select concat(
            '{"id":', id,
            ',"category":' || category::text,
            ',"name":', to_json(name),
            ',"photoUrls":', to_json(photo_urls),
            ',"tags":', tags,
            ',"status":"', status, '"}')
        from pets order by id
    ) to stdout (format csv, delimiter e'\x02', quote e'\x01')"#;

const CSV: &str = r#"
    copy (
        select id, name, status, category, to_json(photo_urls) as "photoUrls", tags
        from pets order by id
    ) to stdout (format csv, header)"#;
