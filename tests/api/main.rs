//! The service's tests over real HTTP and a real PostgreSQL: one binary, one cluster, a database a test.

mod conditional;
mod errors;
mod finds;
mod idempotency;
mod jwt;
mod limits;
mod pets;
mod support;
mod wire;
