//! The program `pet-inventory`; everything it does is in the library.

// With optimisation the compiler looks through all futures that lie in each other, more than 128 deep.
#![recursion_limit = "256"]

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A request makes and frees some dozens of small things; this allocator is the faster one at that.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    pet_inventory::cli::run().await
}
