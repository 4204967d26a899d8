//! Who has to be asked again. Whoever changes an object may change what others before it would have said: then all that
//! change objects are asked once more, plug-ins always, webhooks if they want that and something has changed since.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use crate::api::hooks::Hook;
use crate::api::meta;
use crate::api::ownership::managers::Managers;
use crate::api::status::Result;
use crate::api::value::Value;

use super::super::Call;

/// Where it stands who owns the fields.
const OWNERS: &str = "managedFields";

/// The rounds of one write.
#[derive(Default)]
pub struct Round {
    is_second: Cell<bool>,
    wants_second: Cell<bool>,
    patched: Cell<bool>,
    /// Who owned the fields before any webhook was asked.
    owners: RefCell<Option<Value>>,
    /// The object as the webhooks left it.
    left: RefCell<Option<Value>>,
    /// Those that were asked, and want to be asked again when something changes.
    asked: RefCell<BTreeSet<String>>,
    /// Those that are asked again.
    wanted: RefCell<BTreeSet<String>>,
}

impl Round {
    /// Whether this is the second round.
    pub fn is_second(&self) -> bool {
        self.is_second.get()
    }

    /// Begins the second round, if there is to be one.
    pub fn again(&self) -> bool {
        self.is_second.set(self.wants_second.get());
        self.is_second()
    }

    /// Whether a webhook gave the object another form.
    pub fn has_patched(&self) -> bool {
        self.patched.get()
    }

    /// Puts right what no webhook may do to an object, once all were asked: it stays where it is and has its name, no owner
    /// stands in it twice, and who owns its fields can be read.
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

    /// The webhooks' turn begins. What plug-ins changed since their last one concerns those that were asked.
    pub(super) fn begin(&self, object: &Value) {
        if !self.is_second() {
            self.owners.replace(meta::of(object).get(OWNERS).cloned());
        }
        if self.is_second() && self.left.borrow().as_ref() != Some(object) {
            self.require();
        }
    }

    /// A webhook gave the object another form.
    pub(super) fn patched(&self) {
        self.patched.set(true);
    }

    /// A webhook was asked.
    pub(super) fn asked(&self, hook: &Hook, changed: bool) {
        if changed {
            self.require();
            self.wants_second.set(true);
        }
        if hook.wants_again {
            self.asked.borrow_mut().insert(hook.uid.clone());
        }
    }

    /// Whether a webhook is to be asked in the second round.
    pub(super) fn is_wanted(&self, uid: &str) -> bool {
        self.wanted.borrow().contains(uid)
    }

    /// The webhooks' turn is over.
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
