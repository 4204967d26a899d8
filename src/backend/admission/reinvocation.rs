//! Who has to be asked again. Whoever changes an object may change what others before it would have said: then all that
//! change objects are asked once more, plug-ins always, policies and webhooks if they want that and something has changed since.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use pilothouse_apimachinery::managed_fields::managers::Managers;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;

use super::Call;

/// Where it stands who owns the fields.
const OWNERS: &str = "managedFields";

/// The rounds of one write.
#[derive(Default)]
pub struct Reinvocation {
    is_second: Cell<bool>,
    wants_second: Cell<bool>,
    patched: Cell<bool>,
    /// Who owned the fields before anybody was asked, once that was noted.
    owners: RefCell<Option<Option<Value>>>,
    /// Of the policies.
    pub(super) policies: CalledHooks,
    /// Of the webhooks.
    pub(super) webhooks: CalledHooks,
}

/// What one plug-in knows of those whom it asks.
#[derive(Default)]
pub struct CalledHooks {
    /// The object as they left it.
    left: RefCell<Option<Value>>,
    /// Those that were asked, and want to be asked again when something changes.
    asked: RefCell<BTreeSet<String>>,
    /// Those that are asked again.
    wanted: RefCell<BTreeSet<String>>,
}

impl CalledHooks {
    fn require(&self) {
        self.wanted.borrow_mut().append(&mut self.asked.borrow_mut());
    }
}

impl Reinvocation {
    /// Whether this is the second round.
    pub fn is_second(&self) -> bool {
        self.is_second.get()
    }

    /// Begins the second round, if there is to be one.
    pub fn again(&self) -> bool {
        self.is_second.set(self.wants_second.get());
        self.is_second()
    }

    /// Whether somebody gave the object another form.
    pub fn has_patched(&self) -> bool {
        self.patched.get()
    }

    /// Puts right what nobody who is asked may do to an object, once all were asked: it stays where it is and has its name, no owner
    /// stands in it twice, and who owns its fields can be read.
    pub fn settle(&self, call: &Call<'_>, is_new: bool, object: &mut Value) -> Result<()> {
        meta::agree_on_namespace(object, call.namespace)?;
        if is_new && !call.name.is_empty() && call.subresource.is_empty() {
            meta::check_name(object, call.name)?;
        }
        call.warn(meta::dedupe_changed_owners(object).into_iter().collect());
        let entries = meta::of(object).get(OWNERS).map(Value::items).unwrap_or_default();
        if Managers::read(entries).is_none() {
            match self.owners.take().flatten() {
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

    /// A turn begins. What others changed since the last one concerns those that were asked.
    pub(super) fn begin(&self, turn: &CalledHooks, object: &Value) {
        self.owners.borrow_mut().get_or_insert_with(|| meta::of(object).get(OWNERS).cloned());
        if self.is_second() && turn.left.borrow().as_ref() != Some(object) {
            turn.require();
        }
    }

    /// Somebody gave the object another form.
    pub(super) fn patched(&self) {
        self.patched.set(true);
    }

    /// Somebody has changed the object: that concerns those before.
    pub(super) fn changed(&self, turn: &CalledHooks) {
        turn.require();
        self.wants_second.set(true);
    }

    /// Somebody was asked who is known by this name.
    pub(super) fn asked(&self, turn: &CalledHooks, name: &str, reinvoke_if_needed: bool) {
        if reinvoke_if_needed {
            turn.asked.borrow_mut().insert(name.to_owned());
        }
    }

    /// Whether somebody is passed over: in the second round those who were not asked before, and those for whom nothing has
    /// changed.
    pub(super) fn passes_over(&self, turn: &CalledHooks, name: &str) -> bool {
        self.is_second() && !turn.wanted.borrow().contains(name)
    }

    /// A turn is over.
    pub(super) fn end(&self, turn: &CalledHooks, object: &Value) {
        turn.left.replace(Some(object.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody is asked, and changes something or not.
    fn ask(round: &Reinvocation, name: &str, again: bool, changed: bool) {
        if changed {
            round.changed(&round.webhooks);
        }
        round.asked(&round.webhooks, name, again);
    }

    #[test]
    fn those_before_a_change_are_asked_again_if_they_want() {
        let round = Reinvocation::default();
        round.begin(&round.webhooks, &Value::Null);
        ask(&round, "1", true, false);
        ask(&round, "2", false, false);
        ask(&round, "3", true, true);
        round.end(&round.webhooks, &Value::Null);
        assert!(!round.passes_over(&round.webhooks, "2"), "everybody is asked once");
        assert!(round.again());
        round.begin(&round.webhooks, &Value::Null);
        assert_eq!(["1", "2", "3"].map(|name| round.passes_over(&round.webhooks, name)), [false, true, true]);
        assert!(round.passes_over(&round.policies, "1"), "others have a turn of their own");
    }

    #[test]
    fn a_change_of_a_plugin_concerns_all_that_were_asked() {
        let round = Reinvocation::default();
        ask(&round, "1", true, true);
        ask(&round, "2", true, false);
        round.end(&round.webhooks, &Value::from("a"));
        assert!(round.again());
        round.begin(&round.webhooks, &Value::from("b"));
        assert_eq!(["1", "2"].map(|name| round.passes_over(&round.webhooks, name)), [false, false]);
    }

    #[test]
    fn nothing_changed_is_one_round() {
        let round = Reinvocation::default();
        ask(&round, "1", true, false);
        assert!(!round.again());
    }
}
