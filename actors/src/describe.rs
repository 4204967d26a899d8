//! The question to an actor what it does at the moment. It goes through the mailbox like any other message, so the time until the
//! answer tells how long messages wait there: actix does not tell how many there are.

use actix::prelude::*;
use pilothouse_types::activity::Activity;

/// Asks what the actor does. Answers at once. On Full the sender waits; on Closed the actor has ended.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Activity")]
pub struct Describe;
