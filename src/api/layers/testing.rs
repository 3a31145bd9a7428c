//! Requests, a handler and a database for the tests of the layers.

use std::sync::Arc;

use axum::{body::Body, extract::Request, response::Response};
use http_body_util::BodyExt as _;

use super::Outcome;
use crate::{
    api::{request_context::RequestContext, request_id::RequestId},
    config::Config,
    db::{ConnectOptions, Database},
    domain::{
        caller::{Caller, CallerId, Scopes},
        plan::Plan,
    },
};

/// Request for `path`.
pub fn get(path: &'static str) -> Request {
    let request = Request::get(path).body(Body::empty());
    request.expect("a request")
}

/// Request of a caller with all scopes on `plan`, or of an unauthenticated client.
pub fn request_of(plan: Option<Plan>) -> Request {
    let mut request = get("/");
    let context = RequestContext::new(RequestId::of(request.headers()));
    if let Some(plan) = plan {
        let _ = context.caller.set(Arc::new(Caller {
            id: Some(CallerId(7)),
            name: "acme".parse().expect("a name"),
            plan,
            scopes: Scopes::all(),
        }));
    }
    request.extensions_mut().insert(context);
    request
}

/// Handler that responds with 200.
pub async fn ok(_: Request) -> Outcome {
    Ok(Response::default())
}

/// Returns the body of a response.
pub async fn text(response: Response) -> String {
    let body = response.into_body().collect().await.expect("a body");
    String::from_utf8_lossy(&body.to_bytes()).into_owned()
}

/// Database at a reserved port, where no server listens; and the default configuration.
pub fn unreachable_database() -> (Database, Config) {
    let config = Config::defaults().expect("the defaults");
    let options = ConnectOptions::new_without_pgpass();
    let options = options.host("127.0.0.1").port(1);
    (Database::new(options, &config.database), config)
}
