//! Scheduled backups.

use prometheus::{Gauge, IntCounter};

use super::registration::{MetricRegistry, Result};

/// Scheduled backups. Cheap to clone.
#[derive(Clone)]
pub struct BackupMetrics {
    /// When the newest one was made, in seconds since the epoch; 0 if there is none.
    pub last_success: Gauge,
    /// How often they are to be made, in seconds; 0 if they are not.
    pub interval: Gauge,
    /// Those that failed.
    pub failures: IntCounter,
}

impl BackupMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<BackupMetrics> {
        Ok(BackupMetrics {
            last_success: registry.float_gauge(
                "pilothouse_backup_last_success_timestamp_seconds",
                "When the newest scheduled backup was made, in seconds since the epoch; 0 if there is none.",
            )?,
            interval: registry.float_gauge(
                "pilothouse_backup_interval_seconds",
                "How often scheduled backups are to be made; 0 if they are not.",
            )?,
            failures: registry
                .counter("pilothouse_backup_failures_total", "Scheduled backups that failed.")?,
        })
    }
}
