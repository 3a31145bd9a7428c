//! What protects the process from more requests than it can answer, whoever's they are.

use tokio::sync::SemaphorePermit;

use crate::api::{error::Error, state::Places};

/// A place among the requests that are being answered; when there is none, 503 at once: a queue would only
/// make all of them late.
///
/// # Errors
/// [`Error::Overloaded`].
pub fn load_shed(Places(places): &Places) -> Result<SemaphorePermit<'_>, Error> {
    places.try_acquire().map_err(|_| Error::Overloaded)
}
