//! Planner settings of all connections that serve requests.

/// Returns the settings, each as a statement with this command: `set` or `set local`.
macro_rules! planner_settings {
    ($set:literal) => {
        concat!(
            $set,
            " plan_cache_mode = force_generic_plan; ",
            $set,
            " enable_seqscan = off; ",
            $set,
            " enable_bitmapscan = off; ",
            $set,
            " jit = off"
        )
    };
}
pub(super) use planner_settings;

/// Statements that set them. With a generic plan, and without sequential and bitmap scans, the plan of a statement depends
/// neither on its values nor on the size of the tables when it was made. JIT is off, because reading a sequence counts as a
/// sequential scan, whose cost would cause a compilation.
pub const PLANNER_SETTINGS: &str = planner_settings!("set");
