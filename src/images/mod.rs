//! Validation of uploaded images, and smaller versions. The only module that decodes pixels.

pub mod client_queues;
pub mod reader;
pub mod renderings;
mod webp_codes;
