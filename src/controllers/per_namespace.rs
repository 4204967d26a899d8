//! serviceaccount-controller and root-ca-certificate-publisher-controller: objects that every namespace has, and that are created
//! again when deleted.

use std::cell::RefCell;
use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::{NAMESPACES, ROOT_CERTIFICATE};
use pilothouse_types::object::TypeName;

use super::client::{Client, ObjectRef};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, ObjectChange, WatchedTypes};

const DESCRIPTION_ANNOTATION: &str = "kubernetes.io/description";
/// The text of the description annotation; clients may show it.
const DESCRIPTION_TEXT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such \
                     as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions \
                     of Kubernetes clusters.";

/// The object that such a controller creates.
pub struct NamespaceObject {
    /// The store of the object, and the types to watch.
    pub store: &'static str,
    watched: &'static [&'static str],
    /// The name of the object.
    object_name: &'static str,
    /// Its required data.
    content: Option<Value>,
}

impl NamespaceObject {
    /// The default service account of pods.
    pub fn default_account() -> NamespaceObject {
        NamespaceObject {
            store: "serviceaccounts",
            watched: &[NAMESPACES, "serviceaccounts"],
            object_name: "default",
            content: None,
        }
    }

    /// The CA bundle by which pods verify this server.
    pub fn root_certificate(authority_pem: &str) -> NamespaceObject {
        let mut data = Value::object();
        data.set("ca.crt", authority_pem);
        NamespaceObject {
            store: "configmaps",
            watched: &[NAMESPACES, "configmaps"],
            object_name: ROOT_CERTIFICATE,
            content: Some(data),
        }
    }

    /// Sets the required data; returns whether the object changed.
    fn fill(&self, object: &mut Value) -> bool {
        let Some(data) = &self.content else { return false };
        let has_description = meta::metadata(object)
            .get("annotations")
            .is_some_and(|all| !all.str(DESCRIPTION_ANNOTATION).is_empty());
        if has_description && object.get("data") == Some(data) {
            return false;
        }
        object.set("data", data.clone());
        object.entry("metadata").entry("annotations").set(DESCRIPTION_ANNOTATION, DESCRIPTION_TEXT);
        true
    }

    fn object(&self, kind: &str) -> Value {
        let mut object = Value::object();
        object.set("apiVersion", "v1");
        object.set("kind", kind);
        object.entry("metadata").set("name", self.object_name);
        self.fill(&mut object);
        object
    }
}

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// One namespace.
    Namespace(String),
    /// All of them: deletions of their objects may have been missed.
    All,
}

/// Creates an object in every namespace.
pub struct PerNamespace {
    client: Client,
    template: Rc<NamespaceObject>,
    /// Keys that the work so far has produced.
    pending: RefCell<Vec<Work>>,
}

impl PerNamespace {
    /// Creates this object in every namespace, acting as `client`.
    pub fn new(client: Client, template: Rc<NamespaceObject>) -> PerNamespace {
        PerNamespace { client, template, pending: RefCell::default() }
    }

    async fn queue_all(&self) -> Result<Outcome> {
        let snapshot = self.client.snapshot(&TypeName::new(NAMESPACES)).await?;
        let names = snapshot.iter().map(|namespace| Work::Namespace(namespace.key.name().to_owned()));
        self.pending.borrow_mut().extend(names);
        Ok(Outcome::Done)
    }

    async fn sync(&self, namespace: &str) -> Result<Outcome> {
        let namespaces = self.client.resource(NAMESPACES)?;
        let namespace_object =
            self.client.cached(ObjectRef { resource: &namespaces, namespace: "", name: namespace }).await?;
        if namespace_object
            .is_none_or(|namespace_object| namespace_object.fields.get("status.phase") != Some("Active"))
        {
            return Ok(Outcome::Done);
        }
        let resource = self.client.resource(self.template.store)?;
        let target = ObjectRef { resource: &resource, namespace, name: self.template.object_name };
        let new = || self.template.object(&resource.kind);
        self.client.ensure(target, new, |object| self.template.fill(object)).await?;
        Ok(Outcome::Done)
    }
}

impl Controller for PerNamespace {
    type Key = Work;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(self.template.watched)
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        let key = &change.object.key;
        if change.type_name.as_str() == NAMESPACES {
            if !change.is_deleted && change.object.fields.get("status.phase") == Some("Active") {
                queue.add(Work::Namespace(key.name().to_owned()));
            }
        } else if key.name() == self.template.object_name
            && (change.is_deleted || self.template.content.is_some())
        {
            queue.add(Work::Namespace(key.namespace().to_owned()));
        }
    }

    fn on_list(&self, type_name: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Work>) {
        if type_name.as_str() != NAMESPACES {
            return queue.add(Work::All);
        }
        self.on_each_object(type_name, snapshot, queue);
    }

    fn reconcile(self: Rc<Self>, work: Work) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move {
            match &work {
                Work::Namespace(namespace) => self.sync(namespace).await,
                Work::All => self.queue_all().await,
            }
        }
        .boxed_local()
    }

    fn take_follow_ups(&self) -> Vec<Work> {
        self.pending.take()
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec;

    use super::*;

    #[test]
    fn changed_root_certificate_config_map_is_restored() {
        let template = NamespaceObject::root_certificate("PEM");
        let mut object = template.object("ConfigMap");
        let expected = object.clone();
        assert!(!template.fill(&mut object));
        object.entry("data").set("more", "x");
        assert!(template.fill(&mut object));
        assert_eq!(object, expected);
        let text = codec::to_json(&expected);
        assert!(String::from_utf8_lossy(&text).contains(r#""ca.crt":"PEM""#));
        assert!(!NamespaceObject::default_account().fill(&mut object));
    }
}
