//! Exports all pets with `COPY`, from one snapshot, in the order of their identifiers.

use futures_util::{Stream, TryStreamExt};
use sqlx::PgConnection;

use super::error::Error;
use crate::domain::pet;

/// Text of a column in which no cell is a formula. Where a semicolon or a tab separates cells, a line break separates rows, also
/// within quotes. The expression matches places, not characters, so that no match hides the next.
macro_rules! safe {
    ($column:literal) => {
        concat!(
            "regexp_replace(",
            $column,
            r#"::text, '(?<=(?:^|[;\t\r\n])"*)(?=[=+@\t\r\n＝＋－＠-])', '''', 'g')"#
        )
    };
}

/// File format of an export: its `COPY` statement.
#[derive(Debug, Clone, Copy)]
pub struct Format(&'static str);

impl Format {
    /// One JSON object per line, as in the API: CSV with a single column. JSON never contains its quote and delimiter
    /// characters unescaped, so the text is unchanged. Plain SQL may have stored line breaks between members.
    pub const NDJSON: Self = Self(
        r#"
        copy (
            select concat('{"id":', id, ',' || nullif(substr(object, 2, length(object) - 2), ''), ',"status":"', status, '"}')
            from (select id, status, btrim(translate(details::text, e'\n\r', ''), e' \t') as object from pets) pet
            order by id
        ) to stdout (format csv, delimiter e'\x02', quote e'\x01')"#,
    );

    /// A header, and one record per pet; `category`, `photoUrls` and `tags` contain JSON.
    pub const CSV: Self = Self(
        r#"
        copy (
            select id, details ->> 'name' as name, status, details -> 'category' as category,
                   details -> 'photoUrls' as "photoUrls", details -> 'tags' as tags
            from pets order by id
        ) to stdout (format csv, header)"#,
    );

    /// [`Format::CSV`] for spreadsheets: an apostrophe stands before a character with which a formula begins, at the beginning
    /// of a cell, and behind a semicolon or a tab, which separate cells in other locales.
    pub const SPREADSHEET_CSV: Self = Self(concat!(
        "copy (select id, ",
        safe!("(details ->> 'name')"),
        " as name, status, ",
        safe!("(details -> 'category')"),
        " as category, ",
        safe!("(details -> 'photoUrls')"),
        " as \"photoUrls\", ",
        safe!("(details -> 'tags')"),
        " as tags from pets order by id) to stdout (format csv, header)"
    ));
}

/// Returns all pets as a stream of chunks, each of which ends with a complete record.
pub async fn copy(
    connection: &mut PgConnection,
    format: Format,
) -> Result<impl Stream<Item = Result<impl AsRef<[u8]>, Error>>, Error> {
    let chunks = connection.copy_out_raw(format.0).await?;
    Ok(chunks.map_err(Error::from))
}

/// Returns the number of pets that have more than [`pet::MAX_SIZE`] bytes, which plain SQL can store: an import refuses them.
pub async fn count_too_large(connection: &mut PgConnection) -> Result<i64, Error> {
    // Of nearly all others, only the size is read.
    const QUERY: &str = "select count(*) from pets
        where pg_column_size(details) > 16000 and octet_length(details::text) + octet_length(status) > $1";
    let max = pet::MAX_SIZE - pet::SIZE_WITHOUT_DETAILS;
    let query = sqlx::query_scalar(QUERY).bind(i64::try_from(max).unwrap_or(i64::MAX));
    Ok(query.fetch_one(connection).await?)
}
