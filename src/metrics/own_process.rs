//! What is told of the process itself.

use std::fs;

use pilothouse_actors::clock::Timestamp;
use prometheus::{IntGauge, Opts};

use super::declare::{Page, Result};
use crate::api::discovery::RELEASE;

/// What changes of it.
pub(super) struct Process {
    memory: IntGauge,
}

impl Process {
    pub(super) fn new(page: &Page<'_>, started: Timestamp) -> Result<Process> {
        let release = format!("{}+pilothouse-{}", RELEASE, env!("CARGO_PKG_VERSION"));
        page.fact(
            Opts::new("kubernetes_build_info", "1, with the version of this server as labels.")
                .const_label("major", "1")
                .const_label("minor", "33")
                .const_label("git_version", release)
                .const_label("git_commit", "")
                .const_label("git_tree_state", "clean")
                .const_label("build_date", "1970-01-01T00:00:00Z")
                .const_label("go_version", "none")
                .const_label("compiler", "rustc")
                .const_label("platform", format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)),
        )?;
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

/// Says since when the server runs.
pub(super) fn tell_start(page: &Page<'_>, started: Timestamp) -> Result<()> {
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
