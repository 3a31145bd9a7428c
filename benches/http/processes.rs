//! CPU time and memory of processes, from `/proc`.

use std::fs;

/// Clock ticks per second in `/proc`: 100 on all common Linux kernels.
const TICKS: f64 = 100.0;

/// Returns the CPU seconds that a process and its threads have used.
pub fn cpu(pid: u32) -> f64 {
    let times = stat(pid);
    (times[0] + times[1]) as f64 / TICKS
}

/// Returns the CPU seconds of PostgreSQL: postmaster, running backends and ended backends.
pub fn postgres_cpu(postmaster: u32) -> f64 {
    let own: u64 = stat(postmaster).iter().sum();
    own as f64 / TICKS + children(postmaster).into_iter().map(cpu).sum::<f64>()
}

/// Returns the resident memory in MB, and its peak since [`forget_peak`].
pub fn memory(pid: u32) -> (f64, f64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(f64::NAN) * 1024.0 / 1e6
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// Resets the peak memory of a process.
pub fn forget_peak(pid: u32) {
    // Without the permission the peak stays, which overestimates the growth.
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// Returns the user and system time in ticks, of the process and of its ended children.
fn stat(pid: u32) -> [u64; 4] {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let mut times = fields
        .split(' ')
        .skip(11)
        .map(|field| field.parse().unwrap_or(0));
    std::array::from_fn(|_| times.next().unwrap_or(0))
}

fn children(of: u32) -> Vec<u32> {
    let tasks = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    tasks
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
