//! Answers of any length: every match streamed in the order of identifiers, or a page of them.
//!
//! Both read pages by keyset (`where id > last order by id limit n`), so that
//! memory stays bounded whatever the number of matches, a slow client holds no database connection, and
//! no page costs more than the first. Pages are large where matches are small, and each is read while the one
//! before is sent. What exists from the first page to the last is in the answer exactly once.

use std::{fmt::Display, str::FromStr};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;
use tracing::Instrument;

use super::{error::Error, extract::Parameters, fields::Violations, openapi::BASE, state::Links};
use crate::{
    db::{self, Database},
    domain::Invalid,
};

/// How many a client may ask for at once.
const MAX_LIMIT: usize = 1_000;
/// How many names a list parameter may hold.
const MAX_NAMES: usize = 100;

/// Something to find: how its matches are read, told apart and written.
pub trait Find: Send + Sync + 'static {
    /// A match.
    type Item: Send + Sync;
    /// What the matches are in the order of.
    type Id: Copy + Display + FromStr + Send + Sync;

    /// The first `limit` matches after `after`.
    fn page(
        &self,
        database: &Database,
        after: Option<Self::Id>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Self::Item>, db::Error>> + Send;

    /// What a match is told apart by.
    fn id(item: &Self::Item) -> Self::Id;

    /// Adds a match, as JSON.
    fn write(item: &Self::Item, json: &mut Vec<u8>) -> serde_json::Result<()>;
}

/// The names that a list parameter holds, none of them empty; with none at all it is as good as missing.
pub fn names<'a>(
    violations: &mut Violations,
    query: &'a Parameters,
    parameter: &'static str,
) -> Vec<&'a str> {
    let names = query.list(parameter);
    let reason = match names.len() {
        0 => return names,
        _ if names.iter().any(|name| name.is_empty()) => "must not hold an empty name",
        1..=MAX_NAMES => return names,
        _ => "must be at most 100 names",
    };
    violations.add(parameter, reason);
    Vec::new()
}

/// The same, each read, once; wrong ones are left out.
pub fn each_once<T: FromStr<Err = Invalid> + PartialEq>(
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

/// Which of the matches are asked for.
pub struct Window<Id> {
    /// At most so many; `None`: all of them.
    limit: Option<usize>,
    /// Those behind this one.
    after: Option<Id>,
}

impl<Id: FromStr> Window<Id> {
    /// Reads `limit` and `cursor`, and with them ends the reading of a query.
    ///
    /// # Errors
    /// [`Error::Invalid`] with all that was wrong with it.
    pub fn read(mut violations: Violations, query: &Parameters) -> Result<Self, Error> {
        let limit = query.optional(&mut violations, "limit", |text| {
            text.parse()
                .ok()
                .filter(|limit| (1..=MAX_LIMIT).contains(limit))
                .ok_or(Invalid::because("must be an integer from 1 to 1000"))
        });
        let after = query.optional(&mut violations, "cursor", read_cursor);
        violations.finish(Some(Self { limit, after }))
    }
}

/// Answers what the window shows. `path` and the `kept` parameters make the URL of the next page.
///
/// # Errors
/// When the first page cannot be read.
pub async fn answer<F: Find>(
    database: Database,
    links: &Links,
    (path, kept): (&str, &[&str]),
    query: &Parameters,
    Window { limit, after }: Window<F::Id>,
    find: F,
) -> Result<Response, Error> {
    let Some(limit) = limit else {
        return whole(database, find, after).await;
    };

    // One more than asked for tells whether more remains.
    let mut items = find.page(&database, after, limit + 1).await?;
    let more = items.len() > limit;
    items.truncate(limit);
    let mut body = Chunk::opening();
    body.extend::<F>(&items)?;
    let mut response = json_response(Body::from(body.closing()));
    if let Some(last) = items.last().filter(|_| more) {
        let cursor = write_cursor(F::id(last));
        let names = [kept, &["limit"]].concat();
        let next = query.query_with(&names, ("cursor", &cursor));
        let url = links.url(&format!("{BASE}{path}?{next}"));
        let link = HeaderValue::try_from(format!("<{url}>; rel=\"next\""))
            .map_err(|error| Error::Internal(error.into()))?;
        response.headers_mut().insert(header::LINK, link);
    }
    Ok(response)
}

/// Every match. The first page is read before the answer begins, so that most failures still have a
/// status; after that a failure cuts the connection, which no client can take for the end.
async fn whole<F: Find>(
    database: Database,
    find: F,
    after: Option<F::Id>,
) -> Result<Response, Error> {
    let items = find.page(&database, after, Pace::FIRST.0).await?;
    let mut chunk = Chunk::opening();
    chunk.extend::<F>(&items)?;
    let Some(last) = last_of_full::<F>(&items, Pace::FIRST) else {
        return Ok(json_response(Body::from(chunk.closing())));
    };
    let pace = Pace::FIRST.after(chunk.json.len());
    let first = stream::once(std::future::ready(Ok(chunk.part())));
    let rest = Rest {
        database,
        find,
        after: last,
        pace,
    };
    let (chunks, following) = mpsc::channel(1);
    tokio::spawn(rest.send(chunks).in_current_span());
    let following = stream::unfold(following, async |mut following| {
        following.recv().await.map(|chunk| (chunk, following))
    });
    Ok(json_response(Body::from_stream(first.chain(following))))
}

/// How many matches are read at once: as many as make a page of about so many bytes.
#[derive(Clone, Copy)]
struct Pace(usize);

impl Pace {
    /// Soon read, so that the answer begins at once.
    const FIRST: Self = Self(128);
    /// What memory has room for, were they all as large as a pet may be.
    const MOST: usize = 512;
    const BYTES: usize = 256 << 10;

    /// The pace after a full page that became so many bytes.
    fn after(self, bytes: usize) -> Self {
        let fitting = Self::BYTES * self.0 / bytes.max(1);
        Self(fitting.clamp(1, Self::MOST))
    }
}

/// What of a whole answer is still to be read.
struct Rest<F: Find> {
    database: Database,
    find: F,
    after: F::Id,
    pace: Pace,
}

impl<F: Find> Rest<F> {
    /// Sends it piece by piece. PostgreSQL looks for a page while the one before is written and sent, and a
    /// client that is slower than that is waited for without a database connection.
    async fn send(self, chunks: mpsc::Sender<Result<Bytes, Error>>) {
        let all = async {
            if let Err(error) = self.send_all(&chunks).await {
                tracing::error!(%error, "an answer was cut off in the middle");
                let _ = chunks.send(Err(error)).await;
            }
        };
        // Whoever is gone needs no more of it.
        tokio::select! {
            () = chunks.closed() => {}
            () = all => {}
        }
    }

    async fn send_all(&self, chunks: &mpsc::Sender<Result<Bytes, Error>>) -> Result<(), Error> {
        // Of these items, and of the next.
        let (mut pace, mut next_pace) = (self.pace, self.pace);
        let mut items = self.page(self.after, pace).await?;
        while let Some(last) = last_of_full::<F>(&items, pace) {
            let write = async {
                let mut chunk = Chunk::following();
                chunk.extend::<F>(&items)?;
                let bytes = chunk.json.len();
                let _ = chunks.send(Ok(chunk.part())).await;
                Ok::<_, Error>(bytes)
            };
            let (next, bytes) = tokio::join!(self.page(last, next_pace), write);
            (pace, next_pace) = (next_pace, pace.after(bytes?));
            items = next?;
        }
        let mut chunk = Chunk::following();
        chunk.extend::<F>(&items)?;
        let _ = chunks.send(Ok(chunk.closing())).await;
        Ok(())
    }

    async fn page(&self, after: F::Id, Pace(limit): Pace) -> Result<Vec<F::Item>, db::Error> {
        self.find.page(&self.database, Some(after), limit).await
    }
}

/// The last match of a page that may have another behind it.
fn last_of_full<F: Find>(items: &[F::Item], Pace(limit): Pace) -> Option<F::Id> {
    items.last().filter(|_| items.len() == limit).map(F::id)
}

/// A piece of a JSON array.
struct Chunk {
    json: Vec<u8>,
    /// Whether the next element is the array's first.
    first: bool,
}

impl Chunk {
    fn opening() -> Self {
        Self {
            json: vec![b'['],
            first: true,
        }
    }

    fn following() -> Self {
        Self {
            // What a page is to be, so that hardly one is copied as it grows.
            json: Vec::with_capacity(Pace::BYTES),
            first: false,
        }
    }

    fn extend<F: Find>(&mut self, items: &[F::Item]) -> Result<(), Error> {
        for item in items {
            if !std::mem::take(&mut self.first) {
                self.json.push(b',');
            }
            F::write(item, &mut self.json).map_err(|error| Error::Internal(error.into()))?;
        }
        Ok(())
    }

    fn part(self) -> Bytes {
        self.json.into()
    }

    fn closing(mut self) -> Bytes {
        self.json.push(b']');
        self.json.into()
    }
}

fn json_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The form of a cursor, as clients see it.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, format = "cursor", min_length = 2, max_length = 22)]
#[expect(dead_code, reason = "describes the parameter, which is read as text")]
pub struct Cursor(String);

/// A cursor is the last identifier of the page before; opaque, so that it may become something else.
fn write_cursor(last: impl Display) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(last.to_string())
}

fn read_cursor<Id: FromStr>(cursor: &str) -> Result<Id, Invalid> {
    BASE64_URL_SAFE_NO_PAD
        .decode(cursor)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|text| text.parse().ok())
        .ok_or(Invalid::because("must be a cursor that a page's Link gave"))
}
