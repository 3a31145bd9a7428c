//! Lists by keyset, in the order of identifiers or of names, either streamed as a whole or returned a page at a time.
//!
//! Invariants:
//! - Pages are read by keyset (`where id > last order by id limit n`, or the reverse): none costs more than the first, and memory is
//!   bounded for any number of matches.
//! - A slow client holds no database connection.
//! - A match that exists while the whole list is read is in it exactly once.
//! - A list is counted as memory of lists until its bytes are sent. A client that uses its share gets 503, if it asks for pets,
//!   before anything is read.
//!
//! The parts of a whole list have more matches where these are small. Each is read while the one before it is sent.

use std::{fmt::Display, slice, str::FromStr, sync::Arc};

use axum::{
    body::{Body, Bytes},
    extract::FromRequestParts,
    http::{HeaderValue, header, request::Parts},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio::{sync::mpsc, task::coop::consume_budget};
use tracing::Instrument;

use super::{
    compression::{AT_ONCE, encoder_memory},
    error::Error,
    extract::Parameters,
    fields::Violations,
    operations::BASE,
    request_context::RequestContext,
    response::{MAX_UNCOUNTED, counted},
    state::{AppState, Links},
};
use crate::{
    db::{self, Connection, Database, deadline, scope},
    domain::{Invalid, address::AddressKey, parse_digits},
    limits::shares::{Exhausted, Share, Shares},
};

/// Value of `limit` for a list of records without it.
const DEFAULT_LIMIT: usize = 100;
/// Maximum value of `limit`.
const MAX_LIMIT: usize = 1_000;
/// Maximum number of names in a list parameter.
const MAX_NAMES: usize = 100;
/// Bytes counted for a list before its first matches are read.
const RESERVED: usize = 256 << 10;
/// Bytes counted for a list that is streamed: for two parts of [`Pace::BYTES`], of which one waits for the other to be sent, as they
/// are read. A part that waits behind much smaller pets may have twice as many. With an encoder, this is an eighth of the share of
/// an address, which is as much as the last quarter of the memory admits.
const STREAMED: usize = 2 << 20;

/// Query with a list of matches.
pub trait Find: Send + Sync + 'static {
    /// A match.
    type Item: Send + Sync;
    /// Identifier that matches are sorted by.
    type Id: Clone + PartialEq + Display + FromStr + Send + Sync;

    /// Returns the first `limit` matches after `after`, or fewer if the search ends early, when it has cost much.
    fn page(
        &self,
        database: &Database,
        after: Option<Self::Id>,
        limit: usize,
    ) -> impl Future<Output = Result<Page<Self>, db::Error>> + Send;

    /// Returns the identifier of a match.
    fn id(item: &Self::Item) -> Self::Id;

    /// Appends a match as JSON.
    fn write(item: &Self::Item, json: &mut Vec<u8>) -> serde_json::Result<()>;
}

/// Matches, in the order of their identifiers.
pub struct Page<F: Find + ?Sized> {
    /// The matches.
    pub items: Vec<F::Item>,
    /// Set if the search ended early: the identifier after which it continues.
    pub continue_after: Option<F::Id>,
}

impl<F: Find> From<Vec<F::Item>> for Page<F> {
    fn from(items: Vec<F::Item>) -> Self {
        Self {
            items,
            continue_after: None,
        }
    }
}

impl<F: Find> Page<F> {
    /// Returns the identifier after which there may be further matches, if the page has `limit` matches or ended early.
    fn end(&self, limit: usize) -> Option<F::Id> {
        let last = self.items.last().filter(|_| self.items.len() == limit);
        last.map(F::id).or_else(|| self.continue_after.clone())
    }
}

/// Returns the names in a list parameter, or none if it is absent. Empty names and more than 100 names are violations.
pub fn names(
    violations: &mut Violations,
    query: &Parameters,
    parameter: &'static str,
) -> Vec<String> {
    let names = query.list(parameter);
    let reason = match names.len() {
        0 => return names,
        _ if names.iter().any(String::is_empty) => "must not contain an empty name",
        1..=MAX_NAMES => return names,
        _ => "must be at most 100 names",
    };
    violations.add(parameter, reason);
    Vec::new()
}

/// Parses the names in a list parameter and removes duplicates. Invalid names are violations and left out.
pub fn parse_distinct<T: FromStr<Err = Invalid> + PartialEq>(
    violations: &mut Violations,
    query: &Parameters,
    parameter: &'static str,
) -> Vec<T> {
    let mut read: Vec<T> = Vec::new();
    for name in names(violations, query, parameter) {
        match name.parse() {
            Ok(value) if read.contains(&value) => {}
            Ok(value) => read.push(value),
            Err(reason) => violations.add(parameter, reason),
        }
    }
    read
}

/// Order of a list, as the document has it; the parameter is read as text.
#[derive(utoipa::ToSchema)]
#[schema(as = ListOrder)]
pub enum SortParameter {
    /// By identifier.
    #[schema(rename = "id")]
    Ascending,
    /// The largest identifier first.
    #[schema(rename = "-id")]
    Descending,
}

/// Reads the order of a list: true if the largest identifier comes first.
pub fn read_sort(violations: &mut Violations, query: &Parameters) -> Option<bool> {
    query.optional(violations, "sort", |sort| match sort {
        "id" => Ok(false),
        "-id" => Ok(true),
        _ => Err(Invalid::because("must be id or -id")),
    })
}

/// Parses the maximum number of matches of a page.
pub fn parse_limit(text: &str) -> Result<usize, Invalid> {
    parse_digits(text)
        .filter(|limit| (1..=MAX_LIMIT).contains(limit))
        .ok_or(Invalid::because("must be an integer from 1 to 1000"))
}

/// Range of the matches that a request selects.
pub struct Window<Id> {
    /// Maximum number of matches; all of them if `None`.
    limit: Option<usize>,
    /// Identifier that the matches follow.
    after: Option<Id>,
}

impl<Id: FromStr> Window<Id> {
    /// Reads `limit` and `cursor`, then reports all violations of the query.
    pub fn read(mut violations: Violations, query: &Parameters) -> Result<Self, Error> {
        let limit = query.optional(&mut violations, "limit", parse_limit);
        let after = query.optional(&mut violations, "cursor", read_cursor);
        violations.finish(Some(Self { limit, after }))
    }

    /// Sets the maximum number of matches of a request without `limit`.
    pub fn or_limit(self, limit: usize) -> Self {
        Self {
            limit: self.limit.or(Some(limit)),
            ..self
        }
    }
}

/// Database and settings of a list response.
#[derive(Debug)]
pub struct Lists {
    /// Database of the matches.
    database: Database,
    /// Builds the URL of the next page.
    links: Links,
    /// Memory of lists.
    memory: Shares,
    address: Option<AddressKey>,
    /// Memory in bytes of the encoder of a long list.
    encoder: usize,
}

impl FromRequestParts<AppState> for Lists {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Error> {
        let context = RequestContext::from_request_parts(parts, state).await?;
        Ok(Self {
            database: state.database.clone(),
            links: state.links.clone(),
            memory: state.concurrency.lists.clone(),
            address: context.client_address(),
            encoder: encoder_memory(&parts.headers),
        })
    }
}

impl Lists {
    /// Responds with the matches in the window. The URL of the next page has `path` and the `kept` query parameters.
    pub async fn respond<F: Find>(
        self,
        (path, kept): (&str, &[&str]),
        query: &Parameters,
        Window { limit, after }: Window<F::Id>,
        find: F,
    ) -> Result<Response, Error> {
        let Some(limit) = limit else {
            return self.stream(find, after).await;
        };
        let (json, end) = self.page(&find, after, limit).await?;
        let response = self.counted(json)?;
        self.linked(response, (path, kept), query, end)
    }

    /// Responds with a page of records, which are small, as `read` returns them: at most [`DEFAULT_LIMIT`] without `limit`.
    pub async fn records<T: Serialize, Id: Display>(
        self,
        next: (&str, &[&str]),
        query: &Parameters,
        Window { limit, after }: Window<Id>,
        id: impl Fn(&T) -> Id,
        read: impl AsyncFnOnce(&mut Connection, Option<Id>, usize) -> Result<Vec<T>, db::Error>,
    ) -> Result<Response, Error> {
        let _share = self.reserve()?;
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        // One more record than requested shows if there is another page.
        let read = async |connection: &mut Connection| read(connection, after, limit + 1).await;
        let mut records = self.database.run(read).await?;
        let has_more = records.len() > limit;
        records.truncate(limit);
        let end = records.last().filter(|_| has_more).map(id);
        self.linked(self.whole(&records)?, next, query, end)
    }

    /// Adds the URL of the page after `end`, if there is one.
    fn linked(
        &self,
        mut response: Response,
        (path, kept): (&str, &[&str]),
        query: &Parameters,
        end: Option<impl Display>,
    ) -> Result<Response, Error> {
        if let Some(end) = end {
            let cursor = cursor(end);
            let names = [kept, &["limit"]].concat();
            let next = query.query_with(&names, ("cursor", &cursor));
            let url = self.links.url(&format!("{BASE}{path}?{next}"));
            let link = HeaderValue::try_from(format!("<{url}>; rel=\"next\""));
            let link = link.map_err(Error::internal)?;
            response.headers_mut().insert(header::LINK, link);
        }
        Ok(response)
    }

    /// Responds with a list that was read as a whole.
    pub fn whole(&self, list: &impl Serialize) -> Result<Response, Error> {
        self.counted(serde_json::to_vec(list).map_err(Error::internal)?)
    }

    /// Responds with a list that is counted until its bytes are sent. One that is compressed meanwhile is sent in parts, so that
    /// other requests get their turn.
    fn counted(&self, json: Vec<u8>) -> Result<Response, Error> {
        if json.len() <= MAX_UNCOUNTED {
            return Ok(json_response(Body::from(json)));
        }
        let is_short = json.len() <= AT_ONCE;
        let encoder = if is_short { 0 } else { self.encoder };
        let share = self.memory.take(self.address, json.len() + encoder)?;
        let share = Arc::new(share);
        let json = counted(json, &share);
        let mut response = json_response(match encoder {
            0 => Body::from(json),
            _ => in_parts(json),
        });
        response.extensions_mut().insert(share);
        Ok(response)
    }

    /// Takes memory for a list before it is read, so that a client that reads none of its responses soon causes no work.
    fn reserve(&self) -> Result<Share, Exhausted> {
        self.memory.take(self.address, RESERVED)
    }

    /// Returns up to `limit` matches as JSON and, if there may be more, the identifier of the last one. Reads them a part at a time:
    /// if the memory of lists is in use, the rest is not read.
    async fn page<F: Find>(
        &self,
        find: &F,
        mut after: Option<F::Id>,
        limit: usize,
    ) -> Result<(Vec<u8>, Option<F::Id>), Error> {
        let mut share = self.reserve()?;
        let (mut json, mut is_first) = (vec![b'['], true);
        let (mut count, mut wanted) = (0, Pace::FIRST.0);
        let end = loop {
            // One more match than requested shows if there is another page.
            wanted = wanted.min(limit + 1 - count);
            let mut part = find.page(&self.database, after.clone(), wanted).await?;
            let (found, before) = (part.items.len(), json.len());
            part.items.truncate(limit - count);
            for item in &part.items {
                append::<F>(&mut json, slice::from_ref(item), &mut is_first)?;
                // A page of large pets takes tens of milliseconds: other requests get their turn.
                consume_budget().await;
            }
            count += found;
            after = part.items.last().map(F::id).or(after);
            if count > limit {
                break after;
            }
            if found < wanted || part.continue_after.is_some() {
                break part.continue_after;
            }
            drop(share);
            share = self.memory.take(self.address, json.capacity())?;
            wanted = Pace(found).after(found, json.len() - before).0;
        };
        json.push(b']');
        json.shrink_to_fit();
        Ok((json, end))
    }

    /// Streams all matches. The first part is read before the response begins, so that most failures still get a status.
    /// A later failure cuts the connection, which no client can mistake for the end.
    async fn stream<F: Find>(self, find: F, after: Option<F::Id>) -> Result<Response, Error> {
        let reserved = self.reserve()?;
        let first_page = find.page(&self.database, after, Pace::FIRST.0).await?;
        let mut is_first = true;
        let mut first = vec![b'['];
        append::<F>(&mut first, &first_page.items, &mut is_first)?;
        let Some(last) = first_page.end(Pace::FIRST.0) else {
            first.push(b']');
            return self.counted(first);
        };
        drop(reserved);
        let share = self.memory.take(self.address, STREAMED + self.encoder)?;
        let share = Arc::new(share);
        let pace = Pace::FIRST.after(first_page.items.len(), first.len());
        let first = stream::once(std::future::ready(Ok(counted(first, &share))));
        let (parts, following) = mpsc::channel(1);
        let rest = async move {
            // Until the client disconnects.
            let sending = self.send_rest(&find, last, pace, is_first, (&parts, &share));
            if let Some(Err(error)) = scope::until(parts.closed(), sending).await {
                if error.is_database_outage() || !error.is_logged() {
                    tracing::warn!(%error, "failed to stream a list; closing the connection");
                } else {
                    tracing::error!(%error, "failed to stream a list; closing the connection");
                }
                let _ = parts.send(Err(error)).await;
            }
        };
        tokio::spawn(deadline::of_task(Box::pin(rest)).in_current_span());
        let body = Body::from_stream(first.chain(received(following)));
        Ok(json_response(body))
    }

    /// Sends the parts after `last`, which hold the share. PostgreSQL searches for a part while the one before it is serialized
    /// and sent. No database connection is held while waiting for a slow client.
    async fn send_rest<F: Find>(
        &self,
        find: &F,
        last: F::Id,
        mut pace: Pace,
        mut is_first: bool,
        (parts, share): (&Sending, &Arc<Share>),
    ) -> Result<(), Error> {
        let find_page = |after, Pace(limit)| find.page(&self.database, Some(after), limit);
        let mut matches = find_page(last, pace).await?;
        let mut next_pace = pace;
        loop {
            let end = matches.end(pace.0);
            let (items, is_last) = (matches.items, end.is_none());
            let send = async {
                let mut json = Vec::with_capacity(AT_ONCE);
                append::<F>(&mut json, &items, &mut is_first)?;
                let next_pace = pace.after(items.len(), json.len());
                drop(items);
                if is_last {
                    json.push(b']');
                }
                // Matches that are much larger than those before them.
                let own_share = if json.len() > 2 * Pace::BYTES {
                    json.shrink_to_fit();
                    Some(Arc::new(self.memory.take(self.address, json.len())?))
                } else {
                    None
                };
                let json = counted(json, own_share.as_ref().unwrap_or(share));
                send_in_parts(parts, json).await;
                Ok::<_, Error>(next_pace)
            };
            let Some(last) = end else {
                return send.await.map(drop);
            };
            let (next, following_pace) = tokio::join!(find_page(last, next_pace), send);
            (pace, next_pace) = (next_pace, following_pace?);
            matches = next?;
        }
    }
}

/// Channel to the body of a list.
type Sending = mpsc::Sender<Result<Bytes, Error>>;

/// Returns a body of the parts of a list.
fn in_parts(list: Bytes) -> Body {
    let (parts, sent) = mpsc::channel(1);
    tokio::spawn(async move { send_in_parts(&parts, list).await });
    Body::from_stream(received(sent))
}

/// Sends a list in parts of up to [`AT_ONCE`], so that its compression lets other requests have their turn. Ends if the client
/// disconnects.
async fn send_in_parts(parts: &Sending, mut list: Bytes) {
    while !list.is_empty() {
        let part = list.split_to(list.len().min(AT_ONCE));
        if parts.send(Ok(part)).await.is_err() {
            return;
        }
    }
}

/// Returns what a channel receives. tower-http polls it again after the end.
fn received<T>(channel: mpsc::Receiver<T>) -> impl Stream<Item = T> {
    let received = stream::unfold(channel, async |mut channel| {
        channel.recv().await.map(|item| (item, channel))
    });
    received.fuse()
}

/// Number of matches per part of a list, chosen so that a part has about [`Pace::BYTES`].
#[derive(Clone, Copy)]
struct Pace(usize);

impl Pace {
    /// Small, so that the response begins early, and that pages of pets share a statement.
    const FIRST: Self = Self(32);
    /// Bounds what is read and not sent if the matches that follow have the maximum size of a pet.
    const MOST: usize = 256;
    const BYTES: usize = 256 << 10;

    /// Returns the pace after a part of `items` matches in `bytes`.
    fn after(self, items: usize, bytes: usize) -> Self {
        match items {
            0 => self,
            _ => Self((Self::BYTES * items / bytes.max(1)).clamp(1, Self::MOST)),
        }
    }
}

/// Appends matches to a part of a JSON array. `is_first` is true if the array has no element yet.
fn append<F: Find>(
    json: &mut Vec<u8>,
    items: &[F::Item],
    is_first: &mut bool,
) -> Result<(), Error> {
    for item in items {
        if !std::mem::take(is_first) {
            json.push(b',');
        }
        F::write(item, json).map_err(Error::internal)?;
    }
    Ok(())
}

fn json_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Returns the cursor of the matches after `id`. Opaque to clients, so that the format can change.
pub fn cursor(id: impl Display) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(id.to_string())
}

/// Reads a cursor.
pub fn read_cursor<Id: FromStr>(cursor: &str) -> Result<Id, Invalid> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).ok();
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok())
        .ok_or(Invalid::because("must be a cursor from a Link header"))
}
