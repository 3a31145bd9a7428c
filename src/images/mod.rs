//! Smaller versions of images. The only module that decodes pixels.

pub mod renderings;
