//! Row of the table of faults: prints its result in one line.

use std::{fmt::Display, sync::Weak, thread};

use test_support::*;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Permits of the running rows: all of them for a row that measures times, CPU or memory, so that it runs alone.
static RUNNING: Semaphore = Semaphore::const_new(ALONE as usize);
const ALONE: u32 = 3;

/// Form of a run, from the variable `FAULTS`.
#[derive(PartialEq)]
enum Form {
    /// `short`, or not set: seconds for a row.
    Short,
    /// `full`: minutes for a row.
    Full,
}

impl Form {
    fn of_this_run() -> Self {
        match std::env::var("FAULTS").as_deref() {
            Ok("full") => Self::Full,
            Ok("short") | Err(_) => Self::Short,
            Ok(other) => panic!("FAULTS={other}: use short or full"),
        }
    }
}

/// Returns a duration or count of the run; a bound in row 26 only.
pub fn short_or_full<T>(short: T, full: T) -> T {
    if Form::of_this_run() == Form::Full {
        full
    } else {
        short
    }
}

/// A row: its figures so far, and the verdict.
pub struct Row {
    number: u8,
    fault: &'static str,
    figures: Vec<String>,
    broken: bool,
    /// A figure that depends on the speed of the machine is out of its bounds: `.ci/run` runs the row once more.
    late: bool,
    delays: Delays,
    running: SemaphorePermit<'static>,
}

impl Row {
    /// Waits until no other row runs.
    pub async fn begin(number: u8, fault: &'static str) -> Self {
        Self::begin_with(ALONE, number, fault).await
    }

    /// Waits until all rows that measure have ended. Others like this one run beside it: its bounds are no times below a second.
    pub async fn begin_beside_others(number: u8, fault: &'static str) -> Self {
        Self::begin_with(1, number, fault).await
    }

    async fn begin_with(permits: u32, number: u8, fault: &'static str) -> Self {
        #[expect(clippy::assertions_on_constants, reason = "constant for each profile")]
        {
            assert!(
                !cfg!(debug_assertions),
                "the rows measure: run them in release, as .github/RELIABILITY.md says"
            );
        }
        let running = RUNNING.acquire_many(permits).await;
        Self::of(number, fault, running.expect("never closed"))
    }

    fn of(number: u8, fault: &'static str, running: SemaphorePermit<'static>) -> Self {
        Self {
            number,
            fault,
            figures: Vec::new(),
            broken: false,
            late: false,
            delays: measure_delays(),
            running,
        }
    }

    /// Records the 99th percentile of latencies, and its upper bound. The delays of the machine are added to the bound,
    /// twice: a request waits for its client and for the service.
    pub fn p99_within(&mut self, what: &str, times: &mut [Duration], promised: Duration) {
        let delay = percentile(&mut self.delays(), 99.0);
        self.within_delayed(what, percentile(times, 99.0), promised, delay);
    }

    /// Records the median and the 99th percentile of the latencies of honest clients, and the upper bound of one of them: of
    /// the percentile in the full form. The short form, which is part of each build, runs on any machine, whose CPUs the
    /// attackers and clients fill: there it is the median, which shows if an attack starves others.
    pub fn served_within(&mut self, of: &str, times: &mut [Duration]) {
        const BOUND: Duration = Duration::from_millis(50);
        let (median, p99) = (format!("median{of}"), format!("p99{of}"));
        if Form::of_this_run() == Form::Full {
            self.note(format!("{median} {}", seconds(percentile(times, 50.0))));
            self.p99_within(&p99, times, BOUND);
        } else {
            self.note(format!("{p99} {}", seconds(percentile(times, 99.0))));
            self.within(&median, percentile(times, 50.0), BOUND);
        }
    }

    /// Records the longest of some latencies, and its upper bound with the delays of the machine.
    pub fn longest_within(&mut self, what: &str, times: &mut [Duration], promised: Duration) {
        let delay = percentile(&mut self.delays(), 100.0);
        self.within_delayed(what, percentile(times, 100.0), promised, delay);
    }

    fn within_delayed(&mut self, what: &str, time: Duration, promised: Duration, delay: Duration) {
        let what = format!("{what}, with a delay of the machine of {},", seconds(delay));
        self.within(&what, time, promised + delay * 2);
    }

    fn delays(&self) -> Vec<Duration> {
        self.delays.lock().expect("a measurement").clone()
    }

    /// Records a time and its upper bound.
    pub fn within(&mut self, what: &str, time: Duration, bound: Duration) {
        let figure = format!("{what} {} (≤ {})", seconds(time), seconds(bound));
        self.figure_of_speed(figure, time <= bound);
    }

    /// Records an amount of work that is done during the row, and its lower bound.
    pub fn done_in_time<T: PartialOrd + Display + Copy>(
        &mut self,
        what: &str,
        amount: T,
        bound: T,
    ) {
        let holds = amount >= bound;
        self.figure_of_speed(format!("{what} {amount} (≥ {bound})"), holds);
    }

    /// Records how many requests were refused because of overload, of which there should be none.
    pub fn none_refused(&mut self, number: usize) {
        self.figure_of_speed(format!("refused {number} (0)"), number == 0);
    }

    /// Records a number and its upper bound.
    pub fn at_most<T: PartialOrd + Display + Copy>(&mut self, what: &str, number: T, bound: T) {
        let holds = number <= bound;
        self.figure(format!("{what} {number} (≤ {bound})"), holds);
    }

    /// Records a number and its lower bound.
    pub fn at_least<T: PartialOrd + Display + Copy>(&mut self, what: &str, number: T, bound: T) {
        let holds = number >= bound;
        self.figure(format!("{what} {number} (≥ {bound})"), holds);
    }

    /// Records items that must not exist, and prints the first ten.
    pub fn none<T: Display>(&mut self, what: &str, all: impl IntoIterator<Item = T>) {
        let all: Vec<_> = all.into_iter().map(|one| one.to_string()).collect();
        for one in all.iter().take(10) {
            println!("row {:2}: {what}: {one}", self.number);
        }
        self.figure(format!("{what} {} (0)", all.len()), all.is_empty());
    }

    /// Records a condition that must be true.
    pub fn check(&mut self, what: &str, holds: bool) {
        self.figure(what.to_owned(), holds);
    }

    /// Records a figure without a bound.
    pub fn note(&mut self, figure: impl Display) {
        self.figure(figure.to_string(), true);
    }

    /// Records a figure that depends on the speed of the machine, which other programs use, too.
    fn figure_of_speed(&mut self, figure: String, holds: bool) {
        self.late |= !holds;
        self.figures.push(marked(figure, holds));
    }

    fn figure(&mut self, figure: String, holds: bool) {
        self.broken |= !holds;
        self.figures.push(marked(figure, holds));
    }

    /// Ends the row, and begins another one with the same number. No other row runs between them.
    pub fn then(self, fault: &'static str) -> Self {
        let number = self.number;
        Self::of(number, fault, self.finish())
    }

    /// Prints the row; panics if a bound is broken.
    pub fn end(self) {
        drop(self.finish());
    }

    fn finish(self) -> SemaphorePermit<'static> {
        let verdict = match (self.broken, self.late) {
            (true, _) => "BROKEN",
            (false, true) => "LATE",
            (false, false) => "holds",
        };
        let figures = self.figures.join(" · ");
        let line = format!(
            "row {:2} | {} | {figures} | {verdict}",
            self.number, self.fault
        );
        println!("{line}");
        assert!(!self.broken && !self.late, "{line}");
        self.running
    }
}

/// Marks a figure that is out of its bounds.
fn marked(figure: String, holds: bool) -> String {
    figure + if holds { "" } else { " ✗" }
}

/// By how much a process would have been late at each millisecond.
type Delays = Arc<Mutex<Vec<Duration>>>;

/// Measures by how much a timer is late, until the result is dropped. A host that withholds the CPUs of a virtual machine
/// delays every process by as much. The service itself hardly delays the timer, since the scheduler prefers threads that
/// sleep most of the time.
fn measure_delays() -> Delays {
    const INTERVAL: Duration = Duration::from_millis(1);
    let delays = Delays::default();
    let weak: Weak<_> = Arc::downgrade(&delays);
    thread::spawn(move || {
        while let Some(delays) = weak.upgrade() {
            let started = Instant::now();
            thread::sleep(INTERVAL);
            let mut delay = started.elapsed().saturating_sub(INTERVAL);
            let mut delays = delays.lock().expect("a measurement");
            delays.push(delay);
            while delay > INTERVAL {
                delay -= INTERVAL;
                delays.push(delay);
            }
        }
    });
    delays
}

fn seconds(time: Duration) -> String {
    if time < Duration::from_millis(100) {
        format!("{:.1} ms", time.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", time.as_secs_f64())
    }
}

/// Returns a percentile of `times`.
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
