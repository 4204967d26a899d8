//! The verbs, one file each. A verb takes a parsed request, works on values, sends messages to stores and returns a [`Reply`].
//! Nothing here knows HTTP.

pub mod action_subresources;
pub mod apply;
mod component_status;
mod computed;
pub mod connect;
mod converted_selection;
pub mod create;
pub mod delete;
pub mod delete_collection;
pub mod dispatch;
mod event_frames;
pub mod get;
pub mod list;
pub mod listing;
pub mod paging;
pub mod patch;
mod review;
pub mod unsafe_delete;
pub mod update;
pub mod watch;
#[cfg(test)]
mod write_end_tests;

use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use pilothouse_actors::broadcaster::Broadcaster;
use pilothouse_actors::session::LiveSessions;
use pilothouse_actors::session::feed::Feed;
use pilothouse_actors::watch_memory::WatchMemory;

pub use self::event_frames::FramesInProgress;
use pilothouse_apimachinery::status::{Result, Status};

use self::listing::Listing;
use crate::metrics::watches::WatchMeter;
use crate::registry::Call;
use crate::registry::loopback::{AdmittedRequest, Response};

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
    /// Counts the watches of this worker and their events.
    pub meter: WatchMeter,
    /// The memory of all watches.
    pub memory: WatchMemory,
    /// Watch frames of large objects that are being encoded.
    pub frames_in_progress: FramesInProgress,
}

/// The success of a request whose response is an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    /// The object was read or changed.
    Ok,
    /// The object was created.
    Created,
    /// The object will be deleted later.
    Accepted,
}

impl Success {
    /// The HTTP status code.
    pub fn code(self) -> u16 {
        match self {
            Success::Ok => 200,
            Success::Created => 201,
            Success::Accepted => 202,
        }
    }
}

/// The result of a verb.
pub enum Reply {
    /// One object in the format of the call; as JSON if YAML was negotiated.
    Object(Success, Bytes),
    /// A list that is encoded as it is sent.
    List(Listing),
    /// A successful Status.
    Status(Status),
    /// A stream of watch events in the format of the call.
    Watch(Feed),
}

/// The return type of every verb.
pub type VerbResult = Result<Reply>;

/// Audits the end of a request that the server or a controller made, and returns its result.
pub async fn end_request(admitted: AdmittedRequest, call: &Call<'_>, result: VerbResult) -> VerbResult {
    let response = match &result {
        Ok(Reply::Object(success, json)) => Response::Object(success.code(), json),
        Ok(Reply::Status(status)) => Response::Status(status),
        Ok(Reply::List(_) | Reply::Watch(_)) => Response::Code(Success::Ok.code()),
        Err(status) => Response::Status(status),
    };
    admitted.end(call.warnings, response).await;
    result
}
