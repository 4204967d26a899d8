//! Metrics of the process itself. The collector of the `prometheus` crate counts processor time in whole seconds, reads the time
//! past the injected clock, and needs `procfs`.

use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeVal;
use pilothouse_api::release::Release;
use pilothouse_types::clock::Timestamp;
use prometheus::{Counter, IntGauge, Opts};

use super::registration::{MetricRegistry, Result};

/// The metrics that change.
pub(super) struct Process {
    memory: IntGauge,
    address_space: IntGauge,
    processor_time: Counter,
    open_files: IntGauge,
}

impl Process {
    pub(super) fn new(registry: &MetricRegistry<'_>, started: Timestamp) -> Result<Process> {
        register_start_time(registry, started)?;
        let max_files = registry.gauge("process_max_fds", "How many files the process may have open.")?;
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
        max_files.set(i64::try_from(limit).unwrap_or(i64::MAX));
        Ok(Process {
            memory: registry.gauge("process_resident_memory_bytes", "Memory of the process, in bytes.")?,
            address_space: registry
                .gauge("process_virtual_memory_bytes", "Address space of the process, in bytes.")?,
            processor_time: registry.float_counter(
                "process_cpu_seconds_total",
                "Processor time of the process, in user and system mode, in seconds.",
            )?,
            open_files: registry.gauge("process_open_fds", "How many files the process has open.")?,
        })
    }

    /// Updates the metrics.
    pub(super) fn update(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        self.memory.set(field_bytes(&status, "VmRSS:").unwrap_or(0));
        self.address_space.set(field_bytes(&status, "VmSize:").unwrap_or(0));
        // One of them is the listing itself.
        let open = fs::read_dir("/proc/self/fd").map_or(0, |files| files.count().saturating_sub(1));
        self.open_files.set(i64::try_from(open).unwrap_or(i64::MAX));
        if let Ok(used) = getrusage(UsageWho::RUSAGE_SELF) {
            let total = seconds(used.user_time()) + seconds(used.system_time());
            self.processor_time.inc_by((total - self.processor_time.get()).max(0.0));
        }
    }
}

/// Registers the build information.
pub(super) fn register_build_info(registry: &MetricRegistry<'_>, release: &Release) -> Result<()> {
    let build = release.build();
    let labels = [
        ("major", build.major),
        ("minor", build.minor),
        ("git_version", build.git_version),
        ("git_commit", build.git_commit),
        ("git_tree_state", build.git_tree_state),
        ("build_date", build.build_date.as_str()),
        ("go_version", build.go_version),
        ("compiler", build.compiler),
        ("platform", &build.platform),
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let info = Opts::new("kubernetes_build_info", "1, with the version of this server as labels.");
    registry.info(info.const_labels(labels.into()))
}

/// Registers the start time.
pub(super) fn register_start_time(registry: &MetricRegistry<'_>, started: Timestamp) -> Result<()> {
    let start = registry
        .float_gauge("process_start_time_seconds", "When the server started, in seconds of Unix time.")?;
    start.set(started.fractional_seconds());
    Ok(())
}

fn seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

/// A memory field of /proc/self/status, which is in kilobytes. Other files count pages, whose size differs between machines.
fn field_bytes(status: &str, field: &str) -> Option<i64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    value.trim().strip_suffix("kB")?.trim_end().parse::<i64>().ok()?.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_memory_is_read_from_proc_status() {
        let resident_bytes = |status: &str| field_bytes(status, "VmRSS:");
        let status = "Name:\tpilothouse\nVmHWM:\t   99999 kB\nVmRSS:\t   51234 kB\nRssAnon:\t 1 kB\n";
        assert_eq!(resident_bytes(status), Some(51_234 * 1_024));
        assert_eq!((resident_bytes(""), resident_bytes("VmRSS:\tmany kB")), (None, None));
    }
}
