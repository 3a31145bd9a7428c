//! Measures the process's own resources, under the metric names of the Prometheus client libraries. Memory, threads and
//! open files are measured on Linux only.
//!
//! The crate `metrics-process` would replace 20 of these lines. It adds 19 packages to the lock file, needs libclang on
//! macOS, and counts CPU time in whole seconds.

use std::{fmt::Write as _, fs, time::SystemTime};

use metrics::gauge;
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};

/// Records the start time of the process.
#[expect(clippy::disallowed_methods, reason = "the metric is a wall-clock time")]
pub fn begin() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    gauge!("process_start_time_seconds").set(now.unwrap_or_default().as_secs_f64());
}

/// Updates the gauges of the process.
pub fn measure() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (field, value) in status.lines().filter_map(|line| line.split_once(':')) {
        let value = value.trim_end_matches("kB").trim().parse::<f64>();
        match (field, value) {
            ("VmRSS", Ok(kib)) => gauge!("process_resident_memory_bytes").set(kib * 1024.0),
            ("VmSize", Ok(kib)) => gauge!("process_virtual_memory_bytes").set(kib * 1024.0),
            ("Threads", Ok(threads)) => gauge!("process_threads").set(threads),
            _ => {}
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // Without the descriptor of this listing.
        let open = u32::try_from(open.count().saturating_sub(1)).unwrap_or(u32::MAX);
        gauge!("process_open_fds").set(open);
    }
    if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        gauge!("process_max_fds").set(u32::try_from(limit).unwrap_or(u32::MAX));
    }
}

/// Appends the value of the metric `name`, the CPU time. It is written by hand because the recorder's counters are
/// integers.
pub fn write_cpu_time(text: &mut String, name: &str, help: &str) {
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let spent = usage.user_time() + usage.system_time();
        let (seconds, micros) = (spent.tv_sec(), spent.tv_usec());
        let _ = write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} counter\n{name} {seconds}.{micros:06}\n"
        );
    }
}
