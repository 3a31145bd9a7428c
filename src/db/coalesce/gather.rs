//! Who else comes along: the more travel together, the less each costs, PostgreSQL too.
//!
//! Invariant: nobody waits for a timer, and for those who have not asked yet no longer than it takes to look
//! for them.

use std::iter;

use tokio::{sync::mpsc, task::yield_now};

use crate::turn::Turn;

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
        gather(&mut queue, &mut waiting, 4, &mut Turn::default()).await;
        assert_eq!(waiting, [0, 1, 2, 3]);
        gather(&mut queue, &mut waiting, 8, &mut Turn::default()).await;
        assert_eq!(waiting, [0, 1, 2, 3, 4]);
    }
}
