//! Server-side apply: a configuration states the values of fields, and its manager owns them.

use std::borrow::Cow;

use super::applied_fields::{all_fields, owned_fields, with_struct_fields};
use super::check::check;
use super::compare::compare_exact;
use super::field_set::FieldSet;
use super::last_applied;
use super::managers::{self, Manager, Managers, Operation};
use super::merge::{merge, remove};
use super::owned_fields::{self, Owned};
use super::repeated_apply::{Repeated, RepeatedApply};
use super::{Comparisons, States, Versions, Write, remove_from_others, updated_managers};
use crate::json;
use crate::schema::TypeId;
use crate::schema::encode::encode;
use crate::status::{Cause, Result, Status};
use crate::value::Value;
use crate::version::GroupVersion;

/// The manager of fields from before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The result of an apply.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The object in the version of the request, not decoded yet, without defaults. `None` if nothing changes.
    pub object: Option<Value>,
    /// The new managers. `None` if they do not change.
    pub managers: Option<Managers>,
}

impl Applied {
    /// The object with its managers, if it needs no decoding. `live` is the stored object.
    #[cfg(test)]
    pub(super) fn onto(self, live: Option<&Value>) -> Value {
        let mut object = self.object.or_else(|| live.cloned()).unwrap_or_else(Value::object);
        if let Some(managers) = self.managers {
            managers.store(&mut object);
        }
        object
    }
}

/// Applies a configuration in the version of the request to the object in the stored version.
pub fn apply(
    versions: &Versions<'_>,
    write: &Write<'_>,
    live: Option<&Value>,
    config: &Value,
    force: bool,
) -> Result<Applied> {
    check_kind(versions, write.version, config)?;
    if config.get_path(&["metadata", "managedFields"]).is_some() {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let ty = versions.type_in(write.version).ok_or_else(Status::no_such_resource)?;
    let converted = live.map(|live| {
        versions
            .convert_to(live, write.version)
            .ok_or_else(|| Status::internal("the object cannot be converted"))
    });
    let live = converted.transpose()?;
    // From here on everything is in the version of the request.
    let versions = Versions { stored: write.version, ..*versions };
    let request = ApplyRequest { versions, write, ty, live: live.as_deref(), config };
    let repeated = request.detect_repetition();
    if repeated != Repeated::Literally {
        check(versions.registry, ty, config)
            .map_err(|error| typing_error(write.version, "patch", config, &error))?;
    }
    if repeated != Repeated::No {
        return Ok(Applied { object: None, managers: None });
    }
    let (managers, last) = request.current_managers().map_err(merge_failure)?;
    request.apply(managers, last, force)
}

fn merge_failure(error: impl std::fmt::Display) -> Box<Status> {
    Status::internal(format!("failed to merge config: {error}"))
}

/// [`apply`] without its shortcut, for requests in the stored version.
#[cfg(test)]
pub(super) fn apply_fully(
    versions: &Versions<'_>,
    write: &Write<'_>,
    live: &Value,
    config: &Value,
    force: bool,
) -> Result<Applied> {
    let ty = versions.type_in(write.version).ok_or_else(Status::no_such_resource)?;
    let request = ApplyRequest { versions: *versions, write, ty, live: Some(live), config };
    let (managers, last) = request.current_managers().map_err(merge_failure)?;
    request.apply(managers, last, force)
}

/// The kind and version of the body must be those of the path.
fn check_kind(versions: &Versions<'_>, version: &GroupVersion, config: &Value) -> Result<()> {
    let kind = config.str("kind");
    // An invalid apiVersion counts as absent, together with the kind.
    let stated = GroupVersion::parse(config.str("apiVersion"));
    if stated.as_ref() == Some(version) && kind == versions.kind {
        return Ok(());
    }
    let (group, version, kind) =
        stated.as_ref().map_or(("", "", ""), |stated| (&*stated.group, &*stated.version, kind));
    Err(Status::bad_request(format!("invalid object type: {group}/{version}, Kind={kind}")))
}

fn typing_error(version: &GroupVersion, role: &str, object: &Value, error: &str) -> Box<Status> {
    let text = |field| object.get_path(&["metadata", field]).and_then(Value::as_str).unwrap_or_default();
    Status::bad_request(format!(
        "failed to create typed {role} object ({}/{}; {}/{}, Kind={}): {error}",
        text("namespace"),
        text("name"),
        version.group,
        version.version,
        object.str("kind"),
    ))
}

struct ApplyRequest<'a> {
    versions: Versions<'a>,
    write: &'a Write<'a>,
    ty: TypeId,
    live: Option<&'a Value>,
    config: &'a Value,
}

impl ApplyRequest<'_> {
    /// The full algorithm. `last` is the previous entry of the same manager, `managers` are the others.
    fn apply(&self, mut managers: Managers, last: Option<Manager>, force: bool) -> Result<Applied> {
        let mut applier = self.write.manager(Operation::Apply);
        let reset = FieldSet::from_paths(self.write.reset);
        let registry = self.versions.registry;
        applier.fields =
            owned_fields(registry, self.ty, self.config).map_err(merge_failure)?.recursive_difference(&reset);
        applier.time = last.as_ref().and_then(|last| last.time.clone());

        let live = self.printed()?;
        let merged =
            merge(registry, self.ty, &live, self.config).map_err(|error| self.merge_error(&live, &error))?;
        let mut object = match last.filter(|last| !last.fields.is_empty()) {
            Some(last) => self.prune(merged, &managers, &last).map_err(merge_failure)?,
            None => merged,
        };
        let comparison = compare_exact(registry, self.ty, &live, &object).map_err(merge_failure)?;
        let states = States { old: self.live, new: &object };
        let mut comparisons =
            Comparisons::new(&self.versions, self.write.version, states, comparison, &reset);
        let conflicts = if force { Vec::new() } else { self.conflicts(&mut comparisons, &managers) };
        if !conflicts.is_empty() {
            return Err(conflict_status(&conflicts));
        }
        remove_from_others(&mut comparisons, &mut managers).map_err(merge_failure)?;
        // A no-op apply adds an owner, but does not change the time.
        let is_unchanged = self.live.is_some() && object == live;
        if !is_unchanged {
            applier.time = Some(self.write.now.to_owned());
        }
        if !applier.fields.is_empty() {
            managers.0.push(applier);
        }
        let has_annotation = last_applied::update(self.write.manager, self.config, &mut object);
        let object = (!is_unchanged || has_annotation).then_some(object);
        Ok(Applied { object, managers: Some(managers) })
    }

    /// The error of a merge: mostly stored items lack their keys.
    fn merge_error(&self, live: &Value, error: &str) -> Box<Status> {
        match check(self.versions.registry, self.ty, live) {
            Err(error) => typing_error(self.write.version, "live", live, &error),
            Ok(()) => merge_failure(error),
        }
    }

    /// Whether this manager repeats its last configuration in the same version, and all other entries are valid: then neither the
    /// object nor its managers change.
    fn detect_repetition(&self) -> Repeated {
        let Some(live) = self.live else { return Repeated::No };
        let entries = live.get_path(&["metadata", "managedFields"]).map(Value::items).unwrap_or_default();
        let Write { manager, subresource, .. } = *self.write;
        let version = self.write.version.to_string();
        let is_own = |entry: &&Value| owned_fields::belongs_to(entry, manager, subresource);
        let is_valid = |entry: &Value| {
            let api_version = entry.str("apiVersion");
            owned_fields::is_valid(entry) && (api_version == version || self.exists(api_version))
        };
        // The last of several equal entries would count.
        let mut own = entries.iter().filter(is_own);
        let (Some(last), None) = (own.next(), own.next()) else { return Repeated::No };
        let is_candidate = last.str("apiVersion") == version
            && managers::is_supported(last)
            && entries.iter().all(|entry| is_own(&entry) || is_valid(entry))
            && !last_applied::is_maintained(manager, live);
        let owned = Owned::from_entry(last).filter(|owned| is_candidate && !owned.is_empty());
        let Some(owned) = owned else { return Repeated::No };
        // Other owners of a replaced atomic value would lose it before it is defaulted again. In another version the field may
        // have another name.
        let is_unowned = |filled: &FieldSet| {
            entries.iter().filter(|entry| !is_own(entry)).all(|other| {
                other.str("apiVersion") == version
                    && Owned::from_entry(other).is_some_and(|fields| !fields.intersects(filled))
            })
        };
        let reset = FieldSet::from_paths(self.write.reset);
        let (registry, ty, config) = (self.versions.registry, self.ty, self.config);
        RepeatedApply { registry, ty, live, config, owned, reset: &reset }.detect(is_unowned)
    }

    /// The object as clients see it, including printed zero values: the configuration is merged into that, and differs where it
    /// is written differently.
    fn printed(&self) -> Result<Value> {
        let mut empty = Value::object();
        empty.set("kind", self.versions.kind);
        empty.set("apiVersion", self.write.version.to_string());
        let text = encode(self.versions.registry, self.ty, self.live.unwrap_or(&empty));
        json::read(&text).map_err(|_| Status::internal("the object cannot be printed"))
    }

    /// The current managers, and the applier's own entry separately. Fields without a manager get the one from before the first
    /// apply.
    fn current_managers(&self) -> std::result::Result<(Managers, Option<Manager>), String> {
        let Some(live) = self.live else { return Ok((Managers::default(), None)) };
        let entries = live.get_path(&["metadata", "managedFields"]).map(Value::items).unwrap_or_default();
        let mut managers = Managers::read(entries).unwrap_or_default();
        if managers.is_empty() {
            let write = Write { manager: BEFORE_FIRST_APPLY, ..*self.write };
            managers = updated_managers(&self.versions, &write, States { old: None, new: live }, managers)?;
        }
        let last = managers.take(&self.write.manager(Operation::Apply));
        Ok((managers, last))
    }

    /// The fields of other managers that the new state changes, by manager.
    fn conflicts(&self, comparisons: &mut Comparisons<'_>, managers: &Managers) -> Vec<(Manager, FieldSet)> {
        let mut conflicts = Vec::new();
        for manager in &managers.0 {
            let Ok(Some(changed)) = comparisons.for_version(&manager.api_version) else { continue };
            let conflicting = manager
                .fields
                .intersection(&changed.added)
                .union(&manager.fields.intersection(&changed.modified));
            if !conflicting.is_empty() {
                conflicts.push((manager.clone(), conflicting));
            }
        }
        let Some(live) = self.live.filter(|_| !conflicts.is_empty()) else { return conflicts };
        let allowed = last_applied::allowed(&self.versions, self.write, self.ty, live).unwrap_or_default();
        conflicts.retain_mut(|(_, conflicting)| {
            *conflicting = conflicting.difference(&allowed);
            !conflicting.is_empty()
        });
        conflicts.sort_by(|(a, _), (b, _)| {
            (&a.name, a.operation, &a.subresource).cmp(&(&b.name, b.operation, &b.subresource))
        });
        conflicts
    }

    /// Removes fields that this manager applied before, does not apply now, and no other manager owns.
    fn prune(&self, merged: Value, others: &Managers, last: &Manager) -> std::result::Result<Value, String> {
        let Some(version) = GroupVersion::parse(&last.api_version) else { return Ok(merged) };
        let Some(before) = self.as_version(&merged, self.write.version, &version) else { return Ok(merged) };
        let Some(ty) = self.versions.type_in(&version) else { return Ok(merged) };
        let registry = self.versions.registry;
        let last_fields = with_struct_fields(registry, ty, &last.fields);
        let mut pruned = remove(registry, ty, &before, &last_fields);
        // The fields of the object differ between the versions of its owners.
        let mut owned: Vec<(&str, Vec<FieldSet>)> = vec![(&last.api_version, Vec::new())];
        // The fields applied now stay as well, including those without owners, such as the name.
        let mut applier = self.write.manager(Operation::Apply);
        applier.fields = all_fields(registry, self.ty, self.config)?;
        for manager in others.0.iter().chain([&applier]) {
            match owned.iter_mut().find(|(version, _)| *version == manager.api_version) {
                Some((_, fields)) => fields.push(manager.fields.clone()),
                None if self.exists(&manager.api_version) => {
                    owned.push((&manager.api_version, vec![manager.fields.clone()]));
                }
                None => {}
            }
        }
        for (owners_version, fields) in owned {
            let Some(owners_version) = GroupVersion::parse(owners_version) else { continue };
            let Some(ty) = self.versions.type_in(&owners_version) else { continue };
            let fields = FieldSet::union_all(fields);
            let (Some(whole), Some(part)) = (
                self.as_version(&before, &version, &owners_version),
                self.as_version(&pruned, &version, &owners_version),
            ) else {
                continue;
            };
            let all = with_struct_fields(registry, ty, &all_fields(registry, ty, &whole)?);
            let retained = with_struct_fields(registry, ty, &all_fields(registry, ty, &part)?)
                .union(&with_struct_fields(registry, ty, &fields));
            let part = remove(registry, ty, &whole, &all.difference(&retained));
            pruned = self
                .as_version(&part, &owners_version, &version)
                .map_or_else(|| pruned.clone(), Cow::into_owned);
        }
        // Only fields that this manager applied may be removed.
        let all = with_struct_fields(registry, ty, &all_fields(registry, ty, &before)?);
        let remaining = with_struct_fields(registry, ty, &all_fields(registry, ty, &pruned)?);
        let result = remove(registry, ty, &before, &all.difference(&remaining).intersection(&last_fields));
        Ok(self.as_version(&result, &version, self.write.version).map_or(merged.clone(), Cow::into_owned))
    }

    /// Whether the kind has this version.
    fn exists(&self, api_version: &str) -> bool {
        let version = GroupVersion::parse(api_version);
        version.is_some_and(|version| {
            version.group == self.write.version.group && self.versions.type_in(&version).is_some()
        })
    }

    fn as_version<'v>(
        &self,
        value: &'v Value,
        from: &GroupVersion,
        to: &GroupVersion,
    ) -> Option<Cow<'v, Value>> {
        self.versions.convert(value, from, to)
    }
}

/// 409 with one cause per field.
fn conflict_status(conflicts: &[(Manager, FieldSet)]) -> Box<Status> {
    let mut causes = Vec::new();
    let mut lines = Vec::new();
    for (manager, fields) in conflicts {
        let owner = render_manager(manager);
        lines.push(format!("conflicts with {owner}:"));
        for path in fields.paths() {
            lines.push(format!("- {path}"));
            causes.push(Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {owner}"),
                field: path,
            });
        }
    }
    let message = match causes.as_slice() {
        [cause] => format!("Apply failed with 1 conflict: {}: {}", cause.message, cause.field),
        causes => format!("Apply failed with {} conflicts: {}", causes.len(), lines.join("\n")),
    };
    Status::apply_conflict(message, causes)
}

/// A manager as conflicts name it.
fn render_manager(manager: &Manager) -> String {
    let mut text = crate::field::quoted(&manager.name);
    if !manager.subresource.is_empty() {
        text.push_str(&format!(" with subresource {}", crate::field::quoted(&manager.subresource)));
    }
    if manager.operation == Operation::Update {
        text.push_str(&format!(" using {}", manager.api_version));
    }
    text
}
