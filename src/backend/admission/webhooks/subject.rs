//! What a webhook is called about: the request, and the object in the version that its rules match.

use std::sync::Arc;

use pilothouse_admission::matching::AdmissionAttributes;
use pilothouse_admission::policies::decision::{ConditionsResult, evaluate_conditions};
use pilothouse_admission::policies::evaluate::Inputs;
use pilothouse_admission::policies::request;
use pilothouse_admission::webhooks::Webhook;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::patch;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::NAMESPACES;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::{Key, TypeName};

use crate::metrics::match_conditions::ConditionLabels;

use super::super::attributes::{
    Options, attributes_of, operation, options, request_value, retry_with_decisions, rights,
};
use super::super::view::View;
use super::super::{Operation, Write};
use super::Webhooks;

/// One call, before it is encoded.
pub struct Subject<'a> {
    /// The webhook.
    pub hook: &'a Webhook,
    /// The request.
    pub write: &'a Write<'a>,
    /// The operation as rules name it.
    pub operation: &'static str,
    /// The object in the version that is sent.
    pub view: View<'a>,
    /// The object as it is sent, and what was there before; null if there is none.
    pub states: (Value, Value),
}

impl<'a> Subject<'a> {
    /// Prepares the call of a webhook; `None` if its rules, selectors or conditions do not match.
    pub async fn of(
        plugin: &Webhooks,
        write: &'a Write<'a>,
        hook: &'a Webhook,
        object: &Value,
    ) -> Result<Option<Subject<'a>>> {
        let call = write.call;
        let asked = attributes_of(write, object);
        let Some(resource) = plugin.wanted(hook, &asked, call.addressed().0) else {
            return Ok(None);
        };
        let states = [Some(object), write.old].into_iter().flatten();
        if !wants_namespace(hook, write, asked.namespace, object).await? || !hook.wants_object(states) {
            return Ok(None);
        }
        let view = View::new(write, resource);
        let states = view.states(object).await?;
        let subject = Subject { hook, write, operation: operation(write), states, view };
        Ok(subject.meets_conditions(plugin, asked).await?.then_some(subject))
    }

    /// Whether the matchConditions hold. If evaluation fails, the failurePolicy decides: the request is refused or the webhook is
    /// skipped.
    async fn meets_conditions(&self, plugin: &Webhooks, asked: AdmissionAttributes<'_>) -> Result<bool> {
        let hook = self.hook;
        if hook.conditions.is_empty() {
            return Ok(true);
        }
        let began = plugin.settings.clock.moment();
        let options = options(self.write);
        let told = request_value(self.write, asked, &options);
        let kind = self.kind();
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
        let who = format!("webhook {}", pilothouse_apimachinery::field::quoted(&hook.name));
        let evaluate = || evaluate_conditions(&[], &hook.conditions, inputs, !hook.ignores_failures).ok();
        let ConditionsResult { hold, errors } =
            retry_with_decisions(self.write, &rights, &who, evaluate).await?;
        let seconds = plugin.settings.clock.elapsed(began).as_secs_f64();
        let of = ConditionLabels {
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
                tracing::warn!(webhook = hook.name, %why, "the match conditions of an admission webhook cannot be evaluated");
                Err(Status::forbidden(&why, Some((self.write.call.of(), asked.name))))
            }
        }
    }

    /// The question, in the words of expressions; the objects are left out.
    pub fn request(&self, object: &Value, options: &Options) -> Value {
        let asked = attributes_of(self.write, object);
        let resource = &self.view.resource;
        let matched = asked.as_of(&resource.gv.group, &resource.gv.version, &resource.plural);
        request::request(&request_value(self.write, asked, options), &matched, self.kind())
    }

    /// The kind of what is sent.
    fn kind(&self) -> (&str, &str, &str) {
        self.view.kind.words()
    }

    /// Applies a patch. Answers the object in the stored version with defaults, and whether it differs.
    pub async fn patched(&self, object: &Value, patch: &[u8]) -> Result<Option<(Value, bool)>> {
        let original = String::from_utf8(json::to_json(&self.states.0))
            .map_err(|error| Status::internal(error.to_string()))?;
        let Some(text) =
            patch::apply_operations(patch, &original).map_err(|error| Status::internal(error.told()))?
        else {
            return Ok(None);
        };
        if object.is_null() {
            return Err(Status::internal(format!(
                "admission webhook {} attempted to modify the object, which is not supported for this operation",
                pilothouse_apimachinery::field::quoted(&self.hook.name)
            )));
        }
        let new = self.view.decoded(text.as_bytes())?.value;
        let changed = self.view.decoded(original.as_bytes())?.value != new;
        let new = self.view.stored(self.view.filled(new)?).await?;
        Ok(Some((new, changed)))
    }
}

impl Webhooks {
    /// The resource in the version for which a webhook wants the request, if it does. Rules that match the requested version come
    /// first; then the rules that match an equivalent one, in order.
    fn wanted(
        &self,
        hook: &Webhook,
        of: &AdmissionAttributes<'_>,
        resource: &Arc<Resource>,
    ) -> Option<Arc<Resource>> {
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
async fn wants_namespace(hook: &Webhook, write: &Write<'_>, namespace: &str, object: &Value) -> Result<bool> {
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
