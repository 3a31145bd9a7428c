//! Prints the results as a table.

use crate::load::Run;

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

    /// Prints a line of the service, and one of the earlier build if there is one.
    pub fn lines(&self, row: &str, ratio: &str) {
        line(row, "service", &self.service, ratio);
        if !self.before.is_empty() {
            let ratio = self.rate() / median(&self.before, |round| round.run.rate);
            line(
                "",
                "before",
                &self.before,
                &format!("service {ratio:.2} of before"),
            );
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
        "{:<34} {:<8} {:>9} {:>8} {:>8} {:>9} {:>9} {:>8}  ratio",
        "", "", "req/s", "p50 ms", "p99 ms", "µs server", "µs pg", "RSS MB"
    );
}

/// Prints one line of the table; returns its requests per second.
pub fn line(row: &str, variant: &str, rounds: &[Round], ratio: &str) -> f64 {
    let rate = median(rounds, |round| round.run.rate);
    println!(
        "{row:<34} {variant:<8} {rate:>9.0} {:>8.2} {:>8.2} {:>9.1} {:>9.1} {:>8.0}  {ratio}",
        median(rounds, |round| round.run.p50),
        median(rounds, |round| round.run.p99),
        median(rounds, |round| round.server),
        median(rounds, |round| round.postgres),
        median(rounds, |round| round.memory),
    );
    rate
}
