//! The day: leases on a durable count, so that most requests need no round trip to the database.
//!
//! The count in PostgreSQL is charged before the requests it is for are admitted: a lease of a few. A
//! `kill -9` loses what of its leases a process had not used, so it admits fewer, never more. A lease is
//! a five hundredth of the limit, 2 for plan Free and 100 for Pro: five crashes in a day cost 1 %. The
//! day is the UTC calendar day on the database's clock; a lease ends with its day, and what a quiet caller
//! has left of one is given back within a minute or two, so no lease grows old.

use std::time::Duration;

use chrono::NaiveDate;

use crate::{db::usage::Grant, domain::clock::Moment};

/// What this process may still admit without asking.
#[derive(Debug, Default)]
pub struct Lease {
    left: u32,
    /// The limit that it was asked for under.
    limit: u32,
    /// Charged by all processes, this lease included.
    charged: u32,
    day: Option<NaiveDate>,
    day_ends: Moment,
    /// Whether the database had nothing more to give.
    spent: bool,
}

/// What a lease says to one more request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is room.
    Room,
    /// The day's limit is reached; so long until the next day.
    Spent(Duration),
    /// Ask the database.
    Unknown,
}

impl Lease {
    /// How many requests a lease is for.
    #[must_use]
    pub fn size(limit: u32) -> u32 {
        (limit / 500).max(1)
    }

    /// A lease that the database just gave.
    #[must_use]
    pub fn new(grant: Grant, limit: u32, now: Moment) -> Self {
        Self {
            left: grant.granted,
            limit,
            charged: grant.charged,
            day: Some(grant.day),
            day_ends: now + grant.day_ends_in,
            spent: grant.granted == 0,
        }
    }

    /// Whether one more request has room under a limit.
    #[must_use]
    pub fn ask(&self, now: Moment, limit: u32) -> Answer {
        if now >= self.day_ends || limit != self.limit {
            Answer::Unknown
        } else if self.left > 0 {
            Answer::Room
        } else if self.spent {
            Answer::Spent(self.day_ends_in(now))
        } else {
            Answer::Unknown
        }
    }

    /// Uses one; gives the day that it is charged to.
    pub const fn take(&mut self) -> Option<NaiveDate> {
        self.left = self.left.saturating_sub(1);
        self.day
    }

    /// Takes one back that was charged to a day, if that is still the day.
    pub fn give_back(&mut self, day: NaiveDate, now: Moment) {
        if self.day == Some(day) && now < self.day_ends {
            self.left += 1;
            self.spent = false;
        }
    }

    /// Takes out what is left, with its day, for the database to take back; it knows whether that day
    /// is over.
    pub fn take_out(&mut self) -> Option<(NaiveDate, u32)> {
        let left = std::mem::take(&mut self.left);
        self.charged = self.charged.saturating_sub(left);
        self.day.filter(|_| left > 0).map(|day| (day, left))
    }

    /// How many requests of the day are used, as far as this process knows.
    #[must_use]
    pub const fn used(&self) -> u32 {
        self.charged.saturating_sub(self.left)
    }

    /// How long the day lasts.
    #[must_use]
    pub fn day_ends_in(&self, now: Moment) -> Duration {
        self.day_ends.saturating_sub(now)
    }
}
