//! Positions in the history of the primary: a change returns one, and a read may say which one it follows.
//!
//! A position is read after the commit, on the same connection: only the server that has acknowledged the change knows its
//! history. Without `database.read_url`, none is read.

use std::{cell::Cell, fmt, str::FromStr, time::Duration};

use sqlx::Row as _;
use tokio::{task::JoinError, time::timeout};

use super::{breaker::Role, connect::Connection};

/// Time limit of reading a position after a commit: the response to a change does not wait longer for it.
const TIMEOUT: Duration = Duration::from_millis(250);

/// Position in the history of the primary: every transaction before it had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Timeline, which a failover increments. Transaction ids are not comparable across timelines.
    timeline: i64,
    /// Id after that of the last transaction that had ended.
    next: i64,
}

impl Position {
    /// Reads the position of a primary.
    async fn of_primary(connection: &mut Connection) -> Result<Self, sqlx::Error> {
        let query = sqlx::query(
            "select ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint as timeline,
                    pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next",
        );
        let row = query.fetch_one(connection).await?;
        Ok(Self {
            timeline: row.try_get("timeline")?,
            next: row.try_get("next")?,
        })
    }

    /// Reads the position that a standby has replayed: later statements see all changes before it. The timeline is 0 if the
    /// standby follows no primary, or if the user lacks the role `pg_read_all_stats`. Fails if the server was promoted.
    pub(super) async fn of_standby(connection: &mut Connection) -> Result<Self, sqlx::Error> {
        let query = sqlx::query(
            "select pg_is_in_recovery() as is_standby,
                    coalesce((select received_tli from pg_stat_wal_receiver), 0)::bigint as timeline,
                    pg_snapshot_xmin(pg_current_snapshot())::text::bigint as next",
        );
        let row = query.fetch_one(connection).await?;
        if !row.try_get("is_standby")? {
            return Err(Role::Standby.refusal());
        }
        Ok(Self {
            timeline: row.try_get("timeline")?,
            next: row.try_get("next")?,
        })
    }

    /// Returns true if the position has a timeline.
    pub(super) const fn is_known(self) -> bool {
        self.timeline > 0
    }

    /// Checks that a standby with this position has all changes before that of a request. Fails with the reason.
    pub(super) const fn check(self, other: Self) -> Result<(), &'static str> {
        if self.timeline < other.timeline {
            Err("other_timeline")
        } else if self.next < other.next {
            Err("behind")
        } else {
            Ok(())
        }
    }
}

/// The form in a header, which is opaque to clients.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:x}", self.timeline, self.next)
    }
}

/// Error of a text that is no position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPosition;

impl FromStr for Position {
    type Err = NoPosition;

    fn from_str(text: &str) -> Result<Self, NoPosition> {
        let (timeline, next) = text.split_once('.').ok_or(NoPosition)?;
        let number = |digits| i64::from_str_radix(digits, 16).map_err(|_| NoPosition);
        let (timeline, next) = (number(timeline)?, number(next)?);
        let position = Self { timeline, next };
        // Other forms of the same numbers were not issued here.
        let is_valid = timeline > 0 && next > 0 && position.to_string() == text;
        is_valid.then_some(position).ok_or(NoPosition)
    }
}

/// What the current request says, or learns, of positions.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// It makes changes; the position after the last one.
    After(Option<Position>),
    /// It reads what is after this position.
    Wanted(Position),
    /// It reads at the primary, since a standby has not responded in time.
    Nothing,
}

tokio::task_local! {
    static KNOWN: Cell<Known>;
}

/// Runs `work`, which makes changes. Returns its result with the position after the last change, if there was one, and if the
/// position could be read.
pub async fn after<F: Future>(work: F) -> (F::Output, Option<Position>) {
    let work = async {
        let output = work.await;
        let position = match KNOWN.get().get() {
            Known::After(position) => position,
            Known::Wanted(_) | Known::Nothing => None,
        };
        (output, position)
    };
    KNOWN.scope(Cell::new(Known::After(None)), work).await
}

/// Runs `work` in a task of its own, which goes on if the request ends. Its changes are those of the current request.
pub async fn spawn<F>(work: F) -> Result<F::Output, JoinError>
where
    F: Future<Output: Send> + Send + 'static,
{
    if !is_changing() {
        return tokio::spawn(work).await;
    }
    let (output, position) = tokio::spawn(after(work)).await?;
    keep(position);
    Ok(output)
}

/// Runs `work`, whose reads may be those of a standby that has reached `position`.
pub async fn reading_after<F: Future>(position: Position, work: F) -> F::Output {
    KNOWN.scope(Cell::new(Known::Wanted(position)), work).await
}

/// Returns the position that the reads of the current request follow.
pub(super) fn wanted() -> Option<Position> {
    match KNOWN.try_with(Cell::get) {
        Ok(Known::Wanted(position)) => Some(position),
        _ => None,
    }
}

/// Returns true if the current request makes changes, and wants a position.
pub(super) fn is_changing() -> bool {
    matches!(KNOWN.try_with(Cell::get), Ok(Known::After(_)))
}

/// Keeps the position after a change of the current request.
pub(super) fn keep(position: Option<Position>) {
    let _ = KNOWN.try_with(|known| known.set(Known::After(position)));
}

/// Lets the other reads of the current request go to the primary.
pub(super) fn forget_wanted() {
    let _ = KNOWN.try_with(|known| known.set(Known::Nothing));
}

/// Reads the position after a commit on this connection. The change was made, so a failure only means that there is none; then
/// the connection must be closed.
pub(super) async fn after_commit(connection: &mut Connection) -> Option<Position> {
    let reading = timeout(TIMEOUT, Position::of_primary(connection));
    reading.await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_is_read_from_its_own_form_only() {
        let position = Position {
            timeline: 26,
            next: 4_095,
        };
        assert_eq!(position.to_string(), "1a.fff");
        assert_eq!("1a.fff".parse(), Ok(position));
        for other in [
            "",
            ".",
            "1a",
            "1a.",
            "1A.fff",
            "01.1",
            "1.+1",
            "0.1",
            "1.0",
            "-1.1",
            "1.1.1",
            "1.ffffffffffffffff",
        ] {
            assert_eq!(other.parse::<Position>(), Err(NoPosition), "{other}");
        }
    }

    #[test]
    fn standby_has_what_is_before_its_position_on_the_same_or_a_later_timeline() {
        let position = |timeline, next| Position { timeline, next };
        for (standby, expected) in [
            (position(2, 10), Ok(())),
            (position(3, 10), Ok(())),
            (position(2, 9), Err("behind")),
            (position(1, 99), Err("other_timeline")),
            (position(0, 99), Err("other_timeline")),
        ] {
            assert_eq!(standby.check(position(2, 10)), expected, "{standby:?}");
        }
    }
}
