//! The two finds: every match streamed in the order of identifiers, or a page of them.
//!
//! Both read pages by keyset (`where id > last order by id limit n`), so that
//! memory stays bounded whatever the number of matches, a slow client holds no database connection, and
//! no page costs more than the first. A pet that exists from the first page to the last is in the answer
//! exactly once.

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::{StreamExt, TryStreamExt, stream};

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
/// How many pets of a whole answer are in memory at once.
const CHUNK: usize = 128;
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

/// Every match. The first chunk is read before the answer begins, so that most failures still have a
/// status; after that a failure cuts the connection, which no client can take for the end.
async fn whole(
    database: Database,
    filter: Filter,
    after: Option<PetId>,
) -> Result<Response, Error> {
    let pets = filter.page(&database, after, CHUNK).await?;
    let mut chunk = Chunk::opening();
    chunk.extend(&pets)?;
    let Some(last) = last_of_full(&pets) else {
        return Ok(json_response(Body::from(chunk.closing())));
    };
    let rest = Rest {
        database,
        filter,
        after: last,
    };
    let first = stream::once(std::future::ready(Ok(chunk.part())));
    let following = stream::try_unfold(Some(rest), |rest| async move {
        let Some(mut rest) = rest else {
            return Ok::<_, Error>(None);
        };
        let pets = rest
            .filter
            .page(&rest.database, Some(rest.after), CHUNK)
            .await?;
        let mut chunk = Chunk::following();
        chunk.extend(&pets)?;
        Ok(Some(match last_of_full(&pets) {
            Some(last) => {
                rest.after = last;
                (chunk.part(), Some(rest))
            }
            None => (chunk.closing(), None),
        }))
    });
    let following = following.inspect_err(|error| {
        tracing::error!(%error, "an answer was cut off in the middle");
    });
    Ok(json_response(Body::from_stream(first.chain(following))))
}

/// What of a whole answer is still to be read.
struct Rest {
    database: Database,
    filter: Filter,
    after: PetId,
}

/// The last pet of a chunk that may have another behind it.
fn last_of_full(pets: &[Pet]) -> Option<PetId> {
    pets.last()
        .filter(|_| pets.len() == CHUNK)
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
