//! Counts the requests of callers, so that they are written once a second, not once per request.

use std::sync::Arc;

use dashmap::DashMap;

use crate::{
    db::{self, Database},
    domain::{caller::CallerId, limit::RequestCounts},
};

/// Requests since the last write. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Usage(Arc<DashMap<CallerId, RequestCounts>>);

impl Usage {
    /// Counts a request, unless its caller is anonymous.
    pub fn count(&self, caller: Option<CallerId>, is_admitted: bool) {
        let Some(caller) = caller else {
            return;
        };
        let mut counts = self.0.entry(caller).or_default();
        if is_admitted {
            counts.admitted += 1;
        } else {
            counts.refused += 1;
        }
    }

    /// Writes the counts in one statement, if there are any. After a failure, the next write includes them.
    pub async fn write(&self, database: &Database) -> Result<(), db::Error> {
        let mut counts = Vec::new();
        self.0.retain(|caller, count| {
            counts.push((*caller, *count));
            false
        });
        if counts.is_empty() {
            return Ok(());
        }
        let added = database.run(async |it| db::usage::add(it, &counts).await);
        let added = added.await;
        if added.is_err() {
            for (caller, count) in counts {
                let mut counts = self.0.entry(caller).or_default();
                counts.admitted += count.admitted;
                counts.refused += count.refused;
            }
        }
        added
    }
}
