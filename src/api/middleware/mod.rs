//! The layers around every handler, one file each; `api/mod.rs` has their order and its reasons.

pub mod authenticate;
pub mod authorize;
pub mod client;
pub mod idempotency;
pub mod load_shed;
pub mod observe;
pub mod rate_limit;
pub mod well_formed;
