//! The Node authorizer: a kubelet has the rights of the node role, but only on objects that its own node uses.

use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authorizer::Policy;
use pilothouse_api::bootstrap::roles;
use pilothouse_api::gates::{
    AUTHORIZE_NODE_WITH_SELECTORS, KUBELET_SERVICE_ACCOUNT_TOKEN_FOR_CREDENTIAL_PROVIDERS,
};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::well_known::{LEASE_NAMESPACE, NODE_PREFIX, NODES};
use pilothouse_authorization::node_graph::{Graph, PodDependency};
use pilothouse_authorization::rbac::role::Role;
use pilothouse_authorization::rbac::rule::{PreparedAction, rules_of};
use pilothouse_types::authorization::{Action, Decision, ExplainedDecision, Grants, Selection, Target};
use pilothouse_types::error::StoreError;
use pilothouse_types::filter::FieldRule;
use pilothouse_types::identity::Identity;
use pilothouse_types::object::Key;

use super::live_index::{LiveIndex, LiveIndexes, StoreIndex};
use super::stored_object::{FollowedType, ReadError, StoredObject};

/// The types that relate objects to nodes.
const TYPES: [FollowedType; 4] = [
    FollowedType::v1("", "pods", "Pod"),
    FollowedType::v1("", "persistentvolumes", "PersistentVolume"),
    FollowedType::v1("storage.k8s.io", "volumeattachments", "VolumeAttachment"),
    FollowedType {
        version: "v1beta1",
        ..FollowedType::v1("resource.k8s.io", "resourceslices", "ResourceSlice")
    },
];

impl StoreIndex for Graph {
    /// It guards nothing: a node may do less if one of its objects is not known.
    const IS_GUARD: bool = false;
    type Prepared = ();

    fn put(&mut self, of: usize, stored: &StoredObject<'_>) -> Result<(), ReadError> {
        let object = stored.object;
        let (namespace, name, json) = (object.key.namespace(), object.key.name(), &object.bytes);
        let put = match of {
            0 => self.put_pod(namespace, name, json),
            1 => self.put_volume(name, json),
            2 => self.put_attachment(name, json),
            _ => self.put_slice(name, json),
        };
        put.map_err(|error| ReadError::Whole(error.to_string()))
    }

    fn remove(&mut self, of: usize, key: &Key) {
        let (namespace, name) = (key.namespace(), key.name());
        match of {
            0 => self.remove_pod(namespace, name),
            1 => self.remove_volume(name),
            2 => self.remove_attachment(name),
            _ => self.remove_slice(name),
        }
    }

    fn clear(&mut self, of: usize) {
        self.forget(of);
    }

    /// What a node uses it may read: an unknown object uses nothing.
    fn fail_closed(&mut self, of: usize, key: &Key) {
        self.remove(of, key);
    }
}

/// The node name of a user. `None` if the user is no node; empty if the node is unknown.
pub fn node_of(who: &Identity) -> Option<&str> {
    let name = who.name.strip_prefix(NODE_PREFIX)?;
    who.is_in(NODES).then_some(name)
}

/// The Node authorizer.
pub struct Nodes {
    graph: Arc<LiveIndex<Graph>>,
    /// The rights of the node role.
    role: Role,
    /// Whether nodes must select their own objects by field selector.
    selective: bool,
    /// Whether nodes may read the service accounts of their pods.
    reads_accounts: bool,
}

/// The decision before the graph is consulted.
enum EarlyDecision {
    Allowed,
    No(String),
    /// It depends on whether the node uses this object.
    If(Dependency),
}

enum Dependency {
    Thing(PodDependency),
    Volume,
    Attachment,
    Slice,
}

/// The relevant parts of an action.
#[derive(Clone, Copy)]
struct ResourceAction<'a> {
    node: &'a str,
    verb: &'a str,
    part: &'a str,
    namespace: &'a str,
    name: &'a str,
    selection: &'a Selection,
}

impl ResourceAction<'_> {
    fn no(why: impl Into<String>) -> EarlyDecision {
        EarlyDecision::No(why.into())
    }

    fn concerning(&self, wanted: Dependency) -> EarlyDecision {
        if self.name.is_empty() {
            EarlyDecision::No("No Object name found".to_owned())
        } else {
            EarlyDecision::If(wanted)
        }
    }

    fn get(&self, wanted: Dependency) -> EarlyDecision {
        if self.verb != "get" {
            return ResourceAction::no("can only get individual resources of this type");
        }
        if !self.part.is_empty() {
            return ResourceAction::no("cannot get subresource");
        }
        self.concerning(wanted)
    }

    fn read(&self, thing: PodDependency) -> EarlyDecision {
        if !matches!(self.verb, "get" | "list" | "watch") {
            return ResourceAction::no("can only read resources of this type");
        }
        if !self.part.is_empty() {
            return ResourceAction::no("cannot read subresource");
        }
        if self.namespace.is_empty() {
            return ResourceAction::no("can only read namespaced object of this type");
        }
        self.concerning(Dependency::Thing(thing))
    }

    fn claim(&self) -> EarlyDecision {
        if self.part != "status" {
            return self.get(Dependency::Thing(PodDependency::Claim));
        }
        match self.verb {
            "update" | "patch" => self.concerning(Dependency::Thing(PodDependency::Claim)),
            _ => ResourceAction::no("can only get/update/patch this type"),
        }
    }

    fn account(&self, readable: bool) -> EarlyDecision {
        if self.verb == "get" && self.part.is_empty() {
            return if readable {
                self.read(PodDependency::Account)
            } else {
                ResourceAction::no("not allowed to get service accounts")
            };
        }
        if self.verb != "create" || self.name.is_empty() {
            return ResourceAction::no("can only create tokens for individual service accounts");
        }
        if self.part != "token" {
            return ResourceAction::no("can only create token subresource of serviceaccount");
        }
        EarlyDecision::If(Dependency::Thing(PodDependency::Account))
    }

    fn lease(&self) -> EarlyDecision {
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return ResourceAction::no("can only get, create, update, patch, or delete a node lease");
        }
        if self.namespace != LEASE_NAMESPACE {
            return ResourceAction::no(format!(
                "can only access leases in the \"{LEASE_NAMESPACE}\" system namespace"
            ));
        }
        if self.verb != "create" && self.name != self.node {
            return ResourceAction::no(
                "can only access node lease with the same name as the requesting node",
            );
        }
        EarlyDecision::Allowed
    }

    fn csi_node(&self) -> EarlyDecision {
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return ResourceAction::no("can only get, create, update, patch, or delete a CSINode");
        }
        if !self.part.is_empty() {
            return ResourceAction::no("cannot authorize CSINode subresources");
        }
        if self.verb != "create" && self.name != self.node {
            return ResourceAction::no("can only access CSINode with the same name as the requesting node");
        }
        EarlyDecision::Allowed
    }

    fn selects(&self, field: &str) -> bool {
        let wanted = FieldRule::Equals(field.into(), self.node.into());
        self.selection.fields.contains(&wanted)
    }

    fn slice(&self, selective: bool) -> EarlyDecision {
        if !self.part.is_empty() {
            return ResourceAction::no("cannot authorize ResourceSlice subresources");
        }
        match self.verb {
            "create" => EarlyDecision::Allowed,
            "get" | "update" | "patch" | "delete" => self.concerning(Dependency::Slice),
            "watch" | "list" | "deletecollection" if !selective || self.selects("spec.nodeName") => {
                EarlyDecision::Allowed
            }
            "watch" | "list" | "deletecollection" => ResourceAction::no(
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => ResourceAction::no(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, \
                 delete, deletecollection",
            ),
        }
    }

    fn own_node(&self) -> EarlyDecision {
        let (node, name) = (self.node, self.name);
        match (self.part, self.verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => EarlyDecision::Allowed,
            ("", "get" | "list" | "watch") if name == node => EarlyDecision::Allowed,
            ("", "get" | "list" | "watch") if name.is_empty() => {
                ResourceAction::no(format!("node '{node}' cannot read all nodes, only its own Node object"))
            }
            ("", "get" | "list" | "watch") => {
                ResourceAction::no(format!("node '{node}' cannot read '{name}', only its own Node object"))
            }
            _ => ResourceAction::no(""),
        }
    }

    fn pod(&self) -> EarlyDecision {
        match (self.part, self.verb) {
            ("", "get") => self.get(Dependency::Thing(PodDependency::Pod)),
            ("", "list" | "watch") if self.selects("spec.nodeName") => EarlyDecision::Allowed,
            ("", "list" | "watch") if !self.name.is_empty() => {
                EarlyDecision::If(Dependency::Thing(PodDependency::Pod))
            }
            ("", "list" | "watch") => {
                ResourceAction::no("can only list/watch pods with spec.nodeName field selector")
            }
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                EarlyDecision::Allowed
            }
            _ => ResourceAction::no(""),
        }
    }
}

impl Nodes {
    /// Reads the related objects. `enabled` tells which feature gates are on.
    pub async fn open(indexes: &LiveIndexes, enabled: impl Fn(&str) -> bool) -> Result<Nodes, StoreError> {
        let graph = indexes.open(TYPES, Graph::default()).await?;
        let all = roles::all(&enabled);
        let role =
            all.iter().find(|one| one.resource == "clusterroles" && meta::name(&one.object) == "system:node");
        Ok(Nodes {
            graph,
            role: Role::new(role.map(|role| rules_of(&role.object)).unwrap_or_default()),
            selective: enabled(AUTHORIZE_NODE_WITH_SELECTORS),
            reads_accounts: enabled(KUBELET_SERVICE_ACCOUNT_TOKEN_FOR_CREDENTIAL_PROVIDERS),
        })
    }

    fn word(&self, action: &Action, asked: ResourceAction<'_>) -> EarlyDecision {
        let (group, resource) = match &action.target {
            Target::Resource { group, resource, .. } => (group.as_str(), resource.as_str()),
            Target::Path(_) => ("", ""),
        };
        match (group, resource) {
            ("", "secrets") => asked.read(PodDependency::Secret),
            ("", "configmaps") => asked.read(PodDependency::ConfigMap),
            ("", "persistentvolumeclaims") => asked.claim(),
            ("", "persistentvolumes") => asked.get(Dependency::Volume),
            ("resource.k8s.io", "resourceclaims") => asked.get(Dependency::Thing(PodDependency::DeviceClaim)),
            ("resource.k8s.io", "resourceslices") => asked.slice(self.selective),
            ("storage.k8s.io", "volumeattachments") => asked.get(Dependency::Attachment),
            ("storage.k8s.io", "csinodes") => asked.csi_node(),
            ("", "serviceaccounts") => asked.account(self.reads_accounts),
            ("coordination.k8s.io", "leases") => asked.lease(),
            ("", "nodes") if self.selective => asked.own_node(),
            ("", "pods") if self.selective => asked.pod(),
            _ if self.role.allows(&PreparedAction::from(action)) => EarlyDecision::Allowed,
            _ => ResourceAction::no(""),
        }
    }
}

impl Policy for Nodes {
    fn decide(&self, identity: &Identity, action: &Action) -> Answer<Decision> {
        self.judge(identity, action, &Selection::default()).map(|verdict| verdict.decision)
    }

    fn judge(
        &self,
        identity: &Identity,
        action: &Action,
        selection: &Selection,
    ) -> Answer<ExplainedDecision> {
        let no = |why: String| ExplainedDecision::from(Decision::NoOpinion(why));
        let Some(node) = node_of(identity) else { return Answer::Now(no(String::new())) };
        if node.is_empty() {
            return Answer::Now(no(format!("unknown node for user {:?}", identity.name)));
        }
        let (part, namespace, name) = match &action.target {
            Target::Resource { subresource, namespace, name, .. } => {
                (subresource.as_str(), namespace.as_str(), name.as_str())
            }
            Target::Path(_) => ("", "", ""),
        };
        let asked = ResourceAction { node, verb: &action.verb, part, namespace, name, selection };
        let wanted = match self.word(action, asked) {
            EarlyDecision::Allowed => return Answer::Now(Decision::Allowed.into()),
            EarlyDecision::No(why) => return Answer::Now(no(why)),
            EarlyDecision::If(wanted) => wanted,
        };
        let [node, namespace, name] = [node, namespace, name].map(str::to_owned);
        let stranger = format!("no relationship found between node '{node}' and this object");
        let found = self.graph.look(move |graph| match wanted {
            Dependency::Thing(thing) => graph.needs(&node, thing, &namespace, &name),
            Dependency::Volume => graph.needs_volume(&node, &name),
            Dependency::Attachment => graph.has_attachment(&node, &name),
            Dependency::Slice => graph.has_slice(&node, &name),
        });
        found.map(|found| match found {
            Ok(true) => Decision::Allowed.into(),
            Ok(false) => ExplainedDecision::from(Decision::NoOpinion(stranger)),
            Err(error) => {
                let error = Some(format!("what nodes need cannot be read: {error}"));
                ExplainedDecision { decision: Decision::NoOpinion(String::new()), grounds: None, error }
            }
        })
    }

    fn grants(&self, identity: &Identity, _: &str) -> Answer<Grants> {
        let mut grants = Grants::default();
        if node_of(identity).is_some() {
            grants.incomplete = true;
            grants.errors.push("node authorizer does not support user rule resolution".to_owned());
        }
        Answer::Now(grants)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_actors::directory::{self, Find, Options};
    use pilothouse_actors::engine::memory::Memory;
    use pilothouse_actors::permit::Permit;
    use pilothouse_actors::store::Create;
    use pilothouse_authorization::testing::action;
    use pilothouse_types::object::{Draft, Pairs, TypeName};

    use super::*;

    fn node(name: &str) -> Identity {
        Identity { name: format!("{NODE_PREFIX}{name}"), groups: vec![NODES.into()], ..Identity::default() }
    }

    fn said(policy: &Nodes, who: &Identity, action: &Action, fields: Vec<FieldRule>) -> Result<(), String> {
        let selection = Selection { fields, ..Selection::default() };
        let Answer::Now(verdict) = policy.judge(who, action, &selection) else { panic!("nobody waits here") };
        if verdict.decision == Decision::Allowed { Ok(()) } else { Err(verdict.reason()) }
    }

    #[actix::test]
    async fn a_node_sees_its_own() {
        let stores = directory::start(Box::new(Memory::new()), Options::default()).unwrap();
        let registry = Arc::new(pilothouse_apimachinery::schema::Registry::builtin().unwrap());
        let indexes = LiveIndexes::new(stores.directory.clone(), registry);
        let policy = Nodes::open(&indexes, |gate| gate == AUTHORIZE_NODE_WITH_SELECTORS).await.unwrap();
        let store = stores.directory.send(Find { type_name: TypeName::new("pods") }).await.unwrap().unwrap();
        let head = r#"{"metadata":{"resourceVersion":""#;
        let bytes =
            format!(r#"{head}"}},"spec":{{"nodeName":"a","volumes":[{{"secret":{{"secretName":"s"}}}}]}}}}"#);
        let (labels, fields) = (Pairs::default(), Pairs::default());
        let key = Key::namespaced("n", "p");
        let draft = Draft { key, bytes: bytes.into(), revision_at: head.len(), item_at: 1, labels, fields };
        store.send(Create { draft, permit: Permit::none() }).await.unwrap().unwrap();

        let ask = |name: &str, action: Action| said(&policy, &node(name), &action, Vec::new());
        assert_eq!(ask("a", action("get", "", "secrets", "n", "s")), Ok(()));
        let stranger = Err("no relationship found between node 'b' and this object".to_owned());
        assert_eq!(ask("b", action("get", "", "secrets", "n", "s")), stranger);
        assert_eq!(ask("a", action("list", "", "secrets", "n", "")), Err("No Object name found".into()));
        assert_eq!(
            ask("a", action("delete", "", "secrets", "n", "s")),
            Err("can only read resources of this type".into())
        );
        assert_eq!(ask("a", action("get", "", "nodes", "", "a")), Ok(()));
        assert_eq!(
            ask("a", action("get", "", "nodes", "", "b")),
            Err("node 'a' cannot read 'b', only its own Node object".into())
        );
        assert_eq!(ask("a", action("update", "coordination.k8s.io", "leases", LEASE_NAMESPACE, "a")), Ok(()));
        assert!(ask("a", action("update", "coordination.k8s.io", "leases", LEASE_NAMESPACE, "b")).is_err());
        assert_eq!(ask("a", action("list", "", "services", "", "")), Ok(()), "as the role says");
        assert_eq!(ask("a", action("delete", "", "services", "n", "x")), Err(String::new()));
        assert_eq!(
            ask("", action("get", "", "pods", "n", "p")),
            Err("unknown node for user \"system:node:\"".into())
        );
        let list = action("list", "", "pods", "", "");
        assert!(ask("a", list.clone()).is_err());
        let own = vec![FieldRule::Equals("spec.nodeName".into(), "a".into())];
        assert_eq!(said(&policy, &node("a"), &list, own.clone()), Ok(()));
        assert!(said(&policy, &node("b"), &list, own.clone()).is_err());
        // Only a selector that can select nothing but the node's own pods counts.
        let equals = |field: &str, value: &str| FieldRule::Equals(field.into(), value.into());
        for others in [
            vec![equals("spec.nodeName", "")],
            vec![equals("spec.nodeName", "*")],
            vec![equals("", "a")],
            vec![equals("metadata.name", "a")],
            vec![FieldRule::Differs("spec.nodeName".into(), "b".into())],
        ] {
            assert!(said(&policy, &node("a"), &list, others.clone()).is_err(), "{others:?}");
            let both = [others, own.clone()].concat();
            assert_eq!(said(&policy, &node("a"), &list, both), Ok(()), "both must hold");
        }
        let nameless = vec![equals("spec.nodeName", "")];
        assert!(said(&policy, &node(""), &list, nameless).is_err(), "pods that no node has are nobody's");
        let stranger = Identity { name: "system:node:a".into(), ..Identity::default() };
        assert_eq!(
            said(&policy, &stranger, &action("get", "", "nodes", "", "a"), Vec::new()),
            Err(String::new())
        );
    }
}
