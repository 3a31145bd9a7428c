//! Rows 13, 14, 16 and 33, which need a pooler, standbys and a small file system.

mod disk;
mod failover;
mod pooler;
pub mod standbys;
