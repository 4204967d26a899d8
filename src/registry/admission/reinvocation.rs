//! Reinvocation of mutating admission. If a policy or webhook changes the object, all mutating plug-ins run a second time:
//! built-in plug-ins always, policies and webhooks if their reinvocationPolicy is IfNeeded and the object has changed since their
//! call.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use pilothouse_apimachinery::managed_fields::managers::Managers;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;

use crate::registry::Call;

/// The field of metadata that records field ownership.
const MANAGED_FIELDS: &str = "managedFields";

/// The state of reinvocation during one write.
#[derive(Default)]
pub struct Reinvocation {
    is_second_round: Cell<bool>,
    needs_second_round: Cell<bool>,
    patched: Cell<bool>,
    /// The managedFields before the first call, once they are recorded.
    managed_fields: RefCell<Option<Option<Value>>>,
    /// The state of MutatingAdmissionPolicy.
    pub policies: CallerState,
    /// The state of MutatingAdmissionWebhook.
    pub webhooks: CallerState,
}

/// The policies or webhooks that one plug-in has called.
#[derive(Default)]
pub struct CallerState {
    /// The object after their last call.
    last_object: RefCell<Option<Value>>,
    /// Called, and to be called again if the object changes.
    invoked: RefCell<BTreeSet<String>>,
    /// To be called in the second round.
    pending: RefCell<BTreeSet<String>>,
}

impl CallerState {
    fn require_reinvocation(&self) {
        self.pending.borrow_mut().append(&mut self.invoked.borrow_mut());
    }
}

impl Reinvocation {
    /// Whether this is the second round.
    pub fn is_second_round(&self) -> bool {
        self.is_second_round.get()
    }

    /// Starts the second round, if one is needed.
    pub fn start_second_round(&self) -> bool {
        self.is_second_round.set(self.needs_second_round.get());
        self.is_second_round()
    }

    /// Whether a policy or webhook patched the object.
    pub fn is_patched(&self) -> bool {
        self.patched.get()
    }

    /// Checks and repairs the patched object: namespace and name must not change, owner references are deduplicated, and invalid
    /// managedFields are replaced by the previous ones.
    pub fn restore_invariants(&self, call: &Call<'_>, is_new: bool, object: &mut Value) -> Result<()> {
        meta::ensure_namespace(object, call.namespace())?;
        if is_new && !call.name().is_empty() && call.subresource().is_empty() {
            meta::check_name(object, call.name())?;
        }
        call.warn(meta::dedupe_changed_owners(object).into_iter().collect());
        let entries = meta::metadata(object).get(MANAGED_FIELDS).map(Value::items).unwrap_or_default();
        if Managers::read(entries).is_none() {
            match self.managed_fields.take().flatten() {
                Some(before) => object.entry("metadata").set(MANAGED_FIELDS, before),
                None => {
                    object.entry("metadata").remove(MANAGED_FIELDS);
                }
            }
            call.warnings.add(
                ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated \
                 mutating admission controller; please fix your requests: an entry cannot be read",
            );
        }
        Ok(())
    }

    /// The calls of a plug-in start. If others have changed the object since its last turn, what it called is called again.
    pub fn start_turn(&self, state: &CallerState, object: &Value) {
        self.managed_fields
            .borrow_mut()
            .get_or_insert_with(|| meta::metadata(object).get(MANAGED_FIELDS).cloned());
        if self.is_second_round() && state.last_object.borrow().as_ref() != Some(object) {
            state.require_reinvocation();
        }
    }

    /// Records that a policy or webhook patched the object.
    pub fn mark_patched(&self) {
        self.patched.set(true);
    }

    /// Records that the object has changed: what was called before is called again.
    pub fn mark_changed(&self, state: &CallerState) {
        state.require_reinvocation();
        self.needs_second_round.set(true);
    }

    /// Records a call of the policy or webhook with this key.
    pub fn mark_invoked(&self, state: &CallerState, name: &str, reinvoke_if_needed: bool) {
        if reinvoke_if_needed {
            state.invoked.borrow_mut().insert(name.to_owned());
        }
    }

    /// Whether a policy or webhook is skipped: in the second round, if it was not called before or nothing has changed since.
    pub fn skips(&self, state: &CallerState, name: &str) -> bool {
        self.is_second_round() && !state.pending.borrow().contains(name)
    }

    /// The calls of a plug-in are over.
    pub fn end_turn(&self, state: &CallerState, object: &Value) {
        state.last_object.replace(Some(object.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a call.
    fn invoke(reinvocation: &Reinvocation, name: &str, start_second_round: bool, changes: bool) {
        if changes {
            reinvocation.mark_changed(&reinvocation.webhooks);
        }
        reinvocation.mark_invoked(&reinvocation.webhooks, name, start_second_round);
    }

    #[test]
    fn hooks_before_change_are_reinvoked_if_needed() {
        let reinvocation = Reinvocation::default();
        reinvocation.start_turn(&reinvocation.webhooks, &Value::Null);
        invoke(&reinvocation, "1", true, false);
        invoke(&reinvocation, "2", false, false);
        invoke(&reinvocation, "3", true, true);
        reinvocation.end_turn(&reinvocation.webhooks, &Value::Null);
        assert!(!reinvocation.skips(&reinvocation.webhooks, "2"), "every hook is called once");
        assert!(reinvocation.start_second_round());
        reinvocation.start_turn(&reinvocation.webhooks, &Value::Null);
        assert_eq!(
            ["1", "2", "3"].map(|name| reinvocation.skips(&reinvocation.webhooks, name)),
            [false, true, true]
        );
        assert!(reinvocation.skips(&reinvocation.policies, "1"), "the state of policies is separate");
    }

    #[test]
    fn change_by_plugin_reinvokes_all_invoked_hooks() {
        let reinvocation = Reinvocation::default();
        invoke(&reinvocation, "1", true, true);
        invoke(&reinvocation, "2", true, false);
        reinvocation.end_turn(&reinvocation.webhooks, &Value::from("a"));
        assert!(reinvocation.start_second_round());
        reinvocation.start_turn(&reinvocation.webhooks, &Value::from("b"));
        assert_eq!(["1", "2"].map(|name| reinvocation.skips(&reinvocation.webhooks, name)), [false, false]);
    }

    #[test]
    fn no_change_needs_no_second_round() {
        let reinvocation = Reinvocation::default();
        invoke(&reinvocation, "1", true, false);
        assert!(!reinvocation.start_second_round());
    }
}
