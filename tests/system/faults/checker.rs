//! Compares the responses that clients received with the data stored afterwards.
//!
//! Invariants, checked from the clients' log and the stored data alone:
//! - An acknowledged write is stored once and whole.
//! - A refused write is not stored.
//! - A write with an unknown outcome is stored whole or not at all.
//! - A replaced record holds the last acknowledged value or one with an unknown outcome, never an older version.

use std::collections::BTreeMap;

/// Outcome of a write, as its client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The client received a 2xx.
    Acknowledged,
    /// The client received a 4xx.
    Refused,
    /// The client received a 5xx or no response.
    Unknown,
}

/// Kind of write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Creates a record that holds the marker.
    Create,
    /// Replaces the record with this identifier.
    Replace(i64),
}

/// One write of one client, in the order in which that client sent them.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Resource: `pet`, `order` or `image`.
    pub resource: &'static str,
    pub write: Write,
    /// Text that no other write contains.
    pub marker: String,
    pub outcome: Outcome,
    /// Version from the response's ETag, if there is one.
    pub version: Option<i64>,
}

/// A record stored afterwards.
#[derive(Debug, Clone)]
pub struct Found {
    /// Resource: `pet`, `order` or `image`.
    pub resource: &'static str,
    pub id: i64,
    /// Marker of the write that it stems from.
    pub marker: String,
    /// Version, if the resource has one.
    pub version: Option<i64>,
    /// True if all its parts stem from that write.
    pub whole: bool,
}

/// Describes each violation of the invariants.
pub fn breaches(log: &[Entry], found: &[Found]) -> Vec<String> {
    let mut breaches = Vec::new();
    for record in found.iter().filter(|record| !record.whole) {
        breaches.push(format!("stored in part: {record:?}"));
    }
    let mut created: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for record in found {
        *created
            .entry((record.resource, &record.marker))
            .or_default() += 1;
    }
    let mut replaced: BTreeMap<(&str, i64), Vec<&Entry>> = BTreeMap::new();
    for entry in log {
        match entry.write {
            Write::Create => {
                let count = created.get(&(entry.resource, entry.marker.as_str()));
                let count = count.copied().unwrap_or_default();
                let fine = match entry.outcome {
                    Outcome::Acknowledged => count == 1,
                    Outcome::Refused => count == 0,
                    Outcome::Unknown => count <= 1,
                };
                if !fine {
                    breaches.push(format!("stored {count} times: {entry:?}"));
                }
            }
            Write::Replace(id) => replaced
                .entry((entry.resource, id))
                .or_default()
                .push(entry),
        }
    }
    for ((resource, id), entries) in replaced {
        let record = found
            .iter()
            .find(|record| record.resource == resource && record.id == id);
        breaches.extend(breach_of_replacements(&entries, record));
    }
    breaches
}

fn breach_of_replacements(entries: &[&Entry], found: Option<&Found>) -> Vec<String> {
    let Some(found) = found else {
        return vec![format!("missing: the record of {entries:?}")];
    };
    let mut breaches = Vec::new();
    let acknowledged: Vec<_> = entries
        .iter()
        .filter(|entry| entry.outcome == Outcome::Acknowledged)
        .collect();
    let versions: Vec<_> = acknowledged
        .iter()
        .filter_map(|entry| entry.version)
        .collect();
    if !versions.is_sorted_by(|one, next| one < next) {
        breaches.push(format!("versions went back: {versions:?} of {found:?}"));
    }
    let last = acknowledged.last();
    if let (Some(last), Some(now)) = (versions.last(), found.version)
        && now < *last
    {
        breaches.push(format!("version {last} was acknowledged: {found:?}"));
    }
    let is_last = last.is_some_and(|last| last.marker == found.marker);
    let is_unknown = entries
        .iter()
        .any(|entry| entry.outcome == Outcome::Unknown && entry.marker == found.marker);
    // No write reached it, so it still has its initial value.
    let is_untouched = last.is_none() && entries.iter().all(|entry| entry.marker != found.marker);
    if !is_last && !is_unknown && !is_untouched {
        breaches.push(format!("{last:?} was acknowledged last: {found:?}"));
    }
    breaches
}

/// Tests that show that the checker can fail.
mod tests {
    use super::{
        Entry, Found,
        Outcome::{self, Acknowledged, Refused, Unknown},
        Write, breaches,
    };

    const CREATE: Write = Write::Create;
    const REPLACE: Write = Write::Replace(1);

    fn entry(write: Write, marker: &str, outcome: Outcome, version: Option<i64>) -> Entry {
        Entry {
            resource: "pet",
            write,
            marker: marker.into(),
            outcome,
            version,
        }
    }

    fn found(id: i64, marker: &str, version: Option<i64>, whole: bool) -> Found {
        Found {
            resource: "pet",
            id,
            marker: marker.into(),
            version,
            whole,
        }
    }

    #[test]
    fn checker_accepts_every_allowed_outcome() {
        let fine = [
            (
                entry(CREATE, "a", Acknowledged, None),
                vec![found(2, "a", None, true)],
            ),
            (entry(CREATE, "a", Refused, None), vec![]),
            (entry(CREATE, "a", Unknown, None), vec![]),
            (
                entry(CREATE, "a", Unknown, None),
                vec![found(2, "a", None, true)],
            ),
            (
                entry(REPLACE, "a", Acknowledged, Some(5)),
                vec![found(1, "a", Some(5), true)],
            ),
            (
                entry(REPLACE, "a", Unknown, None),
                vec![found(1, "a", Some(5), true)],
            ),
            (
                entry(REPLACE, "a", Refused, None),
                vec![found(1, "before", Some(5), true)],
            ),
        ];
        for (entry, found) in fine {
            assert_eq!(breaches(&[entry], &found), [""; 0]);
        }
    }

    #[test]
    fn checker_reports_every_kind_of_violation() {
        let wrong = [
            (entry(CREATE, "a", Acknowledged, None), vec![]),
            (
                entry(CREATE, "a", Acknowledged, None),
                vec![found(2, "a", None, true), found(3, "a", None, true)],
            ),
            (
                entry(CREATE, "a", Acknowledged, None),
                vec![found(2, "a", None, false)],
            ),
            (
                entry(CREATE, "a", Refused, None),
                vec![found(2, "a", None, true)],
            ),
            (
                entry(REPLACE, "a", Acknowledged, Some(5)),
                vec![found(1, "before", Some(5), true)],
            ),
            (
                entry(REPLACE, "a", Acknowledged, Some(5)),
                vec![found(1, "a", Some(4), true)],
            ),
            (entry(REPLACE, "a", Acknowledged, Some(5)), vec![]),
            (
                entry(REPLACE, "a", Refused, None),
                vec![found(1, "a", Some(5), true)],
            ),
        ];
        for (entry, found) in wrong {
            assert_eq!(
                breaches(std::slice::from_ref(&entry), &found).len(),
                1,
                "{entry:?} {found:?}"
            );
        }
    }

    #[test]
    fn checker_reports_versions_that_decrease() {
        let back = [
            entry(REPLACE, "a", Acknowledged, Some(6)),
            entry(REPLACE, "b", Acknowledged, Some(5)),
        ];
        assert_eq!(breaches(&back, &[found(1, "b", Some(5), true)]).len(), 1);
    }
}
