//! `GET /changes`: the record of changes.
//!
//! - A caller without `admin` sees changes of pets, images and imports with `read:pets`, of its own orders with
//!   `read:orders`, and of its own account.
//!   It sees neither the actor nor the request of what the accounts of others have done.
//! - A page has every change that was committed before the request.

mod body;
mod stream;
mod wanted;

use axum::{
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::Response,
};
use utoipa::ToSchema;
use utoipa_axum::routes;

use self::{body::PageBody, wanted::Wanted};
use super::{
    error::Error,
    extract::{Parameters, Query},
    fields::Violations,
    list_parameters::{parse_distinct, parse_limit},
    operations::Operations,
    paging::Lists,
    request_context::{CurrentCaller, RequestContext},
    state::AppState,
};
use crate::{
    db::{
        self, Cost,
        changes::{Page, Start},
    },
    domain::{
        Invalid, Text,
        change::{Kind, Position},
    },
};

/// Header of a client that goes on with a stream.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Size in bytes of the facts after which a page ends.
const MAX_BYTES: usize = 1 << 20;
/// Default of `limit`.
const DEFAULT_LIMIT: usize = 100;

/// Returns the operation.
pub fn router() -> Operations {
    Operations::new().list(routes!(list))
}

/// Read the record of changes
///
/// Returns changes after the position `after`; without it, from the oldest one. A request looks at 10,000 changes at most, and a page
/// has about 1 MiB of facts, so it may have fewer than `limit`, or none, while more remain: go on with `next` as `after` until both are equal. With
/// `order=desc`, the newest change comes first, and `before` takes the place of `after`. Changes are kept for 30 days, unless
/// configured otherwise. A caller without the scope `admin` sees changes of pets, images and imports with `read:pets`, of its own
/// orders with `read:orders`, and of its own account, without the actor and the request of what the accounts of others have done.
///
/// With `Accept: text/event-stream`, the response is a stream of Server-Sent Events, without an end: `event: change`, with the
/// change as `data` and its position as `id`. It begins behind `Last-Event-ID`, `lastEventId` or `after`, the first of these that
/// is there; without them, with the next change. At the beginning and every 15 s at the latest, `event: position` has the last
/// position as `id`, and `{"position": …}` as `data`. The stream ends when the credential is no
/// longer valid, when the client reads too slowly, and when the service stops: then repeat the request with the last `id` as
/// `Last-Event-ID`.
#[utoipa::path(
    get, path = "/changes", operation_id = "listChanges", tag = "changes", security(("bearer" = ["read:changes"])),
    params(
        ("after" = Option<i64>, Query, description = "Position after which the changes begin.", minimum = 0, maximum = 9_007_199_254_740_991_i64, example = 0),
        ("order" = inline(Option<Order>), Query, description = "`asc`, the default, or `desc`: the newest change first. Not for a stream."),
        ("before" = Option<i64>, Query, description = "With `order=desc`: position before which the changes begin; it need not be that of a change. The newest one if absent.", minimum = 0, maximum = 9_007_199_254_740_991_i64, example = 9_007_199_254_740_991_i64),
        ("kind" = inline(Option<Vec<Kind>>), Query, description = "Kinds of resources, repeated or separated by commas.", min_items = 1, max_items = 100, example = json!(["pet"])),
        ("resource" = Option<String>, Query, description = "Identifier of the only resource; with one `kind`.", min_length = 1, max_length = 64, pattern = r"^[^\x00]*$", example = "7"),
        ("actor" = Option<String>, Query, description = "Name of the only actor. That of the account of another caller has no changes, unless the caller has the scope `admin`.", min_length = 1, max_length = 64, pattern = r"^[^\x00]*$", example = "acme"),
        ("lastEventId" = Option<String>, Query, description = "Of a stream: as the header `Last-Event-ID`, for clients that cannot send it.", max_length = 16, pattern = "^[0-9]*$", example = ""),
        ("limit" = Option<i64>, Query, description = "Maximum number of changes; 100 if absent. A stream has no limit.", minimum = 1, maximum = 1_000),
    ),
    responses(
        (status = 200, description = "The changes.", body = PageBody),
        (status = 410, description = "`after` is not in the record, or is past its retention. `oldest` is the oldest position."),
    ),
)]
async fn list(
    State(state): State<AppState>,
    lists: Lists,
    context: RequestContext,
    CurrentCaller(caller): CurrentCaller,
    Query(query): Query,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let is_stream = accepts_events(&headers);
    let mut violations = Violations::default();
    let after = query.optional(&mut violations, "after", str::parse);
    let before = query.optional(&mut violations, "before", str::parse);
    let is_descending = read_order(&mut violations, &query) == Order::Desc;
    if is_descending && is_stream {
        violations.add("order", "must not be desc for a stream");
    } else if is_descending && after.is_some() {
        violations.add("after", "must not be given with order=desc, but before");
    } else if !is_descending && before.is_some() {
        violations.add("before", "needs order=desc, and no stream");
    }
    let limit = query.optional(&mut violations, "limit", parse_limit);
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    let kinds: Vec<Kind> = parse_distinct(&mut violations, &query, "kind");
    let resource = query.optional(&mut violations, "resource", str::parse::<Text>);
    if resource.is_some() && kinds.len() != 1 {
        violations.add("resource", "needs one kind");
    }
    let actor = query.optional(&mut violations, "actor", |name| {
        match name.chars().count() {
            1..=64 => name.parse::<Text>(),
            _ => Err(Invalid::because("must be 1 to 64 characters")),
        }
    });
    let header = headers.get(LAST_EVENT_ID).filter(|_| is_stream);
    let last = last_event_id(&mut violations, header, &query).filter(|_| is_stream);
    violations.finish(Some(()))?;
    let wanted = Wanted {
        resource: kinds
            .first()
            .copied()
            .zip(resource.map(|id| id.as_str().to_owned())),
        kinds: if kinds.is_empty() {
            Kind::ALL.to_vec()
        } else {
            kinds
        },
        actor: actor.map(|name| name.as_str().to_owned()),
        after: last.or(after),
    };
    if is_stream {
        return stream::open(state, wanted, &caller, &context, &headers).await;
    }
    let filter = wanted.filter(&caller);
    let start = if is_descending {
        Start::Before(before.unwrap_or(Position::MAX))
    } else {
        Start::After(after.unwrap_or_default())
    };
    let reader = context.caller_key();
    let read = state
        .database
        .read_large(Cost::Rows, reader, async |connection| {
            db::changes::publish_all(connection).await?;
            db::changes::page(connection, start, &filter, limit, MAX_BYTES).await
        });
    let page: Result<Page, _> = read.await?;
    let Page { changes, next } = page.map_err(Error::UnknownPosition)?;
    let changes = changes.into_iter().map(|change| {
        if filter.hides_actor_of(&change) {
            change.without_actor()
        } else {
            change
        }
    });
    let body = PageBody {
        changes: changes.collect(),
        next: next.0,
    };
    lists.whole(&body)
}

/// Order of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[schema(as = ChangeOrder, rename_all = "lowercase", example = "asc")]
enum Order {
    Asc,
    Desc,
}

fn read_order(violations: &mut Violations, query: &Parameters) -> Order {
    let order = query.optional(violations, "order", |name| match name {
        "asc" => Ok(Order::Asc),
        "desc" => Ok(Order::Desc),
        _ => Err(Invalid::because("must be asc or desc")),
    });
    order.unwrap_or(Order::Asc)
}

/// Returns the position behind which a stream goes on, from the header or, for polyfills, from the query. An empty one is absent.
fn last_event_id(
    violations: &mut Violations,
    header: Option<&HeaderValue>,
    query: &Parameters,
) -> Option<Position> {
    let header = header.map(|value| value.to_str().unwrap_or("invalid"));
    let (name, text) = match header.filter(|text| !text.is_empty()) {
        Some(text) => ("Last-Event-ID", Some(text.to_owned())),
        None => {
            let name = "lastEventId";
            (
                name,
                query.optional(violations, name, |text| Ok(text.to_owned())),
            )
        }
    };
    let position = text.filter(|text| !text.is_empty())?.parse::<Position>();
    position.map_err(|reason| violations.add(name, reason)).ok()
}

/// Returns true if the client wants Server-Sent Events.
fn accepts_events(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter();
    let mut ranges = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    ranges.any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        media_type.eq_ignore_ascii_case("text/event-stream") && !parts.any(is_zero_weight)
    })
}

/// Returns true for `q=0`, with any number of decimals: the media type is not accepted (RFC 9110 §12.4.2).
fn is_zero_weight(parameter: &str) -> bool {
    let (name, weight) = parameter.split_once('=').unwrap_or_default();
    name.eq_ignore_ascii_case("q")
        && weight.starts_with('0')
        && weight.bytes().all(|byte| matches!(byte, b'0' | b'.'))
}
