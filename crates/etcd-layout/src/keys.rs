//! The etcd key of each object, and the object of each etcd key.
//!
//! A key is the prefix, the folder of the resource, and the key of the object: `/registry/pods/default/web`. A folder has one segment
//! (`pods`) or two (`services/specs`, `toys.example/kites`). So a key is found by at most two lookups of whole segments, however many
//! types there are, and a folder whose text begins like another one (`ingress`, `ingressclasses`) is no special case.

use std::collections::HashMap;
use std::sync::Arc;

use pilothouse_api::catalog::build::Builtin;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom::definition::{group_resource_of_store, is_custom};
use pilothouse_apimachinery::status::storage_folder;
use pilothouse_types::object::{Key, TypeName};

use crate::limits::KEY_BYTES;
use crate::prefix::EtcdPrefix;

/// The key by which servers take turns at compacting etcd. It is not below the prefix: all clusters in one etcd share it.
pub const COMPACTION_KEY: &str = "compact_rev_key";

/// The folders of records that are no objects of the API, below the prefix.
mod folder {
    pub const SERVICE_IPS: &str = "ranges/serviceips";
    pub const SECONDARY_SERVICE_IPS: &str = "ranges/secondaryserviceips";
    pub const NODE_PORTS: &str = "ranges/servicenodeports";
    pub const ENDPOINT_LEASES: &str = "masterleases";
    pub const PEER_ENDPOINT_LEASES: &str = "peerserverleases";
    /// Of this server alone: the reference knows nothing of it.
    pub const UNFINISHED_COPY: &str = "pilothouse/copy";
}

/// A record that servers share and that is no object of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The allocated cluster IPs of the first range, as releases before 1.33 keep them.
    ServiceIps,
    /// The allocated cluster IPs of the second range.
    SecondaryServiceIps,
    /// The allocated node ports.
    NodePorts,
    /// That a server with this address is alive: the endpoints of the Service `kubernetes`.
    EndpointLease(String),
    /// The address at which other servers reach the server with this id.
    PeerEndpointLease(String),
    /// The turn of the compaction.
    Compaction,
    /// That the objects are those of a copy that is not finished.
    UnfinishedCopy,
}

/// What an etcd key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// An object.
    Object(TypeName, Key),
    /// A record.
    Record(Record),
}

/// The types whose keys are known. Cheap to clone, so that a changed copy can replace one that others still read.
#[derive(Clone, Debug)]
pub struct KeyLayout {
    prefix: EtcdPrefix,
    by_type: HashMap<TypeName, Arc<TypeFolder>>,
    by_folder: HashMap<Arc<str>, Arc<TypeFolder>>,
}

/// Where the objects of a type are.
#[derive(Debug)]
struct TypeFolder {
    type_name: TypeName,
    /// Below the prefix, without slashes at its ends.
    folder: Arc<str>,
    namespaced: bool,
}

impl KeyLayout {
    /// The keys of all built-in types.
    pub fn new(prefix: EtcdPrefix, builtin: &Builtin) -> KeyLayout {
        let mut layout = KeyLayout { prefix, by_type: HashMap::new(), by_folder: HashMap::new() };
        for resource in builtin.resources() {
            layout.add(resource);
        }
        layout
    }

    /// Adds a type: a resource of any of its versions will do. Returns false if nothing is stored for it, or if its keys could be
    /// those of another type: a definition must not get at the objects of a built-in type. The group of a valid definition has a dot,
    /// and the first segment of a built-in folder has none, or is a group.
    pub fn add(&mut self, resource: &Resource) -> bool {
        let Some(stored) = resource.stored() else { return false };
        let folder: Arc<str> = type_folder(&stored.store).into();
        if is_custom(&stored.store) && !resource.gv.group.contains('.') {
            return false;
        }
        if let Some(other) = self.by_folder.get(&folder)
            && other.type_name != stored.store
        {
            return false;
        }
        self.remove(&stored.store);
        let entry = Arc::new(TypeFolder {
            type_name: stored.store.clone(),
            folder: folder.clone(),
            namespaced: resource.namespaced,
        });
        self.by_folder.insert(folder, entry.clone());
        self.by_type.insert(stored.store.clone(), entry);
        true
    }

    /// Removes a type, whose keys are foreign from now on.
    pub fn remove(&mut self, type_name: &TypeName) {
        if let Some(entry) = self.by_type.remove(type_name) {
            self.by_folder.remove(&entry.folder);
        }
    }

    /// The prefix of all keys.
    pub fn prefix(&self) -> &EtcdPrefix {
        &self.prefix
    }

    /// What the etcd keys of all objects of a type begin with, with a slash at the end.
    pub fn type_prefix(&self, type_name: &TypeName) -> Option<String> {
        let entry = self.by_type.get(type_name)?;
        Some(format!("{}{}/", self.prefix, entry.folder))
    }

    /// The etcd key of an object; `None` if its type is unknown, or the key is not of the type's scope. It is also the associated
    /// data of an encrypted value, so a value under another key cannot be decrypted.
    pub fn object_key(&self, type_name: &TypeName, key: &Key) -> Option<String> {
        let entry = self.by_type.get(type_name)?;
        is_object_key(key.as_str(), entry.namespaced)
            .then(|| format!("{}{}/{}", self.prefix, entry.folder, key.as_str()))
    }

    /// The etcd key of a record.
    pub fn record_key(&self, record: &Record) -> String {
        let (folder, name) = match record {
            Record::Compaction => return COMPACTION_KEY.to_owned(),
            Record::ServiceIps => (folder::SERVICE_IPS, None),
            Record::SecondaryServiceIps => (folder::SECONDARY_SERVICE_IPS, None),
            Record::NodePorts => (folder::NODE_PORTS, None),
            Record::UnfinishedCopy => (folder::UNFINISHED_COPY, None),
            Record::EndpointLease(address) => (folder::ENDPOINT_LEASES, Some(address)),
            Record::PeerEndpointLease(server) => (folder::PEER_ENDPOINT_LEASES, Some(server)),
        };
        match name {
            None => format!("{}{folder}", self.prefix),
            Some(name) => format!("{}{folder}/{name}", self.prefix),
        }
    }

    /// What the keys of the endpoint leases begin with.
    pub fn endpoint_leases_prefix(&self) -> String {
        format!("{}{}/", self.prefix, folder::ENDPOINT_LEASES)
    }

    /// What the keys of the peer endpoint leases begin with.
    pub fn peer_endpoint_leases_prefix(&self) -> String {
        format!("{}{}/", self.prefix, folder::PEER_ENDPOINT_LEASES)
    }

    /// What an etcd key stands for; `None` for keys of other programs and of unknown types.
    pub fn locate(&self, etcd_key: &[u8]) -> Option<Location> {
        if etcd_key.len() > KEY_BYTES {
            return None;
        }
        if etcd_key == COMPACTION_KEY.as_bytes() {
            return Some(Location::Record(Record::Compaction));
        }
        let below = etcd_key.strip_prefix(self.prefix.as_str().as_bytes())?;
        let below = std::str::from_utf8(below).ok()?;
        self.object_at(below).or_else(|| record_at(below).map(Location::Record))
    }

    fn object_at(&self, below: &str) -> Option<Location> {
        let mut slashes = memchr::memchr_iter(b'/', below.as_bytes());
        let (first, second) = (slashes.next()?, slashes.next());
        // The longer folder first: a shorter one must not take its keys.
        [second, Some(first)].into_iter().flatten().find_map(|end| {
            let (folder, rest) = (below.get(..end)?, below.get(end + 1..)?);
            let entry = self.by_folder.get(folder)?;
            is_object_key(rest, entry.namespaced)
                .then(|| Location::Object(entry.type_name.clone(), Key::from_path(rest)))
        })
    }
}

/// The record with this key below the prefix.
fn record_at(below: &str) -> Option<Record> {
    match below {
        folder::SERVICE_IPS => return Some(Record::ServiceIps),
        folder::SECONDARY_SERVICE_IPS => return Some(Record::SecondaryServiceIps),
        folder::NODE_PORTS => return Some(Record::NodePorts),
        folder::UNFINISHED_COPY => return Some(Record::UnfinishedCopy),
        _ => {}
    }
    let (folder, name) = below.split_once('/')?;
    if !is_segment(name) {
        return None;
    }
    match folder {
        folder::ENDPOINT_LEASES => Some(Record::EndpointLease(name.to_owned())),
        folder::PEER_ENDPOINT_LEASES => Some(Record::PeerEndpointLease(name.to_owned())),
        _ => None,
    }
}

/// The folder of a type below the prefix. Built-in resources have their plural or a name of old; those of other API servers inside
/// the reference, and custom resources, have their group and plural.
fn type_folder(type_name: &TypeName) -> String {
    let resource = group_resource_of_store(type_name);
    match is_custom(type_name) {
        true => format!("{}/{}", resource.group, resource.resource),
        false => storage_folder(resource).to_owned(),
    }
}

/// Whether a text can be the key of an object of this scope. The reference refuses segments that a path would resolve.
fn is_object_key(key: &str, namespaced: bool) -> bool {
    match (key.split_once('/'), namespaced) {
        (Some((namespace, name)), true) => is_segment(namespace) && is_segment(name),
        (None, false) => is_segment(key),
        _ => false,
    }
}

fn is_segment(text: &str) -> bool {
    !matches!(text, "" | "." | "..") && !text.contains('/')
}

#[cfg(test)]
mod tests;
