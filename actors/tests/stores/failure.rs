//! Failures of the disk, the engine, a store or a file; and the limits and ordering of pending writes.

mod commits;
mod disk;
mod files;
mod full_disk;
mod pending_writes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix::{Addr, Handler, Message};
use futures::future::join_all;
use pilothouse_actors::broadcaster::Broadcaster;
use pilothouse_actors::committer::{Check, Flush, Tidy};
use pilothouse_actors::directory::{Find, Options, Release, Released, Stop, Stores, Types, start};
use pilothouse_actors::engine::faulty::{Fault, Faults, Faulty};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_actors::engine::redb::Redb;
use pilothouse_actors::engine::{Engine, EngineError};
use pilothouse_actors::fatal::Fatal;
use pilothouse_actors::limits::{
    BATCH_WRITES, COMMITTER_WRITES, FULL_DISK_REPEATS, GROWTH_WHEN_FULL, RECORD_BYTES, RESERVED_BATCH_BYTES,
    TRIM_PER_BATCH, TURNS_WAITING_PER_KEY, WRITES_WAITING_PER_KEY,
};
use pilothouse_actors::notifier::ChangeNotifiers;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::recover::recover;
use pilothouse_actors::store::write_turns::{TakeTurn, TurnMode};
use pilothouse_actors::store::{Create, Expire, Freshness, Get, GetSettled, Replace, Store};
use pilothouse_actors::window::Read;
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, Object, Revision, TypeName};
use tokio::sync::Semaphore;

use crate::common::*;

fn faulty(log: &Memory) -> (Stores, Faults) {
    let faults = Faults::default();
    (start_stores(Box::new(Faulty::new(Box::new(log.clone()), faults.clone())), &manual_options()), faults)
}

/// Lets other tasks run until the stores hold this many writes.
async fn wait_for_writes(stores: &Stores, writes: usize) {
    while stores.write_limiter.writes() != writes {
        actix_rt::task::yield_now().await;
    }
}
