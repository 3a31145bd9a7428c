//! The access log line and the metrics of a request.
//!
//! A worker writes them in batches just before it sleeps: the responses are on their way then, so clients do not wait for
//! log lines, and a batch costs less per line. Other threads, and traced requests, write at once.
//!
//! Invariants: one line per request, at most 0.1 s late; all lines of a connection are written before it ends, for which a
//! shutdown waits.

use std::{cell::RefCell, collections::HashMap, sync::Arc, time::Duration};

use axum::{
    extract::MatchedPath,
    http::{Method, StatusCode},
};
use metrics::Histogram;

use crate::{api::request_id::RequestId, domain::caller::Caller};

/// Maximum number of lines in a batch, for a worker that does not sleep.
const ROOM: usize = 256;

thread_local! {
    /// `None` on threads that write at once.
    static WAITING: RefCell<Option<Vec<Seen>>> = const { RefCell::new(None) };
}

/// Makes this thread write in batches: it has to call [`write_down`] before it sleeps, and ten times a second.
pub fn gather_here() {
    WAITING.set(Some(Vec::with_capacity(ROOM)));
}

/// Writes the batch of this thread.
pub fn write_down() {
    WAITING.with_borrow_mut(|waiting| {
        let waiting = waiting.iter_mut().flat_map(|waiting| waiting.drain(..));
        waiting.for_each(|seen| seen.write());
    });
}

/// A request and its response.
pub struct Seen {
    /// Method of the request.
    pub method: Method,
    /// Route, not path: the number of values is bounded, and no identifier is logged.
    pub route: Option<MatchedPath>,
    /// Status of the response.
    pub status: StatusCode,
    /// Time from the request head to the response head.
    pub latency: Duration,
    /// Caller, if known.
    pub caller: Option<Arc<Caller>>,
    /// Request id.
    pub id: RequestId,
}

impl Seen {
    /// Adds it to the batch of this thread; writes it at once if the thread has none.
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

/// Method in metrics and traces. Unknown methods are `_OTHER`, because clients can invent them.
#[must_use]
pub fn method_label(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN
        .into_iter()
        .find(|known| *known == method.as_str())
        .unwrap_or("_OTHER")
}

/// Records the duration of a request. Histograms are looked up once per thread: a look-up by name and labels costs more
/// than recording.
fn count(method: &'static str, route: &str, status: StatusCode, latency: Duration) {
    type Histograms = Vec<((&'static str, StatusCode), Histogram)>;
    thread_local! {
        static HISTOGRAMS: RefCell<HashMap<String, Histograms>> = RefCell::default();
    }
    let look_up = || {
        metrics::histogram!(
            "http_server_request_duration_seconds",
            "http_request_method" => method,
            "http_route" => route.to_owned(),
            "http_response_status_code" => status.as_str().to_owned(),
        )
    };
    HISTOGRAMS.with_borrow_mut(|histograms| {
        let of_route = match histograms.get_mut(route) {
            Some(of_route) => of_route,
            None => histograms.entry(route.to_owned()).or_default(),
        };
        let index = of_route
            .iter()
            .position(|(key, _)| *key == (method, status));
        let index = index.unwrap_or_else(|| {
            of_route.push(((method, status), look_up()));
            of_route.len() - 1
        });
        of_route[index].1.record(latency);
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
