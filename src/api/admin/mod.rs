//! `/admin`: callers, their keys and clients, login sessions, webhooks, and the sample store, for callers with the scope `admin`.
//!
//! Invariants:
//! - Changes are made by the functions that the commands call, and are recorded in the same transaction.
//! - A secret is in one response, which is not stored.
//! - No operation takes away the last administrator, also beside others that do.

mod callers;
mod credentials;
mod sample_store;
mod webhooks;

use utoipa_axum::routes;

use super::operations::{Facts, Keys, Operations};

/// Returns the operations.
pub fn router() -> Operations {
    Operations::new()
        .routes(routes!(callers::create))
        .routes(routes!(callers::get, callers::patch, callers::delete))
        .routes(routes!(callers::usage))
        .list(routes!(callers::list))
        .list(routes!(credentials::list_keys))
        .routes_with(Facts::SECRET, routes!(credentials::create_key))
        .routes_with(Facts::SECRET, routes!(credentials::rotate_key))
        .routes(routes!(credentials::revoke_key))
        .list(routes!(credentials::list_clients))
        .routes_with(Facts::SECRET, routes!(credentials::create_client))
        .routes(routes!(credentials::revoke_client))
        .list(routes!(credentials::list_sessions))
        .routes(routes!(credentials::revoke_session))
        .list(routes!(webhooks::list))
        .routes_with(Facts::SECRET, routes!(webhooks::create))
        .routes(routes!(webhooks::get, webhooks::patch, webhooks::delete))
        .list(routes!(webhooks::deliveries))
        .routes(routes!(webhooks::retry))
        .routes(routes!(webhooks::retry_all))
        .list(routes!(webhooks::attempts))
        .routes_with(
            Facts {
                keys: Keys::Ignored,
                timeout_factor: 0,
                ..Facts::OPERATION
            },
            routes!(webhooks::test),
        )
        .routes_with(Facts::SECRET, routes!(webhooks::rotate))
        .routes(routes!(sample_store::add))
}
