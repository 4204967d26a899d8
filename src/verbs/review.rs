//! Reviews, such as SubjectAccessReview: created objects that are never stored. They pass the same steps as every create, and get
//! a status instead of being stored.

use std::sync::Arc;

use pilothouse_actors::authenticator::ReviewToken;
use pilothouse_actors::authorizer::{AuthorizeExplained, Hint, ListGrants};
use pilothouse_api::catalog::backing::ReviewKind;
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::WriteOptions;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_authorization::reviews::access::{self, ReviewedSubject};
use pilothouse_authorization::reviews::{self, token};
use pilothouse_types::authentication::Remark;
use pilothouse_types::authorization::{Decision, Target};
use pilothouse_types::identity::Credentials;

use super::{Reply, Success, VerbResult, create};
use crate::registry::admission::{Operation, Write};
use crate::registry::{Backend, Call, authorization};

/// Completes the review in the body.
pub async fn create(backend: &Backend, call: &Call<'_>, kind: ReviewKind) -> VerbResult {
    let options = WriteOptions::create(call.query)?;
    let mut review = backend.objects.decode_body(call, options.field_validation)?;
    meta::clear_system_fields(&mut review);
    meta::ensure_namespace(&mut review, call.namespace())?;
    meta::dedupe_owners(&mut review).into_iter().for_each(|warning| call.warnings.add(warning));
    backend.objects.record(call, None, &mut review);
    create::admit(backend, call, &mut review).await?;
    let reviewed = match kind {
        ReviewKind::Access(subject) => review_access(backend, call, review, subject).await?,
        ReviewKind::Rights => review_rules(backend, call, &review).await?,
        ReviewKind::Identity => {
            validate_admission(backend, call, &review).await?;
            reviews::self_subject_review(&review, call.user(), &backend.objects.now())
        }
        ReviewKind::Token => review_token(backend, call, review).await?,
    };
    Ok(Reply::Object(Success::Created, backend.objects.encode_unstored(call, &reviewed)?))
}

/// Runs validating admission on a valid review.
async fn validate_admission(backend: &Backend, call: &Call<'_>, review: &Value) -> Result<()> {
    let write = Write { backend, call, operation: Operation::Create, old: None };
    backend.admission.validate(&write, review).await
}

/// 422 for an invalid review. The reference omits its kind and name.
fn fail_on_errors(call: &Call<'_>, errors: &ErrorList) -> Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(call.group_resource().group, "", "", errors)) }
}

async fn review_token(backend: &Backend, call: &Call<'_>, mut review: Value) -> Result<Value> {
    let request = token::parse(&review)?;
    validate_admission(backend, call, &review).await?;
    let credentials =
        Credentials { bearer: request.bearer, audiences: request.audiences, ..Credentials::default() };
    let result = backend.access.authenticator.send(ReviewToken { credentials }).await;
    let result = result.map_err(|_| Status::unavailable("the authenticator does not answer"))?;
    // The client gets the warnings that the user of the token would get.
    for remark in result.iter().flat_map(|bearer| &bearer.remarks) {
        if let Remark::Warning(text) = remark {
            call.warnings.add(*text);
        }
    }
    token::set_status(&mut review, result);
    Ok(review)
}

async fn review_access(
    backend: &Backend,
    call: &Call<'_>,
    mut review: Value,
    subject: ReviewedSubject,
) -> Result<Value> {
    // First, because without the feature gate selectors are dropped unread.
    let request = access::parse(&mut review, backend.access.uses_selectors);
    fail_on_errors(call, &access::validate(&review, subject))?;
    if subject == ReviewedSubject::SpecUserInNamespace && call.namespace().is_empty() {
        return Err(Status::bad_request("namespace is required on this type: "));
    }
    validate_admission(backend, call, &review).await?;
    let identity = match subject {
        ReviewedSubject::RequestUser => Arc::new(call.user().clone()),
        ReviewedSubject::SpecUser | ReviewedSubject::SpecUserInNamespace => {
            Arc::new(access::subject(&review))
        }
    };
    let (action, selection) = (Arc::new(request.action.clone()), Arc::new(request.selection.clone()));
    let command = AuthorizeExplained { identity: identity.clone(), action: action.clone(), selection };
    let verdict = authorization::send(&backend.access.authorizer, command).await?;
    let wants_hint = call.query.flag("explain") == Some(true) && verdict.decision != Decision::Allowed;
    let hint = match wants_hint && may_explain(backend, call).await? {
        true => authorization::send(&backend.access.authorizer, Hint { identity, action }).await?,
        false => None,
    };
    access::set_status(&mut review, &request, &verdict, hint);
    Ok(review)
}

/// Whether the client may see the roles and bindings behind the decision: those of other users are not public.
async fn may_explain(backend: &Backend, call: &Call<'_>) -> Result<bool> {
    let target = Target::Resource {
        group: call.resource().gv.group.to_string(),
        version: call.resource().gv.version.to_string(),
        resource: call.resource().plural.to_string(),
        subresource: String::new(),
        namespace: call.namespace().to_owned(),
        name: String::new(),
    };
    authorization::is_allowed(&backend.access.authorizer, call.user(), "explain", target).await
}

async fn review_rules(backend: &Backend, call: &Call<'_>, review: &Value) -> Result<Value> {
    let namespace = reviews::namespace_of(review)?.to_owned();
    validate_admission(backend, call, review).await?;
    let command = ListGrants { identity: Arc::new(call.user().clone()), namespace };
    let grants = authorization::send(&backend.access.authorizer, command).await?;
    Ok(reviews::self_subject_rules_review(review, grants))
}
