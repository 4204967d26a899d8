//! Metrics of the process itself. The collector of the `prometheus` crate counts processor time in whole seconds, reads the time
//! past the injected clock, and needs `procfs`.

use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeVal;
use pilothouse_api::release::Release;
use pilothouse_types::clock::Timestamp;
use prometheus::{Counter, IntCounter, IntGauge, Opts};

use super::registration::{MetricRegistry, Result};

/// The metrics that change.
pub(super) struct Process {
    memory: IntGauge,
    address_space: IntGauge,
    processor_time: Counter,
    open_files: IntGauge,
    received: IntCounter,
    sent: IntCounter,
}

impl Process {
    pub(super) fn new(registry: &MetricRegistry<'_>, started: Timestamp) -> Result<Process> {
        register_start_time(registry, started)?;
        let max_files = registry.gauge("process_max_fds", "How many files the process may have open.")?;
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
        max_files.set(i64::try_from(limit).unwrap_or(i64::MAX));
        let max_space = registry.gauge(
            "process_virtual_memory_max_bytes",
            "How much address space the process may have, in bytes.",
        )?;
        let (limit, _) = getrlimit(Resource::RLIMIT_AS).unwrap_or_default();
        max_space.set(i64::try_from(limit).unwrap_or(i64::MAX));
        Ok(Process {
            memory: registry.gauge("process_resident_memory_bytes", "Memory of the process, in bytes.")?,
            address_space: registry
                .gauge("process_virtual_memory_bytes", "Address space of the process, in bytes.")?,
            processor_time: registry.float_counter(
                "process_cpu_seconds_total",
                "Processor time of the process, in user and system mode, in seconds.",
            )?,
            open_files: registry.gauge("process_open_fds", "How many files the process has open.")?,
            received: registry.counter(
                "process_network_receive_bytes_total",
                "Bytes that the network interfaces received where the process runs.",
            )?,
            sent: registry.counter(
                "process_network_transmit_bytes_total",
                "Bytes that the network interfaces sent where the process runs.",
            )?,
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
        let interfaces = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
        let (received, sent) = network_bytes(&interfaces);
        self.received.inc_by(received.saturating_sub(self.received.get()));
        self.sent.inc_by(sent.saturating_sub(self.sent.get()));
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

/// The resident memory of the process; 0 if it cannot be read.
pub fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field_bytes(&status, "VmRSS:").and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
}

/// A memory field of /proc/self/status, which is in kilobytes. Other files count pages, whose size differs between machines.
fn field_bytes(status: &str, field: &str) -> Option<i64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    value.trim().strip_suffix("kB")?.trim_end().parse::<i64>().ok()?.checked_mul(1_024)
}

/// The bytes that all interfaces have received and sent. Each has a line with its name and sixteen numbers.
fn network_bytes(interfaces: &str) -> (u64, u64) {
    let (mut received, mut sent) = (0_u64, 0_u64);
    for (_, numbers) in interfaces.lines().filter_map(|line| line.split_once(':')) {
        let mut numbers = numbers.split_whitespace().map(|number| number.parse().unwrap_or(0));
        received = received.saturating_add(numbers.next().unwrap_or(0));
        sent = sent.saturating_add(numbers.nth(7).unwrap_or(0));
    }
    (received, sent)
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

    #[test]
    fn network_bytes_are_those_of_all_interfaces() {
        let interfaces = "Inter-|   Receive  |  Transmit\n face |bytes packets errs|bytes packets\n    lo:     100 1 0 0 0 0 0 0      70 1 0 0 0 0 0 0\n  \
                          eth0: 2000 9 0 0 0 0 0 0 30 4 0 0 0 0 0 0\n";
        assert_eq!(network_bytes(interfaces), (2_100, 100));
        assert_eq!(network_bytes(""), (0, 0));
    }
}
