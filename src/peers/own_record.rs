//! The record by which peers reach this server.

use std::sync::atomic::{AtomicBool, Ordering};

use pilothouse_actors::shared_log::SharedLogError;
use pilothouse_etcd_log::PeerLeases;
use tokio::sync::Mutex;

/// Keeps the record of this server.
pub struct OwnRecord {
    records: PeerLeases,
    /// Held while it is written.
    turn: Mutex<()>,
    /// Set when the server ends, so that the record does not come back.
    is_leaving: AtomicBool,
}

impl OwnRecord {
    /// The record of the server that these records call their own.
    pub fn new(records: PeerLeases) -> OwnRecord {
        OwnRecord { records, turn: Mutex::default(), is_leaving: AtomicBool::default() }
    }

    /// Writes the record, or renews it.
    pub async fn renew(&self) -> Result<(), SharedLogError> {
        let _turn = self.turn.lock().await;
        if self.is_leaving.load(Ordering::Acquire) { Ok(()) } else { self.records.renew().await }
    }

    /// Removes it, because the server ends.
    pub async fn leave(&self) -> Result<(), SharedLogError> {
        self.is_leaving.store(true, Ordering::Release);
        let _turn = self.turn.lock().await;
        self.records.remove().await
    }
}
