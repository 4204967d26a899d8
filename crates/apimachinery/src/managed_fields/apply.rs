//! Server-side apply: a configuration states the values of fields, and its manager owns them.

use std::borrow::Cow;

use super::applied_fields::{all_fields, owned_fields, with_named};
use super::check::check;
use super::compare::compare_exact;
use super::field_set::FieldSet;
use super::last_applied;
use super::managers::{self, Manager, Managers, Operation};
use super::merge::{merge, remove};
use super::owned_fields::{self, Owned};
use super::repeated_apply::{Repeated, repeated};
use super::{Comparisons, Versions, Write, take_from_others, updated};
use crate::json;
use crate::schema::TypeId;
use crate::schema::encode::encode;
use crate::status::{Cause, Result, Status};
use crate::value::Value;
use crate::version::GroupVersion;

/// The manager of fields from before the first apply.
const BEFORE: &str = "before-first-apply";

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
    if config.at(&["metadata", "managedFields"]).is_some() {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let ty = versions.type_in(write.version).ok_or_else(Status::no_such_resource)?;
    let shown = live.map(|live| {
        versions.shown(live, write.version).ok_or_else(|| Status::internal("the object cannot be converted"))
    });
    let live = shown.transpose()?;
    // From here on everything is in the version of the request.
    let versions = Versions { stored: write.version, ..*versions };
    let work = Work { versions, write, ty, live: live.as_deref(), config };
    let repeated = work.repeats();
    if repeated != Repeated::Literally {
        check(versions.registry, ty, config)
            .map_err(|error| untyped(write.version, "patch", config, &error))?;
    }
    if repeated != Repeated::No {
        return Ok(Applied { object: None, managers: None });
    }
    let (managers, last) = work.present().map_err(unmerged)?;
    work.apply(managers, last, force)
}

fn unmerged(error: impl std::fmt::Display) -> Box<Status> {
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
    let work = Work { versions: *versions, write, ty, live: Some(live), config };
    let (managers, last) = work.present().map_err(unmerged)?;
    work.apply(managers, last, force)
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

fn untyped(version: &GroupVersion, which: &str, object: &Value, error: &str) -> Box<Status> {
    let text = |field| object.at(&["metadata", field]).and_then(Value::as_str).unwrap_or_default();
    Status::bad_request(format!(
        "failed to create typed {which} object ({}/{}; {}/{}, Kind={}): {error}",
        text("namespace"),
        text("name"),
        version.group,
        version.version,
        object.str("kind"),
    ))
}

struct Work<'a> {
    versions: Versions<'a>,
    write: &'a Write<'a>,
    ty: TypeId,
    live: Option<&'a Value>,
    config: &'a Value,
}

impl Work<'_> {
    /// The full algorithm. `last` is the previous entry of the same manager, `managers` are the others.
    fn apply(&self, mut managers: Managers, last: Option<Manager>, force: bool) -> Result<Applied> {
        let mut me = self.write.manager(Operation::Apply);
        let reset = FieldSet::of_fields(self.write.reset);
        let registry = self.versions.registry;
        me.fields =
            owned_fields(registry, self.ty, self.config).map_err(unmerged)?.recursive_difference(&reset);
        me.time = last.as_ref().and_then(|last| last.time.clone());

        let live = self.printed()?;
        let merged =
            merge(registry, self.ty, &live, self.config).map_err(|error| self.no_base(&live, &error))?;
        let mut object = match last.filter(|last| !last.fields.is_empty()) {
            Some(last) => self.prune(merged, &managers, &last).map_err(unmerged)?,
            None => merged,
        };
        let own = compare_exact(registry, self.ty, &live, &object).map_err(unmerged)?;
        let states = (self.live, &object);
        let mut comparisons = Comparisons::new(&self.versions, states, (self.write.version, own), &reset);
        let conflicts = if force { Vec::new() } else { self.conflicts(&mut comparisons, &managers) };
        if !conflicts.is_empty() {
            return Err(refusal(&conflicts));
        }
        take_from_others(&mut comparisons, &mut managers).map_err(unmerged)?;
        // A no-op apply adds an owner, but does not change the time.
        let is_there = self.live.is_some() && object == live;
        if !is_there {
            me.time = Some(self.write.now.to_owned());
        }
        if !me.fields.is_empty() {
            managers.0.push(me);
        }
        let kept_up = last_applied::keep_up(self.write.manager, self.config, &mut object);
        let object = (!is_there || kept_up).then_some(object);
        Ok(Applied { object, managers: Some(managers) })
    }

    /// Why nothing can be merged into an object: mostly because stored items lack their keys.
    fn no_base(&self, live: &Value, error: &str) -> Box<Status> {
        match check(self.versions.registry, self.ty, live) {
            Err(error) => untyped(self.write.version, "live", live, &error),
            Ok(()) => unmerged(error),
        }
    }

    /// Whether this manager repeats its last configuration in the same version, and all other entries are valid: then neither the
    /// object nor its managers change.
    fn repeats(&self) -> Repeated {
        let Some(live) = self.live else { return Repeated::No };
        let entries = live.at(&["metadata", "managedFields"]).map(Value::items).unwrap_or_default();
        let Write { manager, subresource, .. } = *self.write;
        let version = self.write.version.to_string();
        let is_own = |entry: &&Value| owned_fields::is_of(entry, manager, subresource);
        let is_sound = |entry: &Value| {
            let theirs = entry.str("apiVersion");
            owned_fields::is_sound(entry) && (theirs == version || self.exists(theirs))
        };
        // The last of several equal entries would count.
        let mut own = entries.iter().filter(is_own);
        let (Some(last), None) = (own.next(), own.next()) else { return Repeated::No };
        let may_be = last.str("apiVersion") == version
            && managers::is_known_form(last)
            && entries.iter().all(|entry| is_own(&entry) || is_sound(entry))
            && !last_applied::is_kept_up(manager, live);
        let fields = Owned::by(last).filter(|fields| may_be && !fields.is_empty());
        let Some(fields) = fields else { return Repeated::No };
        // Other owners of a replaced atomic value would lose it before it is defaulted again. In another version it may have
        // another name.
        let spares = |filled: &FieldSet| {
            entries.iter().filter(|entry| !is_own(entry)).all(|other| {
                other.str("apiVersion") == version
                    && Owned::by(other).is_some_and(|fields| !fields.meets(filled))
            })
        };
        let reset = FieldSet::of_fields(self.write.reset);
        repeated(self.versions.registry, self.ty, (live, self.config), fields, &reset, spares)
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

    /// The present managers, and the applier's own entry separately. Fields without a manager get the one from before the first
    /// apply.
    fn present(&self) -> std::result::Result<(Managers, Option<Manager>), String> {
        let Some(live) = self.live else { return Ok((Managers::default(), None)) };
        let entries = live.at(&["metadata", "managedFields"]).map(Value::items).unwrap_or_default();
        let mut managers = Managers::read(entries).unwrap_or_default();
        if managers.is_empty() {
            let before = Write { manager: BEFORE, ..*self.write };
            managers = updated(&self.versions, &before, None, live, managers)?;
        }
        let last = managers.take(&self.write.manager(Operation::Apply));
        Ok((managers, last))
    }

    /// The fields of other managers that the new state changes, by manager.
    fn conflicts(&self, comparisons: &mut Comparisons<'_>, managers: &Managers) -> Vec<(Manager, FieldSet)> {
        let mut conflicts = Vec::new();
        for manager in &managers.0 {
            let Ok(Some(changed)) = comparisons.of(&manager.api_version) else { continue };
            let contested = manager
                .fields
                .intersection(&changed.added)
                .union(&manager.fields.intersection(&changed.modified));
            if !contested.is_empty() {
                conflicts.push((manager.clone(), contested));
            }
        }
        let Some(live) = self.live.filter(|_| !conflicts.is_empty()) else { return conflicts };
        let allowed = last_applied::allowed(&self.versions, self.write, self.ty, live).unwrap_or_default();
        conflicts.retain_mut(|(_, contested)| {
            *contested = contested.difference(&allowed);
            !contested.is_empty()
        });
        conflicts.sort_by(|(a, _), (b, _)| {
            (&a.name, a.operation, &a.subresource).cmp(&(&b.name, b.operation, &b.subresource))
        });
        conflicts
    }

    /// Removes fields that this manager applied before, does not apply now, and nobody else owns.
    fn prune(&self, merged: Value, others: &Managers, last: &Manager) -> std::result::Result<Value, String> {
        let Some(version) = GroupVersion::parse(&last.api_version) else { return Ok(merged) };
        let Some(before) = self.as_version(&merged, self.write.version, &version) else { return Ok(merged) };
        let Some(ty) = self.versions.type_in(&version) else { return Ok(merged) };
        let registry = self.versions.registry;
        let last_fields = with_named(registry, ty, &last.fields);
        let mut pruned = remove(registry, ty, &before, &last_fields);
        // Each version with owners shows the object in its own way.
        let mut owned: Vec<(&str, Vec<FieldSet>)> = vec![(&last.api_version, Vec::new())];
        // The fields applied now stay as well, including those without owners, such as the name.
        let mut me = self.write.manager(Operation::Apply);
        me.fields = all_fields(registry, self.ty, self.config)?;
        for manager in others.0.iter().chain([&me]) {
            match owned.iter_mut().find(|(version, _)| *version == manager.api_version) {
                Some((_, fields)) => fields.push(manager.fields.clone()),
                None if self.exists(&manager.api_version) => {
                    owned.push((&manager.api_version, vec![manager.fields.clone()]));
                }
                None => {}
            }
        }
        for (owners_version, fields) in owned {
            let Some(theirs) = GroupVersion::parse(owners_version) else { continue };
            let Some(ty) = self.versions.type_in(&theirs) else { continue };
            let fields = FieldSet::union_all(fields);
            let (Some(whole), Some(part)) =
                (self.as_version(&before, &version, &theirs), self.as_version(&pruned, &version, &theirs))
            else {
                continue;
            };
            let all = with_named(registry, ty, &all_fields(registry, ty, &whole)?);
            let kept = with_named(registry, ty, &all_fields(registry, ty, &part)?)
                .union(&with_named(registry, ty, &fields));
            let part = remove(registry, ty, &whole, &all.difference(&kept));
            pruned =
                self.as_version(&part, &theirs, &version).map_or_else(|| pruned.clone(), Cow::into_owned);
        }
        // Only fields that this manager applied may be removed.
        let all = with_named(registry, ty, &all_fields(registry, ty, &before)?);
        let left = with_named(registry, ty, &all_fields(registry, ty, &pruned)?);
        let result = remove(registry, ty, &before, &all.difference(&left).intersection(&last_fields));
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
        self.versions.turned(value, from, to)
    }
}

/// 409 with one cause per field.
fn refusal(conflicts: &[(Manager, FieldSet)]) -> Box<Status> {
    let mut causes = Vec::new();
    let mut lines = Vec::new();
    for (manager, fields) in conflicts {
        let who = named(manager);
        lines.push(format!("conflicts with {who}:"));
        for path in fields.paths() {
            lines.push(format!("- {path}"));
            causes.push(Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {who}"),
                field: path,
            });
        }
    }
    let message = match causes.as_slice() {
        [one] => format!("Apply failed with 1 conflict: {}: {}", one.message, one.field),
        many => format!("Apply failed with {} conflicts: {}", many.len(), lines.join("\n")),
    };
    Status::apply_conflict(message, causes)
}

/// A manager as conflicts name it.
fn named(manager: &Manager) -> String {
    let mut text = crate::field::quoted(&manager.name);
    if !manager.subresource.is_empty() {
        text.push_str(&format!(" with subresource {}", crate::field::quoted(&manager.subresource)));
    }
    if manager.operation == Operation::Update {
        text.push_str(&format!(" using {}", manager.api_version));
    }
    text
}
