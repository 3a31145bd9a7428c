//! Stream of changes as Server-Sent Events (WHATWG HTML §9.2).
//!
//! A stream reads pages until it has caught up, and then follows the [`Feed`](crate::feed::Feed), to which it has subscribed
//! before. It produces what the client reads, and no more: a reader that is too slow for the feed is disconnected.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, header},
    response::{IntoResponse as _, Response},
};
use bytes::BytesMut;
use futures_util::stream;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};
use tracing::Instrument as _;

use super::wanted::Wanted;
use crate::{
    api::{
        credentials::{API_KEY, credentials},
        error::Error,
        request_context::RequestContext,
        state::AppState,
    },
    db::{
        self, Cost,
        changes::{Filter, Page, Start},
        deadline, scope,
    },
    domain::{
        caller::{Caller, CallerKey, Scope},
        change::{Change, Position},
    },
    feed::{Batch, End, Event, Subscription},
    limits::shares::Share,
};

/// Interval between two checks of the credential.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time without an event after which the position is sent, at the next check: at least every 15 s.
const KEEP_ALIVE: Duration = Duration::from_secs(14);
/// Size in bytes from which a piece gets no further event.
const MAX_PIECE: usize = 16 << 10;
/// Number of changes that a stream reads at once until it has caught up, and size in bytes of their facts after which it reads no more:
/// it holds them until they are sent.
const PAGE: usize = 100;
const PAGE_BYTES: usize = 64 << 10;

/// Opens a stream. Fails if the position is not known, or if the client address or the process has too many streams.
pub async fn open(
    state: AppState,
    wanted: Wanted,
    caller: &Caller,
    context: &RequestContext,
    headers: &HeaderMap,
) -> Result<Response, Error> {
    const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
    let share = state
        .concurrency
        .change_streams
        .take(context.client_address(), 1)?;
    let subscription = state.feed.subscribe().await?;
    let mut stream = ChangeStream {
        filter: wanted.filter(caller),
        credentials: [API_KEY, header::AUTHORIZATION]
            .iter()
            .filter_map(|name| headers.get(name).map(|value| (name.clone(), value.clone())))
            .collect(),
        reader: context.caller_key(),
        position: Position::default(),
        batch: Arc::new([]),
        next: 0,
        source: Source::Pages,
        subscription,
        next_check: Instant::now() + CHECK_INTERVAL,
        sent_at: None,
        wanted,
        state,
        _share: share,
    };
    match stream.wanted.after {
        Some(after) => {
            stream.position = after;
            stream.read_page().await?;
        }
        None => {
            let newest = stream.state.database.run(async |connection| {
                db::changes::publish_all(connection).await?;
                db::changes::newest(connection).await
            });
            stream.position = newest.await?;
            stream.source = Source::Feed;
        }
    }
    let events = stream::unfold(stream, async |mut stream| {
        let text = stream.next().await?;
        Some((Ok::<_, Infallible>(text), stream))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        // Otherwise nginx would hold events back.
        (X_ACCEL_BUFFERING, "no"),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}

struct ChangeStream {
    state: AppState,
    /// Header fields with the credentials of the request.
    credentials: HeaderMap,
    wanted: Wanted,
    filter: Filter,
    /// Caller in whose turn pages are read.
    reader: CallerKey,
    /// Last position that was looked at.
    position: Position,
    batch: Batch,
    /// Index of the next event of the batch.
    next: usize,
    source: Source,
    subscription: Subscription,
    /// Time of the next check of the credential.
    next_check: Instant,
    /// Time of the last event.
    sent_at: Option<Instant>,
    _share: Share,
}

/// Source of the next batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The record, until the stream has caught up.
    Pages,
    /// The subscription, which may have lagged meanwhile.
    FeedAfterPages,
    /// The subscription.
    Feed,
}

impl ChangeStream {
    /// Waits for the next event, or for the time of one with the position. Returns `None` at the end of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        let text = self.next_text().await?;
        self.sent_at = Some(Instant::now());
        Some(text)
    }

    async fn next_text(&mut self) -> Option<Bytes> {
        // At once, so that the client knows where it is, and proxies pass the response on.
        if self.sent_at.is_none() {
            return Some(position_event(self.position));
        }
        loop {
            if self.next_check <= Instant::now() {
                self.check().await?;
                self.next_check = Instant::now() + CHECK_INTERVAL;
                if self.sent_at.is_some_and(|at| at.elapsed() >= KEEP_ALIVE) {
                    return Some(position_event(self.position));
                }
            }
            if let Some(text) = self.next_of_batch() {
                return Some(text);
            }
            if self.source == Source::Pages {
                // The client repeats its request with the last position, and gets the reason.
                self.read_page().await.ok()?;
                continue;
            }
            tokio::select! {
                biased;
                () = sleep_until(self.next_check) => {}
                batch = self.subscription.next() => match batch {
                    Ok(batch) => {
                        (self.batch, self.next) = (batch, 0);
                        self.source = Source::Feed;
                    }
                    Err(End::Lagged) if self.source == Source::FeedAfterPages => {
                        self.source = Source::Pages;
                    }
                    Err(end) => {
                        if end == End::Lagged {
                            metrics::counter!("changes_streams_lagged_total").increment(1);
                        }
                        return None;
                    }
                }
            }
        }
    }

    /// Returns the next events of the batch that the client wants, as one piece: a piece costs more than its bytes.
    fn next_of_batch(&mut self) -> Option<Bytes> {
        let first = self.next_event()?;
        let mut piece = BytesMut::new();
        while piece.len() < MAX_PIECE
            && let Some(event) = self.next_event()
        {
            if piece.is_empty() {
                piece.extend_from_slice(&first);
            }
            piece.extend_from_slice(&event);
        }
        Some(if piece.is_empty() {
            first
        } else {
            piece.freeze()
        })
    }

    fn next_event(&mut self) -> Option<Bytes> {
        while let Some(event) = self.batch.get(self.next) {
            self.next += 1;
            let position = event.change.position;
            if position > self.position {
                self.position = position;
                if self.filter.includes(&event.change) {
                    let text = if self.filter.hides_actor_of(&event.change) {
                        let hidden = || text(&event.change.clone().without_actor());
                        event.text_without_actor.get_or_init(hidden)
                    } else {
                        event.text.get_or_init(|| text(&event.change))
                    };
                    return Some(text.clone());
                }
            }
        }
        None
    }

    /// Reads the next page, as one of a few large reads: a page looks at up to 10,000 changes. A task does, so that its statement ends
    /// if the client disconnects.
    async fn read_page(&mut self) -> Result<(), Error> {
        let (database, reader) = (self.state.database.clone(), self.reader);
        let (position, filter) = (self.position, self.filter.clone());
        let read = async move {
            let read = database.read_large(Cost::Rows, reader, async |connection| {
                db::changes::publish_all(connection).await?;
                let start = Start::After(position);
                db::changes::page(connection, start, &filter, PAGE, PAGE_BYTES).await
            });
            read.await
        };
        let (_reading, dropped) = oneshot::channel::<()>();
        let cancelled = async { drop(dropped.await) };
        let read = Box::pin(scope::until(cancelled, read));
        let read = tokio::spawn(deadline::of_task(read).in_current_span());
        let page = read.await.map_err(Error::internal)?;
        let page: Result<Page, _> = page.unwrap_or(Err(db::Error::TimedOut))?;
        let Page { changes, next } = page.map_err(Error::UnknownPosition)?;
        if changes.is_empty() {
            if next == self.position {
                self.source = Source::FeedAfterPages;
            }
            self.position = next;
        }
        (self.batch, self.next) = (changes.into_iter().map(Event::from).collect(), 0);
        Ok(())
    }

    /// Checks the credential again. Returns `None` if it is no longer valid for this operation. While PostgreSQL is away,
    /// there are no events either.
    async fn check(&mut self) -> Option<()> {
        let credentials = credentials(&self.credentials).ok()??;
        match self.state.authenticator.authenticate(credentials).await {
            Ok(caller) if caller.scopes.contains(Scope::ReadChanges) => {
                self.filter = self.wanted.filter(&caller);
                Some(())
            }
            Ok(_) => None,
            Err(error) => (!error.is_invalid()).then_some(()),
        }
    }
}

/// Returns an event for a change.
fn text(change: &Change) -> Bytes {
    let json = serde_json::to_string(change).unwrap_or_default();
    format!("event: change\nid: {}\ndata: {json}\n\n", change.position.0).into()
}

/// Returns an event with a position, from which the client goes on. It has data: parsers drop an event without, and with it the
/// position.
fn position_event(position: Position) -> Bytes {
    let position = position.0;
    format!("event: position\nid: {position}\ndata: {{\"position\":{position}}}\n\n").into()
}
