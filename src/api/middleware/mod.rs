//! The layers around every handler, one file each; `api/mod.rs` has their order and its reasons.

pub mod authenticate;
pub mod idempotency;
pub mod observe;
pub mod well_formed;
