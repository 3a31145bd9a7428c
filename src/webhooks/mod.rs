//! Delivery of changes to webhooks, and tests. `.github/decisions/0023-webhooks.md` states the design.
//!
//! Invariants:
//! - The first deliveries of the changes of a resource are in their order.
//! - No webhook delays another: each has a turn and requests of its own, and they share nothing.
//! - A webhook is read no further while many of its resources fail, or many deliveries wait ([`turn`]).
//! - A turn begins no request in the second half of its lease: the last one ends before another replica begins.

mod send;
mod test;
mod turn;

use std::{collections::HashSet, time::Duration};

use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use self::turn::{LEASE, Turn};
pub use self::{send::Sender, test::test};
use crate::{
    db::{self, Database},
    domain::webhook::MAX_WEBHOOKS,
    feed::Feed,
};

/// Interval of the search for webhooks with something to deliver.
const INTERVAL: Duration = Duration::from_millis(200);
/// Interval of the gauges.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Delivers until `end` is cancelled, and the turns in progress have ended, some 2 s later. There are as many turns at most as
/// webhooks.
pub async fn deliver(database: Database, feed: Feed, sender: Sender, end: CancellationToken) {
    let mut turns = JoinSet::new();
    loop {
        tokio::select! {
            () = end.cancelled() => break,
            Some(_) = turns.join_next() => {}
            () = async {
                sleep(INTERVAL).await;
                feed.has_webhooks().await;
            } => {}
        }
        while !end.is_cancelled() {
            let claim =
                database.run(async |connection| db::deliveries::claim(connection, LEASE).await);
            match claim.await {
                Ok(Some(webhook)) => {
                    let turn = Turn::new(database.clone(), sender.clone(), end.clone(), webhook);
                    turns.spawn(turn.run());
                }
                Ok(None) | Err(db::Error::Unavailable(_)) => break,
                Err(error) => {
                    tracing::warn!(%error, "failed to search for webhooks with changes; retrying in 200 ms");
                    break;
                }
            }
        }
    }
    while turns.join_next().await.is_some() {}
}

/// Updates the gauges of webhooks, for ever. Those of a deleted webhook become NaN, with which its series are left out.
pub async fn report(database: Database, feed: Feed) {
    let mut known = HashSet::new();
    loop {
        let webhooks = database
            .run(async |connection| db::webhooks::list(connection, None, MAX_WEBHOOKS).await);
        // A failure is logged by the search for webhooks.
        if let Ok(webhooks) = webhooks.await {
            let mut gone = std::mem::take(&mut known);
            for webhook in webhooks {
                let lag = if webhook.enabled {
                    webhook.lag_seconds
                } else {
                    0.0
                };
                let [waiting, parked] = [webhook.waiting, webhook.parked]
                    .map(|number| u32::try_from(number).unwrap_or(u32::MAX).into());
                set_gauges(&webhook.id.to_string(), [lag, waiting, parked]);
                gone.remove(&webhook.id);
                known.insert(webhook.id);
            }
            for deleted in gone {
                set_gauges(&deleted.to_string(), [f64::NAN; 3]);
            }
        }
        if known.is_empty() {
            sleep(INTERVAL).await;
            feed.has_webhooks().await;
        } else {
            sleep(REPORT_INTERVAL).await;
        }
    }
}

fn set_gauges(webhook: &str, values: [f64; 3]) {
    let names = [
        "webhooks_lag_seconds",
        "webhooks_waiting",
        "webhooks_parked",
    ];
    for (name, value) in names.into_iter().zip(values) {
        metrics::gauge!(name, "webhook" => webhook.to_owned()).set(value);
    }
}
