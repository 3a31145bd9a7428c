//! `/admin/sample-store`: adds pets with pictures to an empty store.

use axum::{extract::State, response::Response};
use serde::Serialize;
use tracing::Instrument;
use utoipa::ToSchema;

use crate::{
    api::{
        error::Error,
        extract::Host,
        idempotency::Idempotency,
        operations::BASE,
        request_context::CurrentCaller,
        response,
        state::{AppState, Links},
    },
    db,
    domain::{change::Initiator, pet::PhotoUrl},
    sample_store::{self, Origin},
};

/// Numbers of added pets and orders.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SampleStore, example = json!({"pets": 30, "orders": 6}))]
struct SampleStoreBody {
    /// Number of pets.
    #[schema(value_type = i64, minimum = 0, maximum = 1_000)]
    pets: usize,
    /// Number of orders.
    #[schema(value_type = i64, minimum = 0, maximum = 1_000)]
    orders: usize,
}

/// Add the sample store
///
/// Adds 30 pets with pictures, tags and categories, and a few orders of the caller, if there is no pet.
#[utoipa::path(
    post, path = "/admin/sample-store", operation_id = "addSampleStore", tag = "admin", security(("bearer" = ["admin"])),
    responses(
        (status = 201, description = "The numbers of added pets and orders.", body = SampleStoreBody, headers(("Location"))),
        (status = 409, description = "There are pets, or a request with this `Idempotency-Key` is in progress."),
        (status = 507, description = "The image store is full."),
    ),
)]
pub(super) async fn add(
    State(state): State<AppState>,
    State(links): State<Links>,
    CurrentCaller(caller): CurrentCaller,
    Host(host): Host,
    idempotency: Idempotency,
    initiator: Initiator,
) -> Result<Response, Error> {
    if let Some(response) = idempotency.stored_response(&state.database).await? {
        return Ok(response);
    }
    let base = links.absolute_url(BASE, &host);
    base.parse::<PhotoUrl>()
        .map_err(|_| Error::one_violation("Host", "must be a host name"))?;
    // Before the pictures are stored for nothing.
    if !state.database.run(db::sample_store::is_empty).await? {
        return Err(not_empty());
    }
    let pictures = sample_store::store_pictures::<Error>(&state.database, &state.blobs).await?;
    let origin = Origin {
        base,
        owner: caller.id,
        initiator,
    };
    let (database, request_timeout) = (state.database.clone(), state.request_timeout);
    // In a task of its own, as an upload: its hundreds of statements are not bounded by the total time of those of a request.
    let adding = async move {
        let added = idempotency.run(&database, async |transaction| {
            let added = sample_store::add(transaction, &pictures, &origin).await?;
            let added = added.ok_or_else(not_empty)?;
            let body = SampleStoreBody {
                pets: added.pets,
                orders: added.orders,
            };
            response::created(links.url(&format!("{BASE}/pet")), &body)
        });
        tokio::time::timeout(request_timeout, added).await
    };
    match tokio::spawn(adding.in_current_span()).await {
        Ok(response) => response.map_err(|_| Error::TimedOut)?,
        Err(panic) => Err(Error::internal(panic)),
    }
}

fn not_empty() -> Error {
    Error::Conflict("the sample store can be added only to a store without pets".into())
}
