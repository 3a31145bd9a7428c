//! URLs of images.

use std::convert::Infallible;

use axum::{
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
};

use crate::{
    api::{extract::Host, state::Links},
    domain::{id::PetId, image::ImageId},
};

/// Builds absolute URLs of images, so that pages of other sites can show them.
pub struct Urls {
    links: Links,
    host: String,
}

impl<S> FromRequestParts<S> for Urls
where
    S: Send + Sync,
    Links: FromRef<S>,
{
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let Host(host) = Host::from_request_parts(parts, state).await?;
        let links = Links::from_ref(state);
        Ok(Self { links, host })
    }
}

impl Urls {
    /// Returns the URL of an image.
    pub fn of(&self, pet: PetId, image: ImageId) -> String {
        self.links.absolute_url(&path(pet, image), &self.host)
    }
}

/// Returns the path of an image.
pub fn path(pet: PetId, image: ImageId) -> String {
    format!("/api/v3/pet/{pet}/images/{image}")
}
