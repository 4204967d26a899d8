//! Attributes of a request for match rules, webhooks and CEL expressions.

use std::sync::Arc;

use pilothouse_actors::authorizer::AuthorizeExplained;
use pilothouse_admission::matching::AdmissionAttributes;
use pilothouse_admission::policies::authorizer::{
    AuthorizationCheck, AuthorizationResult, Authorizer, RequestTarget,
};
use pilothouse_admission::policies::request::{KindRef, RequestInfo};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::{DeleteOptions, Propagation};
use pilothouse_apimachinery::selectors::parse_labels;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::NAMESPACES;
use pilothouse_authorization::reviews::access::parse_fields;
use pilothouse_types::authorization::{Decision, Selection};

use crate::auth::service_account::claims::account;
use crate::limits::POLICY_AUTHORIZER_ROUNDS;
use crate::registry::authorization;

use super::{Operation, Write};

/// The operation, as match rules name it.
pub fn operation(write: &Write<'_>) -> &'static str {
    write.operation.word()
}

/// The attributes that match rules use.
pub fn attributes_of<'a>(write: &'a Write<'a>, object: &'a Value) -> AdmissionAttributes<'a> {
    let call = write.call;
    let metadata = meta::metadata(object);
    let (name, prefix) = (metadata.str("name"), metadata.str("generateName"));
    // A generated name did not exist when the request arrived.
    let is_generated = !prefix.is_empty() && name.len() == prefix.len() + 5 && name.starts_with(prefix);
    let name = match (call.name(), write.operation) {
        ("", Operation::Create) if !is_generated => name,
        (name, _) => name,
    };
    let (resource, subresource) = call.requested_resource();
    let is_namespace = resource.gv.group.is_empty() && *resource.plural == *NAMESPACES;
    AdmissionAttributes {
        group: &resource.gv.group,
        version: &resource.gv.version,
        resource: &resource.plural,
        subresource,
        namespace: if is_namespace { name } else { call.namespace() },
        name,
        operation: operation(write),
    }
}

/// A kind in this version.
pub fn kind_ref<'a>((gv, kind): (&'a GroupVersion, &'a str)) -> KindRef<'a> {
    KindRef { group: &gv.group, version: &gv.version, kind }
}

/// The `request` of AdmissionReviews and expressions, with its [`options`].
pub fn request_info<'a>(
    write: &'a Write<'a>,
    attributes: AdmissionAttributes<'a>,
    options: &'a Options,
) -> RequestInfo<'a> {
    RequestInfo {
        attributes,
        kind: kind_ref(write.call.body_kind()),
        user: write.call.user(),
        is_trial: options.is_dry_run,
        options: &options.value,
    }
}

/// The options of a write, such as CreateOptions.
#[derive(Debug, PartialEq)]
pub struct Options {
    /// As an object; null for a connecting subresource, whose options are its object.
    pub value: Value,
    /// Whether it is a dry run.
    pub is_dry_run: bool,
}

/// The options of a write.
pub fn options(write: &Write<'_>) -> Options {
    let query = write.call.query;
    let kind = match write.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => {
            let options = write.backend.objects.delete_options(write.call).unwrap_or_default();
            return Options { value: delete_options_value(&options), is_dry_run: options.dry_run };
        }
        Operation::Connect => return Options { value: Value::Null, is_dry_run: false },
    };
    let mut value = new_options(kind);
    let dry_run: Vec<Value> =
        query.all("dryRun").filter(|value| !value.is_empty()).map(Value::from).collect();
    if !dry_run.is_empty() {
        value.set("dryRun", dry_run);
    }
    for field in ["fieldManager", "fieldValidation"] {
        if let Some(text) = query.get(field).filter(|text| !text.is_empty()) {
            value.set(field, text);
        }
    }
    Options { value, is_dry_run: write.is_dry_run() }
}

fn new_options(kind: &str) -> Value {
    let mut options = Value::object();
    options.set("kind", kind);
    options.set("apiVersion", "meta.k8s.io/v1");
    options
}

fn delete_options_value(options: &DeleteOptions) -> Value {
    let mut value = new_options("DeleteOptions");
    if let Some(seconds) = options.grace_period_seconds {
        value.set("gracePeriodSeconds", Value::Int(seconds));
    }
    for (field, text) in [("uid", &options.uid), ("resourceVersion", &options.resource_version)] {
        if let Some(text) = text {
            value.entry("preconditions").set(field, text.as_str());
        }
    }
    if let Some(orphan) = options.orphan_dependents {
        value.set("orphanDependents", Value::Bool(orphan));
    } else if let Some(propagation) = options.propagation {
        value.set(
            "propagationPolicy",
            match propagation {
                Propagation::Orphan => "Orphan",
                Propagation::Background => "Background",
                Propagation::Foreground => "Foreground",
            },
        );
    }
    if options.dry_run {
        value.set("dryRun", vec![Value::from("All")]);
    }
    value
}

/// The `authorizer` variable of expressions about a request.
pub fn expression_authorizer(attributes: &AdmissionAttributes<'_>) -> Authorizer {
    Authorizer::new(RequestTarget {
        group: attributes.group.to_owned(),
        resource: attributes.resource.to_owned(),
        subresource: attributes.subresource.to_owned(),
        namespace: attributes.namespace.to_owned(),
        name: attributes.name.to_owned(),
    })
}

/// Evaluates repeatedly until every authorization check of the expression is answered. The error for too many checks names
/// `caller`.
pub async fn retry_with_decisions<T>(
    write: &Write<'_>,
    authorizer: &Authorizer,
    caller: &str,
    evaluate: impl Fn() -> Option<T>,
) -> Result<T> {
    for _ in 0..POLICY_AUTHORIZER_ROUNDS {
        if let Some(outcome) = write.call.work().metered(&evaluate)? {
            return Ok(outcome);
        }
        for check in authorizer.cache.pending() {
            let result = check_authorization(write, &check).await?;
            authorizer.cache.record(check, result);
        }
    }
    Err(Status::internal(format!(
        "{caller} exceeds the limit of {POLICY_AUTHORIZER_ROUNDS} rounds of authorizer checks"
    )))
}

async fn check_authorization(write: &Write<'_>, check: &AuthorizationCheck) -> Result<AuthorizationResult> {
    let identity = match &check.account {
        Some((namespace, name)) => account(namespace, name, ""),
        None => write.call.user().clone(),
    };
    let access = &write.backend.access;
    let mut selection = Selection::default();
    if access.uses_selectors {
        // An invalid selector is left out, which asks for a broader right.
        selection.fields = parse_fields(&check.fields).unwrap_or_default();
        selection.labels = parse_labels(&check.labels).unwrap_or_default();
    }
    let command = AuthorizeExplained {
        identity: Arc::new(identity),
        action: Arc::new(check.action.clone()),
        selection: Arc::new(selection),
    };
    let verdict = authorization::send(&access.authorizer, command).await?;
    let allowed = verdict.decision == Decision::Allowed;
    Ok(AuthorizationResult { allowed, reason: verdict.reason(), error: verdict.error })
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    #[test]
    fn delete_options_value_has_all_fields() {
        let options = DeleteOptions {
            grace_period_seconds: Some(3),
            uid: Some("u".into()),
            propagation: Some(Propagation::Foreground),
            dry_run: true,
            ..DeleteOptions::default()
        };
        let expected = br#"{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1","gracePeriodSeconds":3,
            "preconditions":{"uid":"u"},"propagationPolicy":"Foreground","dryRun":["All"]}"#;
        assert_eq!(delete_options_value(&options), json::read(expected).unwrap());
    }
}
