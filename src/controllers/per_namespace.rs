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

use super::client::{At, Client};
use super::queue::{Outcome, Queue};
use super::runner::{Controller, Follows, ObjectChange};

const DESCRIPTION: &str = "kubernetes.io/description";
/// The text of the description annotation; clients may show it.
const ABOUT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such \
                     as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions \
                     of Kubernetes clusters.";

/// The object that such a loop creates.
pub struct NamespaceObject {
    /// The store of the object, and the types to follow.
    pub store: &'static str,
    follows: &'static [&'static str],
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
            follows: &[NAMESPACES, "serviceaccounts"],
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
            follows: &[NAMESPACES, "configmaps"],
            object_name: ROOT_CERTIFICATE,
            content: Some(data),
        }
    }

    /// Sets the required data; answers whether the object changed.
    fn fill(&self, object: &mut Value) -> bool {
        let Some(data) = &self.content else { return false };
        let described =
            meta::of(object).get("annotations").is_some_and(|all| !all.str(DESCRIPTION).is_empty());
        if described && object.get("data") == Some(data) {
            return false;
        }
        object.set("data", data.clone());
        object.entry("metadata").entry("annotations").set(DESCRIPTION, ABOUT);
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

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// One namespace.
    One(String),
    /// All of them: what they should have may have gone unheard.
    Every,
}

/// Creates an object in every namespace.
pub struct PerNamespace {
    client: Client,
    made: Rc<NamespaceObject>,
    /// What the work so far makes worth looking at.
    more: RefCell<Vec<Work>>,
}

impl PerNamespace {
    /// Creates this object in every namespace, acting as `client`.
    pub fn new(client: Client, made: Rc<NamespaceObject>) -> PerNamespace {
        PerNamespace { client, made, more: RefCell::default() }
    }

    async fn every(&self) -> Result<Outcome> {
        let snapshot = self.client.snapshot(&TypeName::new(NAMESPACES)).await?;
        let names = snapshot.iter().map(|namespace| Work::One(namespace.key.name().to_owned()));
        self.more.borrow_mut().extend(names);
        Ok(Outcome::Done)
    }

    async fn sync(&self, namespace: &str) -> Result<Outcome> {
        let namespaces = self.client.resource(NAMESPACES)?;
        let home = self.client.cached(At { resource: &namespaces, namespace: "", name: namespace }).await?;
        if home.is_none_or(|home| home.fields.get("status.phase") != Some("Active")) {
            return Ok(Outcome::Done);
        }
        let resource = self.client.resource(self.made.store)?;
        let at = At { resource: &resource, namespace, name: self.made.object_name };
        let written = match self.client.cached(at).await? {
            None => self.client.create(at, &self.made.object(&resource.kind)).await,
            Some(_) if self.made.content.is_none() => Ok(()),
            Some(_) => self.client.edit(at, "", |object| Ok(self.made.fill(object))).await,
        };
        match written {
            Err(status) if !status.is_settled() => Err(status),
            _ => Ok(Outcome::Done),
        }
    }
}

impl Controller for PerNamespace {
    type Key = Work;

    fn follows(&self) -> Follows {
        Follows::These(self.made.follows)
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Work>) {
        let key = &change.object.key;
        if change.of.as_str() == NAMESPACES {
            if !change.gone && change.object.fields.get("status.phase") == Some("Active") {
                queue.add(Work::One(key.name().to_owned()));
            }
        } else if key.name() == self.made.object_name && (change.gone || self.made.content.is_some()) {
            queue.add(Work::One(key.namespace().to_owned()));
        }
    }

    fn on_list(&self, of: &TypeName, snapshot: &Snapshot, queue: &mut Queue<Work>) {
        if of.as_str() != NAMESPACES {
            return queue.add(Work::Every);
        }
        self.on_each(of, snapshot, queue);
    }

    fn work(self: Rc<Self>, work: Work) -> LocalBoxFuture<'static, Outcome> {
        async move {
            let done = match &work {
                Work::One(namespace) => self.sync(namespace).await,
                Work::Every => self.every().await,
            };
            done.unwrap_or_else(|status| Outcome::Again(status.to_string()))
        }
        .boxed_local()
    }

    fn more(&self) -> Vec<Work> {
        self.more.take()
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec;

    use super::*;

    #[test]
    fn what_somebody_changed_is_put_right_once() {
        let made = NamespaceObject::root_certificate("PEM");
        let mut object = made.object("ConfigMap");
        let wanted = object.clone();
        assert!(!made.fill(&mut object));
        object.entry("data").set("more", "x");
        assert!(made.fill(&mut object));
        assert_eq!(object, wanted);
        let text = codec::to_json(&wanted);
        assert!(String::from_utf8_lossy(&text).contains(r#""ca.crt":"PEM""#));
        assert!(!NamespaceObject::default_account().fill(&mut object));
    }
}
