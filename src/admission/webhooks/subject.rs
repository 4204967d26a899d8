//! Matches a webhook against a request, and prepares the object in the version that its rules match.

use std::sync::Arc;

use pilothouse_admission::matching::AdmissionAttributes;
use pilothouse_admission::policies::decision::{ConditionsResult, evaluate_conditions};
use pilothouse_admission::policies::evaluate::Inputs;
use pilothouse_admission::policies::request::{self, KindRef};
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
use pilothouse_types::trace::span::Attribute;

use crate::metrics::match_conditions::ConditionLabels;

use super::super::attributes::{
    Options, attributes_of, expression_authorizer, operation, options, request_info, retry_with_decisions,
};
use super::super::view::View;
use super::super::{Operation, Write};
use super::Webhooks;

/// The request and object of one webhook call.
pub struct Subject<'a> {
    /// The webhook.
    pub hook: &'a Webhook,
    /// The request.
    pub write: &'a Write<'a>,
    /// The operation, as match rules name it.
    pub operation: &'static str,
    /// The object in the version that is sent.
    pub view: View<'a>,
    /// The new and the old object as they are sent; null if absent.
    pub states: (Value, Value),
}

impl<'a> Subject<'a> {
    /// Prepares the call of a webhook; `None` if its rules, selectors or conditions do not match.
    pub async fn new(
        plugin: &Webhooks,
        write: &'a Write<'a>,
        hook: &'a Webhook,
        object: &Value,
    ) -> Result<Option<Subject<'a>>> {
        let call = write.call;
        let attributes = attributes_of(write, object);
        let Some(resource) = plugin.matched_resource(hook, &attributes, call.requested_resource().0) else {
            return Ok(None);
        };
        let states = [Some(object), write.old].into_iter().flatten();
        if !matches_namespace(hook, write, attributes.namespace, object).await?
            || !hook.matches_object(states)
        {
            return Ok(None);
        }
        let view = View::new(write, resource);
        let states = view.states(object).await?;
        let subject = Subject { hook, write, operation: operation(write), states, view };
        Ok(subject.meets_conditions(plugin, attributes).await?.then_some(subject))
    }

    /// What a trace tells about the call.
    pub fn attributes(&self) -> Vec<Attribute> {
        let (gv, plural) = (&self.view.resource.gv, &self.view.resource.plural);
        let texts = [
            ("configuration", self.hook.configuration.clone()),
            ("webhook", self.hook.name.clone()),
            ("resource", format!("{}/{}, Resource={plural}", gv.group, gv.version)),
            ("subresource", self.write.call.requested_resource().1.to_owned()),
            ("operation", self.operation.to_owned()),
        ];
        texts.into_iter().map(|(key, value)| Attribute::text(key, value)).collect()
    }

    /// Whether the matchConditions hold. If evaluation fails, the failurePolicy decides: the request is refused or the webhook is
    /// skipped.
    async fn meets_conditions(&self, plugin: &Webhooks, attributes: AdmissionAttributes<'_>) -> Result<bool> {
        let hook = self.hook;
        if hook.conditions.is_empty() {
            return Ok(true);
        }
        let began = plugin.settings.clock.moment();
        let options = options(self.write);
        let info = request_info(self.write, attributes, &options);
        let kind = self.kind();
        // Conditions see the requested resource, not the matched one.
        let request = request::request(&info, &attributes, kind);
        let authorizer = expression_authorizer(&attributes);
        let inputs = Inputs {
            object: &self.states.0,
            old: &self.states.1,
            params: &Value::Null,
            request: &request,
            namespace: &Value::Null,
            authorizer: Some(&authorizer),
        };
        let caller = format!("webhook {}", pilothouse_apimachinery::field::quoted(&hook.name));
        let evaluate = || evaluate_conditions(&[], &hook.conditions, inputs, !hook.ignores_failures).ok();
        let ConditionsResult { hold, errors } =
            retry_with_decisions(self.write, &authorizer, &caller, evaluate).await?;
        let seconds = plugin.settings.clock.elapsed(began).as_secs_f64();
        let labels = ConditionLabels {
            name: &hook.name,
            kind: "webhook",
            sort: plugin.phase.word(),
            operation: attributes.operation,
        };
        let counts = &plugin.settings.metrics.hooks.conditions;
        counts.count_evaluation(&labels, errors, seconds);
        match hold {
            Ok(true) => Ok(true),
            Ok(false) => {
                counts.count_exclusion(&labels);
                Ok(false)
            }
            Err(reason) => {
                tracing::warn!(webhook = hook.name, %reason, "the match conditions of an admission webhook cannot be evaluated");
                Err(Status::forbidden(&reason, Some((self.write.group_resource(), attributes.name))))
            }
        }
    }

    /// The `request` of the AdmissionReview, without the objects.
    pub fn request(&self, object: &Value, options: &Options) -> Value {
        let attributes = attributes_of(self.write, object);
        let resource = &self.view.resource;
        let matched = attributes.for_resource(&resource.gv.group, &resource.gv.version, &resource.plural);
        request::request(&request_info(self.write, attributes, options), &matched, self.kind())
    }

    /// The kind of the object that is sent.
    fn kind(&self) -> KindRef<'_> {
        let (group, version, kind) = self.view.kind.words();
        KindRef { group, version, kind }
    }

    /// Applies a patch. Returns the object in the stored version with defaults, and whether it differs.
    pub async fn patch_object(&self, object: &Value, patch: &[u8]) -> Result<Option<(Value, bool)>> {
        let original = String::from_utf8(json::to_json(&self.states.0))
            .map_err(|error| Status::internal(error.to_string()))?;
        let Some(text) = patch::apply_operations(patch, &original)
            .map_err(|error| Status::internal(error.into_message()))?
        else {
            return Ok(None);
        };
        if object.is_null() {
            return Err(Status::internal(format!(
                "admission webhook {} attempted to modify the object, which is not supported for this operation",
                pilothouse_apimachinery::field::quoted(&self.hook.name)
            )));
        }
        let patched = self.view.decode(text.as_bytes())?.value;
        let changed = self.view.decode(original.as_bytes())?.value != patched;
        let patched = self.view.to_stored(self.view.apply_defaults(patched)?).await?;
        Ok(Some((patched, changed)))
    }
}

impl Webhooks {
    /// The resource that a rule of a webhook matches. Rules for the requested version come first; then the rules that match an
    /// equivalent one, in order.
    fn matched_resource(
        &self,
        hook: &Webhook,
        attributes: &AdmissionAttributes<'_>,
        resource: &Arc<Resource>,
    ) -> Option<Arc<Resource>> {
        if hook.rules.iter().any(|rule| rule.covers(attributes)) {
            return Some(resource.clone());
        }
        if !hook.is_equivalent || resource.is_virtual() {
            return None;
        }
        let others = (self.settings.equivalents)(resource, attributes.subresource);
        hook.rules.iter().find_map(|rule| {
            let is_covered = |other: &&Arc<Resource>| {
                let (group, version) = (&*other.gv.group, &*other.gv.version);
                rule.covers(&attributes.for_resource(group, version, &other.plural))
            };
            others.iter().find(is_covered).cloned()
        })
    }
}

/// Whether the namespaceSelector matches. Cluster-scoped objects always do.
async fn matches_namespace(
    hook: &Webhook,
    write: &Write<'_>,
    namespace: &str,
    object: &Value,
) -> Result<bool> {
    let call = write.call;
    let is_namespace = *call.resource().plural == *NAMESPACES;
    if !hook.selects_namespaces() || (namespace.is_empty() && !is_namespace) {
        return Ok(true);
    }
    let is_write = matches!(write.operation, Operation::Create | Operation::Update);
    if is_namespace && call.subresource().is_empty() && is_write {
        return Ok(hook.matches_namespace(meta::metadata(object).get("labels")));
    }
    let resource = GroupResource { group: "", resource: NAMESPACES };
    let namespace_object =
        write.backend.stores.get(&TypeName::new(NAMESPACES), Key::cluster(namespace), call.permit()).await;
    let namespace_object = namespace_object.map_err(|error| match error {
        StoreError::NotFound => Status::not_found(resource, namespace),
        error => Status::internal(error.to_string()),
    })?;
    let mut labels = Value::object();
    namespace_object.labels.iter().for_each(|(key, value)| labels.set(key, value));
    Ok(hook.matches_namespace(Some(&labels)))
}
