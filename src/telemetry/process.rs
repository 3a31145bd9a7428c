//! Measures the process's own resources, under the metric names of the Prometheus client libraries. Memory, threads and
//! open files are measured on Linux only.

use std::{fmt::Write as _, fs, time::SystemTime};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};

/// Name of the metric that [`write_cpu_time`] writes.
pub const CPU: &str = "process_cpu_seconds_total";

/// Returns true if this module measures the metric.
pub fn is_its(name: &str) -> bool {
    name.starts_with("process_")
}

/// Records the start time of the process.
#[expect(clippy::disallowed_methods, reason = "the metric is a wall-clock time")]
pub fn begin() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    metrics::gauge!("process_start_time_seconds").set(now.unwrap_or_default().as_secs_f64());
}

/// Updates the gauges of the process.
pub fn measure() {
    if let Ok(status) = fs::read_to_string("/proc/self/status") {
        let read = |field: &str| -> Option<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(field))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let kib = 1024.0;
        if let Some(resident) = read("VmRSS:") {
            metrics::gauge!("process_resident_memory_bytes").set(resident * kib);
        }
        if let Some(all) = read("VmSize:") {
            metrics::gauge!("process_virtual_memory_bytes").set(all * kib);
        }
        if let Some(threads) = read("Threads:") {
            metrics::gauge!("process_threads").set(threads);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // Without the descriptor of this listing.
        let open = u32::try_from(open.count().saturating_sub(1)).unwrap_or(u32::MAX);
        metrics::gauge!("process_open_fds").set(open);
    }
    if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        metrics::gauge!("process_max_fds").set(limit);
    }
}

/// Appends the CPU time of the process. It is written by hand because the recorder's counters are integers.
pub fn write_cpu_time(text: &mut String, help: &str) {
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let spent = usage.user_time() + usage.system_time();
        let (seconds, micros) = (spent.tv_sec(), spent.tv_usec());
        let _ = write!(
            text,
            "# HELP {CPU} {help}\n# TYPE {CPU} counter\n{CPU} {seconds}.{micros:06}\n"
        );
    }
}
