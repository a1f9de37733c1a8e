//! The metrics of the process, under the standard names of Prometheus client libraries.
//!
//! They are read from `/proc` at each scrape. Without `/proc`, they are absent.

use std::fs;

use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

/// Ticks per second in `/proc/self/stat`. For user space this is constant on Linux, independent of
/// the kernel's HZ.
const TICKS: f64 = 100.0;

/// Registers the metrics with their current values.
pub(super) fn register(registry: &mut Registry) {
    if let Some(seconds) = cpu_seconds() {
        registry.register_with_unit(
            "process_cpu",
            "CPU time of the process, user and system",
            Unit::Seconds,
            ConstCounter::new(seconds),
        );
    }
    if let Some(bytes) = resident_bytes() {
        registry.register_with_unit(
            "process_resident_memory",
            "Resident memory",
            Unit::Bytes,
            ConstGauge::new(bytes),
        );
    }
    if let Some(files) = open_files() {
        registry.register(
            "process_open_fds",
            "Open file descriptors",
            ConstGauge::new(files),
        );
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses, which may contain spaces. User and
    // system time are fields 14 and 15.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut times = after_name.split_whitespace().skip(11);
    let user: f64 = times.next()?.parse().ok()?;
    let system: f64 = times.next()?.parse().ok()?;
    Some((user + system) / TICKS)
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1_024)
}

fn open_files() -> Option<u64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    u64::try_from(open).ok()
}
