//! Prints the results as a table, and collects the ratios that have a bar.

use std::{collections::BTreeMap, sync::Mutex};

use crate::load::Run;

/// Ratios by name.
static FIGURES: Mutex<BTreeMap<String, f64>> = Mutex::new(BTreeMap::new());

/// Stores a ratio, such as that of `getPetById@64/naive`: the service's rate at 64 connections, divided by naive's.
pub fn record(name: String, value: f64) {
    FIGURES.lock().expect("never poisoned").insert(name, value);
}

/// Returns a stored ratio.
pub fn figure(name: &str) -> Option<f64> {
    FIGURES.lock().expect("never poisoned").get(name).copied()
}

/// Result of one round of a variant.
#[derive(Debug, Clone, Copy, Default)]
pub struct Round {
    pub run: Run,
    /// CPU microseconds per request, of the server and of PostgreSQL.
    pub server: f64,
    pub postgres: f64,
    /// Resident memory of the server in MB.
    pub memory: f64,
}

/// Rounds of the service, and of an earlier build in turns with it.
#[derive(Debug, Default)]
pub struct ServiceRounds {
    pub service: Vec<Round>,
    pub before: Vec<Round>,
}

impl ServiceRounds {
    /// Returns the median requests per second of the service.
    pub fn rate(&self) -> f64 {
        median(&self.service, |round| round.run.rate)
    }

    /// Returns the ratio of the service's rate to that of the earlier build.
    pub fn of_before(&self) -> f64 {
        self.rate() / median(&self.before, |round| round.run.rate)
    }

    /// Prints a line of the service, and one of the earlier build if there is one.
    pub fn lines(&self, row: &str, ratio: &str) {
        self.named_lines(row, "service", ratio);
    }

    /// Prints the same lines with another name of the variant.
    pub fn named_lines(&self, row: &str, variant: &str, ratio: &str) {
        line(row, variant, &self.service, ratio);
        if !self.before.is_empty() {
            let ratio = format!("service {:.2} of before", self.of_before());
            line("", "before", &self.before, &ratio);
        }
    }
}

/// Returns the median of a value over all rounds.
pub fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn header() {
    println!(
        "{:<44} {:<12} {:>9} {:>8} {:>8} {:>9} {:>9} {:>8}  ratio",
        "", "", "req/s", "p50 ms", "p99 ms", "µs server", "µs pg", "RSS MB"
    );
}

/// Prints one line of the table; returns its requests per second.
pub fn line(row: &str, variant: &str, rounds: &[Round], ratio: &str) -> f64 {
    let rate = median(rounds, |round| round.run.rate);
    println!(
        "{row:<44} {variant:<12} {rate:>9.0} {:>8.2} {:>8.2} {:>9.1} {:>9.1} {:>8.0}  {ratio}",
        median(rounds, |round| round.run.p50),
        median(rounds, |round| round.run.p99),
        median(rounds, |round| round.server),
        median(rounds, |round| round.postgres),
        median(rounds, |round| round.memory),
    );
    rate
}
