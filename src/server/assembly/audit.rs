//! Assembles the audit backends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use pilothouse_client::kubeconfig::Access;
use pilothouse_client::webhook::Service;
use pilothouse_types::clock::Clock;

use crate::audit::Audit;
use crate::audit::backends::log::{self, Log, LogFile, LogTarget, Retention};
use crate::audit::backends::webhook::Webhook;
use crate::audit::backends::{AuditBackends, batches};
use crate::config::audit::{AuditLog, Delivery, parse_policy, policy_read_error};
use crate::config::{Audit as Flags, ConfigError};
use crate::http::handler::worker::Shared;
use crate::limits::{AUDIT_LOG_BYTES, CONFIG_FILE_CHECK_INTERVAL};
use crate::metrics::Metrics;
use crate::server::application::StartContext;
use crate::server::application::StartError;

use super::memory::MemoryBudgets;
use super::watched_file::WatchedFile;

const MEGABYTE: u64 = 1 << 20;

/// Opens auditing; `None` unless there is both a policy and a backend.
pub(super) fn open(
    context: &StartContext,
    metrics: &Metrics,
    memory: &MemoryBudgets,
) -> Result<Option<Arc<Audit>>, StartError> {
    let flags = &context.config.audit;
    let policy = flags.policy().map_err(config_error)?;
    if let Some(path) = file(&flags.log) {
        log::prepare(path).map_err(|error| config_error(format!("ensureLogFile: {error}")))?;
    }
    let Some((policy, lenient)) = policy else { return Ok(None) };
    warn_of_faults(&lenient);
    let mut backends =
        AuditBackends::new(metrics.audit.clone(), memory.audit_heads.clone(), memory.audit_bodies.clone());
    add_log(&mut backends, flags, context.clock.clone())?;
    add_webhook(&mut backends, flags, context)?;
    Ok((!backends.is_empty())
        .then(|| Arc::new(Audit { policy: ArcSwap::from_pointee(policy), backends: Arc::new(backends) })))
}

fn warn_of_faults(faults: &[String]) {
    if !faults.is_empty() {
        tracing::warn!(faults = faults.join(", "), "unknown fields in the audit policy are ignored");
    }
}

/// Checks the policy file periodically, until the server stops. A wrong file is logged and not used.
pub(super) async fn follow_policy(context: StartContext, shared: Arc<Shared>) {
    let (Some(audit), Some(path)) = (&shared.audit, &context.config.audit.audit_policy_file) else { return };
    // The first check compares the policies, because the file may have changed since the start.
    let mut file = WatchedFile::new(path.clone(), Vec::new(), context.clock.now());
    let mut ticks = tokio::time::interval(CONFIG_FILE_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !shared.health.stopping.load(Ordering::Acquire) {
        ticks.tick().await;
        let Some(read) = file.read_if_changed(context.clock.now()) else { continue };
        let parsed = match read {
            Ok(text) => {
                let parsed = parse_policy(path, &text);
                file.settle(text);
                parsed
            }
            Err(error) => Err(policy_read_error(path, &error)),
        };
        match parsed {
            Ok((policy, _)) if policy == **audit.policy.load() => continue,
            Ok((policy, faults)) => {
                warn_of_faults(&faults);
                audit.policy.store(Arc::new(policy));
                tracing::info!("the audit policy was replaced");
                shared.metrics.audit.count_policy_reload(true);
            }
            Err(error) => {
                tracing::error!(%error, "the changed audit policy is invalid; the previous one stays in force");
                shared.metrics.audit.count_policy_reload(false);
            }
        }
    }
}

fn file(flags: &AuditLog) -> Option<&std::path::Path> {
    flags.audit_log_path.as_deref().filter(|path| path.as_os_str() != "-")
}

fn config_error(error: impl Into<String>) -> StartError {
    ConfigError::new(error).into()
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn joined_error(errors: Vec<String>) -> StartError {
    config_error(errors.join(", "))
}

fn add_log(backends: &mut AuditBackends, flags: &Flags, clock: Clock) -> Result<(), StartError> {
    let flags = &flags.log;
    if flags.audit_log_path.is_none() {
        return Ok(());
    }
    let delivery: Delivery = flags.delivery().map_err(joined_error)?;
    let number = |value: i64| u64::try_from(value).unwrap_or_default();
    let bytes = match number(flags.audit_log_maxsize) {
        0 => AUDIT_LOG_BYTES,
        megabytes => megabytes.saturating_mul(MEGABYTE),
    };
    let retention = Retention {
        bytes,
        files: usize::try_from(flags.audit_log_maxbackup).unwrap_or_default(),
        days: number(flags.audit_log_maxage),
        compress: flags.audit_log_compress,
    };
    let out = match file(flags) {
        Some(path) => LogTarget::File(LogFile::new(path.to_owned(), retention, clock.clone())),
        None => LogTarget::Stdout,
    };
    let counts = backends.counts().clone();
    let log = Log { out, is_legacy: flags.audit_log_format == "legacy", counts: counts.clone() };
    let result =
        backends.add(delivery, |queue| batches::spawn("audit-log", queue, delivery, clock, counts, || log));
    result.map_err(|error| config_error(error.to_string()))
}

fn add_webhook(
    backends: &mut AuditBackends,
    flags: &Flags,
    context: &StartContext,
) -> Result<(), StartError> {
    let flags = &flags.webhook;
    let Some(path) = &flags.audit_webhook_config_file else { return Ok(()) };
    let delivery = flags.delivery().map_err(joined_error)?;
    let init_error =
        |error: &dyn std::fmt::Display| config_error(format!("initializing audit webhook: {error}"));
    let access = Access::read(path).map_err(|error| init_error(&error))?;
    let service = Service::new(&access, &context.pool).map_err(|error| init_error(&error))?;
    let (counts, initial_backoff) = (backends.counts().clone(), flags.audit_webhook_initial_backoff);
    let (webhook_counts, clock) = (counts.clone(), context.clock.clone());
    let result = backends.add(delivery, |queue| {
        let make = move || Webhook::new(service, initial_backoff, webhook_counts);
        batches::spawn("audit-webhook", queue, delivery, clock, counts, make)
    });
    result.map_err(|error| config_error(error.to_string()))
}
