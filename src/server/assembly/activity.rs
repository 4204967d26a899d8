//! Registers what /debug/actors shows beside the stores, the actors of workers and those of controllers, which register as they start.

use pilothouse_actors::limits::{COMMITTER_BYTES, COMMITTER_WRITES, TRIM_WAITING};
use pilothouse_types::activity::QueueDepth;
use pilothouse_types::memory::BudgetUse;

use super::ServerParts;
use crate::flowcontrol::RequestLimiter;

pub(super) fn register(parts: &ServerParts) {
    let activity = &parts.shared.debug.activity;
    activity.add("directory", "", &parts.storage.directory);
    if let Some(committer) = parts.storage.committer() {
        activity.add("committer", "", committer);
    }
    let (writes, trims) = (parts.storage.write_limiter.clone(), parts.storage.trims.clone());
    let sessions = parts.watches.live_sessions();
    let connections = parts.context.connections.clone();
    activity.add_queues(move || {
        let counts = connections.counts();
        let open = counts.by_state().into_iter();
        let open = open.map(|(state, count)| QueueDepth::unbounded(format!("connections, {state}"), count));
        let queues = [
            QueueDepth::bounded("writes that are not durable", writes.writes(), COMMITTER_WRITES),
            QueueDepth::bounded("bytes of these writes", writes.bytes(), COMMITTER_BYTES),
            QueueDepth::bounded("records that may leave the log", trims.len(), TRIM_WAITING),
            QueueDepth::unbounded("watches", sessions.count()),
            QueueDepth::unbounded("watches whose clients do not read", sessions.stalled()),
        ];
        queues.into_iter().chain(open).collect()
    });
    let pool = parts.shared.heavy.pool.clone();
    activity.add_queues(move || pool.queues());
    if let RequestLimiter::Fair(flow_controller) = &parts.shared.limits.limiter {
        let levels = flow_controller.seats();
        activity.add_queues(move || {
            let depths = levels.list().into_iter().flat_map(|(name, _, level)| {
                let load = level.load();
                let seats = usize::try_from(load.seats).unwrap_or(usize::MAX);
                [
                    QueueDepth::unbounded(format!("requests that wait, level {name}"), load.waiting),
                    QueueDepth::unbounded(format!("seats in use, level {name}"), seats),
                ]
            });
            depths.collect()
        });
    }
    let ledger = parts.memory.ledger.clone();
    activity.add_queues(move || {
        let accounts = ledger.budgets().into_iter();
        let depth = |account: BudgetUse| {
            QueueDepth::bounded(format!("bytes of {}", account.name), account.bytes, account.limit)
        };
        accounts.map(depth).collect()
    });
}
