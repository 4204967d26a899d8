//! The RBAC authorizer.

use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authorizer::Policy;
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::well_known::RBAC_GROUP;
use pilothouse_authorization::rbac::RESOURCES;
use pilothouse_authorization::rbac::index::{Index, RuleLookup, read_binding, read_role};
use pilothouse_types::authorization::{Action, Decision, ExplainedDecision, Grants, Selection};
use pilothouse_types::error::StoreError;
use pilothouse_types::identity::Identity;
use pilothouse_types::object::Key;

use crate::live_index::stored_object::{ReadError, StoredObject};
use crate::live_index::{LiveIndex, LiveIndexes, StoreIndex};

/// The RBAC index, as of the last acknowledged write.
pub type Roles = LiveIndex<Index>;

/// Reads all roles and bindings.
pub async fn open(indexes: &LiveIndexes) -> Result<Arc<Roles>, StoreError> {
    let types = RESOURCES.map(|resource| StoredType::v1(RBAC_GROUP, resource, kind(resource)));
    indexes.open(types, Index::default()).await
}

fn kind(resource: &str) -> &'static str {
    match resource {
        "roles" => "Role",
        "clusterroles" => "ClusterRole",
        "rolebindings" => "RoleBinding",
        _ => "ClusterRoleBinding",
    }
}

fn resource(type_index: usize) -> &'static str {
    RESOURCES.get(type_index).copied().unwrap_or_default()
}

fn is_role(type_index: usize) -> bool {
    resource(type_index).ends_with("roles")
}

fn is_namespaced(type_index: usize) -> bool {
    !resource(type_index).starts_with("cluster")
}

impl StoreIndex for Index {
    const IS_GUARD: bool = true;
    type Prepared = ();

    fn put(&mut self, type_index: usize, stored: &StoredObject<'_>) -> Result<(), ReadError> {
        let object = stored.object;
        let (namespace, name) = (object.key.namespace(), object.key.name());
        let result = if is_role(type_index) {
            read_role(&object.bytes).map(|role| self.put_role(namespace, name, role))
        } else {
            read_binding(namespace, name, &object.bytes).map(|binding| self.put_binding(binding))
        };
        result.ok_or_else(|| ReadError::Whole("it does not have the form of its kind".to_owned()))
    }

    fn remove(&mut self, type_index: usize, key: &Key) {
        let (namespace, name) = (key.namespace(), key.name());
        if is_role(type_index) {
            self.remove_role(namespace, name);
        } else {
            self.remove_binding(namespace, name);
        }
    }

    fn clear(&mut self, type_index: usize) {
        if is_role(type_index) {
            self.clear_roles(is_namespaced(type_index));
        } else {
            self.clear_bindings(is_namespaced(type_index));
        }
    }

    /// RBAC rules only grant: an unreadable role or binding grants nothing.
    fn fail_closed(&mut self, type_index: usize, key: &Key) {
        self.remove(type_index, key);
    }
}

/// Allows what roles and bindings grant.
pub struct Rbac(pub Arc<Roles>);

fn verdict(lookup: RuleLookup) -> ExplainedDecision {
    match lookup {
        RuleLookup::Allowed(allowance) => ExplainedDecision {
            decision: Decision::Allowed,
            allow_reason: Some(Arc::new(allowance)),
            error: None,
        },
        RuleLookup::NoMatch(missing) => {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let reason = match missing.as_slice() {
                [] => String::new(),
                [reason] => format!("RBAC: {reason}"),
                several => format!("RBAC: [{}]", several.join(", ")),
            };
            Decision::NoOpinion(reason).into()
        }
    }
}

fn unavailable(error: &StoreError) -> ExplainedDecision {
    let error = Some(format!("roles and bindings cannot be read: {error}"));
    ExplainedDecision { decision: Decision::NoOpinion(String::new()), allow_reason: None, error }
}

impl Policy for Rbac {
    fn decide(&self, identity: &Identity, action: &Action) -> Answer<Decision> {
        self.judge(identity, action, &Selection::default()).map(|verdict| verdict.decision)
    }

    fn judge(&self, identity: &Identity, action: &Action, _: &Selection) -> Answer<ExplainedDecision> {
        // The common case, without cloning the arguments.
        if let Some(index) = self.0.fresh() {
            return Answer::Now(verdict(index.decide(identity, action)));
        }
        let (identity, action) = (identity.clone(), action.clone());
        let lookup = self.0.query(move |index| index.decide(&identity, &action));
        lookup.map(|lookup| lookup.map_or_else(|error| unavailable(&error), verdict))
    }

    fn grants(&self, identity: &Identity, namespace: &str) -> Answer<Grants> {
        let (identity, namespace) = (identity.clone(), namespace.to_owned());
        let lookup = self.0.query(move |index| index.grants(&identity, &namespace));
        lookup.map(|lookup| {
            lookup.unwrap_or_else(|error| Grants {
                incomplete: true,
                errors: unavailable(&error).error.into_iter().collect(),
                ..Grants::default()
            })
        })
    }

    fn hint(&self, _: &Identity, action: &Action) -> Option<String> {
        self.0.stale().nearest(action)
    }
}

#[cfg(test)]
mod tests {
    use actix::Addr;
    use pilothouse_actors::directory::{self, Find, Options, Stores};
    use pilothouse_actors::engine::memory::Memory;
    use pilothouse_actors::permit::Permit;
    use pilothouse_actors::store::{Create, Remove, Store};
    use pilothouse_apimachinery::schema::Registry;
    use pilothouse_types::authorization::Target;
    use pilothouse_types::object::{Draft, Pairs, Revision, TypeName};

    use super::*;

    async fn rbac(stores: &Stores) -> Rbac {
        let registry = Arc::new(Registry::builtin().unwrap());
        Rbac(open(&LiveIndexes::new(stores.directory.clone(), registry)).await.unwrap())
    }

    fn draft(key: Key, fields: &str) -> Draft {
        let head = r#"{"metadata":{"resourceVersion":""#;
        let bytes = format!(r#"{head}"}},{fields}}}"#).into();
        let (labels, fields) = (Pairs::default(), Pairs::default());
        Draft { key, bytes, revision_offset: head.len(), item_offset: 1, labels, fields }
    }

    async fn store(stores: &Stores, resource: &str) -> Addr<Store> {
        let type_name = TypeName::new(&format!("{resource}.{RBAC_GROUP}"));
        stores.directory.send(Find { type_name }).await.unwrap().unwrap()
    }

    async fn create(stores: &Stores, resource: &str, key: Key, fields: &str) {
        let create = Create { draft: draft(key, fields), stored: None, permit: Permit::none() };
        store(stores, resource).await.send(create).await.unwrap().unwrap();
    }

    const RULES: &str = r#""rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]"#;
    const BINDING: &str =
        r#""roleRef":{"kind":"ClusterRole","name":"r"},"subjects":[{"kind":"User","name":"u"}]"#;

    async fn is_allowed(policy: &Rbac, namespace: &str) -> bool {
        let target = Target::Resource {
            group: String::new(),
            version: "v1".into(),
            resource: "pods".into(),
            subresource: String::new(),
            namespace: namespace.into(),
            name: "a".into(),
        };
        let identity = Identity { name: "u".into(), ..Identity::default() };
        let decision = match policy.decide(&identity, &Action { verb: "get".into(), target }) {
            Answer::Now(decision) => decision,
            Answer::Later(decision) => decision.await,
        };
        decision == Decision::Allowed
    }

    #[actix::test]
    async fn rbac_applies_acknowledged_writes() {
        let stores = directory::start(Box::new(Memory::new()), Options::default()).unwrap();
        create(&stores, "clusterroles", Key::cluster("r"), RULES).await;
        let policy = rbac(&stores).await;
        assert!(!is_allowed(&policy, "n").await);
        create(&stores, "rolebindings", Key::namespaced("n", "b"), BINDING).await;
        assert!(is_allowed(&policy, "n").await && !is_allowed(&policy, "m").await);
        create(&stores, "clusterrolebindings", Key::cluster("b"), BINDING).await;
        assert!(is_allowed(&policy, "m").await);
        let remove = Remove { key: Key::cluster("r"), expected: Revision(2), permit: Permit::none() };
        store(&stores, "clusterroles").await.send(remove).await.unwrap().unwrap();
        assert!(!is_allowed(&policy, "m").await);
    }

    #[actix::test]
    async fn rbac_reads_snapshot_after_window_expired() {
        let options = Options { window_bounds: 1.into(), ..Options::default() };
        let stores = directory::start(Box::new(Memory::new()), options).unwrap();
        let policy = rbac(&stores).await;
        create(&stores, "clusterroles", Key::cluster("r"), RULES).await;
        for name in ["a", "b", "c"] {
            create(&stores, "rolebindings", Key::namespaced("n", name), BINDING).await;
        }
        assert!(is_allowed(&policy, "n").await);
        assert!(policy.0.fresh().is_some(), "it has caught up for everybody");
    }
}
