//! Collects the requests that share the next statement.

use std::iter;

use tokio::{sync::mpsc, task::yield_now};

/// Adds items from the queue to `batch`, up to `max_size`, for as long as each yield to the other tasks brings more.
/// Without this, the first of many requests would get a statement of its own. There is no timer.
pub(super) async fn collect<T>(queue: &mut mpsc::Receiver<T>, batch: &mut Vec<T>, max_size: usize) {
    loop {
        let before = batch.len();
        yield_now().await;
        let queued = iter::from_fn(|| queue.try_recv().ok());
        batch.extend(queued.take(max_size.saturating_sub(before)));
        if batch.len() >= max_size || batch.len() == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn collects_all_queued_items_up_to_the_maximum() {
        let (sender, mut queue) = mpsc::channel(8);
        let mut batch = vec![0];
        for number in 1..=4 {
            sender.try_send(number).expect("capacity");
        }
        collect(&mut queue, &mut batch, 4).await;
        assert_eq!(batch, [0, 1, 2, 3]);
        collect(&mut queue, &mut batch, 8).await;
        assert_eq!(batch, [0, 1, 2, 3, 4]);
    }
}
