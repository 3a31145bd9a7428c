//! What protects the process from more requests than it can answer, whoever's they are.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};

use crate::api::{error::Error, state::Places};

/// Answers 503 at once when as many requests as there are places are being answered: a queue would only
/// make all of them late.
pub async fn load_shed(
    State(Places(places)): State<Places>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let _place = places.try_acquire().map_err(|_| Error::Overloaded)?;
    Ok(next.run(request).await)
}
