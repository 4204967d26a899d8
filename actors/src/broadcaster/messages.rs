//! The messages to a broadcaster.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::prelude::*;
use pilothouse_types::object::{Revision, TypeName};

use crate::session_waker::{Close, SessionWaker};
use crate::watch_index::IndexKey;
use crate::window::Window;

/// Identifies a subscription. The session chooses it, so that it can unsubscribe even before its subscription is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId(pub(super) u64);

impl SubscriptionId {
    /// An id that no other subscription of this process has.
    pub fn fresh() -> SubscriptionId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SubscriptionId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Subscribes a session to events. Answers nothing. The session is woken at once if the type has moved past its cursor. On Full
/// the sender uses an address of its own, which has a slot of its own; on Closed the watch ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Subscribe {
    /// The id of the subscription.
    pub id: SubscriptionId,
    /// The watched type.
    pub type_name: TypeName,
    /// The history of the type.
    pub window: Arc<Window>,
    /// The session has seen everything up to here.
    pub cursor: Revision,
    /// The key of the session in the index.
    pub interest: IndexKey,
    /// How to wake the session.
    pub waker: Arc<SessionWaker>,
    /// Whether the session wants bookmarks.
    pub bookmarks: bool,
}

/// Ends a subscription. Answers nothing; unknown ids are ignored. On Full as for [`Subscribe`]; on Closed nothing is left to end.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Unsubscribe {
    /// The type of the subscription.
    pub type_name: TypeName,
    /// The id of the subscription.
    pub id: SubscriptionId,
}

/// Ends all watches cleanly, and new ones at once: the server stops. Answers when all were asked to end. On Full the sender waits; on
/// Closed there is no watch.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct CloseAll {
    /// How long this may take: their clients come to another server, and not all at once.
    pub within: Duration,
}

/// Ends all watches of a type cleanly, because its resource has changed and clients begin anew, or because it is gone. Answers
/// nothing. On Full the sender waits; on Closed there is no watch.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct CloseType {
    /// The type.
    pub type_name: TypeName,
    /// How they end.
    pub how: Close,
}
