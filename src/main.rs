//! The program `pet-inventory`; everything it does is in the library.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A request makes and frees some dozens of small things; this allocator is the faster one at that.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    pet_inventory::cli::run().await
}
