//! Owners of a field that can also be written through another kind: the replicas of an object and of its scale.
//!
//! The view knows its own version only, so whoever owns the field in the object is shown as if they had written the view.
//! When the view is written, what became of those owners goes back into the object.

use super::Versions;
use super::managers::{Manager, Managers};
use super::set::Set;
use crate::api::value::Value;
use crate::api::version::GroupVersion;

/// The field of a view that it shares with its object.
const SHOWN_FIELD: &[&str] = &["spec", "replicas"];

/// How a view and its object share a field.
#[derive(Clone)]
pub struct View<'a> {
    /// The versions of the object.
    pub whole: Versions<'a>,
    /// The version of the object that the client speaks.
    pub version: &'a GroupVersion,
    /// The version of the view.
    pub shown: &'a GroupVersion,
    /// The field of the object.
    pub field: Vec<&'a str>,
}

impl View<'_> {
    /// Writes into the view of an object who owns what it shows.
    pub fn lend(&self, whole: &Value, view: &mut Value) {
        let field = Set::of_fields(&[SHOWN_FIELD]);
        let owners = present(whole).0.into_iter().filter(|owner| self.owns(owner));
        let lent = owners.map(|owner| Manager { fields: field.clone(), ..self.in_view(&owner) });
        Managers(lent.collect()).store(view);
    }

    /// The owners of the object now that its view was written.
    pub fn owners(&self, whole: &Value, view: &Value) -> Managers {
        let field = self.field_set();
        let mut shown = present(view);
        let mut owners = Managers::default();
        for mut owner in present(whole).0 {
            // Fields of a version that is gone mean nothing any more.
            if !self.is_known(&owner) {
                continue;
            }
            // Only whoever applied is known again in another version. Others own the field apart from now on.
            if self.owns(&owner) && shown.take(&owner).is_none() {
                owner.fields = owner.fields.difference(&field);
            }
            if !owner.fields.is_empty() {
                owners.0.push(owner);
            }
        }
        let in_view = Set::of_fields(&[SHOWN_FIELD]);
        for owner in shown.0.into_iter().filter(|owner| !owner.fields.intersection(&in_view).is_empty()) {
            let api_version = self.version.to_string();
            // The reference keeps no time for these.
            owners.0.push(Manager { api_version, time: None, fields: field.clone(), ..owner });
        }
        owners
    }

    fn field_set(&self) -> Set {
        Set::of_fields(&[&self.field])
    }

    fn in_view(&self, owner: &Manager) -> Manager {
        Manager { api_version: self.shown.to_string(), ..owner.clone() }
    }

    fn is_known(&self, owner: &Manager) -> bool {
        let version = GroupVersion::parse(&owner.api_version);
        version.is_some_and(|version| self.whole.type_in(&version).is_some())
    }

    fn has_field(&self, owner: &Manager) -> bool {
        !owner.fields.intersection(&self.field_set()).is_empty()
    }

    fn owns(&self, owner: &Manager) -> bool {
        self.is_known(owner) && self.has_field(owner)
    }
}

fn present(object: &Value) -> Managers {
    let entries = object.at(&["metadata", "managedFields"]).map(Value::items).unwrap_or_default();
    Managers::read(entries).unwrap_or_default()
}
