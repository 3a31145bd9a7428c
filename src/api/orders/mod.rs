//! `/store`: orders, and the inventory.
//!
//! [`crate::domain::order`] has the rules for an order and its pet.
//!
//! Invariant: an order and its effect on the pet are one transaction, which locks the pet first.

mod body;

use axum::{extract::State, http::StatusCode, response::Response};
use utoipa_axum::routes;

pub use self::body::{NewOrderBody, PatchBody};
use super::{
    error::Error,
    extract::{Json, MergePatch, Path, Query},
    fields::Violations,
    idempotency::Idempotency,
    list_parameters::{SortParameter, Window, parse_distinct, read_sort},
    operations::{BASE, Operations},
    paging::Lists,
    request_context::CurrentCaller,
    response::{self, ApiResponse},
    state::Links,
};
use crate::{
    db::{
        self, Connection, Database,
        inventory::Inventory,
        orders::{
            ChangeOutcome, Deletion, DeletionOutcome, OrderListing, OwnerFilter, Placement,
            PlacementOutcome,
        },
    },
    domain::{
        caller::{Caller, CallerId, Scope, Scopes},
        change::Initiator,
        id::OrderId,
        order::{Order, Status},
    },
};

/// Returns the operations of the store.
pub fn router() -> Operations {
    Operations::new()
        .routes(routes!(inventory))
        .routes(routes!(place))
        .routes(routes!(get, patch, delete))
        .list(routes!(list))
}

/// Count the pets of each status
///
/// All counts are taken at the same moment.
#[utoipa::path(
    get, path = "/store/inventory", operation_id = "getInventory", tag = "store",
    security(("bearer" = ["read:orders"])),
    responses((status = 200, description = "Number of pets of each status.", body = Inventory)),
)]
async fn inventory(State(database): State<Database>) -> Result<Response, Error> {
    response::json(StatusCode::OK, &database.run(db::inventory::count).await?)
}

/// Place an order for a pet
///
/// The pet must be for sale: available, and not ordered. The order makes it pending or, if delivered or complete, sold.
/// Without an `id` (or with 0) the server assigns an unused one. Only a caller with the scope `admin` may place an order
/// with a `status` other than `placed`, or with `complete` set.
#[utoipa::path(
    post, path = "/store/order", operation_id = "placeOrder", tag = "store", security(("bearer" = ["write:orders"])),
    request_body(content = NewOrderBody, description = "The order to place."),
    responses(
        (status = 201, description = "The placed order.", body = Order, headers(("Location"))),
        (status = 409, description = "The pet is not for sale, the `id` is in use, or a request with this `Idempotency-Key` is in progress."),
    ),
)]
async fn place(
    State(database): State<Database>,
    State(links): State<Links>,
    CurrentCaller(caller): CurrentCaller,
    idempotency: Idempotency,
    initiator: Initiator,
    Json(body): Json<NewOrderBody>,
) -> Result<Response, Error> {
    let new = body.into_new_order()?;
    if !new.details.is_in_first_state() && !caller.scopes.contains(Scope::Admin) {
        return Err(Error::Forbidden {
            needed: Scopes::from_iter([Scope::WriteOrders, Scope::Admin]),
            missing: Scope::Admin,
        });
    }
    // Only administrators see who placed an order, and an anonymous caller has no name to see.
    let is_administrator = caller.scopes.contains(Scope::Admin);
    let name = caller.id.filter(|_| is_administrator);
    let name = name.map(|_| caller.name.clone());
    let placement = Placement {
        owner: caller.id,
        order: new,
        initiator,
    };
    let placed = |outcome| match outcome {
        PlacementOutcome::Placed(order) => {
            let location = links.url(&format!("{BASE}/store/order/{}", order.id));
            let order = Order {
                caller: name.clone(),
                username: order.username.filter(|_| is_administrator),
                ..order
            };
            response::created(location, &order)
        }
        PlacementOutcome::PetNotFound => {
            let reason = "must be the id of an existing pet";
            Err(Error::one_violation("petId", reason))
        }
        PlacementOutcome::Refused(refusal) => {
            let pet = new.details.pet_id;
            Err(Error::Conflict(format!("pet {pet} {refusal}")))
        }
        PlacementOutcome::IdTaken => {
            let id = new.id.map_or(0, OrderId::get);
            Err(Error::Conflict(format!("order {id} already exists")))
        }
    };
    if !idempotency.has_key() {
        return placed(db::orders::place(&database, placement).await?);
    }
    Box::pin(idempotency.run(&database, async |transaction| {
        placed(db::orders::place_in(transaction, placement).await?)
    }))
    .await
}

/// List orders
///
/// Returns a page of the caller's own orders or, with the scope `admin`, of all orders, 100 without `limit`, in the order of their
/// identifiers or with the newest first. While more remain, `Link` has the URL of the next page.
#[utoipa::path(
    get, path = "/store/orders", operation_id = "listOrders", tag = "store", security(("bearer" = ["read:orders"])),
    params(
        ("status" = Option<Vec<Status>>, Query, description = "Statuses, repeated or separated by commas; an order with any of them matches. Without this parameter, all orders match.", min_items = 1, max_items = 100, example = json!(["placed"])),
        ("petId" = Option<i64>, Query, description = "Only orders for this pet.", minimum = 1, maximum = 9_007_199_254_740_991_i64),
        ("callerId" = Option<i64>, Query, description = "Only orders that this caller placed. Only for callers with the scope `admin`.", minimum = 1, maximum = 9_007_199_254_740_991_i64),
        ("sort" = inline(Option<SortParameter>), Query, description = "Order: `id`, which is the default, or `-id` for the largest identifier first."),
        ("limit", Query), ("cursor", Query),
    ),
    responses((status = 200, description = "The orders; `[]` if none match.", body = Vec<Order>, headers(("Link")))),
)]
async fn list(
    lists: Lists,
    CurrentCaller(caller): CurrentCaller,
    Query(query): Query,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let mut statuses = parse_distinct(&mut violations, &query, "status");
    if !query.has_list("status") {
        statuses = Status::ALL.to_vec();
    }
    let pet = query.optional(&mut violations, "petId", str::parse);
    let owner: Option<CallerId> = query.optional(&mut violations, "callerId", str::parse);
    let is_descending = read_sort(&mut violations, &query);
    let window = Window::read(violations, &query)?;
    let is_administrator = caller.scopes.contains(Scope::Admin);
    if owner.is_some() && !is_administrator {
        return Err(Error::Forbidden {
            needed: Scopes::from_iter([Scope::ReadOrders, Scope::Admin]),
            missing: Scope::Admin,
        });
    }
    let listing = OrderListing {
        filter: owner.map(Some).or_else(|| visible(&caller)),
        names_callers: is_administrator,
        statuses,
        pet,
        is_descending: is_descending.unwrap_or_default(),
    };
    let read = async |connection: &mut Connection, after, limit| {
        db::orders::list(connection, &listing, after, limit).await
    };
    let next = (
        "/store/orders",
        &["status", "petId", "callerId", "sort"][..],
    );
    let id = |order: &Order| order.id;
    lists.records(next, &query, window, id, read).await
}

/// Get an order
///
/// Returns one of the caller's own orders or, with the scope `admin`, any order.
#[utoipa::path(
    get, path = "/store/order/{orderId}", operation_id = "getOrderById", tag = "store",
    security(("bearer" = ["read:orders"])),
    responses((status = 200, description = "The order.", body = Order)),
)]
async fn get(
    State(database): State<Database>,
    CurrentCaller(caller): CurrentCaller,
    Path(id): Path<OrderId>,
) -> Result<Response, Error> {
    let filter = visible(&caller);
    let order = database
        .run(async |connection| db::orders::find(connection, id, filter).await)
        .await?;
    let order = order.ok_or_else(|| no_such_order(id))?;
    response::json(StatusCode::OK, &order)
}

/// Change an order
///
/// JSON Merge Patch (RFC 7396) of `status`, `complete` and `shipDate`. An order moves forward only: from `placed` to
/// `approved` to `delivered`, and to `complete`; it may skip a state. A delivered or complete order makes its pet sold. An open order
/// of a pet that is deleted can be completed or deleted, but not approved or delivered.
#[utoipa::path(
    patch, path = "/store/order/{orderId}", operation_id = "patchOrder", tag = "store", security(("bearer" = ["admin"])),
    request_body(
        content = PatchBody, content_type = "application/merge-patch+json",
        description = "Fields of the order to change. The media type may also be `application/json`."),
    responses(
        (status = 200, description = "The changed order.", body = Order),
        (status = 409, description = "The order cannot move backward, or its pet is deleted."),
    ),
)]
async fn patch(
    State(database): State<Database>,
    Path(id): Path<OrderId>,
    initiator: Initiator,
    MergePatch(body): MergePatch<PatchBody>,
) -> Result<Response, Error> {
    let patch = body.into_patch()?;
    let outcome = database.transact(async |transaction| {
        db::orders::change_in(transaction, id, patch, &initiator).await
    });
    match outcome.await? {
        ChangeOutcome::Changed(order) => response::json(StatusCode::OK, &order),
        ChangeOutcome::NotFound => Err(no_such_order(id)),
        ChangeOutcome::Refused(refusal) => Err(Error::Conflict(format!("order {id} {refusal}"))),
    }
}

/// Delete an order
///
/// Deletes one of the caller's own open orders or, with the scope `admin`, any order. An open order releases its pet: if
/// it is still pending, it becomes available.
#[utoipa::path(
    delete, path = "/store/order/{orderId}", operation_id = "deleteOrder", tag = "store",
    security(("bearer" = ["write:orders"])),
    responses(
        (status = 200, description = "Deleted.", body = ApiResponse),
        (status = 409, description = "The order is delivered or complete; only a caller with the scope `admin` may delete it."),
    ),
)]
async fn delete(
    State(database): State<Database>,
    CurrentCaller(caller): CurrentCaller,
    Path(id): Path<OrderId>,
    initiator: Initiator,
) -> Result<Response, Error> {
    let deletion = Deletion {
        id,
        filter: visible(&caller),
        initiator,
    };
    match db::orders::delete(&database, deletion).await? {
        DeletionOutcome::Deleted => ApiResponse::deleted(&id),
        DeletionOutcome::NotFound => Err(no_such_order(id)),
        DeletionOutcome::Closed => Err(Error::Conflict(format!(
            "order {id} is delivered or complete; only a caller with the scope admin may delete it"
        ))),
    }
}

fn visible(caller: &Caller) -> OwnerFilter {
    (!caller.scopes.contains(Scope::Admin)).then_some(caller.id)
}

fn no_such_order(id: OrderId) -> Error {
    Error::NotFound(format!("order {id}"))
}
