//! Creates the objects of a plan.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use futures::StreamExt as _;
use pilothouse_api::bootstrap::flow_control;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::ConflictPolicy;
use super::bindings::{Bindings, Side};
use super::intake::{Entry, VersionKind};
use super::owners::{OwnerState, map_owners, set_owners};
use super::plan::{Plan, is_namespaces};
use super::prepare::{Prepared, prepare};
use super::report::{Outcome, Report};
use crate::commands::object_stream::order::Phase;
use crate::commands::object_stream::resource::{Resource, describe};
use crate::commands::object_stream::{Destination, Refusal, Stored};
use crate::limits;

/// How objects are imported.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub on_conflict: ConflictPolicy,
    pub is_dry_run: bool,
    pub keeps_status: bool,
    pub fails_fast: bool,
}

/// What has happened so far. Never borrowed while waiting.
struct State {
    report: Report,
    /// The owners that are known, by the UIDs that they had.
    owners: HashMap<Box<str>, OwnerState>,
    /// Owners that are not in the cluster, by the namespace in which they were looked for and their UIDs.
    absent_owners: HashSet<(Rc<str>, Box<str>)>,
    /// Namespaces that this import created: whatever else is in them was made by controllers in the meantime.
    new_namespaces: HashSet<Rc<str>>,
    /// The groups and kinds of definitions that this import created.
    new_kinds: HashSet<(String, String)>,
    /// Those of them that the server may not serve yet.
    unserved_kinds: HashSet<(String, String)>,
    /// The volumes and claims.
    bindings: Bindings,
    /// Entries that need a patch in the end.
    incomplete: Vec<u32>,
}

/// Carries out a plan.
pub(super) struct Executor<'a, D> {
    destination: &'a D,
    plan: &'a Plan,
    settings: Settings,
    state: RefCell<State>,
}

/// Why an object was not imported.
struct Unimported(String);

impl From<Refusal> for Unimported {
    fn from(refusal: Refusal) -> Unimported {
        Unimported(refusal.to_string())
    }
}

impl<'a, D: Destination> Executor<'a, D> {
    pub(super) fn new(
        destination: &'a D,
        plan: &'a Plan,
        settings: Settings,
        report: Report,
    ) -> Executor<'a, D> {
        let state = State {
            report,
            owners: HashMap::new(),
            absent_owners: HashSet::new(),
            new_namespaces: HashSet::new(),
            new_kinds: HashSet::new(),
            unserved_kinds: HashSet::new(),
            bindings: Bindings::default(),
            incomplete: Vec::new(),
        };
        Executor { destination, plan, settings, state: RefCell::new(state) }
    }

    /// Imports everything, or stops at the first failure if the settings say so.
    pub(super) async fn run(self) -> Report {
        for wave in &self.plan.waves {
            let imports = futures::stream::iter(wave).map(|index| self.import_entry(*index));
            imports.buffer_unordered(limits::IMPORT_CONCURRENCY).collect::<()>().await;
        }
        if !self.settings.is_dry_run && !self.must_stop() {
            let mut incomplete = std::mem::take(&mut self.state.borrow_mut().incomplete);
            // A claim is marked as bound once its volume names it.
            incomplete.sort_by_key(|index| self.side(*index) == Some(Side::Claim));
            for index in incomplete {
                self.complete(index).await;
            }
        }
        self.state.into_inner().report
    }

    fn side(&self, index: u32) -> Option<Side> {
        let entry = self.plan.entries.get(index as usize)?;
        Side::for_resource(self.plan.resource(&entry.kind)?)
    }

    fn must_stop(&self) -> bool {
        self.settings.fails_fast && self.state.borrow().report.failures() > 0
    }

    async fn import_entry(&self, index: u32) {
        // What is under way is finished, and nothing else is begun.
        if self.must_stop() {
            return;
        }
        let Some(entry) = self.plan.entries.get(index as usize) else { return };
        let Some(resource) = self.plan.resource(&entry.kind) else { return };
        let result = self.import(index, entry, resource).await;
        let mut state = self.state.borrow_mut();
        match result {
            Ok(outcome) => state.report.finish(outcome),
            Err(Unimported(message)) => {
                state.report.fail(&entry.describe(), message);
                // Unless it was created and only its status was refused.
                if !entry.uid.is_empty() {
                    state.owners.entry(entry.uid.clone()).or_insert(OwnerState::Failed);
                }
            }
        }
    }

    async fn import(&self, index: u32, entry: &Entry, resource: &Resource) -> Result<Outcome, Unimported> {
        if self.cannot_be_checked(entry) {
            self.note_created(entry, resource, None);
            return Ok(Outcome::Unchecked);
        }
        let object = self.read(entry)?;
        let Prepared { body, status, needs_patch } = self.prepare(entry, resource, object).await?;
        let (stored, outcome) = match self.create(resource, &body).await {
            Ok(stored) => (stored, Outcome::Created),
            Err(Refusal::AlreadyExists(message)) => {
                self.resolve_conflict(entry, resource, body, message).await?
            }
            Err(refusal) => return Err(refusal.into()),
        };
        for warning in &stored.warnings {
            self.state.borrow_mut().report.warn(&entry.describe(), warning);
        }
        if !entry.uid.is_empty() {
            let uid = meta::metadata(&stored.object).str("uid").to_owned();
            self.state.borrow_mut().owners.insert(entry.uid.clone(), OwnerState::Present(uid));
        }
        if outcome == Outcome::Existing {
            return Ok(outcome);
        }
        if let Some(side) = Side::for_resource(resource) {
            self.state.borrow_mut().bindings.note_stored(side, &stored.object, outcome);
        }
        if needs_patch {
            self.state.borrow_mut().incomplete.push(index);
        }
        if outcome == Outcome::Created {
            self.note_created(entry, resource, Some(&stored.object));
        }
        if !self.settings.is_dry_run {
            if is_definition(resource) {
                self.wait_until_established(entry, resource).await?;
            } else if let Some(status) =
                status.filter(|_| self.settings.keeps_status && !has_own_status(resource))
            {
                self.write_status(entry, resource, stored.object, status).await?;
            }
        }
        Ok(outcome)
    }

    fn read(&self, entry: &Entry) -> Result<Value, Unimported> {
        self.plan.spool.read(entry.span).map_err(|error| Unimported(format!("the temporary file: {error}")))
    }

    /// In a dry run, a namespace or a kind that would be created is not there for what comes after it.
    fn cannot_be_checked(&self, entry: &Entry) -> bool {
        let state = self.state.borrow();
        let is_new_kind =
            || state.new_kinds.contains(&(entry.kind.group().to_owned(), entry.kind.kind.clone()));
        self.settings.is_dry_run && (state.new_namespaces.contains(&entry.namespace) || is_new_kind())
    }

    fn note_created(&self, entry: &Entry, resource: &Resource, definition: Option<&Value>) {
        let mut state = self.state.borrow_mut();
        if is_namespaces(resource) {
            state.new_namespaces.insert((&*entry.name).into());
        }
        if let (true, Some(spec)) =
            (is_definition(resource), definition.and_then(|object| object.get("spec")))
        {
            let kind = spec.get("names").map(|names| names.str("kind")).unwrap_or_default();
            let kind = (spec.str("group").to_owned(), kind.to_owned());
            state.unserved_kinds.insert(kind.clone());
            state.new_kinds.insert(kind);
        }
    }

    /// Frees the object of what belongs to its old cluster, and maps its owners.
    async fn prepare(
        &self,
        entry: &Entry,
        resource: &Resource,
        mut object: Value,
    ) -> Result<Prepared, Unimported> {
        self.look_up_owners(entry, &object).await?;
        let owners = map_owners(&object, |uid| self.owner_state(uid));
        for message in &owners.dropped {
            self.state.borrow_mut().report.note(&entry.describe(), message);
        }
        set_owners(&mut object, owners.references);
        let mut prepared = prepare(object, entry, resource, &|uid| self.new_uid(uid));
        prepared.needs_patch |= owners.has_pending;
        Ok(prepared)
    }

    fn owner_state(&self, uid: &str) -> OwnerState {
        let known = self.state.borrow().owners.get(uid).cloned();
        let unknown = || match self.plan.by_uid.contains_key(uid) {
            true => OwnerState::Pending,
            false => OwnerState::Absent,
        };
        known.unwrap_or_else(unknown)
    }

    fn new_uid(&self, uid: &str) -> Option<String> {
        match self.state.borrow().owners.get(uid)? {
            OwnerState::Present(uid) => Some(uid.clone()),
            _ => None,
        }
    }

    /// Finds owners that are not in the stream: they may be in the cluster, if this is the one that the stream came from.
    async fn look_up_owners(&self, entry: &Entry, object: &Value) -> Result<(), Unimported> {
        let references = meta::metadata(object).get("ownerReferences").map(Value::items).unwrap_or_default();
        for reference in references {
            let uid = reference.str("uid");
            let absent = (entry.namespace.clone(), uid.into());
            let is_known =
                |state: &State| state.owners.contains_key(uid) || state.absent_owners.contains(&absent);
            if self.plan.by_uid.contains_key(uid) || is_known(&self.state.borrow()) {
                continue;
            }
            let kind = VersionKind {
                api_version: reference.str("apiVersion").to_owned(),
                kind: reference.str("kind").to_owned(),
            };
            let Some(resource) = self.plan.resource(&kind) else { continue };
            let name = reference.str("name");
            let is_present = match self.destination.get(resource, &entry.namespace, name).await {
                Ok(owner) => meta::metadata(&owner).str("uid") == uid,
                Err(Refusal::NotFound(_)) => false,
                // It may be there: without the reference, the object would outlive it.
                Err(refusal) => {
                    let owner = describe(&resource.group, &resource.kind, "", name);
                    return Err(Unimported(format!("its owner {owner} could not be looked up: {refusal}")));
                }
            };
            let mut state = self.state.borrow_mut();
            match is_present {
                true => _ = state.owners.insert(uid.into(), OwnerState::Present(uid.to_owned())),
                false => _ = state.absent_owners.insert(absent),
            }
        }
        Ok(())
    }

    async fn create(&self, resource: &Resource, body: &Value) -> Result<Stored, Refusal> {
        let kind = (resource.group.clone(), resource.kind.clone());
        let mut waited = std::time::Duration::ZERO;
        loop {
            // As of the beginning of the attempt: its answer may arrive after that of another one that was served.
            let is_unserved = self.state.borrow().unserved_kinds.contains(&kind);
            let result = self.destination.create(resource, body).await;
            match &result {
                // A server may serve a kind a moment after it says that it is established.
                Err(Refusal::NotFound(_)) if is_unserved && waited < limits::ESTABLISH_TIMEOUT => {
                    tokio::time::sleep(limits::ESTABLISH_INTERVAL).await;
                    waited += limits::ESTABLISH_INTERVAL;
                    continue;
                }
                Err(Refusal::Other(_)) => {}
                // It is served, or it has been waited for long enough: from now on something else is missing, such as the namespace.
                _ => _ = self.state.borrow_mut().unserved_kinds.remove(&kind),
            }
            return result;
        }
    }

    /// Decides what happens to an object whose name is taken.
    async fn resolve_conflict(
        &self,
        entry: &Entry,
        resource: &Resource,
        body: Value,
        message: String,
    ) -> Result<(Stored, Outcome), Unimported> {
        // In a namespace that did not exist before, the other object was made by a controller, such as the default service account:
        // that of the stream has more to say.
        let is_new_namespace = self.state.borrow().new_namespaces.contains(&entry.namespace);
        match self.settings.on_conflict {
            ConflictPolicy::Fail if !is_new_namespace => return Err(Unimported(message)),
            ConflictPolicy::Skip if !is_new_namespace => {
                let object = self.destination.get(resource, &entry.namespace, &entry.name).await?;
                return Ok((Stored { object, warnings: Vec::new() }, Outcome::Existing));
            }
            _ => {}
        }
        let mut attempts = 0;
        loop {
            attempts += 1;
            let current = self.destination.get(resource, &entry.namespace, &entry.name).await?;
            let version = meta::metadata(&current).str("resourceVersion").to_owned();
            let mut body = body.clone();
            body.entry("metadata").set("resourceVersion", version);
            if let Some(side) = Side::for_resource(resource) {
                side.keep(&mut body, &current);
            }
            match self.destination.replace(resource, &body).await {
                Err(Refusal::Conflict(_)) if attempts < limits::IMPORT_CONFLICTS => {}
                Err(refusal) => return Err(refusal.into()),
                Ok(stored) => return Ok((stored, Outcome::Replaced)),
            }
        }
    }

    /// Writes the status of an object that was just created or replaced.
    async fn write_status(
        &self,
        entry: &Entry,
        resource: &Resource,
        mut current: Value,
        status: Value,
    ) -> Result<(), Unimported> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            if current.get("status") == Some(&status) {
                return Ok(());
            }
            current.set("status", status.clone());
            match self.destination.replace_status(resource, &current).await {
                Ok(_) => return Ok(()),
                Err(Refusal::Conflict(_)) if attempts < limits::IMPORT_CONFLICTS => {}
                Err(refusal) => {
                    return Err(Unimported(format!("it is there, but its status was refused: {refusal}")));
                }
            }
            current = self.destination.get(resource, &entry.namespace, &entry.name).await?;
        }
    }

    async fn wait_until_established(&self, entry: &Entry, resource: &Resource) -> Result<(), Unimported> {
        let mut waited = std::time::Duration::ZERO;
        loop {
            let definition = self.destination.get(resource, "", &entry.name).await?;
            let conditions =
                definition.get_path(&["status", "conditions"]).map(Value::items).unwrap_or_default();
            let condition = |name: &str| conditions.iter().find(|condition| condition.str("type") == name);
            if condition("Established").is_some_and(|condition| condition.str("status") == "True") {
                return Ok(());
            }
            if waited >= limits::ESTABLISH_TIMEOUT {
                let reason = condition("NamesAccepted").map(|condition| condition.str("message"));
                let reason = reason.unwrap_or_default();
                return Err(Unimported(format!("it was not established within {waited:?}: {reason}")));
            }
            tokio::time::sleep(limits::ESTABLISH_INTERVAL).await;
            waited += limits::ESTABLISH_INTERVAL;
        }
    }

    /// Adds what could not be known when the object was created.
    async fn complete(&self, index: u32) {
        let Some(entry) = self.plan.entries.get(index as usize) else { return };
        let Some(resource) = self.plan.resource(&entry.kind) else { return };
        let object = match self.read(entry) {
            Ok(object) => object,
            Err(Unimported(message)) => {
                return self.state.borrow_mut().report.fail(&entry.describe(), message);
            }
        };
        let mut patch = self.binding_patch(entry, resource, &object).unwrap_or_default();
        // Those that were pending are either present or failed by now.
        let owners = map_owners(&object, |uid| self.owner_state(uid));
        if !owners.references.is_empty() {
            patch.entry("metadata").set("ownerReferences", owners.references);
        }
        if patch.is_null() {
            return;
        }
        let patched = self.destination.patch(resource, &entry.namespace, &entry.name, &patch).await;
        let mut state = self.state.borrow_mut();
        match patched {
            Ok(()) if Side::for_resource(resource) == Some(Side::Volume) => {
                state.bindings.note_patched(&entry.name, &patch);
            }
            Ok(()) => {}
            Err(refusal) => {
                let message = format!("it is there, but its references could not be added: {refusal}");
                state.report.fail(&entry.describe(), message);
            }
        }
    }

    /// What binds a volume or a claim to the other one.
    fn binding_patch(&self, entry: &Entry, resource: &Resource, object: &Value) -> Option<Value> {
        let side = Side::for_resource(resource)?;
        let patch = self.state.borrow().bindings.late_patch(side, object, &|uid| self.new_uid(uid));
        patch.unwrap_or_else(|reason| {
            self.state.borrow_mut().report.note(&entry.describe(), reason);
            None
        })
    }
}

fn is_definition(resource: &Resource) -> bool {
    Phase::new(&resource.group, &resource.kind, resource.is_namespaced) == Phase::Definitions
}

/// Whether the server itself writes the status: it says what the server makes of the object.
fn has_own_status(resource: &Resource) -> bool {
    let phase = Phase::new(&resource.group, &resource.kind, resource.is_namespaced);
    phase == Phase::ApiServices || resource.group == flow_control::GROUP
}
