//! Lists by keyset, in the order of identifiers or of names, either streamed as a whole or returned a page at a time.
//!
//! Invariants:
//! - Pages are read by keyset (`where id > last order by id limit n`, or the reverse): none costs more than the first, and memory is
//!   bounded for any number of matches.
//! - A slow client holds no database connection.
//! - A match that exists while the whole list is read is in it exactly once.
//! - A list is counted as memory of lists until its bytes are sent, and each part before it is read: a client that uses its share gets
//!   503 after one statement more at most.
//! - A part is bounded by bytes ([`Part`]). The only one of a short page may share a statement; all others are read in the turn of their
//!   caller.

use std::{fmt::Display, mem, ops::RangeInclusive, str::FromStr, sync::Arc};

use axum::{
    body::Body,
    extract::FromRequestParts,
    http::{HeaderValue, header, request::Parts},
    response::Response,
};
use serde::Serialize;
use tokio::{sync::mpsc, task::coop::consume_budget};
use tracing::Instrument;

use super::{
    compression::encoder_memory,
    error::Error,
    extract::Parameters,
    list_body::{ListMemory, PART, Pieces, Sending, json_response, received, send_in_parts},
    list_parameters::{Window, cursor},
    operations::BASE,
    request_context::RequestContext,
    response::counted,
    state::{AppState, Links},
};
use crate::{
    db::{self, Connection, Cost, Database, Found, MAX_SMALL, Part, Rest, deadline, scope},
    domain::caller::CallerKey,
    limits::shares::Share,
};

/// Value of `limit` for a list of records without it.
const DEFAULT_LIMIT: usize = 100;
/// Maximum size in bytes of a match of a part that shares a statement: 64 KiB with [`MAX_SMALL`] of them.
const MAX_SIZE_OF_SMALL: usize = 2 << 10;
/// Minimum and maximum number of matches of a part that has a statement of its own.
const NUMBERS: RangeInclusive<usize> = 16..=512;
/// Size in bytes of the largest pets that can be stored today; a part of 16 may have larger ones of earlier releases.
const LARGE: usize = PART / *NUMBERS.start();
/// Bytes counted for a list that is streamed: for two parts of [`PART`], of which one waits for the other to be sent, as they
/// are read. With an encoder, this is an eighth of the share of an address, which is as much as the last quarter of the memory
/// admits.
const STREAMED: usize = 2 << 20;

/// Query with a list of matches.
pub trait Find: Send + Sync + 'static {
    /// A match.
    type Item: Send + Sync;
    /// Identifier that matches are sorted by.
    type Id: Clone + PartialEq + Display + FromStr + Send + Sync;

    /// Returns the matches of a part.
    fn find(
        &self,
        database: &Database,
        part: Part<Self::Id>,
    ) -> impl Future<Output = Result<Found<Self::Item, Self::Id>, db::Error>> + Send;

    /// Returns the identifier of a match.
    fn id(item: &Self::Item) -> Self::Id;

    /// Returns a match as JSON.
    fn json(item: &Self::Item) -> &[u8];
}

/// Database and settings of a list response.
#[derive(Debug)]
pub struct Lists {
    /// Database of the matches.
    database: Database,
    /// Builds the URL of the next page.
    links: Links,
    /// Memory of lists.
    memory: ListMemory,
    /// Caller in whose turn parts are read.
    caller: CallerKey,
}

impl FromRequestParts<AppState> for Lists {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Error> {
        let context = RequestContext::from_request_parts(parts, state).await?;
        Ok(Self {
            database: state.database.clone(),
            links: state.links.clone(),
            memory: ListMemory {
                shares: state.concurrency.lists.clone(),
                address: context.client_address(),
                encoder: encoder_memory(&parts.headers),
            },
            caller: context.caller_key(),
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
        let parts = ListParts::new(self, find, after, limit);
        if limit.is_none() {
            return parts.stream().await;
        }
        let (lists, pieces, end) = parts.page().await?;
        let response = lists.memory.respond(pieces)?;
        lists.linked(response, (path, kept), query, end)
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
        let _share = self.memory.reserve()?;
        // One more record than requested shows if there is another page.
        let wanted = limit.unwrap_or(DEFAULT_LIMIT) + 1;
        let read = async |connection: &mut Connection| read(connection, after, wanted).await;
        let mut records = if wanted <= MAX_SMALL {
            self.database.run(read).await?
        } else {
            let (cost, caller) = (Cost::Rows, self.caller);
            self.database.read_large(cost, caller, read).await?
        };
        let has_more = records.len() == wanted;
        records.truncate(wanted - 1);
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
        let json = serde_json::to_vec(list).map_err(Error::internal)?;
        let share = self.memory.take(json.len())?;
        let mut pieces = Pieces::default();
        pieces.push(json, share)?;
        self.memory.respond(pieces)
    }
}

/// A list while its parts are read, one after the other.
struct ListParts<F: Find> {
    lists: Lists,
    find: F,
    /// Identifier that the next part follows.
    after: Option<F::Id>,
    /// Number of matches that are still wanted, one of them to see if there is another page; `None` for a whole list.
    wanted: Option<usize>,
    /// True if the next part may share a statement.
    is_small: bool,
    /// Maximum size in bytes of a match of the next part.
    size: usize,
    has_begun: bool,
    has_ended: bool,
}

impl<F: Find> ListParts<F> {
    fn new(lists: Lists, find: F, after: Option<F::Id>, limit: Option<usize>) -> Self {
        let wanted = limit.map(|limit| limit + 1);
        Self {
            lists,
            find,
            after,
            wanted,
            is_small: wanted.is_some_and(|wanted| wanted <= MAX_SMALL),
            size: PART / NUMBERS.end(),
            has_begun: false,
            has_ended: false,
        }
    }

    /// Returns the matches of the next part, or `None` after the last one. A page also ends with a search that has cost much.
    async fn next(&mut self) -> Result<Option<Vec<F::Item>>, db::Error> {
        if self.has_ended {
            return Ok(None);
        }
        let (most, max_size) = if self.is_small {
            (MAX_SMALL, MAX_SIZE_OF_SMALL)
        } else {
            (PART / self.size, self.size)
        };
        let part = Part {
            after: self.after.clone(),
            limit: self.wanted.map_or(most, |wanted| wanted.min(most)),
            max_size: Some(max_size).filter(|size| *size < LARGE),
            is_small: self.is_small,
            caller: self.lists.caller,
        };
        let Found { matches, rest } = self.find.find(&self.lists.database, part).await?;
        if !self.is_small && self.size == LARGE {
            // Smaller ones are read in greater number.
            let bytes: usize = matches.iter().map(|it| F::json(it).len()).sum();
            let average = bytes / matches.len().max(1);
            self.size = (2 * average).clamp(PART / NUMBERS.end(), LARGE);
        }
        self.is_small = false;
        let is_page = self.wanted.is_some();
        self.wanted = self.wanted.map(|wanted| wanted - matches.len());
        let after = match rest {
            Rest::None => None,
            Rest::Larger(last) => {
                self.size = LARGE;
                self.after = last.or_else(|| self.after.take());
                return Ok(Some(matches));
            }
            Rest::After(id) => {
                self.has_ended = self.wanted == Some(0);
                Some(id)
            }
            Rest::Later(id) => {
                self.has_ended = is_page;
                Some(id)
            }
        };
        self.has_ended |= after.is_none();
        self.after = after;
        Ok(Some(matches))
    }

    /// Returns matches as a piece of the JSON array.
    async fn write(has_begun: &mut bool, matches: &[F::Item], is_last: bool) -> Vec<u8> {
        let mut json = Vec::new();
        for found in matches {
            json.push(if *has_begun { b',' } else { b'[' });
            *has_begun = true;
            json.extend_from_slice(F::json(found));
            // A part takes milliseconds: other requests get their turn.
            consume_budget().await;
        }
        if is_last {
            if !*has_begun {
                json.push(b'[');
            }
            json.push(b']');
        }
        json
    }

    /// Reads a page. Returns its pieces and, if there may be more matches, the identifier of the last one.
    async fn page(mut self) -> Result<(Lists, Pieces, Option<F::Id>), Error> {
        let (mut pieces, mut last) = (Pieces::default(), None);
        let mut permit = None;
        while !self.has_ended {
            if !self.is_small && permit.is_none() {
                let Lists {
                    database, caller, ..
                } = &self.lists;
                permit = Some(database.begin_page(*caller).await?);
            }
            let share = self.lists.memory.reserve()?;
            let mut matches = self.next().await?.unwrap_or_default();
            let has_another = self.wanted == Some(0);
            if has_another {
                // It is on the next page.
                matches.pop();
            }
            last = matches.last().map(F::id).or(last);
            if has_another {
                self.after.clone_from(&last);
            }
            let is_last = self.has_ended;
            let json = Self::write(&mut self.has_begun, &matches, is_last).await;
            pieces.push(json, share)?;
        }
        Ok((self.lists, pieces, self.after))
    }

    /// Streams all matches. The first part is read before the response begins, so that most failures still get a status.
    /// A later failure cuts the connection, which no client can mistake for the end. PostgreSQL searches for a part while the one
    /// before it is serialized and sent. No database connection is held while waiting for a slow client.
    async fn stream(mut self) -> Result<Response, Error> {
        let reserved = self.lists.memory.reserve()?;
        let mut first = Vec::new();
        // A part has none if its first match is large.
        while first.is_empty() && !self.has_ended {
            first = self.next().await?.unwrap_or_default();
        }
        if self.has_ended {
            let mut pieces = Pieces::default();
            let json = Self::write(&mut self.has_begun, &first, true).await;
            pieces.push(json, reserved)?;
            return self.lists.memory.respond(pieces);
        }
        drop(reserved);
        let memory = &self.lists.memory;
        let share = memory.take(STREAMED + memory.encoder)?;
        let share = Arc::new(share);
        let (parts, following) = mpsc::channel(1);
        let rest = async move {
            // Until the client disconnects.
            let sending = self.send(first, &parts, &share);
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
        Ok(json_response(Body::from_stream(received(following))))
    }

    /// Sends matches and those of all further parts, which hold the share.
    async fn send(
        &mut self,
        mut matches: Vec<F::Item>,
        parts: &Sending,
        share: &Arc<Share>,
    ) -> Result<(), Error> {
        let memory = self.lists.memory.clone();
        let mut has_begun = false;
        loop {
            let is_last = self.has_ended;
            let send = async {
                let mut json = Self::write(&mut has_begun, &matches, is_last).await;
                drop(mem::take(&mut matches));
                // Matches that are larger than clients may store them.
                let own_share = if json.len() > 2 * PART {
                    json.shrink_to_fit();
                    Some(Arc::new(memory.take(json.len())?))
                } else {
                    None
                };
                let json = counted(json, own_share.as_ref().unwrap_or(share));
                send_in_parts(parts, json).await;
                Ok::<_, Error>(())
            };
            let (next, ended) = tokio::join!(self.next(), send);
            ended?;
            match next? {
                Some(next) => matches = next,
                None => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
