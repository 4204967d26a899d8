//! Assembles the memory of the server: its limit, and the budgets that divide it. docs/queues.md lists them.

use std::thread;

use pilothouse_actors::event_limits::EventLimits;
use pilothouse_actors::history_bounds::HistoryBounds;
use pilothouse_actors::limits::{
    ENCODINGS_BYTES, WATCH_BYTES, WATCH_FRAMES_BYTES, WINDOW_BYTES, WINDOWS_BYTES,
};
use pilothouse_actors::watch_memory::WatchMemory;
use pilothouse_actors::window::WindowBounds;
use pilothouse_types::clock::Clock;
use pilothouse_types::limits::LEDGER_LAG_DIVISOR;
use pilothouse_types::memory::{MemoryBudget, MemoryLedger};

use crate::config::{MemoryLimit, RequestLimits};
use crate::limits::{
    AUDIT_BODIES_BYTES, AUDIT_HEADS_BYTES, CONNECTIONS_MEMORY_DIVISOR, DEFINITIONS_BYTES,
    EXTENSION_OPENAPI_TOTAL_BYTES, LIST_BYTES, MEMORY_SAMPLE_INTERVAL, MIN_MEMORY_LIMIT, PROXY_PAGES_BYTES,
    REQUEST_BODIES_BYTES,
};
use crate::metrics::own_process::resident_bytes;
use crate::registry::definition_memory::DefinitionMemory;
use crate::registry::request_memory::RequestMemory;
use crate::server::application::StartError;

/// The budgets of one server.
pub(super) struct MemoryBudgets {
    pub ledger: MemoryLedger,
    pub requests: RequestMemory,
    pub definitions: DefinitionMemory,
    pub lists: MemoryBudget,
    pub encodings: MemoryBudget,
    pub proxied_pages: MemoryBudget,
    pub extension_openapi: MemoryBudget,
    pub audit_heads: MemoryBudget,
    pub audit_bodies: MemoryBudget,
    pub windows: WindowBounds,
    pub watches: WatchMemory,
    pub connections: MemoryBudget,
}

impl MemoryBudgets {
    /// The budgets that the flags configure. With a limit, no budget may have more than a part of it, so that none starves the
    /// others; the ledger keeps their sum below it.
    pub(super) fn new(limits: &RequestLimits, clock: &Clock) -> Result<MemoryBudgets, StartError> {
        let limit = limit(limits.memory_limit)?;
        // Memory that is not reserved is seen only after its allocation, so the ledger aims a little lower.
        let ledger = MemoryLedger::new(limit.map(|limit| limit - limit / LEDGER_LAG_DIVISOR));
        let bounded_part =
            |divisor: usize, default: usize| limit.map_or(default, |limit| default.min(limit / divisor));
        let open_watches = bounded_part(4, usize::MAX);
        let per_user = match (limits.max_watches_per_user, limit) {
            (0, None) => usize::MAX,
            // One user may use half of the memory for watches.
            (0, Some(_)) => open_watches / WATCH_BYTES / 2,
            (max, _) => max,
        };
        let frames = ledger.budget("watch_frames", bounded_part(8, WATCH_FRAMES_BYTES));
        let windows = ledger.cache("windows", bounded_part(8, WINDOWS_BYTES));
        Ok(MemoryBudgets {
            requests: RequestMemory::new(
                ledger.budget("request_bodies", bounded_part(2, REQUEST_BODIES_BYTES)),
            ),
            definitions: DefinitionMemory::new(
                ledger.budget("definitions", bounded_part(2, DEFINITIONS_BYTES)),
            ),
            lists: ledger.budget("lists", bounded_part(4, LIST_BYTES)),
            encodings: ledger.cache("encodings", bounded_part(8, ENCODINGS_BYTES)),
            proxied_pages: ledger.budget("proxied_pages", bounded_part(8, PROXY_PAGES_BYTES)),
            extension_openapi: ledger
                .steady("extension_openapi", bounded_part(8, EXTENSION_OPENAPI_TOTAL_BYTES)),
            audit_heads: ledger.independent("audit_events", bounded_part(16, AUDIT_HEADS_BYTES)),
            audit_bodies: ledger.independent("audit_bodies", bounded_part(16, AUDIT_BODIES_BYTES)),
            windows: WindowBounds {
                per_type_bytes: bounded_part(16, WINDOW_BYTES),
                total_budget: windows,
                history: HistoryBounds::default(),
                events: EventLimits::default(),
            },
            watches: WatchMemory::new(
                ledger.steady("watches", open_watches),
                frames,
                per_user,
                clock.clone(),
            ),
            connections: ledger.steady("connections", bounded_part(CONNECTIONS_MEMORY_DIVISOR, usize::MAX)),
            ledger,
        })
    }

    /// Measures the process from now on, if it has a limit. On a thread of its own: it must not wait behind those that allocate.
    pub(super) fn start_sampling(&self) -> Result<(), StartError> {
        if self.ledger.limit().is_none() {
            return Ok(());
        }
        self.ledger.observe(resident_bytes());
        let ledger = self.ledger.downgrade();
        let observe = move || {
            while let Some(ledger) = ledger.upgrade() {
                ledger.observe(resident_bytes());
                drop(ledger);
                thread::sleep(MEMORY_SAMPLE_INTERVAL);
            }
        };
        let result = thread::Builder::new().name("memory".to_owned()).spawn(observe);
        result.map(drop).map_err(|error| StartError::part("the observation of memory")(&error))
    }
}

/// The limit of the process, in bytes.
fn limit(flag: MemoryLimit) -> Result<Option<usize>, StartError> {
    if matches!(flag, MemoryLimit::Bytes(bytes) if bytes < MIN_MEMORY_LIMIT) {
        let min_mebibytes = MIN_MEMORY_LIMIT >> 20;
        return Err(StartError::flag("--memory-limit")(&format!("must be at least {min_mebibytes}Mi")));
    }
    let limit = flag.bytes();
    if let Some(bytes) = limit {
        tracing::info!(bytes, "the memory of the server is limited");
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_of_the_process_is_measured() {
        assert!(resident_bytes() > 1 << 20);
    }

    #[test]
    fn memory_limit_bounds_every_budget() {
        let limits = RequestLimits {
            memory_limit: MemoryLimit::Bytes(256 << 20),
            ..crate::config::Config::default().limits
        };
        let memory = MemoryBudgets::new(&limits, &Clock::system()).unwrap();
        let budgets = memory.ledger.budgets();
        let limit = |name: &str| budgets.iter().find(|budget| budget.name == name).unwrap().limit;
        assert_eq!(
            (limit("lists"), limit("windows"), limit("request_bodies")),
            (64 << 20, 32 << 20, 128 << 20)
        );
        for budget in &budgets {
            assert!(budget.limit <= 128 << 20, "{}: {}", budget.name, budget.limit);
        }
        let small = RequestLimits { memory_limit: MemoryLimit::Bytes(1), ..limits };
        assert!(MemoryBudgets::new(&small, &Clock::system()).is_err());
    }
}
