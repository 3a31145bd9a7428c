//! Bars of acceptance, and the table of those that are met.

use crate::table;

/// Whether a figure must not be below or above its bar.
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

use Bar::{AtLeast, AtMost};

/// Bars by the name of a ratio, which [`table::record`] stores.
///
/// The bars hold for medians of five rounds, with `fsync`. A ratio named `a@64/b` is that of the rates of `a` and `b` at
/// 64 connections; one named `row: variant` is that to the first variant of the row.
const BARS: &[(&str, Bar)] = &[
    ("getPetById@64/naive", AtLeast(3.2)),
    ("getPetById@256/naive", AtLeast(3.2)),
    ("getPetById@64/static", AtLeast(0.6)),
    ("getPetById@256/static", AtLeast(0.6)),
    ("getPetById@64/before", AtLeast(0.95)),
    ("getPetById@256/before", AtLeast(0.95)),
    ("findPetsByStatus@64/pgbench", AtLeast(0.6)),
    ("findPetsByTags/common@64/pgbench", AtLeast(0.6)),
    ("findPetsByTags/rare@64/pgbench", AtLeast(0.6)),
    ("findPetsByTags/absent@64/pgbench", AtLeast(0.6)),
    ("findPetsByTags/two@64/pgbench", AtLeast(0.6)),
    // The median latency at one connection with 10^6 pets, in ratio to GET by id.
    ("pages, stale statistics: status", AtMost(3.0)),
    ("pages, stale statistics: common", AtMost(3.0)),
    ("pages, stale statistics: rare", AtMost(3.0)),
    ("pages, stale statistics: absent", AtMost(3.0)),
    ("pages, stale statistics: two", AtMost(3.0)),
    ("pages, stale statistics: name", AtMost(3.0)),
    ("pages, none statistics: status", AtMost(3.0)),
    ("pages, none statistics: common", AtMost(3.0)),
    ("pages, none statistics: rare", AtMost(3.0)),
    ("pages, none statistics: absent", AtMost(3.0)),
    ("pages, none statistics: two", AtMost(3.0)),
    ("pages, none statistics: name", AtMost(3.0)),
    ("pages, fresh statistics: status", AtMost(3.0)),
    ("pages, fresh statistics: common", AtMost(3.0)),
    ("pages, fresh statistics: rare", AtMost(3.0)),
    ("pages, fresh statistics: absent", AtMost(3.0)),
    ("pages, fresh statistics: two", AtMost(3.0)),
    ("pages, fresh statistics: name", AtMost(3.0)),
    ("addPet@64/naive", AtLeast(3.0)),
    ("updatePet@64/pgbench", AtLeast(1.3)),
    ("deletePet@64/pgbench", AtLeast(1.3)),
    ("patchPet@64/pgbench", AtLeast(1.0)),
    ("updatePetWithForm@64/pgbench", AtLeast(1.0)),
    ("placeOrder@64/pgbench", AtLeast(1.0)),
    ("getInventory@64/get", AtLeast(0.6)),
    ("credentials, free@64: OAuth", AtLeast(0.9)),
    ("credentials, free@64: session", AtLeast(0.9)),
    ("credentials, free@64: JWT", AtLeast(0.9)),
    ("credentials, free@64: anonymous", AtLeast(0.9)),
    ("credentials, pro@64: OAuth", AtLeast(0.9)),
    ("credentials, pro@64: session", AtLeast(0.9)),
    ("credentials, pro@64: JWT", AtLeast(0.9)),
    ("credentials, enterprise@64: OAuth", AtLeast(0.9)),
    ("credentials, enterprise@64: session", AtLeast(0.9)),
    ("credentials, enterprise@64: JWT", AtLeast(0.9)),
    ("round trip of 1 ms, getPetById@256/naive", AtLeast(3.5)),
    ("round trip of 1 ms, addPet@256/naive", AtLeast(1.5)),
    ("sizes, getPetById@64: many pets", AtLeast(0.8)),
    ("sizes, findPetsByStatus@64: many pets", AtLeast(0.8)),
    ("sizes, addPet@64: many pets", AtLeast(0.8)),
    ("sizes, updatePet@64: many pets", AtLeast(0.8)),
    ("stream/copy", AtLeast(0.5)),
    ("stream, first byte in ms", AtMost(20.0)),
    ("stream, memory in MB", AtMost(16.0)),
];

/// Prints the bars whose rows have been measured.
pub fn print() {
    println!("\n{:<44} {:>8} {:>8}", "bar", "figure", "");
    for (name, bar) in BARS {
        let Some(figure) = table::figure(name) else {
            println!("{name:<44} not measured");
            continue;
        };
        let (sign, bar, is_met) = match *bar {
            AtLeast(bar) => ("≥", bar, figure >= bar),
            AtMost(bar) => ("≤", bar, figure <= bar),
        };
        let outcome = if is_met { "met" } else { "NOT MET" };
        println!("{name:<44} {figure:>8.2} {sign:>3} {bar:<6.2} {outcome}");
    }
}
