//! Suggests names of tags in use, from a table that the service compares with the tags of pets, some names at a time.

use crate::{
    db::{connect::Connection, deadline::with_timeout, error::Error},
    domain::{
        end_of_prefix,
        pet::{MAX_NAME, fold_name},
    },
};

/// Maximum number of names that are compared at once.
const MAX_COMPARED: i64 = 1_000;
/// Maximum number of names that are looked at for suggestions: no pet may have them any more.
const MAX_LOOKED_AT: i64 = 200;

/// Query for the names of tags in use that begin with a prefix; both are folded.
#[doc(hidden)]
pub const SUGGEST_TAGS: &str = "select name from (
        select name, folded_name from tag_names
        where folded_name >= $1 and folded_name < $2
        order by folded_name, name
        limit $3
    ) looked_at
    where exists (select from pet_tags where tag = name limit 1)
    order by folded_name, name
    limit $4";

/// Returns up to `limit` names of tags in use that begin with `prefix`, without regard to case, in the order of their folded names.
pub async fn suggest_tags(
    connection: &mut Connection,
    prefix: &str,
    limit: i64,
) -> Result<Vec<String>, Error> {
    let prefix = fold_name(prefix);
    // No name is behind the last character, repeated.
    let end = end_of_prefix(&prefix).unwrap_or_else(|| char::MAX.to_string().repeat(MAX_NAME + 1));
    let query = sqlx::query_scalar(SUGGEST_TAGS)
        .bind(prefix)
        .bind(end)
        .bind(MAX_LOOKED_AT)
        .bind(limit);
    with_timeout(query.fetch_all(connection)).await
}

/// Names of tags in use behind $1. Each is found by one look into the index, so that it does not matter how many pets have it.
const USED_NAMES: &str = "with recursive used (name, number) as (
        (select tag, 1 from pet_tags where tag > $1 order by tag limit 1)
        union all
        select next.tag, number + 1
        from used
        cross join lateral (
            select tag from pet_tags where tag > used.name order by tag limit 1
        ) next
        where number < $2
    )
    select name from used order by name";

/// Adds the names of up to 1,000 tags in use behind `after` to the table. Returns the last of them, or `None` at the end.
pub async fn add_used_tag_names(
    connection: &mut Connection,
    after: &str,
) -> Result<Option<String>, Error> {
    let query = sqlx::query_scalar(USED_NAMES)
        .bind(after)
        .bind(MAX_COMPARED);
    let used: Vec<String> = with_timeout(query.fetch_all(&mut *connection)).await?;
    let query = sqlx::query_scalar(
        "select name from unnest($1::text[]) used (name)
         where not exists (select from tag_names where tag_names.name = used.name)",
    );
    let unknown: Vec<String> = with_timeout(query.bind(&used).fetch_all(&mut *connection)).await?;
    if !unknown.is_empty() {
        let folded: Vec<_> = unknown.iter().map(|name| fold_name(name)).collect();
        let query = sqlx::query(
            "insert into tag_names (name, folded_name)
             select name, folded_name from unnest($1::text[], $2::text[]) as given (name, folded_name)
             on conflict do nothing",
        );
        let query = query.bind(unknown).bind(folded);
        with_timeout(query.execute(connection)).await?;
    }
    Ok(last_of_full(used))
}

/// Removes those of up to 1,000 names of the table behind `after` that no tag has. Returns the last of them, or `None` at the end.
pub async fn remove_unused_tag_names(
    connection: &mut Connection,
    after: &str,
) -> Result<Option<String>, Error> {
    let query =
        sqlx::query_scalar("select name from tag_names where name > $1 order by name limit $2");
    let query = query.bind(after).bind(MAX_COMPARED);
    let known: Vec<String> = with_timeout(query.fetch_all(&mut *connection)).await?;
    let query = sqlx::query(
        "delete from tag_names where name = any ($1)
         and not exists (select from pet_tags where tag = tag_names.name)",
    );
    with_timeout(query.bind(&known).execute(connection)).await?;
    Ok(last_of_full(known))
}

/// Returns the last name if there may be more behind it.
fn last_of_full(mut names: Vec<String>) -> Option<String> {
    let is_full = i64::try_from(names.len()).is_ok_and(|names| names >= MAX_COMPARED);
    names.pop().filter(|_| is_full)
}
