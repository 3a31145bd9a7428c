//! What protects the process from more requests than it can answer, whoever's they are.

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

/// Answers 503 at once when as many requests as there are places are being answered: a queue would only
/// make all of them late. What is answered waits no longer for the database than a request may in all.
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
    // The place goes with the body, to its end or to its drop.
    Ok(response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &place;
            frame
        }))
    }))
}

fn overloaded() -> Error {
    metrics::counter!("http_overloaded_total").increment(1);
    Error::Overloaded
}
