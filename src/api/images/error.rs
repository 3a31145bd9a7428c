//! Errors of several operations on images.

use crate::{
    api::error::Error,
    domain::{id::PetId, image::ImageId},
};

pub fn no_such_pet(id: PetId) -> Error {
    Error::NotFound(format!("pet {id}"))
}

pub fn no_such_image(id: ImageId) -> Error {
    Error::NotFound(format!("image {id} of this pet"))
}
