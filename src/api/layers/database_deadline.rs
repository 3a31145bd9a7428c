//! Limits the time that the database statements of a request may take in all.

use std::sync::Arc;

use axum::extract::Request;

use super::{Middleware, Next, Reply};
use crate::db::deadline;

/// Sets the limit.
#[derive(Debug)]
pub struct DatabaseDeadline;

impl Middleware for DatabaseDeadline {
    fn call<N: Next>(self: &Arc<Self>, request: Request, next: &N) -> impl Reply + use<N> {
        deadline::scope(next.call(request))
    }
}
