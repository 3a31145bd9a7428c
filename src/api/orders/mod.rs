//! `/store`: orders, and the inventory. The rules between an order and its pet are in
//! [`crate::domain::order`].
//!
//! Invariant: an order and what it does to its pet are one transaction, which locks the pet first.

mod body;

use std::sync::Arc;

use axum::{Extension, extract::State, http::StatusCode, response::Response};
use utoipa_axum::routes;

use self::body::{InventoryBody, NewOrderBody, OrderBody};
use super::{
    answer::{self, ApiResponse},
    error::Error,
    extract::{Json, Path, Query},
    fields::Violations,
    idempotency::Idempotency,
    openapi::BASE,
    operations::Operations,
    paging::{self, Find, Window},
    state::Links,
};
use crate::{
    db::{self, Connection, Database, orders::Visible},
    domain::{
        caller::{Caller, Scope},
        id::{OrderId, PetId},
        order::{NewOrder, Order, Standing, Status},
        pet,
    },
};

/// The operations of the store.
pub fn router() -> Operations {
    Operations::new()
        .routes(routes!(inventory))
        .routes(routes!(place))
        .routes(routes!(list))
        .routes(routes!(get, delete))
}

/// Count the pets of each status
///
/// All of them at one moment.
#[utoipa::path(
    get, path = "/store/inventory", operation_id = "getInventory", tag = "store",
    security(("api_key" = ["read:orders"]), ("bearer" = ["read:orders"])),
    responses((status = 200, description = "How many pets there are of each status.", body = InventoryBody)),
)]
async fn inventory(State(database): State<Database>) -> Result<Response, Error> {
    let mut body = InventoryBody::default();
    for (status, pets) in db::inventory::count(database.pool()).await? {
        match status {
            pet::Status::Available => body.available = pets,
            pet::Status::Pending => body.pending = pets,
            pet::Status::Sold => body.sold = pets,
        }
    }
    answer::json(StatusCode::OK, &body)
}

/// Place an order for a pet
///
/// The pet must be for sale: available, and not ordered. The order makes it pending; one that is delivered or
/// complete makes it sold. Without an `id` (or with 0) the server gives one that no order has.
#[utoipa::path(
    post, path = "/store/order", operation_id = "placeOrder", tag = "store",
    security(("api_key" = ["write:orders"]), ("bearer" = ["write:orders"])),
    request_body(content = NewOrderBody, description = "The order to place."),
    responses(
        (status = 201, description = "Placed: the order as it is stored.", body = OrderBody,
            headers(("Location" = String, description = "URL of the order."))),
        (status = 409, description = "The pet is not for sale, the `id` is in use, or a request with this `Idempotency-Key` is being worked on."),
    ),
)]
async fn place(
    State(database): State<Database>,
    State(links): State<Links>,
    Extension(caller): Extension<Arc<Caller>>,
    idempotency: Idempotency,
    Json(body): Json<NewOrderBody>,
) -> Result<Response, Error> {
    let new = body.into_new_order()?;
    let work = async |transaction: &mut Connection| {
        take_pet(transaction, &new).await?;
        let Some(order) = db::orders::insert(transaction, caller.id, new).await? else {
            let id = new.id.map_or(0, OrderId::get);
            return Err(Error::Conflict(format!("order {id} exists already")));
        };
        let location = links.url(&format!("{BASE}/store/order/{}", order.id));
        answer::created(location, &OrderBody::from(&order))
    };
    idempotency.run(&database, work).await
}

/// Locks the pet of an order and makes it what the order makes of it, if it is for sale.
async fn take_pet(transaction: &mut Connection, new: &NewOrder) -> Result<(), Error> {
    let id = new.details.pet_id;
    let pet = db::pets::find_for_update(transaction, id)
        .await?
        .ok_or_else(|| Error::one_violation("petId", "must be the id of a pet that exists"))?;
    let standing = Standing {
        status: pet.details.status(),
        held: db::orders::is_held(&mut *transaction, id).await?,
    };
    let ordered = standing
        .ordered(&new.details)
        .map_err(|refusal| Error::Conflict(format!("pet {id} {refusal}")))?;
    set_status(transaction, pet, ordered.status).await
}

async fn set_status(
    transaction: &mut Connection,
    pet: pet::Pet,
    status: pet::Status,
) -> Result<(), Error> {
    if pet.details.status() != status {
        let details = pet.details.with_status(status);
        db::pets::replace(transaction, pet.id, details, None).await?;
    }
    Ok(())
}

/// List orders
///
/// One's own; with the scope `admin`, everybody's. Without `limit`: every match, in the order of their
/// identifiers. With it: a page, and in `Link` the URL of the next while more remains.
#[utoipa::path(
    get, path = "/store/orders", operation_id = "listOrders", tag = "store",
    security(("api_key" = ["read:orders"]), ("bearer" = ["read:orders"])),
    params(
        ("status" = Option<Vec<body::StatusBody>>, Query, description = "Statuses, repeated or separated by commas; an order with any of them matches. Without it, every order does.", min_items = 1, max_items = 100, example = json!(["placed"])),
        ("petId" = Option<i64>, Query, description = "Only orders for this pet.", minimum = 1, maximum = 9_007_199_254_740_991_i64),
        ("limit" = Option<u32>, Query, description = "At most so many orders.", minimum = 1, maximum = 1_000),
        ("cursor" = inline(Option<paging::Cursor>), Query, description = "Where to go on: from `Link` of the page before."),
    ),
    responses(
        (status = 200, description = "The orders; `[]` when there are none.", body = Vec<OrderBody>,
            headers(("Link" = Option<String>, description = "`<…>; rel=\"next\"` (RFC 8288) while more remains; only with `limit`."))),
    ),
)]
async fn list(
    State(database): State<Database>,
    State(links): State<Links>,
    Extension(caller): Extension<Arc<Caller>>,
    Query(query): Query,
) -> Result<Response, Error> {
    let mut violations = Violations::default();
    let mut statuses = paging::each_once(&mut violations, &query, "status");
    if query.list("status").is_empty() {
        statuses = Status::ALL.to_vec();
    }
    let pet = query.optional(&mut violations, "petId", str::parse);
    let window = Window::read(violations, &query)?;
    let find = Orders {
        visible: visible(&caller),
        statuses,
        pet,
    };
    let next = ("/store/orders", &["status", "petId"][..]);
    paging::answer(database, &links, next, &query, window, find).await
}

/// Which orders are asked for.
struct Orders {
    visible: Visible,
    statuses: Vec<Status>,
    pet: Option<PetId>,
}

impl Find for Orders {
    type Item = Order;
    type Id = OrderId;

    async fn page(
        &self,
        database: &Database,
        after: Option<OrderId>,
        limit: usize,
    ) -> Result<Vec<Order>, db::Error> {
        let Self { visible, pet, .. } = *self;
        db::orders::list(database, visible, &self.statuses, pet, after, limit).await
    }

    fn id(order: &Order) -> OrderId {
        order.id
    }

    fn write(order: &Order, json: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(json, &OrderBody::from(order))
    }
}

/// Get an order
///
/// One's own; with the scope `admin`, anybody's.
#[utoipa::path(
    get, path = "/store/order/{orderId}", operation_id = "getOrderById", tag = "store",
    security(("api_key" = ["read:orders"]), ("bearer" = ["read:orders"])),
    params(("orderId" = i64, Path, description = "Identifier of the order.", minimum = 1, maximum = 9_007_199_254_740_991_i64, example = 1)),
    responses(
        (status = 200, description = "The order.", body = OrderBody),
        (status = 404, description = "There is no such order, or it is another caller's."),
    ),
)]
async fn get(
    State(database): State<Database>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(id): Path<OrderId>,
) -> Result<Response, Error> {
    let order = db::orders::find(database.pool(), id, visible(&caller))
        .await?
        .ok_or_else(|| no_such_order(id))?;
    answer::json(StatusCode::OK, &OrderBody::from(&order))
}

/// Delete an order
///
/// One's own; with the scope `admin`, anybody's. An open order gives its pet back: if it is still pending, it
/// is available again.
#[utoipa::path(
    delete, path = "/store/order/{orderId}", operation_id = "deleteOrder", tag = "store",
    security(("api_key" = ["write:orders"]), ("bearer" = ["write:orders"])),
    params(("orderId" = i64, Path, description = "Identifier of the order.", minimum = 1, maximum = 9_007_199_254_740_991_i64, example = 1)),
    responses(
        (status = 200, description = "Deleted.", body = ApiResponse),
        (status = 404, description = "There is no such order, or it is another caller's."),
    ),
)]
async fn delete(
    State(database): State<Database>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(id): Path<OrderId>,
) -> Result<Response, Error> {
    let visible = visible(&caller);
    let work = async |transaction: &mut Connection| {
        let order = db::orders::find(&mut *transaction, id, visible)
            .await?
            .ok_or_else(|| no_such_order(id))?;
        let pet = if order.details.is_open() {
            db::pets::find_for_update(transaction, order.details.pet_id).await?
        } else {
            None
        };
        // Whether it held the pet is sure only now that nobody can delete that.
        let held = db::orders::delete(transaction, id, visible)
            .await?
            .ok_or_else(|| no_such_order(id))?;
        if let Some(pet) = pet.filter(|_| held) {
            let status = pet.details.status();
            let given_back = Standing { status, held }.given_back();
            set_status(transaction, pet, given_back.status).await?;
        }
        Ok::<_, Error>(())
    };
    database.transact(work).await?;
    ApiResponse::deleted(&id)
}

/// Which orders a caller sees.
fn visible(caller: &Caller) -> Visible {
    (!caller.scopes.contains(Scope::Admin)).then_some(caller.id)
}

fn no_such_order(id: OrderId) -> Error {
    Error::NotFound(format!("order {id}"))
}
