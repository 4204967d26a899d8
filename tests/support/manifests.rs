//! One minimal valid object of every built-in kind that is served by default.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::client::Client;
use super::compare::text;

/// A file of `tests/manifests`.
pub struct Manifest {
    pub file: PathBuf,
    pub object: Value,
}

/// A resource as discovery names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    pub group_version: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<String>,
}

impl Manifest {
    /// All of them, by file name.
    pub fn all() -> Vec<Manifest> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests");
        let mut files: Vec<PathBuf> = fs::read_dir(folder)
            .expect("the manifests")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort();
        files.into_iter().map(Manifest::read).collect()
    }

    fn read(file: PathBuf) -> Manifest {
        let bytes = fs::read(&file).expect("a manifest");
        let object =
            serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Manifest { file, object }
    }

    pub fn group_version(&self) -> &str {
        text(&self.object, "/apiVersion")
    }

    pub fn kind(&self) -> &str {
        text(&self.object, "/kind")
    }

    pub fn name(&self) -> &str {
        text(&self.object, "/metadata/name")
    }

    /// The kind and its version, for messages.
    pub fn title(&self) -> String {
        format!("{} {}", self.group_version(), self.kind())
    }

    /// The resource that discovery gives for this kind.
    pub fn resource(&self, resources: &[Resource]) -> Resource {
        let resource = resources
            .iter()
            .find(|resource| resource.group_version == self.group_version() && resource.kind == self.kind());
        resource.cloned().unwrap_or_else(|| panic!("{} is not served", self.title()))
    }
}

impl Resource {
    /// The path of the collection, in the namespace `default` for namespaced resources.
    pub fn collection(&self) -> String {
        let root = root(&self.group_version);
        let namespace = if self.namespaced { "/namespaces/default" } else { "" };
        format!("{root}{namespace}/{}", self.plural)
    }

    pub fn has(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }
}

/// The path below which a group/version is served.
pub fn root(group_version: &str) -> String {
    if group_version.contains('/') {
        format!("/apis/{group_version}")
    } else {
        format!("/api/{group_version}")
    }
}

/// Every resource of every served group/version, sub-resources left out.
pub fn discover(client: &mut Client) -> Vec<Resource> {
    let mut versions = vec!["v1".to_owned()];
    let groups = client.get("/apis").ok();
    for group in groups["groups"].as_array().expect("groups") {
        for version in group["versions"].as_array().expect("versions") {
            versions.push(text(version, "/groupVersion").to_owned());
        }
    }
    let mut resources = Vec::new();
    for group_version in versions {
        let document = client.get(&root(&group_version)).ok();
        for resource in document["resources"].as_array().expect("resources") {
            let plural = text(resource, "/name").to_owned();
            if plural.contains('/') {
                continue;
            }
            let verbs = resource["verbs"].as_array().expect("verbs");
            resources.push(Resource {
                group_version: group_version.clone(),
                plural,
                kind: text(resource, "/kind").to_owned(),
                namespaced: resource["namespaced"].as_bool().expect("namespaced"),
                verbs: verbs.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            });
        }
    }
    resources
}
