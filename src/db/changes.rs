//! Published record of changes.
//!
//! Invariants:
//! - A position appears only after all lower ones, and each change gets one position.
//! - The changes of a resource have positions in their order.
//! - The newest position always has a row, so that a reader can tell if its position is known.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{FromRow, types::Json};

use super::{connect::Connection, deadline::with_timeout, error::Error};
use crate::domain::{
    caller::{CallerId, CallerName, is_account},
    change::{Change, Data, Kind, Position},
};

/// Maximum number of changes that a statement publishes or looks at.
const MAX_BATCH: u64 = 10_000;
/// Size in bytes of the facts after which a statement publishes no more: a larger one would not end in time.
const MAX_PUBLISHED_BYTES: i64 = 16 << 20;
/// Maximum number of changes that a statement deletes.
const MAX_DELETED: i64 = 1_000;

/// Size in bytes of the facts of the changes before one, in an order. Facts are stored uncompressed, so that it is known
/// without reading them. As text, control characters have six times as many.
macro_rules! bytes_before {
    ($order:expr) => {
        concat!(
            "coalesce(sum(pg_column_size(data)) over (order by ",
            $order,
            " rows between unbounded preceding and 1 preceding), 0)"
        )
    };
}

/// Statement that publishes changes, with the end of the clause that locks the clock. Without anything to publish, the clock
/// is not locked, and nothing is written.
macro_rules! publish {
    ($lock:literal) => {
        concat!(
            "with held as materialized (
             select position from changes_clock where exists (select from new_changes) for update ", $lock, "
         ), taken as (
             delete from new_changes
             where ctid = any (array(
                 select ctid from (
                     select ctid, coalesce(sum(size) over (order by seq rows between unbounded preceding and 1 preceding), 0) as bytes
                     from (
                         select ctid, seq, pg_column_size(data) as size
                         from new_changes where exists (select from held) order by seq limit $1
                     ) first
                 ) next where bytes < $2
             ))
             returning *
         ), numbered as (
             select greatest((select position from held), (extract(epoch from now()) * 1000000)::bigint)
                        + row_number() over (order by seq) as position,
                    at, kind, resource, action, version, owner, actor, request_id, data
             from taken
         ), stored as (
             insert into changes (position, at, kind, resource, action, version, owner, actor, request_id, data)
             select * from numbered order by position
         ), advanced as (
             update changes_clock set position = (select max(position) from numbered)
             where exists (select from numbered)
         )
         select (select count(*) from numbered) as published,
                (select count(*) >= $1 or sum(pg_column_size(data)) >= $2 from numbered) as may_remain,
                coalesce((select position from held) <> (select position from changes_clock), false) as is_stale,
                coalesce(extract(epoch from clock_timestamp() - coalesce(
                    (select min(at) from numbered),
                    case when not exists (select from held) then (select min(at) from new_changes) end
                )), 0)::float8 as lag,
                exists (select from webhooks where enabled) as has_webhooks"
        )
    };
}

/// Result of a publication.
#[derive(Debug, Clone, Copy, Default, FromRow)]
pub struct Publication {
    /// Number of changes that it published.
    #[sqlx(try_from = "i64")]
    pub published: u64,
    /// True if it has published as much as one statement can.
    may_remain: Option<bool>,
    /// True if it waited for another publication: it may have found changes only that this one has published.
    is_stale: bool,
    /// Age in seconds of the oldest change that it found, published or not.
    pub lag: f64,
    /// True if any webhook is enabled.
    pub has_webhooks: bool,
}

/// Publishes all changes that were committed before, unless another process is doing so.
pub async fn publish(connection: &mut Connection) -> Result<Publication, Error> {
    publish_by(connection, publish!("skip locked")).await
}

/// Publishes all changes that were committed before. Waits for another process that is doing so.
pub async fn publish_all(connection: &mut Connection) -> Result<(), Error> {
    publish_by(connection, publish!("")).await.map(drop)
}

async fn publish_by(
    connection: &mut Connection,
    statement: &'static str,
) -> Result<Publication, Error> {
    let mut all = Publication::default();
    loop {
        let query = sqlx::query_as(statement)
            .bind(MAX_BATCH.cast_signed())
            .bind(MAX_PUBLISHED_BYTES);
        let batch: Publication = with_timeout(query.fetch_one(&mut *connection)).await?;
        all.published += batch.published;
        all.lag = batch.lag.max(all.lag);
        all.has_webhooks = batch.has_webhooks;
        if batch.may_remain != Some(true) && !batch.is_stale {
            return Ok(all);
        }
    }
}

/// Returns the position of the newest change that is published.
pub async fn newest(connection: &mut Connection) -> Result<Position, Error> {
    let query = sqlx::query_scalar("select position from changes_clock");
    with_timeout(query.fetch_one(connection))
        .await
        .map(Position)
}

/// Columns of a change.
macro_rules! columns {
    () => {
        "position, at, kind, resource, action, version, owner, actor, request_id, data"
    };
}

/// Returns the first `limit` changes behind a position and up to another, of these kinds, or of all if there are none. They end with
/// the first one after `max_bytes`. Looks at up to 10,000 changes.
pub async fn between(
    connection: &mut Connection,
    (after, last): (Position, Position),
    kinds: &[String],
    limit: usize,
    max_bytes: usize,
) -> Result<Page, Error> {
    let mut end = last;
    if !kinds.is_empty() {
        // Before the changes themselves: what is deleted meanwhile would shift the end.
        let query = sqlx::query_scalar(
            "select position from changes where position > $1 and position <= $2 order by position offset $3 - 1 limit 1",
        );
        let query = query
            .bind(after.0)
            .bind(last.0)
            .bind(MAX_BATCH.cast_signed());
        let found: Option<i64> = with_timeout(query.fetch_optional(&mut *connection)).await?;
        end = found.map_or(last, Position);
    }
    let query = sqlx::query_as(concat!(
        "select ", columns!(), ", last from (
             select *, ", bytes_before!("position"), " as bytes, max(position) over () as last
             from (select * from changes
                   where position > $1 and position <= $2 and kind <> 'feed' and (kind = any ($3) or $3 = '{}')
                   order by position limit $4) page
         ) page where bytes < $5 order by position"
    ));
    let query = query
        .bind(after.0)
        .bind(end.0)
        .bind(kinds)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .bind(i64::try_from(max_bytes).unwrap_or(i64::MAX));
    let rows: Vec<PageRow> = with_timeout(query.fetch_all(connection)).await?;
    let is_full = rows.len() == limit || rows.last().is_some_and(|row| row.position < row.last);
    let changes: Vec<Change> = rows.into_iter().filter_map(PageRow::change).collect();
    let last = changes.last().filter(|_| is_full);
    Ok(Page {
        next: last.map_or(end, |change| change.position),
        changes,
    })
}

/// Returns the changes at these positions, in their order, `None` for those that are no longer recorded. They end with the first one
/// after `max_bytes`.
pub async fn at(
    connection: &mut Connection,
    positions: &[Position],
    max_bytes: usize,
) -> Result<Vec<Option<Change>>, Error> {
    let positions: Vec<i64> = positions.iter().map(|position| position.0).collect();
    let query = sqlx::query_as(concat!(
        "select ", columns!(), ", null::bigint as last from (
             select *, ", bytes_before!("number"), " as bytes
             from unnest($1) with ordinality as wanted (position, number) left join changes using (position)
         ) page where bytes < $2 order by number"
    ));
    let query = query
        .bind(positions)
        .bind(i64::try_from(max_bytes).unwrap_or(i64::MAX));
    let rows: Vec<PageRow> = with_timeout(query.fetch_all(connection)).await?;
    Ok(rows.into_iter().map(PageRow::change).collect())
}

/// Returns the position of the last change that was published before a time, 0 if there is none.
pub async fn last_before(
    connection: &mut Connection,
    time: DateTime<Utc>,
) -> Result<Position, Error> {
    let query = sqlx::query_scalar("select max(position) from changes where position < $1");
    let query = query.bind(time.timestamp_micros());
    let last: Option<i64> = with_timeout(query.fetch_one(connection)).await?;
    Ok(Position(last.unwrap_or_default()))
}

/// Changes that a reader wants and may see.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Kinds of which all changes are visible.
    pub kinds: Vec<Kind>,
    /// Kinds of which the changes of resources of `owner` are visible.
    pub own_kinds: Vec<Kind>,
    /// Caller.
    pub owner: Option<CallerId>,
    /// Kind and identifier of the only resource.
    pub resource: Option<(Kind, String)>,
    /// Name of the only actor.
    pub actor: Option<String>,
    /// Name of the caller that does not see the actors of other accounts; `None` for one that sees all.
    pub hides_accounts_from: Option<CallerName>,
}

impl Filter {
    /// Returns true if the reader wants a change and may see it, as [`page`] decides.
    pub fn includes(&self, change: &Change) -> bool {
        let is_of = |kinds: &[Kind]| kinds.iter().any(|kind| kind.as_str() == change.kind);
        let is_own = change.owner.is_some() && change.owner == self.owner;
        let is_wanted =
            |(kind, id): &(Kind, String)| kind.as_str() == change.kind && *id == change.resource;
        self.resource.as_ref().is_none_or(is_wanted)
            && (self.actor.is_none() || self.actor == change.actor)
            && (is_of(&self.kinds) || is_own && is_of(&self.own_kinds))
    }

    /// Returns true if the reader must not see the actor of a change, which another account has made.
    pub fn hides_actor_of(&self, change: &Change) -> bool {
        change.actor.as_ref().is_some_and(|actor| self.hides(actor))
    }

    /// Returns true if the reader must not see this actor.
    pub fn hides(&self, actor: &str) -> bool {
        let reader = self.hides_accounts_from.as_ref();
        reader.is_some_and(|reader| is_account(actor) && reader.as_str() != actor)
    }
}

/// Beginning of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Behind a position, or at the oldest change if it is 0. The order is that of positions.
    After(Position),
    /// Before a position, which need not be that of a change. The newest change comes first.
    Before(Position),
}

/// Part of the record.
#[derive(Debug)]
pub struct Page {
    /// Changes, in the order of the page.
    pub changes: Vec<Change>,
    /// Last position that was looked at.
    pub next: Position,
}

/// Returns the next `limit` changes, which end with the first one after `max_bytes`. Looks at up to 10,000 changes, or at all of one
/// resource. Returns the oldest position as the error if the position after which the page begins is not known.
pub async fn page(
    connection: &mut Connection,
    start: Start,
    filter: &Filter,
    limit: usize,
    max_bytes: usize,
) -> Result<Result<Page, Position>, Error> {
    /// The matches, and the last position that was looked at if neither limit ends them.
    macro_rules! page {
        ($beyond:literal, $order:literal, $last:literal, $scanned:expr, $looked_at:expr) => {
            concat!(
                "with page as materialized (
                     select position, at, kind, resource, action, version, owner, actor, request_id, data,
                            ", bytes_before!(concat!("position ", $order)), " as bytes
                     from (select * from changes where position ", $beyond, " $1 ", $scanned, ") scanned
                     where (kind = any ($2) or (kind = any ($3) and owner = $4)) and ($6::text is null or actor = $6)
                     order by position ", $order, " limit $5
                 ), last as materialized (
                     select ", $last, "(position) as last from ", $looked_at, "
                     where (select count(*) < $5 and coalesce(max(bytes), 0) < $7 from page)
                 )
                 select page.*, last.last from last left join page on bytes < $7 order by page.position ", $order
            )
        };
        ($beyond:literal, $order:literal, $last:literal) => {
            if filter.resource.is_none() {
                page!(
                    $beyond,
                    $order,
                    $last,
                    concat!("order by position ", $order, " limit $8"),
                    concat!("(select position from changes where position ", $beyond, " $1 order by position ", $order, " limit $8) scanned")
                )
            } else {
                page!($beyond, $order, $last, "and kind = $8 and resource = $9", "changes")
            }
        };
    }
    let names = |kinds: &[Kind]| kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>();
    let (Start::After(position) | Start::Before(position)) = start;
    let query = match start {
        Start::After(_) => page!(">", "asc", "max"),
        Start::Before(_) => page!("<", "desc", "min"),
    };
    let query = sqlx::query_as(query)
        .bind(position.0)
        .bind(names(&filter.kinds))
        .bind(names(&filter.own_kinds))
        .bind(filter.owner.map(|caller| caller.0))
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .bind(&filter.actor)
        .bind(i64::try_from(max_bytes).unwrap_or(i64::MAX));
    let query = match &filter.resource {
        None => query.bind(MAX_BATCH.cast_signed()),
        Some((kind, resource)) => query.bind(kind.as_str()).bind(resource),
    };
    let rows: Vec<PageRow> = with_timeout(query.fetch_all(&mut *connection)).await?;
    if let Start::After(after) = start
        && let Some(oldest) = oldest_unless_known(connection, after).await?
    {
        return Ok(Err(oldest));
    }
    let last = rows.first().and_then(|row| row.last).map(Position);
    let changes: Vec<Change> = rows.into_iter().filter_map(PageRow::change).collect();
    let last_match = changes.last().map(|change| change.position);
    let looked_at = [last, last_match].into_iter().flatten();
    let next = match start {
        Start::After(_) => looked_at.max(),
        Start::Before(_) => looked_at.min().map(|last| last.min(position)),
    };
    let next = next.unwrap_or(position);
    Ok(Ok(Page { changes, next }))
}

/// Returns the oldest position if `after` is neither 0 nor that of a change. Changes are deleted from the front: if the position is
/// there after a page was read, none behind it was missing.
async fn oldest_unless_known(
    connection: &mut Connection,
    after: Position,
) -> Result<Option<Position>, Error> {
    let query = sqlx::query_scalar(
        "select min(position) from changes
         having $1 <> 0 and not exists (select from changes where position = $1)",
    );
    let query = query.bind(after.0).fetch_optional(connection);
    with_timeout(query).await.map(|oldest| oldest.map(Position))
}

#[derive(FromRow)]
struct PageRow {
    position: Option<i64>,
    at: Option<DateTime<Utc>>,
    kind: Option<String>,
    resource: Option<String>,
    action: Option<String>,
    version: Option<i64>,
    owner: Option<CallerId>,
    actor: Option<String>,
    request_id: Option<String>,
    data: Option<Json<Data>>,
    last: Option<i64>,
}

impl PageRow {
    /// Returns the change, if the page is not empty.
    fn change(self) -> Option<Change> {
        Some(Change {
            position: Position(self.position?),
            at: self.at?,
            kind: self.kind?,
            resource: self.resource?,
            action: self.action?,
            version: self.version,
            owner: self.owner,
            actor: self.actor,
            request_id: self.request_id,
            data: self.data.map(|Json(data)| data),
        })
    }
}

/// Deletes up to 1,000 changes older than `retention`, the oldest first, except the newest of them. Returns their number.
pub async fn purge_expired(connection: &mut Connection, retention: Duration) -> Result<u64, Error> {
    let query = sqlx::query(
        "delete from changes
         where position < (select max(position) from changes
                           where position < (extract(epoch from now()) * 1000000)::bigint - $1)
           and position <= (select max(position) from (select position from changes order by position limit $2) batch)",
    )
    .bind(i64::try_from(retention.as_micros()).unwrap_or(i64::MAX))
    .bind(MAX_DELETED);
    let deleted = with_timeout(query.execute(connection)).await?;
    Ok(deleted.rows_affected())
}
