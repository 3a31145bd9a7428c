//! What protects the process from more requests than it can answer, whoever's they are.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::Response,
};
use http_body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, SemaphorePermit};

use crate::api::{error::Error, state::Places};

/// A place among the requests that are being answered; when there is none, 503 at once: a queue would only
/// make all of them late.
///
/// # Errors
/// [`Error::Overloaded`].
pub fn load_shed(places: &Places) -> Result<SemaphorePermit<'_>, Error> {
    places.requests.try_acquire().map_err(|_| Error::Overloaded)
}

/// Keeps a place for an answer of no known length, until it is sent.
///
/// # Errors
/// [`Error::Overloaded`] when there is none.
pub fn until_sent(places: &Places, response: Response) -> Result<Response, Error> {
    if response.body().size_hint().exact().is_some() {
        return Ok(response);
    }
    let place = Arc::clone(&places.streams)
        .try_acquire_owned()
        .map_err(|_| Error::Overloaded)?;
    Ok(response.map(|body| {
        Body::new(Streamed {
            body,
            _place: place,
        })
    }))
}

/// A body that has a place until it is sent.
struct Streamed {
    body: Body,
    _place: OwnedSemaphorePermit,
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
