//! Imports into a destination in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;

use super::super::object_stream::resource::{Resource, describe_object, namespace};
use super::super::object_stream::{Refusal, Stored};
use super::*;

/// Objects by kind, namespace and name. Like a server with a garbage collector, it does not keep an object whose owners are not
/// there.
#[derive(Default)]
struct Memory {
    objects: RefCell<BTreeMap<String, Value>>,
    /// What was done, in order.
    actions: RefCell<Vec<String>>,
    writes: RefCell<i64>,
    reads: RefCell<i64>,
    /// Objects that are refused.
    refused: Vec<&'static str>,
    /// Objects that cannot be read or patched.
    inaccessible: Vec<&'static str>,
    /// How often custom objects are created before their kind is served.
    unserved_creates: Cell<u32>,
    /// A namespace that does not exist.
    missing_namespace: &'static str,
    /// An object that appears with each new namespace.
    with_namespace: Option<&'static str>,
}

fn resource(group: &str, name: &str, kind: &str, is_namespaced: bool) -> Resource {
    Resource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        name: name.to_owned(),
        kind: kind.to_owned(),
        is_namespaced,
        has_status: true,
        is_aggregated: false,
    }
}

impl Memory {
    fn with_objects(text: &str) -> Memory {
        let memory = Memory::default();
        for document in text.split("\n") {
            memory.insert(yaml::read(document.as_bytes()).unwrap());
        }
        memory
    }

    fn insert(&self, mut object: Value) -> Value {
        *self.writes.borrow_mut() += 1;
        let number = *self.writes.borrow();
        let metadata = object.entry("metadata");
        metadata.set("resourceVersion", number.to_string());
        if metadata.str("uid").is_empty() {
            metadata.set("uid", format!("new-{number}"));
        }
        self.objects.borrow_mut().insert(describe_object(&object), object.clone());
        object
    }

    fn note(&self, action: &str, object: &Value) {
        self.actions.borrow_mut().push(format!("{action} {}", describe_object(object)));
    }

    fn actions(&self) -> Vec<String> {
        self.actions.borrow().clone()
    }

    fn object(&self, name: &str) -> Value {
        let objects = self.objects.borrow();
        objects.get(name).unwrap_or_else(|| panic!("no {name} among {:?}", objects.keys())).clone()
    }

    fn check_owners(&self, object: &Value) -> Result<(), Refusal> {
        let owners = meta::metadata(object).get("ownerReferences").map(Value::items).unwrap_or_default();
        let objects = self.objects.borrow();
        let is_there = |owner: &Value| {
            objects.values().any(|object| meta::metadata(object).str("uid") == owner.str("uid"))
        };
        match owners.iter().all(is_there) {
            true => Ok(()),
            false => Err(Refusal::Other("collected as garbage".to_owned())),
        }
    }
}

impl Destination for Memory {
    async fn resources(&self) -> Result<Vec<Resource>, String> {
        Ok(vec![
            resource("", "namespaces", "Namespace", false),
            resource("", "configmaps", "ConfigMap", true),
            resource("", "serviceaccounts", "ServiceAccount", true),
            resource("", "persistentvolumes", "PersistentVolume", false),
            resource("", "persistentvolumeclaims", "PersistentVolumeClaim", true),
            resource("apps", "deployments", "Deployment", true),
            resource("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", false),
        ])
    }

    async fn create(&self, _: &Resource, object: &Value) -> Result<Stored, Refusal> {
        let name = describe_object(object);
        self.note("create", object);
        if self.refused.contains(&name.as_str()) {
            return Err(Refusal::Other("refused".to_owned()));
        }
        let unserved = self.unserved_creates.get();
        if object.str("apiVersion") == "example.com/v1" && unserved > 0 {
            self.unserved_creates.set(unserved - 1);
            return Err(Refusal::NotFound("not served".to_owned()));
        }
        if !self.missing_namespace.is_empty() && namespace(object) == self.missing_namespace {
            return Err(Refusal::NotFound("no such namespace".to_owned()));
        }
        if self.objects.borrow().contains_key(&name) {
            return Err(Refusal::AlreadyExists(format!("{name} exists")));
        }
        self.check_owners(object)?;
        let mut object = object.clone();
        match object.str("kind") {
            "CustomResourceDefinition" => {
                let conditions = yaml::read(b"[{type: Established, status: 'True'}]").unwrap();
                object.entry("status").set("conditions", conditions);
            }
            "Namespace" => {
                if let Some(text) = self.with_namespace {
                    self.insert(yaml::read(text.as_bytes()).unwrap());
                }
            }
            _ => {}
        }
        Ok(Stored { object: self.insert(object), warnings: vec!["careful".to_owned()] })
    }

    async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Value, Refusal> {
        let namespace = if resource.is_namespaced { namespace } else { "" };
        let name =
            super::super::object_stream::resource::describe(&resource.group, &resource.kind, namespace, name);
        *self.reads.borrow_mut() += 1;
        if self.inaccessible.contains(&name.as_str()) {
            return Err(Refusal::Other("forbidden".to_owned()));
        }
        self.objects.borrow().get(&name).cloned().ok_or_else(|| Refusal::NotFound(format!("no {name}")))
    }

    async fn replace(&self, resource: &Resource, object: &Value) -> Result<Stored, Refusal> {
        self.note("replace", object);
        let current = self.get(resource, namespace(object), meta::name(object)).await?;
        let mut object = object.clone();
        object.entry("metadata").set("uid", meta::metadata(&current).str("uid"));
        Ok(Stored { object: self.insert(object), warnings: Vec::new() })
    }

    async fn replace_status(&self, _: &Resource, object: &Value) -> Result<Stored, Refusal> {
        self.note("status", object);
        Ok(Stored { object: self.insert(object.clone()), warnings: Vec::new() })
    }

    async fn patch(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<(), Refusal> {
        let mut object = self.get(resource, namespace, name).await?;
        self.note("patch", &object);
        for (field, value) in patch.get("metadata").and_then(Value::fields).into_iter().flatten() {
            object.entry("metadata").set(field, value.clone());
        }
        if let Some(uid) = patch.get_path(&["spec", "claimRef", "uid"]) {
            object.entry("spec").entry("claimRef").set("uid", uid.clone());
        }
        self.check_owners(&object)?;
        self.insert(object);
        Ok(())
    }
}

/// Imports a stream, and returns the lines of the report.
fn import(memory: &Memory, flags: &[&str], stream: &str) -> Vec<String> {
    let options = Options::try_parse_from(flags).unwrap_or_else(|error| panic!("{error}"));
    let mut report = Report::new(options.dry_run);
    let intake = options.read(stream.as_bytes(), &mut report).unwrap();
    run_until_interrupted(options.import(memory, intake, report)).unwrap().lines
}

const CHAIN: &str = "kind: ConfigMap
apiVersion: v1
metadata: {name: leaf, namespace: ns, uid: old-leaf, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: root, uid: old-root}]}
---
kind: Deployment
apiVersion: apps/v1
metadata: {name: root, namespace: ns, uid: old-root}
status: {replicas: 1}
---
kind: Namespace
apiVersion: v1
metadata: {name: ns, uid: old-n}
";

#[test]
fn owners_and_namespaces_are_created_first() {
    let memory = Memory::default();
    let lines = import(&memory, &[], CHAIN);
    assert_eq!(
        memory.actions(),
        [
            "create Namespace ns",
            "create Deployment.apps ns/root",
            "status Deployment.apps ns/root",
            "create ConfigMap ns/leaf"
        ]
    );
    let root = memory.object("Deployment.apps ns/root");
    let leaf = memory.object("ConfigMap ns/leaf");
    let owner = &meta::metadata(&leaf).get("ownerReferences").unwrap().items()[0];
    assert_eq!(owner.str("uid"), meta::metadata(&root).str("uid"));
    assert_eq!(root.get_path(&["status", "replicas"]), Some(&Value::Int(1)));
    let warned = lines.iter().filter(|line| line.contains("careful")).count();
    assert_eq!((warned, lines.last().unwrap().as_str()), (1, "2 further warnings like these"));
    assert!(lines.contains(&"3 objects created, 0 failed".to_owned()), "{lines:?}");
}

#[test]
fn owners_in_a_circle_are_added_in_the_end() {
    let stream = "{kind: ConfigMap, apiVersion: v1, metadata: {name: a, namespace: default, uid: a, ownerReferences: [{kind: ConfigMap, apiVersion: v1, name: b, uid: b}]}}
---
{kind: ConfigMap, apiVersion: v1, metadata: {name: b, namespace: default, uid: b, ownerReferences: [{kind: ConfigMap, apiVersion: v1, name: a, uid: a}]}}
";
    let memory = Memory::default();
    let stream = format!("# circle\n---\n{stream}");
    let lines = import(&memory, &[], &stream);
    assert_eq!(memory.actions().iter().filter(|action| action.starts_with("patch")).count(), 1, "{lines:?}");
    for name in ["ConfigMap default/a", "ConfigMap default/b"] {
        assert!(meta::metadata(&memory.object(name)).get("ownerReferences").is_some(), "{name}");
    }
}

#[test]
fn missing_owners_are_dropped_and_reported() {
    let stream = "kind: ConfigMap
apiVersion: v1
metadata:
  name: a
  namespace: default
  ownerReferences:
  - {kind: Deployment, apiVersion: apps/v1, name: here, uid: same}
  - {kind: Deployment, apiVersion: apps/v1, name: other, uid: gone}
";
    let memory = Memory::with_objects(
        "{kind: Deployment, apiVersion: apps/v1, metadata: {name: here, namespace: default, uid: same}}
{kind: Deployment, apiVersion: apps/v1, metadata: {name: other, namespace: default, uid: another}}",
    );
    let lines = import(&memory, &[], stream);
    assert_eq!(
        lines[0],
        "note: ConfigMap default/a: its owner Deployment.apps other is neither in the stream nor in the cluster: the reference \
         was dropped"
    );
    let object = memory.object("ConfigMap default/a");
    assert_eq!(meta::metadata(&object).get("ownerReferences").unwrap().items().len(), 1);
}

#[test]
fn owners_are_looked_up_once_and_only_missing_ones_are_dropped() {
    let object = |name: &str, owner: &str| {
        format!(
            "---\n{{kind: ConfigMap, apiVersion: v1, metadata: {{name: {name}, namespace: default, \
             ownerReferences: [{{kind: Deployment, apiVersion: apps/v1, name: {owner}, uid: {owner}}}]}}}}\n"
        )
    };
    let stream = [object("a", "gone"), object("b", "gone"), object("c", "secret")].concat();
    let memory = Memory { inaccessible: vec!["Deployment.apps default/secret"], ..Memory::default() };
    let lines = import(&memory, &[], &stream);
    assert_eq!(memory.actions(), ["create ConfigMap default/a", "create ConfigMap default/b"]);
    assert_eq!(*memory.reads.borrow(), 2);
    let failure =
        "failed: ConfigMap default/c: its owner Deployment.apps secret could not be looked up: forbidden";
    assert!(lines.contains(&failure.to_owned()), "{lines:?}");
}

#[test]
fn failed_owner_does_not_take_its_dependents_along() {
    let memory = Memory { refused: vec!["Deployment.apps ns/root"], ..Memory::default() };
    let lines = import(&memory, &[], CHAIN);
    assert!(lines.contains(&"failed: Deployment.apps ns/root: refused".to_owned()), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("Deployment.apps root was not imported")), "{lines:?}");
    assert!(memory.object("ConfigMap ns/leaf").get_path(&["metadata", "ownerReferences"]).is_none());
    let memory = Memory { refused: vec!["Deployment.apps ns/root"], ..Memory::default() };
    import(&memory, &["--fail-fast"], CHAIN);
    assert!(!memory.objects.borrow().contains_key("ConfigMap ns/leaf"));
}

#[test]
fn taken_names_are_skipped_replaced_or_refused() {
    let stream =
        "{kind: ConfigMap, apiVersion: v1, metadata: {name: a, namespace: default}, data: {new: x}}\n";
    let stream = format!("---\n{stream}");
    for (policy, action, line, is_new) in [
        ("skip", "create", "0 objects created, 1 existed and stay as they are, 0 failed", false),
        ("replace", "replace", "0 objects created, 1 replaced, 0 failed", true),
        ("fail", "create", "failed: ConfigMap default/a: ConfigMap default/a exists", false),
    ] {
        let memory = Memory::with_objects(
            "{kind: ConfigMap, apiVersion: v1, metadata: {name: a, namespace: default, uid: u}}",
        );
        let lines = import(&memory, &["--on-conflict", policy], &stream);
        assert!(lines.contains(&line.to_owned()), "{lines:?}");
        assert!(memory.actions().last().unwrap().starts_with(action), "{:?}", memory.actions());
        let object = memory.object("ConfigMap default/a");
        assert_eq!(object.get("data").is_some(), is_new, "{policy}");
        assert_eq!(meta::metadata(&object).str("uid"), "u");
    }
}

#[test]
fn objects_of_controllers_in_new_namespaces_are_replaced() {
    let account = "{kind: ServiceAccount, apiVersion: v1, metadata: {name: default, namespace: ns}}";
    let memory = Memory { with_namespace: Some(account), ..Memory::default() };
    let stream = "---
{kind: Namespace, apiVersion: v1, metadata: {name: ns}}
---
{kind: ServiceAccount, apiVersion: v1, metadata: {name: default, namespace: ns}, imagePullSecrets: [{name: s}]}
";
    let lines = import(&memory, &[], stream);
    assert!(lines.contains(&"1 object created, 1 replaced, 0 failed".to_owned()), "{lines:?}");
    assert!(memory.object("ServiceAccount ns/default").get("imagePullSecrets").is_some());
}

#[test]
fn custom_resources_come_after_their_definition() {
    let stream = "---
{kind: Ship, apiVersion: example.com/v1, metadata: {name: a}}
---
kind: CustomResourceDefinition
apiVersion: apiextensions.k8s.io/v1
metadata: {name: ships.example.com}
spec: {group: example.com, scope: Namespaced, names: {plural: ships, kind: Ship}, versions: [{name: v1, served: true}]}
---
{kind: Boat, apiVersion: example.com/v1, metadata: {name: a}}
";
    let memory = Memory::default();
    let lines = import(&memory, &[], stream);
    assert_eq!(
        memory.actions(),
        [
            "create CustomResourceDefinition.apiextensions.k8s.io ships.example.com",
            "create Ship.example.com default/a"
        ]
    );
    assert_eq!(
        lines[0],
        "failed: Boat.example.com a: no kind \"Boat\" in version \"example.com/v1\": it is neither served nor defined in the stream"
    );
}

#[test]
fn new_kind_is_waited_for_and_missing_namespaces_are_not() {
    let stream = "---
kind: CustomResourceDefinition
apiVersion: apiextensions.k8s.io/v1
metadata: {name: ships.example.com}
spec: {group: example.com, scope: Namespaced, names: {plural: ships, kind: Ship}, versions: [{name: v1, served: true}]}
---
{kind: Ship, apiVersion: example.com/v1, metadata: {name: a, namespace: default}}
---
{kind: Ship, apiVersion: example.com/v1, metadata: {name: b, namespace: missing}}
";
    let memory = Memory { unserved_creates: Cell::new(1), missing_namespace: "missing", ..Memory::default() };
    let lines = import(&memory, &[], stream);
    let actions = memory.actions();
    let attempts = actions.iter().filter(|action| action.starts_with("create Ship")).count();
    // One for each, one more after the kind is served, and one that began before that was known.
    assert!(attempts <= 4, "{actions:?}");
    assert!(memory.objects.borrow().contains_key("Ship.example.com default/a"));
    assert!(lines.contains(&"failed: Ship.example.com missing/b: no such namespace".to_owned()), "{lines:?}");
}

#[test]
fn dry_run_checks_what_can_be_checked() {
    let memory = Memory::default();
    let lines = import(&memory, &["--dry-run"], CHAIN);
    let summary = "1 object would be created, 2 not checked, because their namespace or kind would be created first, 0 failed";
    assert!(lines.contains(&summary.to_owned()), "{lines:?}");
    assert_eq!(memory.actions(), ["create Namespace ns"]);
}

#[test]
fn volumes_are_bound_to_the_new_claims() {
    let stream = "---
{kind: PersistentVolume, apiVersion: v1, metadata: {name: v}, spec: {claimRef: {name: c, namespace: default, uid: old}}}
---
{kind: PersistentVolumeClaim, apiVersion: v1, metadata: {name: c, namespace: default, uid: old}, spec: {volumeName: v}}
";
    let memory = Memory::default();
    import(&memory, &[], stream);
    let (volume, claim) =
        (memory.object("PersistentVolume v"), memory.object("PersistentVolumeClaim default/c"));
    let uid = volume.get_path(&["spec", "claimRef", "uid"]).and_then(Value::as_str);
    assert_eq!(uid, Some(meta::metadata(&claim).str("uid")));
}

const BINDING: &str = "---
{kind: PersistentVolumeClaim, apiVersion: v1, metadata: {name: c, namespace: default, uid: old, annotations: {pv.kubernetes.io/bind-completed: 'yes'}}, spec: {volumeName: v}}
---
{kind: PersistentVolume, apiVersion: v1, metadata: {name: v, uid: old-v}, spec: {claimRef: {name: c, namespace: default, uid: old}}}
";

fn is_marked_as_bound(memory: &Memory) -> bool {
    let claim = memory.object("PersistentVolumeClaim default/c");
    claim.get_path(&["metadata", "annotations", "pv.kubernetes.io/bind-completed"]).is_some()
}

#[test]
fn claims_are_marked_as_bound_only_with_their_volumes() {
    let memory = Memory::default();
    let lines = import(&memory, &[], BINDING);
    assert!(is_marked_as_bound(&memory), "{lines:?}");
    for memory in [
        Memory { refused: vec!["PersistentVolume v"], ..Memory::default() },
        Memory { inaccessible: vec!["PersistentVolume v"], ..Memory::default() },
    ] {
        let lines = import(&memory, &[], BINDING);
        assert!(!is_marked_as_bound(&memory), "{lines:?}");
        let note = "note: PersistentVolumeClaim default/c: its volume v was not imported, or not bound to it: it is not marked \
                    as bound";
        assert!(lines.contains(&note.to_owned()), "{lines:?}");
    }
}

#[test]
fn replaced_volumes_and_claims_stay_bound() {
    let memory = Memory::with_objects(
        "{kind: PersistentVolumeClaim, apiVersion: v1, metadata: {name: c, namespace: default, uid: live, annotations: {pv.kubernetes.io/bind-completed: 'yes'}}, spec: {volumeName: v}}
{kind: PersistentVolume, apiVersion: v1, metadata: {name: v, uid: live-v}, spec: {claimRef: {name: c, namespace: default, uid: live}}}",
    );
    let lines = import(&memory, &["--on-conflict=replace"], BINDING);
    assert!(lines.contains(&"0 objects created, 2 replaced, 0 failed".to_owned()), "{lines:?}");
    assert!(memory.actions().iter().all(|action| !action.starts_with("patch")), "{:?}", memory.actions());
    let volume = memory.object("PersistentVolume v");
    assert_eq!(volume.get_path(&["spec", "claimRef", "uid"]).and_then(Value::as_str), Some("live"));
    assert!(is_marked_as_bound(&memory));
}

#[test]
fn selection_and_objects_of_the_cluster_are_left_out() {
    let stream = "---
{kind: ConfigMap, apiVersion: v1, metadata: {name: kube-root-ca.crt, namespace: ns}}
---
{kind: ConfigMap, apiVersion: v1, metadata: {name: b, namespace: ns, deletionTimestamp: x}}
---
{kind: ConfigMap, apiVersion: v1, metadata: {name: c, namespace: m}}
---
{kind: Deployment, apiVersion: apps/v1, metadata: {name: d, namespace: ns}}
---
{kind: ConfigMap, apiVersion: v1, metadata: {name: e, namespace: ns}}
";
    let memory = Memory::default();
    let lines = import(&memory, &["--resource=configmaps", "-n", "ns"], stream);
    assert_eq!(memory.actions(), ["create ConfigMap ns/e"]);
    assert!(lines.contains(&"left out 1 object: the CA of a cluster".to_owned()), "{lines:?}");
    assert!(
        lines.contains(&"left out 1 object: being deleted when they were exported".to_owned()),
        "{lines:?}"
    );
}

#[test]
fn selected_default_namespace_has_the_objects_that_name_none() {
    let stream = "---
{kind: ConfigMap, apiVersion: v1, metadata: {name: a}}
---
{kind: ConfigMap, apiVersion: v1, metadata: {name: b, namespace: default}}
---
{kind: ConfigMap, apiVersion: v1, metadata: {name: c, namespace: ns}}
---
{kind: Namespace, apiVersion: v1, metadata: {name: ns}}
---
{kind: PersistentVolume, apiVersion: v1, metadata: {name: default}}
";
    let memory = Memory::default();
    let lines = import(&memory, &["-n", "default"], stream);
    assert_eq!(memory.actions(), ["create ConfigMap default/a", "create ConfigMap default/b"], "{lines:?}");
    let memory = Memory::default();
    import(&memory, &["-n", "ns"], stream);
    assert_eq!(memory.actions(), ["create Namespace ns", "create ConfigMap ns/c"]);
}

#[test]
fn misspelled_resource_is_refused() {
    let options = Options::try_parse_from(["--exclude-resource=secretz"]).unwrap();
    let mut report = Report::new(false);
    let intake = options.read(CHAIN.as_bytes(), &mut report).unwrap();
    let memory = Memory::default();
    let error = run_until_interrupted(options.import(&memory, intake, report)).err();
    assert_eq!(error.as_deref(), Some("no resource of the server or the stream is secretz"));
    assert!(memory.actions().is_empty());
}

#[test]
fn malformed_input_is_reported_and_the_rest_imported() {
    let memory = Memory::default();
    let good = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default"}}"#;
    let lines = import(&memory, &[], &format!("{good}\n{{\"kind\":\n"));
    assert!(lines[0].starts_with("failed: input: line 2: not JSON"), "{lines:?}");
    assert_eq!(memory.actions(), ["create ConfigMap default/a"]);
    let memory = Memory::default();
    import(&memory, &["--fail-fast"], &format!("{good}\n{{\"kind\":\n"));
    assert!(memory.actions().is_empty());
}
