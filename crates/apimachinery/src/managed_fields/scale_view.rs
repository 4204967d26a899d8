//! Ownership of a field that can also be written through another kind: the replicas of an object and of its scale.
//!
//! The view only knows its own version, so the managers of the field appear as if they had written the view. When the view is
//! written, the changes of these managers are copied back into the object.

use super::Versions;
use super::field_set::FieldSet;
use super::managers::{Manager, Managers};
use crate::value::Value;
use crate::version::GroupVersion;

/// The field of a view that it shares with its object.
const VIEW_FIELD: &[&str] = &["spec", "replicas"];

/// How a view and its object share a field.
#[derive(Clone)]
pub struct ScaleView<'a> {
    /// The versions of the object.
    pub whole: Versions<'a>,
    /// The version of the object in the request.
    pub version: &'a GroupVersion,
    /// The version of the view.
    pub shown: &'a GroupVersion,
    /// The path of the field in the object.
    pub field: Vec<&'a str>,
}

impl ScaleView<'_> {
    /// Writes the managers of the shared field into the view.
    pub fn share_managers(&self, whole: &Value, view: &mut Value) {
        let field = FieldSet::from_paths(&[VIEW_FIELD]);
        let owners = managers(whole).0.into_iter().filter(|owner| self.owns(owner));
        let managers = owners.map(|owner| Manager { fields: field.clone(), ..self.in_view(&owner) });
        Managers(managers.collect()).store(view);
    }

    /// The managers of the object after its view was written.
    pub fn owners(&self, whole: &Value, view: &Value) -> Managers {
        let field = self.field_set();
        let mut view_managers = managers(view);
        let mut owners = Managers::default();
        for mut owner in managers(whole).0 {
            // Entries of a version that no longer exists are dropped.
            if !self.is_known(&owner) {
                continue;
            }
            // Only appliers are recognized in another version. Other managers own the field separately from now on.
            if self.owns(&owner) && view_managers.take(&owner).is_none() {
                owner.fields = owner.fields.difference(&field);
            }
            if !owner.fields.is_empty() {
                owners.0.push(owner);
            }
        }
        let in_view = FieldSet::from_paths(&[VIEW_FIELD]);
        for owner in
            view_managers.0.into_iter().filter(|owner| !owner.fields.intersection(&in_view).is_empty())
        {
            let api_version = self.version.to_string();
            // The reference keeps no time for these.
            owners.0.push(Manager { api_version, time: None, fields: field.clone(), ..owner });
        }
        owners
    }

    fn field_set(&self) -> FieldSet {
        FieldSet::from_paths(&[&self.field])
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

fn managers(object: &Value) -> Managers {
    let entries = object.get_path(&["metadata", "managedFields"]).map(Value::items).unwrap_or_default();
    Managers::read(entries).unwrap_or_default()
}
