//! Who owns the fields that a call writes.

use crate::api::ownership::{self, Versions, Write};
use crate::api::value::Value;

use super::{Backend, Call};

/// What a new object cannot say, whatever its kind.
const NEVER_NEW: [&[&str]; 2] =
    [&["metadata", "deletionTimestamp"], &["metadata", "deletionGracePeriodSeconds"]];

impl Backend {
    /// Writes into a new state of the call's object who owns its fields. Before admission: what the cluster changes
    /// belongs to nobody.
    pub fn record(&self, call: &Call<'_>, old: Option<&Value>, new: &mut Value) {
        let mut reset = self.reset(call);
        if old.is_none() {
            reset.extend_from_slice(&NEVER_NEW);
        }
        let (manager, now) = (call.manager(), self.now());
        ownership::record(&self.versions(call), &call.owned_write(&manager, &now, &reset), old, new);
    }

    /// The versions of the kind that the call is about.
    pub(super) fn versions<'a>(&'a self, call: &'a Call<'_>) -> Versions<'a> {
        Versions { registry: &self.registry, kind: &call.resource.kind, stored: &call.stored.version }
    }

    /// The fields that the call cannot set.
    pub(super) fn reset(&self, call: &Call<'_>) -> Vec<&'static [&'static str]> {
        let has_status = call.kind().has_status;
        ownership::reset_fields(call.of().group, &call.resource.kind, call.subresource, has_status).to_vec()
    }
}

impl Call<'_> {
    /// Who writes.
    pub(super) fn manager(&self) -> String {
        ownership::manager_name(&self.query.text("fieldManager"), self.user_agent)
    }

    /// The call as ownership sees it.
    pub(super) fn owned_write<'a>(
        &'a self,
        manager: &'a str,
        now: &'a str,
        reset: &'a [&'a [&'a str]],
    ) -> Write<'a> {
        Write { manager, version: &self.resource.gv, subresource: self.subresource, now, reset }
    }
}
