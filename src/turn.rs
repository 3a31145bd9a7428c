//! A thread's turn on a core, which it may give to whoever else waits for one: where clients, a proxy or PostgreSQL
//! share our cores, they may be about to ask or to answer, and are kept from it by us alone.

use std::{
    thread,
    time::{Duration, Instant},
};

/// A turn, ours at first. To give it away costs next to nothing where nobody waits for it.
#[derive(Debug, Default)]
pub struct Turn {
    not_before: Option<Instant>,
}

impl Turn {
    /// Longer than those take who pass a request on: of 8 s on two busy cores 4 times more than 1 ms, never this.
    const LONG: Duration = Duration::from_millis(2);
    /// After who takes long it is kept for so many times as long.
    const KEPT: u32 = 100;

    /// Gives it away and takes it back as soon as the operating system lets us; `false`: it is better kept, since
    /// who got it last computes.
    pub fn give_away(&mut self) -> bool {
        let begun = Instant::now();
        if self.not_before.is_some_and(|moment| begun < moment) {
            return false;
        }
        thread::yield_now();
        let taken = begun.elapsed();
        if taken > Self::LONG {
            self.not_before = begun.checked_add(taken * Self::KEPT);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_kept_for_long_after_it_was_taken_for_long() {
        let mut turn = Turn {
            not_before: Instant::now().checked_add(Duration::from_mins(1)),
        };
        assert!(!turn.give_away());
        turn.not_before = Some(Instant::now());
        assert!(turn.give_away());
    }
}
