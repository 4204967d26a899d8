//! Assembles the audit backends.

use std::sync::Arc;

use pilothouse_types::clock::Clock;

use crate::application::StartContext;
use crate::application::StartError;
use crate::audit::Audit;
use crate::audit_backends::log::{self, Log, LogFile, Out, Retention};
use crate::audit_backends::webhook::Webhook;
use crate::audit_backends::{AuditBackends, batches};
use crate::config::audit::{AuditLog, Delivery};
use crate::config::{Audit as Flags, ConfigError};
use crate::kubeconfig::Access;
use crate::limits::AUDIT_LOG_BYTES;
use crate::metrics::Metrics;
use crate::webhook::Service;

use super::memory::MemoryBudgets;

const MEGABYTE: u64 = 1 << 20;

/// Opens auditing; `None` unless there is both a policy and a backend.
pub(super) fn open(
    context: &StartContext,
    metrics: &Metrics,
    memory: &MemoryBudgets,
) -> Result<Option<Arc<Audit>>, StartError> {
    let flags = &context.config.audit;
    let policy = flags.policy().map_err(broken)?;
    if let Some(path) = file(&flags.log) {
        log::prepare(path).map_err(|error| broken(format!("ensureLogFile: {error}")))?;
    }
    let Some((policy, lenient)) = policy else { return Ok(None) };
    if !lenient.is_empty() {
        tracing::warn!(faults = lenient.join(", "), "unknown fields in the audit policy are ignored");
    }
    let mut ledger =
        AuditBackends::new(metrics.audit.clone(), memory.audit_heads.clone(), memory.audit_bodies.clone());
    add_log(&mut ledger, flags, context.clock.clone())?;
    add_webhook(&mut ledger, flags, context)?;
    Ok((!ledger.is_empty()).then(|| Arc::new(Audit { policy, ledger: Arc::new(ledger) })))
}

fn file(flags: &AuditLog) -> Option<&std::path::Path> {
    flags.audit_log_path.as_deref().filter(|path| path.as_os_str() != "-")
}

fn broken(why: impl Into<String>) -> StartError {
    ConfigError::new(why).into()
}

#[expect(clippy::needless_pass_by_value, reason = "what an error is made of")]
fn wrong(errors: Vec<String>) -> StartError {
    broken(errors.join(", "))
}

fn add_log(ledger: &mut AuditBackends, flags: &Flags, clock: Clock) -> Result<(), StartError> {
    let flags = &flags.log;
    if flags.audit_log_path.is_none() {
        return Ok(());
    }
    let delivery: Delivery = flags.delivery().map_err(wrong)?;
    let number = |given: i64| u64::try_from(given).unwrap_or_default();
    let bytes = match number(flags.audit_log_maxsize) {
        0 => AUDIT_LOG_BYTES,
        megabytes => megabytes.saturating_mul(MEGABYTE),
    };
    let keeping = Retention {
        bytes,
        files: usize::try_from(flags.audit_log_maxbackup).unwrap_or_default(),
        days: number(flags.audit_log_maxage),
        compress: flags.audit_log_compress,
    };
    let out = match file(flags) {
        Some(path) => Out::File(LogFile::new(path.to_owned(), keeping, clock.clone())),
        None => Out::Standard,
    };
    let counts = ledger.counts().clone();
    let log = Log { out, is_legacy: flags.audit_log_format == "legacy", counts: counts.clone() };
    let spawned =
        ledger.add(delivery, |queue| batches::spawn("audit-log", queue, (delivery, clock, counts), || log));
    spawned.map_err(|error| broken(error.to_string()))
}

fn add_webhook(ledger: &mut AuditBackends, flags: &Flags, context: &StartContext) -> Result<(), StartError> {
    let flags = &flags.webhook;
    let Some(path) = &flags.audit_webhook_config_file else { return Ok(()) };
    let delivery = flags.delivery().map_err(wrong)?;
    let failed = |why: &dyn std::fmt::Display| broken(format!("initializing audit webhook: {why}"));
    let access = Access::read(path).map_err(|error| failed(&error))?;
    let service = Service::new(&access, &context.pool).map_err(|error| failed(&error))?;
    let (counts, pause) = (ledger.counts().clone(), flags.audit_webhook_initial_backoff);
    let (of_webhook, clock) = (counts.clone(), context.clock.clone());
    let spawned = ledger.add(delivery, |queue| {
        let make = move || Webhook::new(service, pause, of_webhook);
        batches::spawn("audit-webhook", queue, (delivery, clock, counts), make)
    });
    spawned.map_err(|error| broken(error.to_string()))
}
