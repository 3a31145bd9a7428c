//! What protects the process from more requests than it can answer, whoever's they are.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::Response,
};
use http_body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

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
    let place = places
        .requests
        .try_acquire()
        .map_err(|_| Error::Overloaded)?;
    let response = patience::shared(work).await?;
    drop(place);
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
