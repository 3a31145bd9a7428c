//! Rows 13, 14 and 16, which need programs other than PostgreSQL's servers.

mod disk;
mod failover;
mod pooler;
