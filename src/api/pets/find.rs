//! The two finds: every match streamed in the order of identifiers, or a page of them.
//!
//! Both read pages by keyset (`where id > last order by id limit n`), so that
//! memory stays bounded whatever the number of matches, a slow client holds no database connection, and
//! no page costs more than the first. Pages are large where pets are small, and each is read while the one
//! before is sent. A pet that exists from the first page to the last is in the answer
//! exactly once.

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;
use tracing::Instrument;

use super::{JSON, body::PetBody};
use crate::{
    api::{
        error::Error,
        extract::{Parameters, Query},
        fields::Violations,
        state::Links,
    },
    db::{self, Database, pets::TagMatch},
    domain::{
        Invalid,
        id::PetId,
        pet::{Pet, Status},
    },
};

/// How many pets a client may ask for at once.
const MAX_LIMIT: usize = 1_000;
/// How many tag names, or statuses, may be asked for at once.
const MAX_NAMES: usize = 100;

/// Find pets by status
///
/// Without `limit`: every match, in the order of their identifiers. With it: a page, and in `Link` the
/// URL of the next while more remains.
#[utoipa::path(
    get, path = "/pet/findByStatus", operation_id = "findPetsByStatus", tag = "pet",
    security(("api_key" = ["read:pets"]), ("bearer" = ["read:pets"])),
    params(
        ("status" = Vec<super::body::StatusBody>, Query, description = "Statuses, repeated or separated by commas; a pet with any of them matches.", min_items = 1, example = json!(["available"])),
        ("limit" = Option<u32>, Query, description = "At most so many pets.", minimum = 1, maximum = 1_000),
        ("cursor" = Option<String>, Query, description = "Where to go on: from `Link` of the page before."),
    ),
    responses(
        (status = 200, description = "The pets; `[]` when there are none.", body = Vec<PetBody<'static>>,
            headers(("Link" = Option<String>, description = "`<…>; rel=\"next\"` (RFC 8288) while more remains; only with `limit`."))),
    ),
)]
pub(super) async fn by_status(
    State(database): State<Database>,
    State(links): State<Links>,
    Query(query): Query,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let mut statuses: Vec<Status> = Vec::new();
    for name in names(&mut violations, &query, "status") {
        match name.parse() {
            Ok(status) if statuses.contains(&status) => {}
            Ok(status) => statuses.push(status),
            Err(reason) => violations.add("status", reason),
        }
    }
    let window = Window::read(violations, &query)?;
    answer(
        database,
        &links,
        "findByStatus",
        &query,
        window,
        Filter::Status(statuses),
    )
    .await
}

/// Find pets by tags
///
/// Without `limit`: every match, in the order of their identifiers. With it: a page, and in `Link` the
/// URL of the next while more remains.
#[utoipa::path(
    get, path = "/pet/findByTags", operation_id = "findPetsByTags", tag = "pet",
    security(("api_key" = ["read:pets"]), ("bearer" = ["read:pets"])),
    params(
        ("tags" = Vec<String>, Query, description = "Names of tags, repeated or separated by commas.", min_items = 1, max_items = 100, example = json!(["friendly"])),
        ("match" = inline(Option<TagMatchParameter>), Query, description = "Whether a pet needs `any` of the tags or `all` of them."),
        ("limit" = Option<u32>, Query, description = "At most so many pets.", minimum = 1, maximum = 1_000),
        ("cursor" = Option<String>, Query, description = "Where to go on: from `Link` of the page before."),
    ),
    responses(
        (status = 200, description = "The pets, each once; `[]` when there are none.", body = Vec<PetBody<'static>>,
            headers(("Link" = Option<String>, description = "`<…>; rel=\"next\"` (RFC 8288) while more remains; only with `limit`."))),
    ),
)]
pub(super) async fn by_tags(
    State(database): State<Database>,
    State(links): State<Links>,
    Query(query): Query,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let names: Vec<String> = names(&mut violations, &query, "tags")
        .into_iter()
        .map(str::to_owned)
        .collect();
    if names.iter().any(|name| name.contains('\0')) {
        violations.add("tags", "must not contain the character NUL");
    }
    let tag_match = query.optional(&mut violations, "match", |value| match value {
        "any" => Ok(TagMatch::Any),
        "all" => Ok(TagMatch::All),
        _ => Err(Invalid::because("must be any or all")),
    });
    let window = Window::read(violations, &query)?;
    let filter = Filter::Tags(names, tag_match.unwrap_or_default());
    answer(database, &links, "findByTags", &query, window, filter).await
}

/// How `findByTags` matches.
#[derive(utoipa::ToSchema)]
#[schema(as = TagMatch, rename_all = "lowercase", default = "any")]
#[expect(dead_code, reason = "describes the parameter, which is read as text")]
enum TagMatchParameter {
    /// Any of the tags.
    Any,
    /// All of the tags.
    All,
}

/// The names that a list parameter holds: at least one, none of them empty.
fn names<'a>(
    violations: &mut Violations,
    query: &'a Parameters,
    parameter: &'static str,
) -> Vec<&'a str> {
    let names = query.list(parameter);
    let reason = match names.len() {
        0 => "is required",
        _ if names.iter().any(|name| name.is_empty()) => "must not hold an empty name",
        1..=MAX_NAMES => return names,
        _ => "must be at most 100 names",
    };
    violations.add(parameter, reason);
    Vec::new()
}

/// Which of the matches are asked for.
struct Window {
    /// At most so many; `None`: all of them.
    limit: Option<usize>,
    /// Those behind this one.
    after: Option<PetId>,
}

impl Window {
    /// Reads `limit` and `cursor`, and with them ends the reading of a query.
    fn read(mut violations: Violations, query: &Parameters) -> Result<Self, Error> {
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

/// What is asked for.
enum Filter {
    Status(Vec<Status>),
    Tags(Vec<String>, TagMatch),
}

impl Filter {
    async fn page(
        &self,
        database: &Database,
        after: Option<PetId>,
        limit: usize,
    ) -> Result<Vec<Pet>, db::Error> {
        let pool = database.pool();
        match self {
            Self::Status(statuses) => db::pets::find_by_status(pool, statuses, after, limit).await,
            Self::Tags(names, tag_match) => {
                db::pets::find_by_tags(pool, names, *tag_match, after, limit).await
            }
        }
    }
}

async fn answer(
    database: Database,
    links: &Links,
    operation: &str,
    query: &Parameters,
    Window { limit, after }: Window,
    filter: Filter,
) -> Result<Response, Error> {
    let Some(limit) = limit else {
        return whole(database, filter, after).await;
    };

    // One more than asked for tells whether more remains.
    let mut pets = filter.page(&database, after, limit + 1).await?;
    let more = pets.len() > limit;
    pets.truncate(limit);
    let mut body = Chunk::opening();
    body.extend(&pets)?;
    let mut response = json_response(Body::from(body.closing()));
    if let Some(last) = pets.last().filter(|_| more) {
        let cursor = write_cursor(last.id);
        let names = ["status", "tags", "match", "limit"];
        let next = query.query_with(&names, ("cursor", &cursor));
        let url = links.url(&format!("/api/v3/pet/{operation}?{next}"));
        let link = HeaderValue::try_from(format!("<{url}>; rel=\"next\""))
            .map_err(|error| Error::Internal(error.into()))?;
        response.headers_mut().insert(header::LINK, link);
    }
    Ok(response)
}

/// Every match. The first page is read before the answer begins, so that most failures still have a
/// status; after that a failure cuts the connection, which no client can take for the end.
async fn whole(
    database: Database,
    filter: Filter,
    after: Option<PetId>,
) -> Result<Response, Error> {
    let pets = filter.page(&database, after, Pace::FIRST.0).await?;
    let mut chunk = Chunk::opening();
    chunk.extend(&pets)?;
    let Some(last) = last_of_full(&pets, Pace::FIRST) else {
        return Ok(json_response(Body::from(chunk.closing())));
    };
    let pace = Pace::FIRST.after(chunk.json.len());
    let first = stream::once(std::future::ready(Ok(chunk.part())));
    let rest = Rest {
        database,
        filter,
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

/// How many pets are read at once: as many as make a page of about so many bytes.
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
struct Rest {
    database: Database,
    filter: Filter,
    after: PetId,
    pace: Pace,
}

impl Rest {
    /// Sends it piece by piece. Each page is read while the one before is written, and a client that is
    /// slower than that is waited for without a database connection.
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
        let mut pace = self.pace;
        let mut pets = self.page(self.after, pace).await?;
        loop {
            let mut chunk = Chunk::following();
            chunk.extend(&pets)?;
            let Some(last) = last_of_full(&pets, pace) else {
                let _ = chunks.send(Ok(chunk.closing())).await;
                return Ok(());
            };
            pace = pace.after(chunk.json.len());
            let (next, _) = tokio::join!(self.page(last, pace), chunks.send(Ok(chunk.part())));
            pets = next?;
        }
    }

    async fn page(&self, after: PetId, Pace(limit): Pace) -> Result<Vec<Pet>, db::Error> {
        self.filter.page(&self.database, Some(after), limit).await
    }
}

/// The last pet of a page that may have another behind it.
fn last_of_full(pets: &[Pet], Pace(limit): Pace) -> Option<PetId> {
    pets.last()
        .filter(|_| pets.len() == limit)
        .map(|pet| pet.id)
}

/// A piece of a JSON array of pets.
struct Chunk {
    json: Vec<u8>,
    /// Whether the next pet is the array's first.
    first: bool,
}

impl Chunk {
    fn opening() -> Self {
        Self {
            json: vec![b'['],
            first: true,
        }
    }

    const fn following() -> Self {
        Self {
            json: Vec::new(),
            first: false,
        }
    }

    fn extend(&mut self, pets: &[Pet]) -> Result<(), Error> {
        for pet in pets {
            if !std::mem::take(&mut self.first) {
                self.json.push(b',');
            }
            serde_json::to_writer(&mut self.json, &PetBody::from(pet))
                .map_err(|error| Error::Internal(error.into()))?;
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
    ([(header::CONTENT_TYPE, JSON)], body).into_response()
}

/// A cursor is the last identifier of the page before; opaque, so that it may become something else.
fn write_cursor(last: PetId) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(last.to_string())
}

fn read_cursor(cursor: &str) -> Result<PetId, Invalid> {
    BASE64_URL_SAFE_NO_PAD
        .decode(cursor)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|text| text.parse().ok())
        .ok_or(Invalid::because("must be a cursor that a page's Link gave"))
}
