//! Build of this program: its version, and the commit that it was built of.

use std::sync::{LazyLock, OnceLock};

/// Version of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Version and commit for people: `0.1.0 (d14037bdf 2026-11-29)`.
pub static BUILD: LazyLock<String> = LazyLock::new(|| format!("{VERSION} ({})", commit()));

static COMMIT: OnceLock<String> = OnceLock::new();

/// Sets the commit, which only the program knows: so a new commit does not build the library again.
pub fn set_commit(commit: String) {
    let _ = COMMIT.set(commit);
}

/// Returns the commit and its date, or `unknown`.
pub fn commit() -> &'static str {
    COMMIT.get().map_or("unknown", String::as_str)
}
