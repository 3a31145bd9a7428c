//! Collects the requests that share the next statement.

use std::iter;

use tokio::{sync::mpsc, task::yield_now};

/// Adds requests from the queue to `waiting`, up to `room`, for as long as each yield to the other tasks brings more.
/// Without this, the first of many requests would get a statement of its own. There is no timer.
pub(super) async fn gather<T>(queue: &mut mpsc::Receiver<T>, waiting: &mut Vec<T>, room: usize) {
    loop {
        let before = waiting.len();
        yield_now().await;
        let more = iter::from_fn(|| queue.try_recv().ok());
        waiting.extend(more.take(room.saturating_sub(before)));
        if waiting.len() >= room || waiting.len() == before {
            return;
        }
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
        gather(&mut queue, &mut waiting, 4).await;
        assert_eq!(waiting, [0, 1, 2, 3]);
        gather(&mut queue, &mut waiting, 8).await;
        assert_eq!(waiting, [0, 1, 2, 3, 4]);
    }
}
