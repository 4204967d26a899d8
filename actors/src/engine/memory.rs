//! A log in memory: for tests, and for servers without persistence.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_types::lock::Lock;
use pilothouse_types::object::{Revision, TypeName};

use super::{Batch, Counters, Engine, EngineError, Stats, Visitor};
use crate::encryption::{Encryption, NoEncryption};
use crate::engine::record::Record;
use crate::log_time::LogTime;

/// A clone is the same log, so that tests can "reopen" it.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Lock<Log>>);

#[derive(Debug, Default)]
struct Log {
    counters: Counters,
    log_time: LogTime,
    /// Records share their objects with the stores, so nothing is stored twice.
    records: BTreeMap<TypeName, BTreeMap<Revision, Record>>,
}

impl Memory {
    /// An empty log.
    pub fn new() -> Memory {
        Memory::default()
    }
}

impl Engine for Memory {
    fn load(&mut self, visitor: &mut dyn Visitor) -> Result<(), EngineError> {
        let log = self.0.lock();
        for (type_name, records) in &log.records {
            let last = log.counters.last(type_name);
            visitor.begin_type(type_name.clone(), last)?;
            for (revision, record) in records {
                visitor.record(*revision, record.clone())?;
            }
        }
        Ok(())
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let mut log = self.0.lock();
        let advanced = log.counters.check_order(batch)?;
        log.counters.advance(advanced);
        for write in &batch.writes {
            let records = log.records.entry(write.type_name.clone()).or_default();
            records.insert(write.revision, write.record.clone());
        }
        for (type_name, revision) in &batch.trims {
            if let Some(records) = log.records.get_mut(type_name) {
                records.remove(revision);
            }
        }
        Ok(())
    }

    fn settle(&mut self, now: LogTime) -> Result<(), EngineError> {
        self.0.lock().log_time = now;
        Ok(())
    }

    fn encryption(&self) -> Arc<dyn Encryption> {
        Arc::new(NoEncryption)
    }

    fn log_time(&self) -> LogTime {
        self.0.lock().log_time
    }

    fn stats(&self) -> Result<Stats, EngineError> {
        let records = self.0.lock().records.values().map(|records| records.len() as u64).sum();
        Ok(Stats { records, ..Stats::default() })
    }

    fn close(mut self: Box<Self>, now: LogTime) -> Result<(), EngineError> {
        self.settle(now)
    }
}
