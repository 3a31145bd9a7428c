//! `GET /changes`: the record of changes.
//!
//! - A caller without `admin` sees changes of pets, images and imports with `read:pets`, of its own orders with
//!   `read:orders`, and of its own account.
//! - A page has every change that was committed before the request.

mod body;
mod stream;
mod wanted;

use axum::{
    extract::State,
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::Response,
};
use utoipa_axum::routes;

use self::{body::PageBody, wanted::Wanted};
use super::{
    error::Error,
    extract::Query,
    fields::Violations,
    kinds::KindBody,
    operations::{Facts, Operations},
    paging::{parse_distinct, parse_limit},
    request_context::{CurrentCaller, RequestContext},
    response,
    state::AppState,
};
use crate::{
    db::{self, changes::Page},
    domain::{
        Text,
        change::{Kind, Position},
    },
};

/// Header of a client that goes on with a stream.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Default of `limit`.
const DEFAULT_LIMIT: usize = 100;

/// Returns the operation.
pub fn router() -> Operations {
    Operations::new().routes_with(Facts::LIST, routes!(list))
}

/// Read the record of changes
///
/// Returns changes after the position `after`; without it, from the oldest one. A request looks at 10,000 changes at most, so a
/// page may have fewer than `limit`, or none, while more remain: go on with `next` as `after` until both are equal. Changes
/// are kept for 30 days, unless configured otherwise. A caller without the scope `admin` sees changes of pets, images and
/// imports with `read:pets`, of its own orders with `read:orders`, and of its own account.
///
/// With `Accept: text/event-stream`, the response is a stream of Server-Sent Events, without an end: `event: change`, with the
/// change as `data` and its position as `id`. It begins behind `Last-Event-ID` or `after`; without both, with the next change.
/// Every 15 s at the latest, the last position is sent as an `id` without `data`. The stream ends when the credential is no
/// longer valid, when the client reads too slowly, and when the service stops: then repeat the request with the last `id` as
/// `Last-Event-ID`.
#[utoipa::path(
    get, path = "/changes", operation_id = "listChanges", tag = "changes", security(("bearer" = ["read:changes"])),
    params(
        ("after" = Option<i64>, Query, description = "Position after which the changes begin.", minimum = 0, maximum = 9_007_199_254_740_991_i64, example = 0),
        ("kind" = inline(Option<Vec<KindBody>>), Query, description = "Kinds of resources, repeated or separated by commas that are not encoded.", min_items = 1, max_items = 100, example = json!(["pet"])),
        ("resource" = Option<String>, Query, description = "Identifier of the only resource; with one `kind`.", min_length = 1, max_length = 64, pattern = r"^[^\x00]*$", example = "7"),
        ("limit" = Option<i64>, Query, description = "Maximum number of changes; 100 if absent. A stream has no limit.", minimum = 1, maximum = 1_000),
    ),
    responses(
        (status = 200, description = "The changes.", body = PageBody),
        (status = 410, description = "`after` is not in the record, or is past its retention. `oldest` is the oldest position."),
    ),
)]
async fn list(
    State(state): State<AppState>,
    context: RequestContext,
    CurrentCaller(caller): CurrentCaller,
    Query(query): Query,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let is_stream = accepts_events(&headers);
    let mut violations = Violations::default();
    let after = query.optional(&mut violations, "after", str::parse);
    let limit = query.optional(&mut violations, "limit", parse_limit);
    let kinds: Vec<Kind> = parse_distinct(&mut violations, &query, "kind");
    let resource = query.optional(&mut violations, "resource", |id| Text::new(id.into()));
    if resource.is_some() && kinds.len() != 1 {
        violations.add("resource", "needs one kind");
    }
    let last = headers.get(LAST_EVENT_ID);
    let last = last.filter(|last| is_stream && !last.is_empty());
    let last = last.map(|last| last.to_str().unwrap_or_default().parse::<Position>());
    let last = last.transpose().unwrap_or_else(|reason| {
        violations.add("Last-Event-ID", reason.to_string());
        None
    });
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
        after: last.or(after),
    };
    if is_stream {
        return stream::open(state, wanted, &caller, context.client_address(), &headers).await;
    }
    let (after, filter) = (wanted.after.unwrap_or_default(), wanted.filter(&caller));
    let read = state.database.run(async |connection| {
        db::changes::publish_all(connection).await?;
        db::changes::page(connection, after, &filter, limit.unwrap_or(DEFAULT_LIMIT)).await
    });
    let page: Result<Page, _> = read.await?;
    let Page { changes, next } = page.map_err(Error::UnknownPosition)?;
    let body = PageBody {
        changes,
        next: next.0,
    };
    response::json(StatusCode::OK, &body)
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
