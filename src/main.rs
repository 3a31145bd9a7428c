//! The program `pet-inventory`; everything it does is in the library.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    pet_inventory::cli::run().await
}
