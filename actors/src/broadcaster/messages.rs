//! What a broadcaster is asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::prelude::*;

use crate::interest::Interest;
use crate::object::{Revision, TypeName};
use crate::summons::Summons;
use crate::window::Window;

/// Names a subscription. The session picks it, so that it can unsubscribe even when it ends before it was subscribed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId(pub(super) u64);

impl SubscriptionId {
    /// A name that no other subscription of this process has.
    pub fn fresh() -> SubscriptionId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SubscriptionId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Call me when something of interest happens. Answers nothing; the session is called at once if the type has moved past
/// its cursor. On Full the sender uses an address of its own, which has a slot of its own; on Closed the watch ends.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Subscribe {
    /// The name of the subscription.
    pub id: SubscriptionId,
    /// The type to hear of.
    pub type_name: TypeName,
    /// Its history.
    pub window: Arc<Window>,
    /// The session knows everything up to here.
    pub cursor: Revision,
    /// Where the session stands in the index.
    pub interest: Interest,
    /// How the session is called.
    pub summons: Arc<Summons>,
    /// Whether the session wants bookmarks.
    pub bookmarks: bool,
}

/// Call me no more. Answers nothing; unknown names are ignored. On Full as for [`Subscribe`]; on Closed nothing is left
/// to end.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Unsubscribe {
    /// The type of the subscription.
    pub type_name: TypeName,
    /// Its name.
    pub id: SubscriptionId,
}

/// The server stops: end all watches cleanly, and those that still come. Answers when all have been told. On Full the
/// sender waits; on Closed there is no watch.
#[derive(Message)]
#[rtype(result = "()")]
pub struct CloseAll;

/// What a type means has changed: end its watches cleanly, so that whoever still wants one begins anew. Answers nothing. On Full
/// the sender waits; on Closed there is no watch.
#[derive(Clone, Message)]
#[rtype(result = "()")]
pub struct CloseType(pub TypeName);
