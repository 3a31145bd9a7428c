//! Lists in the order of identifiers, either streamed as a whole or returned a page at a time.
//!
//! Invariants:
//! - Pages are read by keyset (`where id > last order by id limit n`): none costs more than the first, and memory is
//!   bounded for any number of matches.
//! - A slow client holds no database connection.
//! - A match that exists while the whole list is read is in it exactly once.
//! - A page that is built is counted as memory of responses whenever it waits for the database.
//!
//! Pages have more matches where these are small. Each is read while the one before it is sent.

use std::{fmt::Display, str::FromStr};

use axum::{
    body::{Body, Bytes},
    extract::FromRequestParts,
    http::{HeaderValue, header, request::Parts},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;
use tracing::Instrument;

use super::{
    error::Error,
    extract::Parameters,
    fields::Violations,
    operations::BASE,
    request_context::RequestContext,
    state::{AppState, Links},
};
use crate::{
    db::{self, Database},
    domain::{Invalid, address::AddressKey, parse_digits},
    limits::shares::{Exhausted, Share, Shares},
};

/// Maximum value of `limit`.
const MAX_LIMIT: usize = 1_000;
/// Maximum number of names in a list parameter.
const MAX_NAMES: usize = 100;

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
    /// Maximum size of a page in bytes, unless a single match is larger.
    max_page_size: usize,
    /// Memory of responses.
    memory: Shares,
    address: Option<AddressKey>,
}

impl FromRequestParts<AppState> for Lists {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Error> {
        let context = RequestContext::from_request_parts(parts, state).await?;
        Ok(Self {
            database: state.database.clone(),
            links: state.links.clone(),
            max_page_size: state.max_page_size,
            memory: state.concurrency.responses.clone(),
            address: context.client_address(),
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
        let (body, end) = self.page(&find, after, limit).await?;
        let mut response = json_response(Body::from(body));
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

    /// Takes memory for a part of a list, before it is read, so that a client that reads none of its responses causes no work.
    fn reserve(&self) -> Result<Share, Exhausted> {
        let amount = Pace::BYTES.min(self.memory.max_per_address() / 4);
        self.memory.take(self.address, amount)
    }

    /// Returns up to `limit` matches as JSON and, if there may be more, the identifier of the last one. Reads them a part
    /// at a time, so that no large matches beyond the maximum size are read. Fails if the memory of responses is
    /// in use.
    async fn page<F: Find>(
        &self,
        find: &F,
        mut after: Option<F::Id>,
        limit: usize,
    ) -> Result<(Vec<u8>, Option<F::Id>), Error> {
        let mut share = self.reserve()?;
        let mut json = vec![b'['];
        let (mut count, mut pace) = (0, Pace::FIRST);
        let end = 'page: loop {
            // One more match than requested shows if there is another page.
            let wanted = pace.0.min(limit + 1 - count);
            let part = find.page(&self.database, after.clone(), wanted).await?;
            let before = json.len();
            for item in &part.items {
                let length = json.len();
                append::<F>(&mut json, std::slice::from_ref(item), &mut (count == 0))?;
                if count == limit || (count > 0 && json.len() > self.max_page_size) {
                    json.truncate(length);
                    break 'page after;
                }
                count += 1;
                after = Some(F::id(item));
            }
            // A part that ends right behind a match has all that were wanted, or is large.
            if part.items.is_empty() || part.end(wanted) != after {
                break part.continue_after;
            }
            share.grow_to(json.capacity())?;
            pace = pace.after(part.items.len(), json.len() - before);
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
        drop(reserved);
        let mut is_first = true;
        let mut first = vec![b'['];
        append::<F>(&mut first, &first_page.items, &mut is_first)?;
        let Some(last) = first_page.end(Pace::FIRST.0) else {
            first.push(b']');
            return Ok(json_response(Body::from(first)));
        };
        let pace = Pace::FIRST.after(first_page.items.len(), first.len());
        let first = stream::once(std::future::ready(Ok(first.into())));
        let (chunks, following) = mpsc::channel(1);
        let rest = async move {
            tokio::select! {
                // The client disconnected.
                () = chunks.closed() => {}
                sent = self.send_rest(&find, last, pace, is_first, &chunks) => if let Err(error) = sent {
                    if error.is_database_outage() {
                        tracing::warn!(%error, "failed to stream a list; closing the connection");
                    } else {
                        tracing::error!(%error, "failed to stream a list; closing the connection");
                    }
                    let _ = chunks.send(Err(error)).await;
                }
            }
        };
        tokio::spawn(rest.in_current_span());
        let following = stream::unfold(following, async |mut following| {
            following.recv().await.map(|chunk| (chunk, following))
        });
        Ok(json_response(Body::from_stream(first.chain(following))))
    }

    /// Sends the parts after `last`. PostgreSQL searches for a part while the one before it is serialized and sent, unless
    /// that is a single match, which may be large. No database connection is held while waiting for a slow client.
    async fn send_rest<F: Find>(
        &self,
        find: &F,
        last: F::Id,
        mut pace: Pace,
        mut is_first: bool,
        chunks: &mpsc::Sender<Result<Bytes, Error>>,
    ) -> Result<(), Error> {
        // The intended size of a part, so that it rarely has to grow.
        let mut chunk = |items: &[F::Item]| {
            let mut json = Vec::with_capacity(Pace::BYTES);
            append::<F>(&mut json, items, &mut is_first)?;
            Ok::<_, Error>(json)
        };
        let find_page = |after, Pace(limit)| find.page(&self.database, Some(after), limit);
        let mut matches = find_page(last, pace).await?;
        let mut next_pace = pace;
        loop {
            let end = matches.end(pace.0);
            let is_last = end.is_none();
            let send = async {
                // First, so that no more chunks are held than the channel has room for.
                let room = chunks.reserve().await;
                let mut chunk = chunk(&matches.items)?;
                let next_pace = pace.after(matches.items.len(), chunk.len());
                if is_last {
                    chunk.push(b']');
                }
                // A page that ended early may have no pet.
                if let Ok(room) = room
                    && !chunk.is_empty()
                {
                    room.send(Ok(chunk.into()));
                }
                Ok::<_, Error>(next_pace)
            };
            let Some(last) = end else {
                return send.await.map(drop);
            };
            if matches.items.len() == 1 {
                // It may be large: the next one is not read before it is in the channel.
                next_pace = send.await?;
                matches.items.clear();
                matches = find_page(last, next_pace).await?;
                pace = next_pace;
            } else {
                let (next, following_pace) = tokio::join!(find_page(last, next_pace), send);
                (pace, next_pace) = (next_pace, following_pace?);
                matches = next?;
            }
        }
    }
}

/// Number of matches per page, chosen so that a page has about [`Pace::BYTES`].
#[derive(Clone, Copy)]
struct Pace(usize);

impl Pace {
    /// Small, so that the response begins early, and that pages of pets share a statement.
    const FIRST: Self = Self(32);
    /// Bounds what is read and not sent if the matches that follow have the maximum size of a pet.
    const MOST: usize = 512;
    const BYTES: usize = 256 << 10;

    /// Returns the pace after a page of `items` matches in `bytes`.
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
