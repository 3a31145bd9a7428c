//! Bounds the number of requests in progress.

use std::{future::Future, pin::Pin, sync::Arc};

use axum::{
    body::{Body, HttpBody},
    response::Response,
};
use http_body_util::BodyExt;

use crate::{
    api::{error::Error, state::Places},
    db::patience,
};

/// Responds with 503 at once when all permits are in use: a queue would only make all requests late. The database waits of
/// a request share one deadline.
///
/// # Errors
/// [`Error::Overloaded`]; what `work` fails with.
pub async fn load_shed(
    places: &Places,
    work: Pin<&mut impl Future<Output = Result<Response, Error>>>,
) -> Result<Response, Error> {
    let place = places.requests.try_acquire().map_err(|_| overloaded())?;
    let response = patience::shared(work).await?;
    drop(place);
    if response.body().size_hint().exact().is_some() {
        return Ok(response);
    }
    let place = Arc::clone(&places.streams)
        .try_acquire_owned()
        .map_err(|_| overloaded())?;
    // The permit is held until the body ends or is dropped.
    Ok(response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &place;
            frame
        }))
    }))
}

fn overloaded() -> Error {
    metrics::counter!("http_server_shed_requests_total").increment(1);
    Error::Overloaded
}
