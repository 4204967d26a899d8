//! What is told of the process itself.

use std::fs;

use pilothouse_actors::clock::Timestamp;
use prometheus::{IntGauge, Opts};

use super::registration::{MetricRegistry, Result};
use crate::api::release::Release;

/// What changes of it.
pub(super) struct Process {
    memory: IntGauge,
}

impl Process {
    pub(super) fn new(page: &MetricRegistry<'_>, started: Timestamp) -> Result<Process> {
        tell_start(page, started)?;
        let memory = page.gauge("process_resident_memory_bytes", "Memory of the process, in bytes.")?;
        Ok(Process { memory })
    }

    /// Looks again at what changes.
    pub(super) fn look(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        self.memory.set(resident_bytes(&status).unwrap_or(0));
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

/// What the kernel says that a process holds in memory. It counts kilobytes here, and elsewhere pages, whose size differs between
/// machines.
fn resident_bytes(status: &str) -> Option<i64> {
    let told = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    told.trim().strip_suffix("kB")?.trim_end().parse::<i64>().ok()?.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_the_kernel_says_whatever_its_pages() {
        let status = "Name:\tpilothouse\nVmHWM:\t   99999 kB\nVmRSS:\t   51234 kB\nRssAnon:\t 1 kB\n";
        assert_eq!(resident_bytes(status), Some(51_234 * 1_024));
        assert_eq!((resident_bytes(""), resident_bytes("VmRSS:\tmany kB")), (None, None));
    }
}
