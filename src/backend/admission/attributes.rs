//! A request in the form that match rules, webhooks and CEL expressions see.

use std::sync::Arc;

use pilothouse_actors::authorizer::AuthorizeExplained;
use pilothouse_admission::matching::AdmissionAttributes;
use pilothouse_admission::policies::authorizer::{
    AuthorizationCheck, AuthorizationResult, Authorizer, RequestTarget,
};
use pilothouse_admission::policies::request::RequestInfo;
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
use crate::backend::authorization;
use crate::limits::POLICY_QUESTIONS;

use super::{Operation, Write};

/// The operation as rules name it.
pub fn operation(write: &Write<'_>) -> &'static str {
    match write.operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

/// The request as match rules see it.
pub fn attributes_of<'a>(write: &'a Write<'a>, object: &'a Value) -> AdmissionAttributes<'a> {
    let call = write.call;
    let given = meta::of(object);
    let (name, prefix) = (given.str("name"), given.str("generateName"));
    // A generated name did not exist when the request arrived.
    let is_made = !prefix.is_empty() && name.len() == prefix.len() + 5 && name.starts_with(prefix);
    let name = match (call.name, write.operation) {
        ("", Operation::Create) if !is_made => name,
        (name, _) => name,
    };
    let (resource, subresource) = call.addressed();
    let is_namespace = resource.gv.group.is_empty() && *resource.plural == *NAMESPACES;
    AdmissionAttributes {
        group: &resource.gv.group,
        version: &resource.gv.version,
        resource: &resource.plural,
        subresource,
        namespace: if is_namespace { name } else { call.namespace },
        name,
        operation: operation(write),
    }
}

/// A group, version and kind as three strings.
pub fn triple<'a>((gv, kind): (&'a GroupVersion, &'a str)) -> (&'a str, &'a str, &'a str) {
    (&gv.group, &gv.version, kind)
}

/// The request as webhooks and expressions see it, with its [`options`].
pub fn request_value<'a>(
    write: &'a Write<'a>,
    asked: AdmissionAttributes<'a>,
    options: &'a Options,
) -> RequestInfo<'a> {
    RequestInfo {
        asked,
        kind: triple(write.call.shown_kind()),
        user: write.call.user,
        is_trial: options.is_trial,
        options: &options.said,
    }
}

/// The options of a write, such as CreateOptions.
#[derive(Debug, PartialEq)]
pub struct Options {
    /// As an object; null for a connecting subresource, whose options are its object.
    pub said: Value,
    /// Whether it is a dry run.
    pub is_trial: bool,
}

/// The options of a write.
pub fn options(write: &Write<'_>) -> Options {
    let query = write.call.query;
    let kind = match write.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => {
            let options = write.backend.objects.delete_options(write.call).unwrap_or_default();
            return Options { said: deletion(&options), is_trial: options.dry_run };
        }
        Operation::Connect => return Options { said: Value::Null, is_trial: false },
    };
    let mut said = named(kind);
    let trials: Vec<Value> = query.all("dryRun").filter(|value| !value.is_empty()).map(Value::from).collect();
    if !trials.is_empty() {
        said.set("dryRun", trials);
    }
    for field in ["fieldManager", "fieldValidation"] {
        if let Some(text) = query.get(field).filter(|text| !text.is_empty()) {
            said.set(field, text);
        }
    }
    Options { said, is_trial: write.is_dry_run() }
}

fn named(kind: &str) -> Value {
    let mut options = Value::object();
    options.set("kind", kind);
    options.set("apiVersion", "meta.k8s.io/v1");
    options
}

fn deletion(options: &DeleteOptions) -> Value {
    let mut said = named("DeleteOptions");
    if let Some(seconds) = options.grace_period_seconds {
        said.set("gracePeriodSeconds", Value::Int(seconds));
    }
    for (field, text) in [("uid", &options.uid), ("resourceVersion", &options.resource_version)] {
        if let Some(text) = text {
            said.entry("preconditions").set(field, text.as_str());
        }
    }
    if let Some(orphan) = options.orphan_dependents {
        said.set("orphanDependents", Value::Bool(orphan));
    } else if let Some(propagation) = options.propagation {
        said.set(
            "propagationPolicy",
            match propagation {
                Propagation::Orphan => "Orphan",
                Propagation::Background => "Background",
                Propagation::Foreground => "Foreground",
            },
        );
    }
    if options.dry_run {
        said.set("dryRun", vec![Value::from("All")]);
    }
    said
}

/// The `authorizer` variable of expressions about a request.
pub fn rights(asked: &AdmissionAttributes<'_>) -> Authorizer {
    Authorizer::new(RequestTarget {
        group: asked.group.to_owned(),
        resource: asked.resource.to_owned(),
        subresource: asked.subresource.to_owned(),
        namespace: asked.namespace.to_owned(),
        name: asked.name.to_owned(),
    })
}

/// Evaluates repeatedly until every authorization check that the expression asks for is answered. Errors name `who` if it asks
/// for too many.
pub async fn retry_with_decisions<T>(
    write: &Write<'_>,
    rights: &Authorizer,
    who: &str,
    evaluate: impl Fn() -> Option<T>,
) -> Result<T> {
    for _ in 0..POLICY_QUESTIONS {
        if let Some(outcome) = write.call.work.metered(&evaluate)? {
            return Ok(outcome);
        }
        for question in rights.answers.wanted() {
            let answer = answer(write, &question).await?;
            rights.answers.tell(question, answer);
        }
    }
    Err(Status::internal(format!("{who} asks for more rights than it may")))
}

async fn answer(write: &Write<'_>, question: &AuthorizationCheck) -> Result<AuthorizationResult> {
    let identity = match &question.account {
        Some((namespace, name)) => account(namespace, name, ""),
        None => write.call.user.clone(),
    };
    let access = &write.backend.access;
    let mut selection = Selection::default();
    if access.uses_selectors {
        // An invalid selector is left out, which asks for a broader right.
        selection.fields = parse_fields(&question.fields).unwrap_or_default();
        selection.labels = parse_labels(&question.labels).unwrap_or_default();
    }
    let asked = AuthorizeExplained {
        identity: Arc::new(identity),
        action: Arc::new(question.action.clone()),
        selection: Arc::new(selection),
    };
    let verdict = authorization::ask(&access.authorizer, asked).await?;
    let allowed = verdict.decision == Decision::Allowed;
    Ok(AuthorizationResult { allowed, reason: verdict.reason(), error: verdict.error })
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    #[test]
    fn options_of_deletions_are_told_as_they_came() {
        let options = DeleteOptions {
            grace_period_seconds: Some(3),
            uid: Some("u".into()),
            propagation: Some(Propagation::Foreground),
            dry_run: true,
            ..DeleteOptions::default()
        };
        let wanted = br#"{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1","gracePeriodSeconds":3,
            "preconditions":{"uid":"u"},"propagationPolicy":"Foreground","dryRun":["All"]}"#;
        assert_eq!(deletion(&options), json::read(wanted).unwrap());
    }
}
