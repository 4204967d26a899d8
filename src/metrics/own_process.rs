//! What is told of the process itself.

use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeVal;
use pilothouse_api::release::Release;
use pilothouse_types::clock::Timestamp;
use prometheus::{Counter, IntGauge, Opts};

use super::registration::{MetricRegistry, Result};

/// What changes of it.
pub(super) struct Process {
    memory: IntGauge,
    address_space: IntGauge,
    processor_time: Counter,
    open_files: IntGauge,
}

impl Process {
    pub(super) fn new(page: &MetricRegistry<'_>, started: Timestamp) -> Result<Process> {
        tell_start(page, started)?;
        let most_files = page.gauge("process_max_fds", "How many files the process may have open.")?;
        let (most, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
        most_files.set(i64::try_from(most).unwrap_or(i64::MAX));
        Ok(Process {
            memory: page.gauge("process_resident_memory_bytes", "Memory of the process, in bytes.")?,
            address_space: page
                .gauge("process_virtual_memory_bytes", "Address space of the process, in bytes.")?,
            processor_time: page.amount(
                "process_cpu_seconds_total",
                "Processor time of the process, in user and system mode, in seconds.",
            )?,
            open_files: page.gauge("process_open_fds", "How many files the process has open.")?,
        })
    }

    /// Looks again at what changes.
    pub(super) fn look(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        self.memory.set(bytes_of(&status, "VmRSS:").unwrap_or(0));
        self.address_space.set(bytes_of(&status, "VmSize:").unwrap_or(0));
        // One of them is the listing itself.
        let open = fs::read_dir("/proc/self/fd").map_or(0, |files| files.count().saturating_sub(1));
        self.open_files.set(i64::try_from(open).unwrap_or(i64::MAX));
        if let Ok(used) = getrusage(UsageWho::RUSAGE_SELF) {
            let total = seconds(used.user_time()) + seconds(used.system_time());
            self.processor_time.inc_by((total - self.processor_time.get()).max(0.0));
        }
    }
}

/// Says what this server is.
pub(super) fn tell_build(page: &MetricRegistry<'_>, release: &Release) -> Result<()> {
    let build = release.build();
    let labels = [
        ("major", build.major),
        ("minor", build.minor),
        ("git_version", build.git_version),
        ("git_commit", build.git_commit),
        ("git_tree_state", build.git_tree_state),
        ("build_date", build.build_date),
        ("go_version", build.go_version),
        ("compiler", build.compiler),
        ("platform", &build.platform),
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let info = Opts::new("kubernetes_build_info", "1, with the version of this server as labels.");
    page.fact(info.const_labels(labels.into()))
}

/// Says since when the server runs.
pub(super) fn tell_start(page: &MetricRegistry<'_>, started: Timestamp) -> Result<()> {
    let start =
        page.measure("process_start_time_seconds", "When the server started, in seconds of Unix time.")?;
    start.set(started.fractional_seconds());
    Ok(())
}

fn seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

/// What the kernel says of a process's memory. It counts kilobytes here, and elsewhere pages, whose size differs between machines.
fn bytes_of(status: &str, field: &str) -> Option<i64> {
    let told = status.lines().find_map(|line| line.strip_prefix(field))?;
    told.trim().strip_suffix("kB")?.trim_end().parse::<i64>().ok()?.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_the_kernel_says_whatever_its_pages() {
        let resident_bytes = |status: &str| bytes_of(status, "VmRSS:");
        let status = "Name:\tpilothouse\nVmHWM:\t   99999 kB\nVmRSS:\t   51234 kB\nRssAnon:\t 1 kB\n";
        assert_eq!(resident_bytes(status), Some(51_234 * 1_024));
        assert_eq!((resident_bytes(""), resident_bytes("VmRSS:\tmany kB")), (None, None));
    }
}
