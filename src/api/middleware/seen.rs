//! What was seen of an answered request, written down: its access line and its metrics.
//!
//! A worker writes down what it saw when no task of its is left to run, just before it sleeps: by then the
//! answers are on their way, so hardly a client waits for its access line, and the lines of many requests are
//! written one after the other, which costs each of them less. Other threads write at once, and so does whoever
//! is traced.
//!
//! Invariants: one access line a request, a tenth of a second late at most; an HTTP/1 connection's are written
//! before it has ended, which a stop waits for.

use std::{cell::RefCell, collections::HashMap, sync::Arc, time::Duration};

use axum::{
    extract::MatchedPath,
    http::{Method, StatusCode},
};
use metrics::{Counter, Histogram};

use crate::{api::request_id::RequestId, domain::caller::Caller};

/// What waits to be written at most: a worker that never gets to sleep writes so many at once.
const ROOM: usize = 256;

thread_local! {
    /// `None` on threads that write at once.
    static WAITING: RefCell<Option<Vec<Seen>>> = const { RefCell::new(None) };
}

/// From now on this thread calls [`write_down`] before it sleeps, and when it has not slept for long.
pub fn gather_here() {
    WAITING.set(Some(Vec::with_capacity(ROOM)));
}

/// Writes down what this thread has seen.
pub fn write_down() {
    WAITING.with_borrow_mut(|waiting| {
        let waiting = waiting.iter_mut().flat_map(|waiting| waiting.drain(..));
        waiting.for_each(|seen| seen.write());
    });
}

/// A request and its answer.
pub struct Seen {
    /// Of the request.
    pub method: Method,
    /// The route, never the path: its number of values is bounded, and no identifier is logged.
    pub route: Option<MatchedPath>,
    /// Of the answer.
    pub status: StatusCode,
    /// From the request's head to the answer's.
    pub latency: Duration,
    /// Who asked, where that is known.
    pub caller: Option<Arc<Caller>>,
    /// Its name in our log, and the client's.
    pub id: RequestId,
}

impl Seen {
    /// Writes it when the thread has time for it; at once on one that never says when.
    pub fn write_later(self) {
        let waiting = WAITING.with_borrow_mut(|waiting| match waiting {
            Some(waiting) => {
                waiting.push(self);
                Ok(waiting.len())
            }
            None => Err(self),
        });
        match waiting {
            Ok(length) if length < ROOM => {}
            Ok(_) => write_down(),
            Err(seen) => seen.write(),
        }
    }

    /// Writes it at once.
    pub fn write(&self) {
        let route = self.route.as_ref().map_or("none", MatchedPath::as_str);
        tracing::info!(
            target: "pet_inventory::access",
            method = self.method.as_str(),
            route,
            status = self.status.as_u16(),
            latency_ms = self.latency.as_secs_f64() * 1e3,
            caller = self.caller.as_ref().map(|caller| caller.name.as_str()),
            request_id = self.id.as_str(),
        );
        count(method_label(&self.method), route, self.status, self.latency);
    }
}

/// A method as metrics and traces name it. Bounded: anybody can make one up.
#[must_use]
pub fn method_label(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN
        .into_iter()
        .find(|known| *known == method.as_str())
        .unwrap_or("other")
}

/// Counts an answer, and how long it took. The metrics are looked up once a thread: by name and labels that
/// costs more than the counting.
fn count(method: &'static str, route: &str, status: StatusCode, latency: Duration) {
    type Kept = Vec<((&'static str, StatusCode), (Counter, Histogram))>;
    thread_local! {
        static KEPT: RefCell<HashMap<String, Kept>> = RefCell::default();
    }
    let look_up = || {
        let labels = [
            ("method", method.to_owned()),
            ("route", route.to_owned()),
            ("status", status.as_str().to_owned()),
        ];
        (
            metrics::counter!("http_requests_total", &labels),
            metrics::histogram!("http_request_duration_seconds", &labels[..2]),
        )
    };
    KEPT.with_borrow_mut(|kept| {
        let kept = match kept.get_mut(route) {
            Some(kept) => kept,
            None => kept.entry(route.to_owned()).or_default(),
        };
        let at = kept.iter().position(|(key, _)| *key == (method, status));
        let at = at.unwrap_or_else(|| {
            kept.push(((method, status), look_up()));
            kept.len() - 1
        });
        let (_, (answers, latencies)) = &kept[at];
        answers.increment(1);
        latencies.record(latency);
    });
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use axum::http::HeaderMap;

    use super::*;

    /// Counts the lines that are written to it.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl io::Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn it_waits_for_a_worker_to_sleep_but_neither_for_others_nor_without_bounds() {
        let see = || {
            let seen = Seen {
                method: Method::GET,
                route: None,
                status: StatusCode::OK,
                latency: Duration::ZERO,
                caller: None,
                id: RequestId::of(&HeaderMap::new()),
            };
            seen.write_later();
        };
        let lines = Lines::default();
        let written = || lines.0.load(Ordering::Relaxed);
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            see();
            assert_eq!(written(), 1);
            gather_here();
            see();
            assert_eq!(written(), 1);
            write_down();
            assert_eq!(written(), 2);
            (1..ROOM).for_each(|_| see());
            assert_eq!(written(), 2);
            see();
            assert_eq!(written(), 2 + ROOM);
        });
    }
}
