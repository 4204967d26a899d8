//! What a webhook is called about: the request, and the object in the version that its rules match.

use std::sync::Arc;

use pilothouse_actors::error::StoreError;
use pilothouse_actors::object::{Key, TypeName};

use crate::api::catalog::resource::Resource;
use crate::api::codec::{self, json};
use crate::api::custom::Custom;
use crate::api::hooks::Hook;
use crate::api::kinds;
use crate::api::matching::Asked;
use crate::api::meta;
use crate::api::patch;
use crate::api::policies::evaluate::Inputs;
use crate::api::policies::judge::{Conditioned, conditioned};
use crate::api::policies::request;
use crate::api::schema::{GroupVersionKind, TypeId, default};
use crate::api::status::{GroupResource, Result, Status};
use crate::api::value::Value;
use crate::api::version::GroupVersion;
use crate::api::words::NAMESPACES;

use crate::metrics::conditions::Conditions;

use super::super::super::object::check_size;
use super::super::asked::{Options, asked, operation, options, rights, told, until_answered};
use super::super::{Operation, Write, shown};
use super::Webhooks;

/// One call, before it is encoded.
pub struct Subject<'a> {
    /// The webhook.
    pub hook: &'a Hook,
    /// The request.
    pub write: &'a Write<'a>,
    /// The operation as rules name it.
    pub operation: &'static str,
    /// The resource in the version that is sent.
    pub resource: Arc<Resource>,
    /// The kind of what is sent.
    pub kind: GroupVersionKind,
    /// The object as it is sent, and what was there before; null if there is none.
    pub states: (Value, Value),
}

impl<'a> Subject<'a> {
    /// Prepares the call of a webhook; `None` if its rules, selectors or conditions do not match.
    pub async fn of(
        plugin: &Webhooks,
        write: &'a Write<'a>,
        hook: &'a Hook,
        object: &Value,
    ) -> Result<Option<Subject<'a>>> {
        let call = write.call;
        let asked = asked(write, object);
        let Some(resource) = plugin.wanted(hook, &asked, call.resource) else {
            return Ok(None);
        };
        let states = [Some(object), write.old].into_iter().flatten();
        if !wants_namespace(hook, write, asked.namespace, object).await? || !hook.wants_object(states) {
            return Ok(None);
        }
        let (gv, kind) = shown::kind(&resource, call.subresource);
        let states = shown::states(write, object, &resource).await?;
        let subject = Subject {
            hook,
            write,
            operation: operation(write),
            kind: GroupVersionKind::new(&gv.group, &gv.version, kind),
            states,
            resource,
        };
        Ok(subject.meets_conditions(plugin, asked).await?.then_some(subject))
    }

    /// Whether the matchConditions hold. If evaluation fails, the failurePolicy decides: the request is refused or the webhook is
    /// skipped.
    async fn meets_conditions(&self, plugin: &Webhooks, asked: Asked<'_>) -> Result<bool> {
        let hook = self.hook;
        if hook.conditions.is_empty() {
            return Ok(true);
        }
        let began = plugin.settings.clock.now();
        let options = options(self.write);
        let told = told(self.write, asked, &options);
        let kind = (&*self.kind.group, &*self.kind.version, &*self.kind.kind);
        // They know the resource that was asked for, and not the one that was matched.
        let request = request::request(&told, &asked, kind);
        let rights = rights(&asked);
        let inputs = Inputs {
            object: &self.states.0,
            old: &self.states.1,
            params: &Value::Null,
            request: &request,
            namespace: &Value::Null,
            rights: Some(&rights),
        };
        let who = format!("webhook {}", crate::api::field::quoted(&hook.name));
        let evaluate = || conditioned(&[], &hook.conditions, inputs, !hook.ignores_failures).ok();
        let Conditioned { hold, errors } = until_answered(self.write, &rights, &who, evaluate).await?;
        let seconds = plugin.settings.clock.now().since(began).as_secs_f64();
        let of = Conditions {
            name: &hook.name,
            kind: "webhook",
            sort: plugin.phase.word(),
            operation: asked.operation,
        };
        let counts = &plugin.settings.metrics.hooks.conditions;
        counts.evaluated(&of, errors, seconds);
        match hold {
            Ok(true) => Ok(true),
            Ok(false) => {
                counts.excluded(&of);
                Ok(false)
            }
            Err(why) => {
                tracing::warn!(webhook = hook.name, %why, "the conditions of a webhook cannot be evaluated");
                Err(Status::forbidden(&why, Some((self.write.call.of(), asked.name))))
            }
        }
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

    /// The question, in the words of expressions; the objects are left out.
    pub fn request(&self, object: &Value, options: &Options) -> Value {
        let asked = asked(self.write, object);
        let gv = &self.resource.gv;
        let matched = asked.as_of(&gv.group, &gv.version, &self.resource.plural);
        let kind = (&*self.kind.group, &*self.kind.version, &*self.kind.kind);
        request::request(&told(self.write, asked, options), &matched, kind)
    }

    /// Applies a patch. Answers the object in the stored version with defaults, and whether it differs.
    pub async fn patched(&self, object: &Value, patch: &[u8]) -> Result<Option<(Value, bool)>> {
        let original = String::from_utf8(json::to_json(&self.states.0))
            .map_err(|error| Status::internal(error.to_string()))?;
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
        self.stored(new).await.map(|new| Some((new, changed)))
    }

    /// Fills in what a value in the version that was sent leaves out, and turns it into the stored version.
    async fn stored(&self, mut value: Value) -> Result<Value> {
        let (backend, call) = (self.write.backend, self.write.call);
        if let Some(custom) = self.custom() {
            custom.coerce(&mut value).map_err(Status::internal)?;
            if !custom.fill(&mut value) {
                return Err(Status::too_large("the defaults of the object are too large"));
            }
            return Ok(match &call.resource.custom {
                Some(own) if !self.is_own_version() => {
                    backend.value_in_version(own, value, &call.permit).await?
                }
                _ => value,
            });
        }
        let (version, kind) = (self.version(), self.kind.kind.as_str());
        check_size(&value)?;
        kinds::fill_in(kinds::rules(&version.group, kind), &mut value, backend.terms);
        default::apply(&backend.registry, self.type_id()?, &mut value);
        if *kind != *call.resource.kind {
            return Ok(value);
        }
        backend.convert(value, &version, &call.stored.version, kind)
    }
}

impl Webhooks {
    /// The resource in the version for which a webhook wants the request, if it does. Rules that match the requested version come
    /// first; then the rules that match an equivalent one, in order.
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

/// Whether the namespaceSelector matches. Cluster-scoped objects always do.
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
