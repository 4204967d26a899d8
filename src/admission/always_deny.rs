//! AlwaysDeny: refuses everything, for testing clients.

use pilothouse_apimachinery::value::Value;

use super::{Outcome, Plugin, Write, done};
use crate::registry::Origin;

/// Refuses every write.
pub struct AlwaysDeny;

impl Plugin for AlwaysDeny {
    fn handles(&self, write: &Write<'_>) -> bool {
        // The server's own bootstrap objects are exempt: without them it would not start.
        write.call.requester.origin != Origin::Server
    }

    fn connects(&self) -> bool {
        true
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        done(Err(write.forbidden(object, "admission control is denying all modifications")))
    }
}
