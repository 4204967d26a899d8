//! The Node authorizer: a kubelet has the rights of the node role, but only on objects that its own node uses.

use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authorizer::Policy;
use pilothouse_api::bootstrap::roles;
use pilothouse_api::gates::{
    AUTHORIZE_NODE_WITH_SELECTORS, KUBELET_SERVICE_ACCOUNT_TOKEN_FOR_CREDENTIAL_PROVIDERS,
};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::well_known::{LEASE_NAMESPACE, NODE_PREFIX, NODES};
use pilothouse_authorization::node_graph::{Graph, PodDependency};
use pilothouse_authorization::rbac::role::Role;
use pilothouse_authorization::rbac::rule::{PreparedAction, rules_of};
use pilothouse_types::authorization::{Action, Decision, ExplainedDecision, Grants, Selection, Target};
use pilothouse_types::error::StoreError;
use pilothouse_types::filter::FieldRule;
use pilothouse_types::identity::Identity;
use pilothouse_types::object::Key;

use crate::live_index::stored_object::{ReadError, StoredObject};
use crate::live_index::{LiveIndex, LiveIndexes, StoreIndex};

/// The types that relate objects to nodes.
const TYPES: [StoredType; 4] = [
    StoredType::v1("", "pods", "Pod"),
    StoredType::v1("", "persistentvolumes", "PersistentVolume"),
    StoredType::v1("storage.k8s.io", "volumeattachments", "VolumeAttachment"),
    StoredType { version: "v1beta1", ..StoredType::v1("resource.k8s.io", "resourceslices", "ResourceSlice") },
];

impl StoreIndex for Graph {
    /// It only grants: a node may do less if one of its objects cannot be read.
    const IS_GUARD: bool = false;
    type Prepared = ();

    fn put(&mut self, type_index: usize, stored: &StoredObject<'_>) -> Result<(), ReadError> {
        let object = stored.object;
        let (namespace, name, json) = (object.key.namespace(), object.key.name(), &object.bytes);
        let put = match type_index {
            0 => self.put_pod(namespace, name, json),
            1 => self.put_volume(name, json),
            2 => self.put_attachment(name, json),
            _ => self.put_slice(name, json),
        };
        put.map_err(|error| ReadError::Whole(error.to_string()))
    }

    fn remove(&mut self, type_index: usize, key: &Key) {
        let (namespace, name) = (key.namespace(), key.name());
        match type_index {
            0 => self.remove_pod(namespace, name),
            1 => self.remove_volume(name),
            2 => self.remove_attachment(name),
            _ => self.remove_slice(name),
        }
    }

    fn clear(&mut self, type_index: usize) {
        self.forget(type_index);
    }

    /// A node may read what its objects refer to: an unreadable object refers to nothing.
    fn fail_closed(&mut self, type_index: usize, key: &Key) {
        self.remove(type_index, key);
    }
}

/// The node name of a user. `None` if the user is not a node; empty if the node is unknown.
pub fn node_of(identity: &Identity) -> Option<&str> {
    let name = identity.name.strip_prefix(NODE_PREFIX)?;
    identity.is_in(NODES).then_some(name)
}

/// The Node authorizer.
pub struct Nodes {
    graph: Arc<LiveIndex<Graph>>,
    /// The rights of the node role.
    role: Role,
    /// Whether nodes must select their own objects by field selector.
    requires_selectors: bool,
    /// Whether nodes may read the service accounts of their pods.
    reads_accounts: bool,
}

/// The decision before the graph is consulted.
enum EarlyDecision {
    Allowed,
    NoOpinion(String),
    /// Allowed if the graph relates the node to this object.
    IfRelated(Dependency),
}

enum Dependency {
    Pod(PodDependency),
    Volume,
    Attachment,
    Slice,
}

/// The relevant parts of an action.
#[derive(Clone, Copy)]
struct ResourceAction<'a> {
    node: &'a str,
    verb: &'a str,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
    selection: &'a Selection,
}

impl ResourceAction<'_> {
    fn no_opinion(reason: impl Into<String>) -> EarlyDecision {
        EarlyDecision::NoOpinion(reason.into())
    }

    fn require(&self, dependency: Dependency) -> EarlyDecision {
        if self.name.is_empty() {
            EarlyDecision::NoOpinion("No Object name found".to_owned())
        } else {
            EarlyDecision::IfRelated(dependency)
        }
    }

    fn get(&self, dependency: Dependency) -> EarlyDecision {
        if self.verb != "get" {
            return ResourceAction::no_opinion("can only get individual resources of this type");
        }
        if !self.subresource.is_empty() {
            return ResourceAction::no_opinion("cannot get subresource");
        }
        self.require(dependency)
    }

    fn read(&self, dependency: PodDependency) -> EarlyDecision {
        if !matches!(self.verb, "get" | "list" | "watch") {
            return ResourceAction::no_opinion("can only read resources of this type");
        }
        if !self.subresource.is_empty() {
            return ResourceAction::no_opinion("cannot read subresource");
        }
        if self.namespace.is_empty() {
            return ResourceAction::no_opinion("can only read namespaced object of this type");
        }
        self.require(Dependency::Pod(dependency))
    }

    fn claim(&self) -> EarlyDecision {
        if self.subresource != "status" {
            return self.get(Dependency::Pod(PodDependency::Claim));
        }
        match self.verb {
            "update" | "patch" => self.require(Dependency::Pod(PodDependency::Claim)),
            _ => ResourceAction::no_opinion("can only get/update/patch this type"),
        }
    }

    fn account(&self, is_readable: bool) -> EarlyDecision {
        if self.verb == "get" && self.subresource.is_empty() {
            return if is_readable {
                self.read(PodDependency::Account)
            } else {
                ResourceAction::no_opinion("not allowed to get service accounts")
            };
        }
        if self.verb != "create" || self.name.is_empty() {
            return ResourceAction::no_opinion("can only create tokens for individual service accounts");
        }
        if self.subresource != "token" {
            return ResourceAction::no_opinion("can only create token subresource of serviceaccount");
        }
        EarlyDecision::IfRelated(Dependency::Pod(PodDependency::Account))
    }

    fn lease(&self) -> EarlyDecision {
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return ResourceAction::no_opinion("can only get, create, update, patch, or delete a node lease");
        }
        if self.namespace != LEASE_NAMESPACE {
            return ResourceAction::no_opinion(format!(
                "can only access leases in the \"{LEASE_NAMESPACE}\" system namespace"
            ));
        }
        if self.verb != "create" && self.name != self.node {
            return ResourceAction::no_opinion(
                "can only access node lease with the same name as the requesting node",
            );
        }
        EarlyDecision::Allowed
    }

    fn csi_node(&self) -> EarlyDecision {
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return ResourceAction::no_opinion("can only get, create, update, patch, or delete a CSINode");
        }
        if !self.subresource.is_empty() {
            return ResourceAction::no_opinion("cannot authorize CSINode subresources");
        }
        if self.verb != "create" && self.name != self.node {
            return ResourceAction::no_opinion(
                "can only access CSINode with the same name as the requesting node",
            );
        }
        EarlyDecision::Allowed
    }

    fn selects(&self, field: &str) -> bool {
        let own_objects = FieldRule::Equals(field.into(), self.node.into());
        self.selection.fields.contains(&own_objects)
    }

    fn slice(&self, requires_selectors: bool) -> EarlyDecision {
        if !self.subresource.is_empty() {
            return ResourceAction::no_opinion("cannot authorize ResourceSlice subresources");
        }
        match self.verb {
            "create" => EarlyDecision::Allowed,
            "get" | "update" | "patch" | "delete" => self.require(Dependency::Slice),
            "watch" | "list" | "deletecollection" if !requires_selectors || self.selects("spec.nodeName") => {
                EarlyDecision::Allowed
            }
            "watch" | "list" | "deletecollection" => ResourceAction::no_opinion(
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => ResourceAction::no_opinion(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, \
                 delete, deletecollection",
            ),
        }
    }

    fn node(&self) -> EarlyDecision {
        let (node, name) = (self.node, self.name);
        match (self.subresource, self.verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => EarlyDecision::Allowed,
            ("", "get" | "list" | "watch") if name == node => EarlyDecision::Allowed,
            ("", "get" | "list" | "watch") if name.is_empty() => ResourceAction::no_opinion(format!(
                "node '{node}' cannot read all nodes, only its own Node object"
            )),
            ("", "get" | "list" | "watch") => ResourceAction::no_opinion(format!(
                "node '{node}' cannot read '{name}', only its own Node object"
            )),
            _ => ResourceAction::no_opinion(""),
        }
    }

    fn pod(&self) -> EarlyDecision {
        match (self.subresource, self.verb) {
            ("", "get") => self.get(Dependency::Pod(PodDependency::Pod)),
            ("", "list" | "watch") if self.selects("spec.nodeName") => EarlyDecision::Allowed,
            ("", "list" | "watch") if !self.name.is_empty() => {
                EarlyDecision::IfRelated(Dependency::Pod(PodDependency::Pod))
            }
            ("", "list" | "watch") => {
                ResourceAction::no_opinion("can only list/watch pods with spec.nodeName field selector")
            }
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                EarlyDecision::Allowed
            }
            _ => ResourceAction::no_opinion(""),
        }
    }
}

impl Nodes {
    /// Reads the related objects. `enabled` tells which feature gates are on.
    pub async fn open(indexes: &LiveIndexes, enabled: impl Fn(&str) -> bool) -> Result<Nodes, StoreError> {
        let graph = indexes.open(TYPES, Graph::default()).await?;
        let all = roles::all(&enabled);
        let role = all
            .iter()
            .find(|role| role.resource == "clusterroles" && meta::name(&role.object) == "system:node");
        Ok(Nodes {
            graph,
            role: Role::new(role.map(|role| rules_of(&role.object)).unwrap_or_default()),
            requires_selectors: enabled(AUTHORIZE_NODE_WITH_SELECTORS),
            reads_accounts: enabled(KUBELET_SERVICE_ACCOUNT_TOKEN_FOR_CREDENTIAL_PROVIDERS),
        })
    }

    /// The decision by verb, resource and name.
    fn decide_early(&self, action: &Action, request: ResourceAction<'_>) -> EarlyDecision {
        let (group, resource) = match &action.target {
            Target::Resource { group, resource, .. } => (group.as_str(), resource.as_str()),
            Target::Path(_) => ("", ""),
        };
        match (group, resource) {
            ("", "secrets") => request.read(PodDependency::Secret),
            ("", "configmaps") => request.read(PodDependency::ConfigMap),
            ("", "persistentvolumeclaims") => request.claim(),
            ("", "persistentvolumes") => request.get(Dependency::Volume),
            ("resource.k8s.io", "resourceclaims") => request.get(Dependency::Pod(PodDependency::DeviceClaim)),
            ("resource.k8s.io", "resourceslices") => request.slice(self.requires_selectors),
            ("storage.k8s.io", "volumeattachments") => request.get(Dependency::Attachment),
            ("storage.k8s.io", "csinodes") => request.csi_node(),
            ("", "serviceaccounts") => request.account(self.reads_accounts),
            ("coordination.k8s.io", "leases") => request.lease(),
            ("", "nodes") if self.requires_selectors => request.node(),
            ("", "pods") if self.requires_selectors => request.pod(),
            _ if self.role.allows(&PreparedAction::from(action)) => EarlyDecision::Allowed,
            _ => ResourceAction::no_opinion(""),
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
        let no_opinion = |reason: String| ExplainedDecision::from(Decision::NoOpinion(reason));
        let Some(node) = node_of(identity) else { return Answer::Now(no_opinion(String::new())) };
        if node.is_empty() {
            return Answer::Now(no_opinion(format!("unknown node for user {:?}", identity.name)));
        }
        let (subresource, namespace, name) = match &action.target {
            Target::Resource { subresource, namespace, name, .. } => {
                (subresource.as_str(), namespace.as_str(), name.as_str())
            }
            Target::Path(_) => ("", "", ""),
        };
        let request = ResourceAction { node, verb: &action.verb, subresource, namespace, name, selection };
        let dependency = match self.decide_early(action, request) {
            EarlyDecision::Allowed => return Answer::Now(Decision::Allowed.into()),
            EarlyDecision::NoOpinion(reason) => return Answer::Now(no_opinion(reason)),
            EarlyDecision::IfRelated(dependency) => dependency,
        };
        let [node, namespace, name] = [node, namespace, name].map(str::to_owned);
        let unrelated = format!("no relationship found between node '{node}' and this object");
        let related = self.graph.query(move |graph| match dependency {
            Dependency::Pod(dependency) => graph.needs(&node, dependency, &namespace, &name),
            Dependency::Volume => graph.needs_volume(&node, &name),
            Dependency::Attachment => graph.has_attachment(&node, &name),
            Dependency::Slice => graph.has_slice(&node, &name),
        });
        related.map(|related| match related {
            Ok(true) => Decision::Allowed.into(),
            Ok(false) => ExplainedDecision::from(Decision::NoOpinion(unrelated)),
            Err(error) => {
                let error = Some(format!("the objects of nodes cannot be read: {error}"));
                ExplainedDecision { decision: Decision::NoOpinion(String::new()), allow_reason: None, error }
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

    fn judge(
        policy: &Nodes,
        identity: &Identity,
        action: &Action,
        fields: Vec<FieldRule>,
    ) -> Result<(), String> {
        let selection = Selection { fields, ..Selection::default() };
        let Answer::Now(verdict) = policy.judge(identity, action, &selection) else {
            panic!("the index is not up to date")
        };
        if verdict.decision == Decision::Allowed { Ok(()) } else { Err(verdict.reason()) }
    }

    #[actix::test]
    async fn node_authorizer_allows_only_objects_of_the_own_node() {
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
        let draft =
            Draft { key, bytes: bytes.into(), revision_offset: head.len(), item_offset: 1, labels, fields };
        store.send(Create { draft, stored: None, permit: Permit::none() }).await.unwrap().unwrap();

        let decide = |name: &str, action: Action| judge(&policy, &node(name), &action, Vec::new());
        assert_eq!(decide("a", action("get", "", "secrets", "n", "s")), Ok(()));
        let unrelated = Err("no relationship found between node 'b' and this object".to_owned());
        assert_eq!(decide("b", action("get", "", "secrets", "n", "s")), unrelated);
        assert_eq!(decide("a", action("list", "", "secrets", "n", "")), Err("No Object name found".into()));
        assert_eq!(
            decide("a", action("delete", "", "secrets", "n", "s")),
            Err("can only read resources of this type".into())
        );
        assert_eq!(decide("a", action("get", "", "nodes", "", "a")), Ok(()));
        assert_eq!(
            decide("a", action("get", "", "nodes", "", "b")),
            Err("node 'a' cannot read 'b', only its own Node object".into())
        );
        assert_eq!(
            decide("a", action("update", "coordination.k8s.io", "leases", LEASE_NAMESPACE, "a")),
            Ok(())
        );
        assert!(
            decide("a", action("update", "coordination.k8s.io", "leases", LEASE_NAMESPACE, "b")).is_err()
        );
        assert_eq!(decide("a", action("list", "", "services", "", "")), Ok(()), "as the role says");
        assert_eq!(decide("a", action("delete", "", "services", "n", "x")), Err(String::new()));
        assert_eq!(
            decide("", action("get", "", "pods", "n", "p")),
            Err("unknown node for user \"system:node:\"".into())
        );
        let list = action("list", "", "pods", "", "");
        assert!(decide("a", list.clone()).is_err());
        let own_pods = vec![FieldRule::Equals("spec.nodeName".into(), "a".into())];
        assert_eq!(judge(&policy, &node("a"), &list, own_pods.clone()), Ok(()));
        assert!(judge(&policy, &node("b"), &list, own_pods.clone()).is_err());
        // Only a selector that matches nothing but the node's own pods is accepted.
        let equals = |field: &str, value: &str| FieldRule::Equals(field.into(), value.into());
        for others in [
            vec![equals("spec.nodeName", "")],
            vec![equals("spec.nodeName", "*")],
            vec![equals("", "a")],
            vec![equals("metadata.name", "a")],
            vec![FieldRule::Differs("spec.nodeName".into(), "b".into())],
        ] {
            assert!(judge(&policy, &node("a"), &list, others.clone()).is_err(), "{others:?}");
            let both = [others, own_pods.clone()].concat();
            assert_eq!(judge(&policy, &node("a"), &list, both), Ok(()), "both must hold");
        }
        let nameless = vec![equals("spec.nodeName", "")];
        assert!(judge(&policy, &node(""), &list, nameless).is_err(), "unscheduled pods belong to no node");
        let not_a_node = Identity { name: "system:node:a".into(), ..Identity::default() };
        assert_eq!(
            judge(&policy, &not_a_node, &action("get", "", "nodes", "", "a"), Vec::new()),
            Err(String::new())
        );
    }
}
