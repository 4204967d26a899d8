//! Reinvocation. A webhook may change something that plug-ins and webhooks before it depend on. Then all mutating plug-ins run
//! again: built-in ones always, webhooks if their reinvocationPolicy asks for it and the object changed since their call.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use crate::api::hooks::Hook;
use crate::api::meta;
use crate::api::ownership::managers::Managers;
use crate::api::status::Result;
use crate::api::value::Value;

use super::super::Call;

/// The field of metadata that records field ownership.
const OWNERS: &str = "managedFields";

/// The rounds of one write.
#[derive(Default)]
pub struct Round {
    is_second: Cell<bool>,
    wants_second: Cell<bool>,
    patched: Cell<bool>,
    /// The managedFields before the first webhook call.
    owners: RefCell<Option<Value>>,
    /// The object after the last webhook of the round.
    left: RefCell<Option<Value>>,
    /// Webhooks that were called and want reinvocation after a change.
    asked: RefCell<BTreeSet<String>>,
    /// Webhooks that are called again.
    wanted: RefCell<BTreeSet<String>>,
}

impl Round {
    /// Whether this is the second round.
    pub fn is_second(&self) -> bool {
        self.is_second.get()
    }

    /// Begins the second round, if one is needed.
    pub fn again(&self) -> bool {
        self.is_second.set(self.wants_second.get());
        self.is_second()
    }

    /// Whether any webhook patched the object.
    pub fn has_patched(&self) -> bool {
        self.patched.get()
    }

    /// Repairs the object after all webhooks: namespace and name must be unchanged, owner references unique, and managedFields
    /// valid.
    pub fn settle(&self, call: &Call<'_>, is_new: bool, object: &mut Value) -> Result<()> {
        meta::agree_on_namespace(object, call.namespace)?;
        if is_new && !call.name.is_empty() && call.subresource.is_empty() {
            meta::check_name(object, call.name)?;
        }
        call.warn(meta::dedupe_changed_owners(object).into_iter().collect());
        let entries = meta::of(object).get(OWNERS).map(Value::items).unwrap_or_default();
        if Managers::read(entries).is_none() {
            match self.owners.take() {
                Some(before) => object.entry("metadata").set(OWNERS, before),
                None => {
                    object.entry("metadata").remove(OWNERS);
                }
            }
            call.warnings.add(
                ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated \
                 mutating admission controller; please fix your requests: an entry cannot be read",
            );
        }
        Ok(())
    }

    /// Begins the webhooks of a round. Changes by built-in plug-ins since the last round require reinvocation.
    pub(super) fn begin(&self, object: &Value) {
        if !self.is_second() {
            self.owners.replace(meta::of(object).get(OWNERS).cloned());
        }
        if self.is_second() && self.left.borrow().as_ref() != Some(object) {
            self.require();
        }
    }

    /// Records that a webhook patched the object.
    pub(super) fn patched(&self) {
        self.patched.set(true);
    }

    /// Records that a webhook was called.
    pub(super) fn asked(&self, hook: &Hook, changed: bool) {
        if changed {
            self.require();
            self.wants_second.set(true);
        }
        if hook.wants_again {
            self.asked.borrow_mut().insert(hook.uid.clone());
        }
    }

    /// Whether a webhook is called in the second round.
    pub(super) fn is_wanted(&self, uid: &str) -> bool {
        self.wanted.borrow().contains(uid)
    }

    /// Ends the webhooks of a round.
    pub(super) fn end(&self, object: &Value) {
        self.left.replace(Some(object.clone()));
    }

    fn require(&self) {
        self.wanted.borrow_mut().append(&mut self.asked.borrow_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::codec::json;

    fn hook(name: &str, again: bool) -> Hook {
        let policy = if again { "IfNeeded" } else { "Never" };
        let text = format!(
            r#"{{"metadata":{{"name":"c"}},"webhooks":[{{"name":"{name}","reinvocationPolicy":"{policy}"}}]}}"#
        );
        Hook::read_all(&json::read(text.as_bytes()).unwrap()).pop().unwrap()
    }

    #[test]
    fn those_before_a_change_are_asked_again_if_they_want() {
        let round = Round::default();
        let (first, second, third) = (hook("1", true), hook("2", false), hook("3", true));
        round.begin(&Value::Null);
        round.asked(&first, false);
        round.asked(&second, false);
        round.asked(&third, true);
        round.end(&Value::Null);
        assert!(round.again());
        round.begin(&Value::Null);
        assert!(round.is_wanted(&first.uid));
        assert!(!round.is_wanted(&second.uid) && !round.is_wanted(&third.uid));
    }

    #[test]
    fn a_change_of_a_plugin_concerns_all_that_were_asked() {
        let round = Round::default();
        let (first, second) = (hook("1", true), hook("2", true));
        round.asked(&first, true);
        round.asked(&second, false);
        round.end(&Value::from("a"));
        assert!(round.again());
        round.begin(&Value::from("b"));
        assert!(round.is_wanted(&first.uid) && round.is_wanted(&second.uid));
    }

    #[test]
    fn nothing_changed_is_one_round() {
        let round = Round::default();
        round.asked(&hook("1", true), false);
        assert!(!round.again());
    }
}
