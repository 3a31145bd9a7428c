//! `audit`: shows the record of changes.

use std::{str::FromStr, time::Duration};

use chrono::{DateTime, Local, NaiveDate, NaiveTime, TimeDelta, Utc};
use clap::Args;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::{
    output::{Error, part_of_table, say, say_json},
    session::with_database,
};
use crate::{
    config::Config,
    db::{
        self, Database,
        changes::{Filter, Page, Start},
    },
    domain::{
        Invalid,
        change::{Change, Kind, Position},
    },
};

/// Number of changes that are read at once, and size in bytes of their facts after which no more are read.
const PAGE: usize = 1_000;
const PAGE_BYTES: usize = 1 << 20;
/// Number of characters of a value after which a table cuts it.
const MAX_VALUE: usize = 60;
/// Interval of `--follow`.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct Audit {
    /// Only changes since a time: 2h or 7d ago, 2026-01-31 (in the local time zone), or 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<Time>,
    /// Only changes before a time
    #[arg(long, value_name = "TIME", conflicts_with = "follow")]
    until: Option<Time>,
    /// Only changes of one resource: its kind and identifier, such as pet/7
    #[arg(long, value_name = "KIND/ID", conflicts_with = "kinds")]
    resource: Option<Resource>,
    /// Only changes by one caller; operator stands for commands such as this one
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,
    /// Only changes of one kind, can be repeated: pet, image, order, user, caller, key, client, session, webhook, import,
    /// restore
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<Kind>,
    /// Show new changes as they are made, until Ctrl-C; with --since, first those since then
    #[arg(long)]
    follow: bool,
}

impl Audit {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        with_database(config, async |database| {
            tokio::select! {
                result = self.show(database, json) => result,
                // To stop an embedded PostgreSQL that this command has started.
                interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
            }
        })
        .await
    }

    async fn show(&self, database: &Database, json: bool) -> Result<(), Error> {
        let mut after = match self.since {
            Some(Time(since)) => {
                // A statement that publishes a change may have begun just before it.
                let since = since - TimeDelta::seconds(1);
                database
                    .run(async |connection| db::changes::last_before(connection, since).await)
                    .await?
            }
            None if self.follow => {
                let newest = database.run(async |connection| {
                    db::changes::publish_all(connection).await?;
                    db::changes::newest(connection).await
                });
                newest.await?
            }
            None => Position::default(),
        };
        let resource = self.resource.clone();
        let filter = Filter {
            kinds: match &self.resource {
                None if self.kinds.is_empty() => Kind::ALL.to_vec(),
                None => self.kinds.clone(),
                Some(Resource(kind, _)) => vec![*kind],
            },
            resource: resource.map(|Resource(kind, id)| (kind, id)),
            ..Filter::default()
        };
        let mut heading = Some(&HEADING[..]);
        loop {
            let read = database.run(async |connection| {
                db::changes::publish_all(connection).await?;
                let start = Start::After(after);
                db::changes::page(connection, start, &filter, PAGE, PAGE_BYTES).await
            });
            let page: Result<Page, _> = read.await?;
            let page = page.map_err(|_| "changes.retention has passed for the changes that were to be shown next; run the command again")?;
            let mut wanted = page.changes.into_iter().filter(|it| self.includes(it));
            if json {
                wanted.try_for_each(|change| say_json(&change))?;
            } else {
                let rows: Vec<_> = wanted.map(|change| to_row(&change)).collect();
                if !rows.is_empty() {
                    let heading = heading.take();
                    say(part_of_table(heading, &WIDTHS, rows.into_iter()))?;
                }
            }
            if page.next == after {
                if !self.follow {
                    return Ok(());
                }
                sleep(INTERVAL).await;
            }
            after = page.next;
        }
    }

    fn includes(&self, change: &Change) -> bool {
        self.since.is_none_or(|Time(since)| change.at >= since)
            && self.until.is_none_or(|Time(until)| change.at < until)
            && (self.caller.is_none() || self.caller == change.actor)
    }
}

const HEADING: [&str; 7] = [
    "TIME", "RESOURCE", "ACTION", "CALLER", "VERSION", "FACTS", "REQUEST",
];
/// Minimum widths of the columns, so that most changes are aligned with those of the pages before.
const WIDTHS: [u16; 7] = [19, 12, 7, 12, 7, 28, 0];

fn to_row(change: &Change) -> Vec<String> {
    fn text(text: Option<&str>) -> String {
        text.unwrap_or("-").to_owned()
    }
    let facts = change.data.as_ref();
    let facts = facts.and_then(|facts| serde_json::from_str::<Map<_, _>>(facts.get()).ok());
    let facts = facts.iter().flatten();
    // A list that a new pet does not have is no fact for people.
    let facts = facts.filter(|(_, value)| **value != json!([null, []]));
    let facts: Vec<_> = facts.map(|(name, value)| fact(name, value)).collect();
    let at = change.at.with_timezone(&Local);
    vec![
        at.format("%Y-%m-%d %H:%M:%S").to_string(),
        format!("{}/{}", change.kind, change.resource),
        change.action.clone(),
        text(change.actor.as_deref()),
        text(change.version.map(|it| it.to_string()).as_deref()),
        facts.join(", "),
        text(change.request_id.as_deref()),
    ]
}

/// Returns a fact for people: `pet 7`, `status available → sold`, `scopes read:pets admin → read:pets`, `ids 1 – 9`, `tags – → small`,
/// `was Rex`.
fn fact(name: &str, value: &Value) -> String {
    match value.as_array().map(Vec::as_slice) {
        Some([first, last]) if name == "ids" => format!("{name} {first} – {last}"),
        Some([Value::Null, new]) => format!("{name} {}", text(new)),
        Some([old, new]) if !matches!(name, "changed" | "scopes") || old.is_array() => {
            format!("{name} {} → {}", text(old), text(new))
        }
        _ => format!("{name} {}", text(value)),
    }
}

/// Returns a value for people: an object by its name, if it has one.
fn text(value: &Value) -> String {
    let text = match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(all) if all.is_empty() => "–".to_owned(),
        Value::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(" "),
        Value::Object(members) => match &members.get("name") {
            Some(Value::String(name)) => name.clone(),
            _ => value.to_string(),
        },
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    };
    match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Kind and identifier of a resource.
#[derive(Debug, Clone)]
struct Resource(Kind, String);

impl FromStr for Resource {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (kind, id) = text.split_once('/').ok_or(Invalid::because(
            "must be a kind and an identifier, such as pet/7",
        ))?;
        Ok(Self(kind.parse()?, id.to_owned()))
    }
}

/// Point in time.
#[derive(Debug, Clone, Copy)]
struct Time(DateTime<Utc>);

#[expect(
    clippy::disallowed_methods,
    reason = "a command measures from its own start"
)]
impl FromStr for Time {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        const INVALID: Invalid =
            Invalid::because("must be like 2h, 7d, 2026-01-31 or 2026-01-31T12:00:00Z");
        if let Ok(time) = DateTime::parse_from_rfc3339(text) {
            return Ok(Self(time.to_utc()));
        }
        if let Ok(date) = text.parse::<NaiveDate>() {
            let midnight = date.and_time(NaiveTime::MIN).and_local_timezone(Local);
            return midnight
                .earliest()
                .map(|time| Self(time.to_utc()))
                .ok_or(INVALID);
        }
        let ago = humantime::parse_duration(text).map_err(|_| INVALID)?;
        let ago = TimeDelta::from_std(ago).map_err(|_| INVALID)?;
        Utc::now().checked_sub_signed(ago).map(Self).ok_or(INVALID)
    }
}
