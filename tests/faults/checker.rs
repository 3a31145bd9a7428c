//! Compares what clients were told with what there is afterwards.
//!
//! It knows nothing of the service: only the clients' log, what was found, and three laws. What was
//! acknowledged is there, once and whole; what was refused is not; of what nobody knows all is there or
//! nothing. And a thing that is written over and over has the last acknowledged value, or one that nobody
//! knows of, and never an older version.

use std::collections::BTreeMap;

/// What its client knows of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was told that it is done.
    Acknowledged,
    /// It was told that it is not done, and why.
    Refused,
    /// It was told to try again, or nothing.
    Unknown,
}

/// What a write was to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Make a thing that is marked.
    Create,
    /// Mark the thing of that identifier anew.
    Replace(i64),
}

/// One write of one client, in the order in which each client did them.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Pets, orders, images.
    pub noun: &'static str,
    /// What it was to do.
    pub write: Write,
    /// No other write has it.
    pub marker: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The version that the thing had then, where it has one and its client was told.
    pub version: Option<i64>,
}

/// A thing that is there afterwards.
#[derive(Debug, Clone)]
pub struct Found {
    /// Pets, orders, images.
    pub noun: &'static str,
    /// Its identifier.
    pub id: i64,
    /// Which write it is of.
    pub marker: String,
    /// Its version, where it has one.
    pub version: Option<i64>,
    /// Whether all parts of it are of that write.
    pub whole: bool,
}

/// Every breach of a law, as a sentence.
pub fn breaches(log: &[Entry], found: &[Found]) -> Vec<String> {
    let mut breaches = Vec::new();
    for thing in found.iter().filter(|thing| !thing.whole) {
        breaches.push(format!("half there: {thing:?}"));
    }
    let mut created: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for thing in found {
        *created.entry((thing.noun, &thing.marker)).or_default() += 1;
    }
    let mut replaced: BTreeMap<(&str, i64), Vec<&Entry>> = BTreeMap::new();
    for entry in log {
        match entry.write {
            Write::Create => {
                let there = created.get(&(entry.noun, entry.marker.as_str()));
                let there = there.copied().unwrap_or_default();
                let fine = match entry.outcome {
                    Outcome::Acknowledged => there == 1,
                    Outcome::Refused => there == 0,
                    Outcome::Unknown => there <= 1,
                };
                if !fine {
                    breaches.push(format!("there {there} times: {entry:?}"));
                }
            }
            Write::Replace(id) => replaced.entry((entry.noun, id)).or_default().push(entry),
        }
    }
    for ((noun, id), entries) in replaced {
        let thing = found
            .iter()
            .find(|thing| thing.noun == noun && thing.id == id);
        breaches.extend(breach_of_replacements(&entries, thing));
    }
    breaches
}

fn breach_of_replacements(entries: &[&Entry], found: Option<&Found>) -> Vec<String> {
    let Some(found) = found else {
        return vec![format!("gone: what {entries:?} wrote to")];
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
    // Nothing was done to it: then it is what it was before.
    let is_untouched = last.is_none() && entries.iter().all(|entry| entry.marker != found.marker);
    if !is_last && !is_unknown && !is_untouched {
        breaches.push(format!("{last:?} was acknowledged last: {found:?}"));
    }
    breaches
}

/// A checker that finds nothing must be one that could.
#[test]
fn the_checker_finds_every_kind_of_breach() {
    use Outcome::{Acknowledged, Refused, Unknown};
    let entry = |write, marker: &str, outcome, version| Entry {
        noun: "pet",
        write,
        marker: marker.into(),
        outcome,
        version,
    };
    let found = |id, marker: &str, version, whole| Found {
        noun: "pet",
        id,
        marker: marker.into(),
        version,
        whole,
    };
    let (create, replace) = (Write::Create, Write::Replace(1));
    let fine = [
        (
            entry(create, "a", Acknowledged, None),
            vec![found(2, "a", None, true)],
        ),
        (entry(create, "a", Refused, None), vec![]),
        (entry(create, "a", Unknown, None), vec![]),
        (
            entry(create, "a", Unknown, None),
            vec![found(2, "a", None, true)],
        ),
        (
            entry(replace, "a", Acknowledged, Some(5)),
            vec![found(1, "a", Some(5), true)],
        ),
        (
            entry(replace, "a", Unknown, None),
            vec![found(1, "a", Some(5), true)],
        ),
        (
            entry(replace, "a", Refused, None),
            vec![found(1, "before", Some(5), true)],
        ),
    ];
    for (entry, found) in fine {
        assert_eq!(breaches(&[entry], &found), [""; 0]);
    }
    let wrong = [
        (entry(create, "a", Acknowledged, None), vec![]),
        (
            entry(create, "a", Acknowledged, None),
            vec![found(2, "a", None, true), found(3, "a", None, true)],
        ),
        (
            entry(create, "a", Acknowledged, None),
            vec![found(2, "a", None, false)],
        ),
        (
            entry(create, "a", Refused, None),
            vec![found(2, "a", None, true)],
        ),
        (
            entry(replace, "a", Acknowledged, Some(5)),
            vec![found(1, "before", Some(5), true)],
        ),
        (
            entry(replace, "a", Acknowledged, Some(5)),
            vec![found(1, "a", Some(4), true)],
        ),
        (entry(replace, "a", Acknowledged, Some(5)), vec![]),
        (
            entry(replace, "a", Refused, None),
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
    let back = [
        entry(replace, "a", Acknowledged, Some(6)),
        entry(replace, "b", Acknowledged, Some(5)),
    ];
    assert_eq!(breaches(&back, &[found(1, "b", Some(5), true)]).len(), 1);
}
