//! URLs of images.

use axum::extract::State;

use crate::{
    api::{extract::Host, state::Links},
    domain::{id::PetId, image::ImageId},
};

/// Configured and requested host, which absolute URLs depend on.
pub type Urls = (State<Links>, Host);

/// Returns the URL of an image. It is absolute, so that pages of other sites can show the image.
pub fn image_url((State(links), Host(host)): &Urls, pet: PetId, image: ImageId) -> String {
    links.absolute_url(&image_path(pet, image), host)
}

/// Returns the path of an image.
pub fn image_path(pet: PetId, image: ImageId) -> String {
    format!("/api/v3/pet/{pet}/images/{image}")
}
