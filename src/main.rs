//! Entry point of the program `pet-inventory`.

// Optimised builds resolve nested futures more deeply than the default limit of 128.
#![recursion_limit = "256"]

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Faster than the default allocator at the dozens of small allocations of a request.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    pet_inventory::cli::run().await
}
