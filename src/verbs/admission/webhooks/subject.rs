//! What a webhook is asked about: the request, and the object in the version that its rules name.

use std::borrow::Cow;
use std::sync::Arc;

use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::{Key, TypeName};

use crate::api::catalog::resource::Resource;
use crate::api::codec;
use crate::api::custom::Custom;
use crate::api::hooks::Hook;
use crate::api::kinds;
use crate::api::matching::Asked;
use crate::api::meta;
use crate::api::patch;
use crate::api::schema::{GroupVersionKind, TypeId, default};
use crate::api::status::{GroupResource, Result, Status};
use crate::api::value::Value;
use crate::api::version::GroupVersion;
use crate::api::words::NAMESPACES;

use super::super::super::object::check_size;
use super::super::{Operation, Write};
use super::Webhooks;

/// One question to one webhook, before it is put into words.
pub struct Subject<'a> {
    /// Who is asked.
    pub hook: &'a Hook,
    /// The request.
    pub write: &'a Write<'a>,
    /// What is done, in the words of rules.
    pub operation: &'static str,
    /// The resource in the version that is sent.
    pub resource: Arc<Resource>,
    /// The kind of what is sent.
    pub kind: GroupVersionKind,
    /// The name of the object, empty if it has none yet.
    pub name: String,
    /// The namespace; that of a namespace is itself.
    pub namespace: String,
}

/// What is done, in the words of rules.
pub fn operation(write: &Write<'_>) -> &'static str {
    match write.operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

/// The kind that a resource shows, or a part of it.
fn kind_of(resource: &Resource, subresource: &str) -> GroupVersionKind {
    let (gv, kind) = match resource.subresource(subresource) {
        Some(part) => (&part.gv, &part.kind),
        None => (&resource.gv, &resource.kind),
    };
    GroupVersionKind::new(&gv.group, &gv.version, kind)
}

impl<'a> Subject<'a> {
    /// The question to a webhook about a write; `None` if it does not want to hear of it.
    pub async fn of(
        plugin: &Webhooks,
        write: &'a Write<'a>,
        hook: &'a Hook,
        object: &Value,
    ) -> Result<Option<Subject<'a>>> {
        let call = write.call;
        let name = match call.name {
            "" if write.operation == Operation::Create => meta::name(object),
            name => name,
        };
        let is_namespace = call.of() == GroupResource { group: "", resource: NAMESPACES };
        let namespace = if is_namespace { name } else { call.namespace };
        let asked = Asked {
            group: &call.resource.gv.group,
            version: &call.resource.gv.version,
            resource: &call.resource.plural,
            subresource: call.subresource,
            namespace,
            name,
            operation: operation(write),
        };
        let Some(resource) = plugin.wanted(hook, &asked, call.resource) else {
            return Ok(None);
        };
        let states = [Some(object), write.old].into_iter().flatten();
        if !wants_namespace(hook, write, namespace, object).await? || !hook.wants_object(states) {
            return Ok(None);
        }
        let subject = Subject {
            hook,
            write,
            operation: operation(write),
            kind: kind_of(&resource, call.subresource),
            resource,
            name: name.to_owned(),
            namespace: namespace.to_owned(),
        };
        Ok(subject.meets_conditions()?.then_some(subject))
    }

    /// Whether the conditions of the webhook hold. Here is where its expressions are evaluated; until they can be, they fail as
    /// expressions may: that refuses the request, or leaves the webhook out if its failures are ignored.
    fn meets_conditions(&self) -> Result<bool> {
        let Some(condition) = self.hook.conditions.first() else { return Ok(true) };
        if self.hook.ignores_failures {
            return Ok(false);
        }
        let why = format!(
            "the match condition {} of webhook {} cannot be evaluated",
            crate::api::field::quoted(condition.str("name")),
            crate::api::field::quoted(&self.hook.name)
        );
        Err(Status::forbidden(&why, Some((self.write.call.of(), &self.name))))
    }

    /// What is known of the kind that is sent, if that is a custom one.
    fn custom(&self) -> Option<&Custom> {
        self.resource.custom.as_deref().filter(|_| *self.resource.kind == *self.kind.kind)
    }

    fn version(&self) -> GroupVersion {
        GroupVersion::new(&self.kind.group, &self.kind.version)
    }

    fn type_id(&self) -> Result<TypeId> {
        match self.custom() {
            Some(_) => Ok(self.write.backend.registry.free_object()),
            None => self.write.backend.type_of(&self.version(), &self.kind.kind),
        }
    }

    /// Whether the webhook gets the object as the client sees it.
    fn is_own_version(&self) -> bool {
        self.resource.gv == self.write.call.resource.gv
    }

    /// The text of the object in the version that is sent; `None` if there is no object.
    pub fn text(&self, object: &Value) -> Result<Option<String>> {
        if object.is_null() {
            return Ok(None);
        }
        let (backend, call) = (self.write.backend, self.write.call);
        let mut value = match self.custom() {
            Some(_) if self.is_own_version() => object.clone(),
            Some(custom) => custom.shown(object.clone()),
            None if *self.kind.kind == *call.resource.kind => {
                backend.convert(object.clone(), &call.stored.version, &self.version(), &self.kind.kind)?
            }
            // What looks like another kind is in its version already.
            None => object.clone(),
        };
        value.set("kind", self.kind.kind.as_str());
        value.set("apiVersion", self.kind.api_version());
        let bytes = codec::encode(&backend.registry, self.type_id()?, &value);
        String::from_utf8(bytes).map(Some).map_err(|error| Status::internal(error.to_string()))
    }

    /// The object as a patch leaves it, in the stored version, with its defaults, and whether that is another object.
    pub fn patched(&self, object: &Value, patch: &[u8]) -> Result<Option<(Value, bool)>> {
        let original = match self.text(object)? {
            Some(text) => Cow::Owned(text),
            None => Cow::Borrowed("null"),
        };
        let Some(text) = patch::apply_operations(patch, &original).map_err(Status::internal)? else {
            return Ok(None);
        };
        if object.is_null() {
            return Err(Status::internal(format!(
                "admission webhook {} attempted to modify the object, which is not supported for this operation",
                crate::api::field::quoted(&self.hook.name)
            )));
        }
        let registry = self.write.backend.registry_of(&self.resource);
        let decode = |text: &str| {
            let decoded = codec::decode_object(text.as_bytes(), &self.kind, registry);
            decoded.map(|decoded| decoded.value).map_err(|error| Status::internal(error.message))
        };
        let new = decode(&text)?;
        let changed = decode(&original)? != new;
        self.stored(new).map(|new| Some((new, changed)))
    }

    /// Fills in what a value in the version that was sent leaves out, and turns it into the stored version.
    fn stored(&self, mut value: Value) -> Result<Value> {
        let (backend, call) = (self.write.backend, self.write.call);
        if let Some(custom) = self.custom() {
            custom.coerce(&mut value).map_err(Status::internal)?;
            if !custom.fill(&mut value) {
                return Err(Status::too_large("the defaults of the object are too large"));
            }
            return Ok(match &call.resource.custom {
                Some(own) if !self.is_own_version() => own.shown(value),
                _ => value,
            });
        }
        let (version, kind) = (self.version(), self.kind.kind.as_str());
        check_size(&value)?;
        (kinds::rules(&version.group, kind).default)(&mut value);
        default::apply(&backend.registry, self.type_id()?, &mut value);
        if *kind != *call.resource.kind {
            return Ok(value);
        }
        backend.convert(value, &version, &call.stored.version, kind)
    }
}

impl Webhooks {
    /// The resource in the version in which a webhook wants to hear of a request, if it does. Rules that name it as the client
    /// did come first; then, in their order, those that name another version of it.
    fn wanted(&self, hook: &Hook, of: &Asked<'_>, resource: &Arc<Resource>) -> Option<Arc<Resource>> {
        if hook.rules.iter().any(|rule| rule.covers(of)) {
            return Some(resource.clone());
        }
        if !hook.is_equivalent || resource.is_virtual() {
            return None;
        }
        let others = (self.settings.equivalents)(resource, of.subresource);
        hook.rules.iter().find_map(|rule| {
            let named = |other: &&Arc<Resource>| {
                let (group, version) = (&*other.gv.group, &*other.gv.version);
                rule.covers(&of.as_of(group, version, &other.plural))
            };
            others.iter().find(named).cloned()
        })
    }
}

/// Whether the namespace is one that a webhook wants to hear of. What stands in none always is.
async fn wants_namespace(hook: &Hook, write: &Write<'_>, namespace: &str, object: &Value) -> Result<bool> {
    let call = write.call;
    let is_namespace = *call.resource.plural == *NAMESPACES;
    if !hook.selects_namespaces() || (namespace.is_empty() && !is_namespace) {
        return Ok(true);
    }
    let writes = matches!(write.operation, Operation::Create | Operation::Update);
    if is_namespace && call.subresource.is_empty() && writes {
        return Ok(hook.wants_namespace(meta::of(object).get("labels")));
    }
    let of = GroupResource { group: "", resource: NAMESPACES };
    let found =
        write.backend.stores.get(&TypeName::new(NAMESPACES), Key::cluster(namespace), &call.permit).await;
    let found = found.map_err(|error| match error {
        StoreError::NotFound => Status::not_found(of, namespace),
        error => Status::internal(error.to_string()),
    })?;
    let mut labels = Value::object();
    found.labels.iter().for_each(|(key, value)| labels.set(key, value));
    Ok(hook.wants_namespace(Some(&labels)))
}
