//! Decides what happens to a request whose client disconnects.
//!
//! It is dropped, wherever it waits, unless it holds a database connection: then it runs on, with its permits and shares, until it
//! holds none. It also gives the statements of a request their deadline.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::response::Response;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tower::Layer;
use tracing::Instrument as _;

use super::{Incoming, Next, access_log::log_failure};
use crate::{
    api::{error::Error, request_context::RequestContext},
    db::{deadline, scope::Scope},
};

/// Layer that keeps cancelled requests until their statements have ended, as these tasks.
#[derive(Debug, Clone)]
pub struct Shield(pub TaskTracker);

/// A [`Next`] with a [`Shield`] around it.
#[derive(Debug)]
pub struct Shielded<N> {
    tasks: TaskTracker,
    next: Arc<N>,
}

impl<N> Clone for Shielded<N> {
    fn clone(&self) -> Self {
        Self {
            tasks: self.tasks.clone(),
            next: Arc::clone(&self.next),
        }
    }
}

impl<N> Layer<N> for Shield {
    type Service = Shielded<N>;

    fn layer(&self, next: N) -> Shielded<N> {
        Shielded {
            tasks: self.0.clone(),
            next: Arc::new(next),
        }
    }
}

impl<N: Next> Next for Shielded<N> {
    async fn call(&self, request: Incoming<'_>) -> Response {
        let context = RequestContext::of(&request).clone();
        let (next, mut request) = (Arc::clone(&self.next), request.take());
        let work: BoxFuture<'static, Response> =
            Box::pin(async move { next.call(Incoming(&mut request)).await });
        let scope = Some(deadline::of_request(work));
        let tasks = &self.tasks;
        InProgress {
            scope,
            context,
            tasks,
        }
        .await
    }
}

/// Request in progress.
struct InProgress<'l> {
    /// `None` once it is dropped.
    scope: Option<Scope<BoxFuture<'static, Response>>>,
    context: RequestContext,
    tasks: &'l TaskTracker,
}

impl Future for InProgress<'_> {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        match &mut self.scope {
            Some(scope) => Pin::new(scope).poll(context),
            None => Poll::Pending,
        }
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        let Some(scope) = self.scope.take().filter(Scope::holds_connection) else {
            return;
        };
        let context = self.context.clone();
        let finish = async move {
            let response = scope.cancel().await;
            if let Some(error) = response.as_ref().and_then(Error::of) {
                log_failure(&context, None, None, error);
            }
        };
        // Without a runtime, the process is about to end.
        if let Ok(runtime) = Handle::try_current() {
            self.tasks.spawn_on(finish.in_current_span(), &runtime);
        }
    }
}
