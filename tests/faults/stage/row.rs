//! A row of the table of faults: takes turns with the others, and says what came of it in one line.

use std::{fmt::Display, time::Duration};

use tokio::sync::{Mutex, MutexGuard};

/// One fault at a time: they measure, and the machine is small.
static TURN: Mutex<()> = Mutex::const_new(());

/// Whether the whole of each row is asked for (`FAULTS=full`), by the bounds that are promised; else a short
/// form, by bounds that a busy machine keeps too.
pub fn full() -> bool {
    std::env::var("FAULTS").is_ok_and(|form| form == "full")
}

/// One of two, by the form of the run.
pub fn pick<T>(short: T, full_form: T) -> T {
    if full() { full_form } else { short }
}

/// A time bound: what is promised, and in the short form what it takes for a machine to be broken.
pub fn bound(promised: Duration) -> Duration {
    pick(promised.mul_f64(3.0).max(Duration::from_secs(3)), promised)
}

/// A row: what was measured so far, and what of it breaks its bound.
pub struct Row {
    number: u8,
    fault: &'static str,
    figures: Vec<String>,
    broken: bool,
    _turn: MutexGuard<'static, ()>,
}

impl Row {
    /// Waits for its turn.
    pub async fn begin(number: u8, fault: &'static str) -> Self {
        Self {
            number,
            fault,
            figures: Vec::new(),
            broken: false,
            _turn: TURN.lock().await,
        }
    }

    /// A time that has a bound.
    pub fn within(&mut self, what: &str, took: Duration, bound: Duration) {
        let figure = format!("{what} {} (≤ {})", seconds(took), seconds(bound));
        self.figure(figure, took <= bound);
    }

    /// A number that has a bound.
    pub fn at_most<T: PartialOrd + Display + Copy>(&mut self, what: &str, number: T, bound: T) {
        let holds = number <= bound;
        self.figure(format!("{what} {number} (≤ {bound})"), holds);
    }

    /// A number that is to be reached.
    pub fn at_least<T: PartialOrd + Display + Copy>(&mut self, what: &str, number: T, bound: T) {
        let holds = number >= bound;
        self.figure(format!("{what} {number} (≥ {bound})"), holds);
    }

    /// What must not be; each is shown.
    pub fn none<T: Display>(&mut self, what: &str, all: impl IntoIterator<Item = T>) {
        let all: Vec<_> = all.into_iter().map(|one| one.to_string()).collect();
        for one in all.iter().take(10) {
            println!("row {:2}: {what}: {one}", self.number);
        }
        self.figure(format!("{what} {} (0)", all.len()), all.is_empty());
    }

    /// Something that is so.
    pub fn so(&mut self, what: &str, is_so: bool) {
        self.figure(what.to_owned(), is_so);
    }

    /// A number for the reader.
    pub fn note(&mut self, figure: impl Display) {
        self.figure(figure.to_string(), true);
    }

    fn figure(&mut self, figure: String, holds: bool) {
        self.broken |= !holds;
        self.figures.push(figure + if holds { "" } else { " ✗" });
    }

    /// Prints the row, and fails when a bound is broken.
    pub fn end(self) {
        let verdict = if self.broken { "BROKEN" } else { "holds" };
        let figures = self.figures.join(" · ");
        let line = format!(
            "row {:2} | {} | {figures} | {verdict}",
            self.number, self.fault
        );
        println!("{line}");
        assert!(!self.broken, "{line}");
    }
}

fn seconds(time: Duration) -> String {
    if time < Duration::from_millis(100) {
        format!("{:.1} ms", time.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", time.as_secs_f64())
    }
}

/// So much of all times is no longer.
pub fn percentile(times: &mut [Duration], percent: f64) -> Duration {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let index = (last as f64 * percent / 100.0).ceil() as usize;
    times.get(index).copied().unwrap_or_default()
}
