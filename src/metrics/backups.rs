//! Scheduled backups.

use prometheus::{Gauge, IntCounter};

use super::registration::{MetricRegistry, Result};

/// Scheduled backups. Cheap to clone.
#[derive(Clone)]
pub struct BackupMetrics {
    /// When the last one was made, in seconds since the epoch; 0 if none was made since the start.
    pub last_success: Gauge,
    /// Those that failed.
    pub failures: IntCounter,
}

impl BackupMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<BackupMetrics> {
        Ok(BackupMetrics {
            last_success: registry.float_gauge(
                "pilothouse_backup_last_success_timestamp_seconds",
                "When the last scheduled backup was completed, in seconds since the epoch; 0 if none was since the start.",
            )?,
            failures: registry.counter(
                "pilothouse_backup_failures_total",
                "Scheduled backups that failed.",
            )?,
        })
    }
}
