//! Finds the resource of every object, and the order in which they are created.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use pilothouse_apimachinery::well_known::NAMESPACES;

use super::intake::{DEFAULT_NAMESPACE, Entry, Intake, VersionKind};
use super::report::Report;
use crate::commands::object_stream::order::{Node, Phase, waves};
use crate::commands::object_stream::resource::Resource;
use crate::commands::object_stream::selection::Selection;
use crate::commands::object_stream::spool::Spool;

/// What is to be done.
pub(super) struct Plan {
    /// The objects.
    pub spool: Spool,
    /// The selected objects of known resources.
    pub entries: Vec<Entry>,
    /// Indexes of entries, in groups that can be created one after the other.
    pub waves: Vec<Vec<u32>>,
    /// The index of each entry that has a UID.
    pub by_uid: HashMap<Box<str>, u32>,
    resources: ResourceTable,
}

impl Plan {
    /// Plans the import of these objects into a place with these resources. Objects of others are reported.
    pub(super) fn new(
        intake: Intake,
        resources: Vec<Resource>,
        selection: &Selection,
        report: &mut Report,
    ) -> Plan {
        let Intake { spool, entries, definitions } = intake;
        let defined = definitions.iter().flat_map(|(_, resources)| resources).cloned();
        let resources = ResourceTable::new(resources.into_iter().chain(defined));
        let mut definition_of: BTreeMap<(String, String), Box<str>> = BTreeMap::new();
        for (index, defined) in &definitions {
            if let (Some(entry), Some(first)) = (entries.get(*index as usize), defined.first()) {
                definition_of.insert((first.group.clone(), first.kind.clone()), entry.name.clone());
            }
        }
        let entries = select(entries, &resources, selection, report);
        let nodes = nodes(&entries, &resources, &definition_of);
        let waves = waves(&nodes);
        let by_uid = by_uid(&entries);
        Plan { spool, entries, waves, by_uid, resources }
    }

    /// The resource of a kind.
    pub(super) fn resource(&self, kind: &VersionKind) -> Option<&Resource> {
        self.resources.get(kind)
    }
}

/// Resources by version and kind.
struct ResourceTable(HashMap<VersionKind, Resource>);

impl ResourceTable {
    /// The first of several counts: what the destination says about itself comes before what the stream defines.
    fn new(resources: impl Iterator<Item = Resource>) -> ResourceTable {
        let mut table = HashMap::new();
        for resource in resources {
            let kind = VersionKind { api_version: resource.api_version(), kind: resource.kind.clone() };
            table.entry(kind).or_insert(resource);
        }
        ResourceTable(table)
    }

    fn get(&self, kind: &VersionKind) -> Option<&Resource> {
        self.0.get(kind)
    }
}

/// The entries whose resources are known and selected.
fn select(
    entries: Vec<Entry>,
    resources: &ResourceTable,
    selection: &Selection,
    report: &mut Report,
) -> Vec<Entry> {
    let (no_namespace, default_namespace) = (Rc::<str>::from(""), Rc::<str>::from(DEFAULT_NAMESPACE));
    let mut selected = Vec::with_capacity(entries.len());
    for mut entry in entries {
        let Some(resource) = resources.get(&entry.kind) else {
            let message = format!(
                "no kind \"{}\" in version \"{}\": it is neither served nor defined in the stream",
                entry.kind.kind, entry.kind.api_version
            );
            report.fail(&entry.describe(), message);
            continue;
        };
        if !selection.includes_resource(resource) {
            continue;
        }
        match (resource.is_namespaced, entry.namespace.is_empty()) {
            (true, true) => entry.namespace = default_namespace.clone(),
            (false, false) => entry.namespace = no_namespace.clone(),
            _ => {}
        }
        let namespace = if is_namespaces(resource) { &*entry.name } else { &*entry.namespace };
        if selection.includes_namespace(namespace) {
            selected.push(entry);
        }
    }
    selected
}

fn by_uid(entries: &[Entry]) -> HashMap<Box<str>, u32> {
    let with_uid = entries.iter().enumerate().filter(|(_, entry)| !entry.uid.is_empty());
    with_uid.map(|(index, entry)| (entry.uid.clone(), index as u32)).collect()
}

/// The phase and the needs of every entry.
fn nodes(
    entries: &[Entry],
    resources: &ResourceTable,
    definition_of: &BTreeMap<(String, String), Box<str>>,
) -> Vec<Node> {
    let by_uid = by_uid(entries);
    let (mut namespaces, mut definitions) = (HashMap::new(), HashMap::new());
    for (index, entry) in entries.iter().enumerate() {
        match Phase::new(entry.kind.group(), &entry.kind.kind, false) {
            Phase::Namespaces => _ = namespaces.insert(&*entry.name, index as u32),
            Phase::Definitions => _ = definitions.insert(&*entry.name, index as u32),
            _ => {}
        }
    }
    let mut definition_by_kind: HashMap<&VersionKind, Option<u32>> = HashMap::new();
    let mut nodes = Vec::with_capacity(entries.len());
    for entry in entries {
        let resource = resources.get(&entry.kind);
        let is_namespaced = resource.is_some_and(|resource| resource.is_namespaced);
        let definition = *definition_by_kind.entry(&entry.kind).or_insert_with(|| {
            let kind = (entry.kind.group().to_owned(), entry.kind.kind.clone());
            definitions.get(&**definition_of.get(&kind)?).copied()
        });
        let namespace = namespaces.get(&*entry.namespace).copied();
        let owners = entry.owners.iter().filter_map(|owner| by_uid.get(owner).copied());
        nodes.push(Node {
            phase: Phase::new(entry.kind.group(), &entry.kind.kind, is_namespaced),
            needs: owners.chain(namespace).chain(definition).collect(),
        });
    }
    nodes
}

/// Whether this is the resource of namespaces.
pub(super) fn is_namespaces(resource: &Resource) -> bool {
    resource.is("", NAMESPACES)
}
