//! Validation of uploaded images, and smaller versions. The only module that decodes pixels.

pub mod reader;
pub mod renderings;
