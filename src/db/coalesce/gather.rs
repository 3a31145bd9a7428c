//! Who else comes along: the more travel together, the less each costs, PostgreSQL too.
//!
//! Invariant: nobody waits for a timer, and for those who have not asked yet no longer than it takes to look
//! for them.

use std::{
    iter, thread,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::yield_now};

/// Lets those join who have asked by now and are yet to be heard, as long as each look at the sockets brings
/// some, and there is room for them: else the first of many is sent by itself.
pub(super) async fn gather<T>(
    queue: &mut mpsc::Receiver<T>,
    waiting: &mut Vec<T>,
    room: usize,
    turn: &mut Turn,
) {
    let mut looked_twice = false;
    loop {
        let before = waiting.len();
        yield_now().await;
        let more = iter::from_fn(|| queue.try_recv().ok());
        waiting.extend(more.take(room.saturating_sub(before)));
        let some = waiting.len() > before;
        if waiting.len() >= room || (!some && (looked_twice || !turn.give_away())) {
            return;
        }
        looked_twice = !some;
    }
}

/// Our turn on a core, given to whoever else waits for it before we say that nobody came: where clients, a proxy
/// or PostgreSQL share our cores, they may be about to ask, and were kept from it by us alone. Where none does,
/// it costs next to nothing.
pub(super) struct Turn {
    not_before: Option<Instant>,
}

impl Turn {
    /// Longer than those take who pass a request on: of 8 s on two busy cores 4 times more than 1 ms, never this.
    const LONG: Duration = Duration::from_millis(2);
    /// After who takes long it is kept for so many times as long.
    const KEPT: u32 = 100;

    /// A turn that may be given away.
    pub const fn new() -> Self {
        Self { not_before: None }
    }

    /// Gives it away and takes it back as soon as the operating system lets us; `false`: it is better kept, since
    /// who got it last computes.
    fn give_away(&mut self) -> bool {
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

    #[tokio::test]
    async fn all_that_have_asked_join_and_no_more_than_there_is_room_for() {
        let (sender, mut queue) = mpsc::channel(8);
        let mut waiting = vec![0];
        for number in 1..=4 {
            sender.try_send(number).expect("room");
        }
        gather(&mut queue, &mut waiting, 4, &mut Turn::new()).await;
        assert_eq!(waiting, [0, 1, 2, 3]);
        gather(&mut queue, &mut waiting, 8, &mut Turn::new()).await;
        assert_eq!(waiting, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_turn_is_kept_for_long_after_it_was_taken_for_long() {
        let mut turn = Turn::new();
        turn.not_before = Instant::now().checked_add(Duration::from_mins(1));
        assert!(!turn.give_away());
        turn.not_before = Some(Instant::now());
        assert!(turn.give_away());
    }
}
