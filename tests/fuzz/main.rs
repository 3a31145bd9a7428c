//! Fuzz targets: the parsers of what clients send, each with a property that holds for any bytes.
//!
//! `cargo test` tries the inputs in `__fuzz__/*/corpus` and random ones. `.ci/fuzz` builds the same targets with
//! libFuzzer, which searches for inputs that reach new code.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a failed property panics with the reason"
)]

mod cursor;
mod entity_tags;
mod image;
mod json;
mod jwt;
mod multipart;
mod query;
mod range;

use std::cell::RefCell;

/// Number of random inputs of a target in `cargo test`.
const RANDOM_INPUTS: usize = 1_000;

/// Defines the test of a target, which is also the folder of its corpus.
macro_rules! target {
    ($name:literal, $check:path) => {
        #[test]
        fn holds_for_any_bytes() {
            bolero::check!(name = $name)
                .with_iterations(crate::RANDOM_INPUTS)
                .for_each(|input: &[u8]| $check(input));
        }
    };
}
use target;

/// Splits the input at the first `separator`. All of it precedes a missing one.
fn split(input: &[u8], separator: u8) -> (&[u8], &[u8]) {
    let at = input.iter().position(|byte| *byte == separator);
    at.map_or((input, &[]), |at| (&input[..at], &input[at + 1..]))
}

/// Runs `work`. Returns its result, and the largest number of bytes that it had allocated at once.
fn measure<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let result = RefCell::new(None);
    let allocations = allocation_counter::measure(|| {
        result.replace(Some(work()));
    });
    let result = result.into_inner().expect("it has run");
    (result, allocations.bytes_max)
}
