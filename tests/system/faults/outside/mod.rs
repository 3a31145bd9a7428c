//! Rows 13, 14 and 16, which need a pooler, a standby and a small file system.

mod disk;
mod failover;
mod pooler;
