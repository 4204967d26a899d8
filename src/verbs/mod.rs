//! One file per verb. A verb takes a parsed request, works on values, sends messages to stores and returns a [`Reply`]. Nothing
//! here knows HTTP.

pub mod action_subresources;
pub mod apply;
pub mod component_status;
pub mod connect;
mod converted_selection;
pub mod create;
pub mod delete;
pub mod delete_collection;
pub mod dispatch;
pub mod get;
pub mod list;
pub mod paging;
pub mod patch;
pub mod review;
pub mod unsafe_delete;
pub mod update;
pub mod watch;

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use pilothouse_actors::broadcaster::Broadcaster;
use pilothouse_actors::feed::Feed;
use pilothouse_actors::session::LiveSessions;

use self::list::Listing;
use crate::api::status::{Result, Status};
use crate::backend::memory_budget::Reservation;
use crate::metrics::Metrics;

/// Additional dependencies of watches. One per HTTP worker.
pub struct WatchDeps {
    /// Wakes the watches of this worker.
    pub broadcaster: Addr<Broadcaster>,
    /// Counts the watches of this server.
    pub live_sessions: LiveSessions,
    /// The minimum duration of a watch without a timeout.
    pub min_request_timeout: Duration,
    /// Whether `sendInitialEvents` is supported.
    pub initial_events: bool,
    /// Counts watches and their events.
    pub metrics: Arc<Metrics>,
}

/// How a request that answers an object succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    /// The object was read or changed.
    Ok,
    /// The object was created.
    Created,
    /// The object will be deleted later.
    Accepted,
}

/// The result of a verb.
pub enum Reply {
    /// One object in the form of the call; as JSON if YAML was negotiated.
    Object(Success, Bytes),
    /// A list that is encoded as it is sent.
    List(Listing),
    /// A list that was encoded on another thread, and its share of the budget of lists.
    Collected(Bytes, Reservation),
    /// A successful Status.
    Status(Status),
    /// A stream of watch events in the form of the call.
    Watch(Feed),
}

/// The return type of every verb.
pub type VerbResult = Result<Reply>;
