//! Bodies of several operations on images.

use utoipa::ToSchema;

/// Bytes of an image.
#[derive(ToSchema)]
#[schema(as = ImageBytes, value_type = String, format = Binary, min_length = 1)]
pub struct ImageBytes(#[expect(dead_code, reason = "describes a body that is streamed")] Vec<u8>);
