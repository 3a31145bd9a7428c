//! Finds pets by the beginning of their names, in the order of the folded names ([`fold_name`]) and identifiers.
//!
//! Invariants:
//! - The form of each query fixes its plan, as in `find_by`. Each status is one range of the index `pets_by_name`. A search that also
//!   has tags ends early once it has looked at many pets.
//! - Pets with names that are not folded yet are not found. The service folds them within seconds ([`fold_names`]).

use std::{fmt, str::FromStr};

use futures_util::TryStreamExt as _;
use sqlx::Row as _;

use crate::{
    db::{
        connect::Connection,
        database::Database,
        deadline::with_timeout,
        error::Error,
        large_reads::Cost,
        parts::{Found, Part, sized_pet, sized_pet_columns},
    },
    domain::{
        Invalid, end_of_prefix,
        id::PetId,
        pet::{Status, StoredPet, check_name, fold_name},
    },
};

/// Maximum number of names that are folded at once.
const MAX_FOLDED: i64 = 1_000;
/// Maximum number of pets that a search by name and tag looks at in each status, which takes some 5 ms.
const MAX_LOOKED_AT: i64 = 2_000;
/// Maximum number of tags that it looks for in them.
const MAX_COMPARISONS: i64 = 50_000;

/// Position of a pet in the order of names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePosition {
    folded_name: String,
    id: i64,
}

impl fmt::Display for NamePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.folded_name)
    }
}

impl FromStr for NamePosition {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parts = text.split_once(':');
        let (id, folded_name) = parts.ok_or(Invalid::because("must have an id and a name"))?;
        check_name(folded_name)?;
        Ok(Self {
            folded_name: folded_name.to_owned(),
            id: id.parse::<PetId>()?.get(),
        })
    }
}

/// Search for the pets of a range by their names.
#[derive(Debug, Clone)]
pub struct NameSearch {
    /// Beginning of the name, in any case.
    pub prefix: String,
    /// Statuses, any of which a pet has.
    pub statuses: Vec<Status>,
    /// Names of tags, any of which a pet has; without them, its tags do not matter.
    pub tags: Vec<String>,
}

/// Pets in the order of their positions.
pub type FoundByName = Found<(NamePosition, StoredPet), NamePosition>;

/// Returns the pets of `part` that a search matches, in the order of their names. The search ends early when it has looked at many pets
/// without the tags.
pub async fn find_by_name(
    database: &Database,
    search: &NameSearch,
    part: Part<NamePosition>,
) -> Result<FoundByName, Error> {
    let cost = if search.tags.is_empty() {
        Cost::Rows
    } else {
        Cost::Cpu
    };
    let caller = part.caller;
    let find = async |connection: &mut Connection| read(connection, search, part).await;
    database.read_large(cost, caller, find).await
}

/// Rows that merge one range of the index per status, up to a limit, in the order of the names. The conditions and the order have
/// the expression of the index, so that no other index can be used.
macro_rules! by_name {
    ($limit:literal) => {
        concat!(
            "unnest($1::text[]) as wanted
    cross join lateral (
        select * from pets
        where ((status || ':' || folded_name), id) > (wanted || ':' || $2, $3)
          and (status || ':' || folded_name) < wanted || $4
        order by (status || ':' || folded_name), id
        limit ",
            $limit,
            "
    ) of_status
    order by folded_name, id
    limit ",
            $limit
        )
    };
}

/// Query for the first $5 pets by name.
#[doc(hidden)]
pub const FIND_BY_NAME: &str = concat!(
    "select ",
    sized_pet_columns!("$6"),
    ", folded_name as position_name, id as position_id, true as is_match, false as is_last
    from ",
    by_name!("$5")
);

/// Query like [`FIND_BY_NAME`], which looks at the first $8 pets and returns those with any of the tags $7, and the last of them.
#[doc(hidden)]
pub const FIND_BY_NAME_AND_TAG: &str = concat!(
    "select ",
    sized_pet_columns!("$6"),
    ", position_name, position_id, is_match, number = $8 as is_last
    from (
        select id as position_id, folded_name as position_name, tag_names && $7 as is_match,
               row_number() over (order by folded_name, id) as number
        from ",
    by_name!("$8"),
    "
    ) looked_at
    left join lateral (select * from pets where id = position_id offset 0) pet on is_match
    where is_match or number = $8
    order by number
    limit $5"
);

async fn read(
    connection: &mut Connection,
    search: &NameSearch,
    part: Part<NamePosition>,
) -> Result<FoundByName, Error> {
    let prefix = fold_name(&search.prefix);
    let end = end_of_prefix(&format!(":{prefix}"));
    let start = NamePosition {
        folded_name: prefix,
        id: 0,
    };
    let after = part
        .after
        .clone()
        .map_or(start.clone(), |after| after.max(start));
    let statuses: Vec<_> = search.statuses.iter().map(|it| it.as_str()).collect();
    let mut query = sqlx::query(match search.tags[..] {
        [] => FIND_BY_NAME,
        _ => FIND_BY_NAME_AND_TAG,
    })
    .bind(statuses)
    .bind(after.folded_name)
    .bind(after.id)
    .bind(end)
    .bind(part.limit())
    .bind(part.max_size());
    if let Ok(tags @ 1..) = i64::try_from(search.tags.len()) {
        query = query
            .bind(&search.tags)
            .bind(MAX_LOOKED_AT.min(MAX_COMPARISONS / tags));
    }
    let mut rows = query.fetch(connection);
    let read = async {
        let (mut found, mut ended_after) = (Vec::new(), None);
        while let Some(row) = rows.try_next().await? {
            let position = NamePosition {
                folded_name: row.try_get("position_name")?,
                id: row.try_get("position_id")?,
            };
            if row.try_get("is_last")? {
                ended_after = Some(position.clone());
            }
            if row.try_get("is_match")? {
                let pet = sized_pet(&row)?.map(|pet| (position.clone(), pet));
                found.push((position, pet));
            }
        }
        Ok(Found::new(&part, found, ended_after))
    };
    with_timeout(read).await
}

/// Folds up to 1,000 names of pets that were added or renamed without their folded names, in a transaction. Returns their
/// number.
pub async fn fold_names(transaction: &mut Connection) -> Result<usize, Error> {
    // The order of the index, so that no other one is used. Pets that another transaction has locked are left to the next call.
    let query = sqlx::query_as(
        "select id, details ->> 'name' from pets where (status || ':' || folded_name) is null
         order by (status || ':' || folded_name), id limit $1 for no key update skip locked",
    );
    let query = query.bind(MAX_FOLDED).fetch_all(&mut *transaction);
    let pets: Vec<(i64, String)> = with_timeout(query).await?;
    if pets.is_empty() {
        return Ok(0);
    }
    let (mut ids, mut folded) = (Vec::new(), Vec::new());
    for (id, name) in &pets {
        ids.push(*id);
        folded.push(fold_name(name));
    }
    let query = sqlx::query(
        "update pets set folded_name = given.folded_name
         from unnest($1::bigint[], $2::text[]) as given (id, folded_name)
         where pets.id = any ($1) and pets.id = given.id",
    );
    let query = query.bind(ids).bind(folded).execute(transaction);
    with_timeout(query).await?;
    Ok(pets.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_they_are_written() {
        let position = NamePosition {
            folded_name: "a:b".to_owned(),
            id: 7,
        };
        assert_eq!(position.to_string().parse(), Ok(position));
        for text in [
            "",
            "7",
            "0:rex",
            "x:rex",
            "7:\0",
            &format!("7:{}", "x".repeat(256)),
        ] {
            assert!(text.parse::<NamePosition>().is_err(), "{text:?}");
        }
    }
}
