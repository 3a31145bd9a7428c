//! What processes cost, as the kernel counts it.

use std::fs;

/// Ticks a second of the kernel's accounts; 100 on every Linux that people run.
const TICKS: f64 = 100.0;

/// CPU seconds that a process has used, its threads included.
pub fn cpu(pid: u32) -> f64 {
    let times = stat(pid);
    (times[0] + times[1]) as f64 / TICKS
}

/// CPU seconds of PostgreSQL: its postmaster, the backends there are, and those that ended.
pub fn postgres_cpu(postmaster: u32) -> f64 {
    let own: u64 = stat(postmaster).iter().sum();
    own as f64 / TICKS + children(postmaster).into_iter().map(cpu).sum::<f64>()
}

/// Resident memory in MB, and the most it ever was since [`forget_peak`].
pub fn memory(pid: u32) -> (f64, f64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(f64::NAN) * 1024.0 / 1e6
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// Lets the peak of a process's memory begin anew.
pub fn forget_peak(pid: u32) {
    // Where it is not allowed the peak is the larger one.
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// User, system, and those of children that ended.
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
