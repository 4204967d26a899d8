//! Reviews: requests that are asked by creating an object which is never stored. They pass the same steps as every create up to
//! storing. Then they are answered instead.

use std::sync::Arc;

use pilothouse_actors::authenticator::ReviewToken;
use pilothouse_actors::authorizer::{AuthorizeExplained, Hint, ListGrants};
use pilothouse_api::catalog::resource::{Resource, Stored};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::options::WriteOptions;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::AUTHORIZATION_GROUP;
use pilothouse_authorization::reviews::access::{self, ReviewedSubject};
use pilothouse_authorization::reviews::{self, IDENTITY_GROUP, token};
use pilothouse_types::authentication::Remark;
use pilothouse_types::authorization::{Decision, Target};
use pilothouse_types::identity::Credentials;
use pilothouse_types::object::TypeName;

use super::{Reply, Success, VerbResult, create};
use crate::backend::admission::{Operation, Write};
use crate::backend::{Backend, Call, authorization};

/// The question of a review.
#[derive(Clone, Copy)]
enum Question {
    /// May this user do this?
    Access(ReviewedSubject),
    /// Which rights does the asking user have?
    Rights,
    /// Who is the asking user?
    Identity,
    /// Whose token is this?
    Token,
}

/// All reviews that are answered here.
const QUESTIONS: [(&str, &str, Question); 6] = [
    (AUTHORIZATION_GROUP, "SelfSubjectAccessReview", Question::Access(ReviewedSubject::Oneself)),
    (AUTHORIZATION_GROUP, "SubjectAccessReview", Question::Access(ReviewedSubject::Anybody)),
    (AUTHORIZATION_GROUP, "LocalSubjectAccessReview", Question::Access(ReviewedSubject::AnybodyIn)),
    (AUTHORIZATION_GROUP, "SelfSubjectRulesReview", Question::Rights),
    (IDENTITY_GROUP, "SelfSubjectReview", Question::Identity),
    (IDENTITY_GROUP, "TokenReview", Question::Token),
];

fn question(resource: &Resource) -> Option<Question> {
    let mut all = QUESTIONS.iter();
    let found = all.find(|(group, kind, _)| *resource.gv.group == **group && *resource.kind == **kind);
    found.map(|(.., question)| *question)
}

/// Whether creating an object of this resource is a review.
pub fn is_review(resource: &Resource) -> bool {
    question(resource).is_some()
}

/// A placeholder for the store of a review, in the version of the request; `None` if the resource is no review.
pub fn place(resource: &Resource) -> Option<Stored> {
    question(resource)?;
    Some(Stored { store: TypeName::new(""), version: resource.gv.clone(), hash: "".into() })
}

/// Answers the review in the body.
pub async fn create(backend: &Backend, call: &Call<'_>) -> VerbResult {
    let question = question(call.resource).ok_or_else(Status::no_such_resource)?;
    let options = WriteOptions::create(call.query)?;
    let mut review = backend.objects.decode_body(call, options.field_validation)?;
    meta::clear_system_fields(&mut review);
    meta::agree_on_namespace(&mut review, call.namespace)?;
    meta::dedupe_owners(&mut review).into_iter().for_each(|warning| call.warnings.add(warning));
    backend.objects.record(call, None, &mut review);
    create::admit(backend, call, &mut review).await?;
    let answer = match question {
        Question::Access(about) => access(backend, call, review, about).await?,
        Question::Rights => rights(backend, call, &review).await?,
        Question::Identity => {
            admitted(backend, call, &review).await?;
            reviews::myself(&review, call.user, &backend.objects.now())
        }
        Question::Token => token(backend, call, review).await?,
    };
    Ok(Reply::Object(Success::Created, backend.objects.show_value(call, &answer)?))
}

/// Runs validating admission on a valid review.
async fn admitted(backend: &Backend, call: &Call<'_>, review: &Value) -> Result<()> {
    let write = Write { backend, call, operation: Operation::Create, old: None };
    backend.admission.validate(&write, review).await
}

/// 422 for an invalid review. The reference omits its kind and name.
fn refuse(call: &Call<'_>, errors: &ErrorList) -> Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(call.of().group, "", "", errors)) }
}

async fn token(backend: &Backend, call: &Call<'_>, mut review: Value) -> Result<Value> {
    let asked = token::question(&review)?;
    admitted(backend, call, &review).await?;
    let credentials =
        Credentials { bearer: asked.bearer, audiences: asked.audiences, ..Credentials::default() };
    let found = backend.access.authenticator.send(ReviewToken { credentials }).await;
    let found = found.map_err(|_| Status::unavailable("the authenticator does not answer"))?;
    // The asker gets the warnings that the token's bearer would get.
    for remark in found.iter().flat_map(|bearer| &bearer.remarks) {
        if let Remark::Warning(text) = remark {
            call.warnings.add(*text);
        }
    }
    token::answer(&mut review, found);
    Ok(review)
}

async fn access(
    backend: &Backend,
    call: &Call<'_>,
    mut review: Value,
    about: ReviewedSubject,
) -> Result<Value> {
    // First, because without the feature gate selectors are dropped unread.
    let question = access::question(&mut review, backend.access.uses_selectors);
    refuse(call, &access::validate(&review, about))?;
    if about == ReviewedSubject::AnybodyIn && call.namespace.is_empty() {
        return Err(Status::bad_request("namespace is required on this type: "));
    }
    admitted(backend, call, &review).await?;
    let identity = match about {
        ReviewedSubject::Oneself => Arc::new(call.user.clone()),
        ReviewedSubject::Anybody | ReviewedSubject::AnybodyIn => Arc::new(access::subject(&review)),
    };
    let (action, selection) = (Arc::new(question.action.clone()), Arc::new(question.selection.clone()));
    let asked = AuthorizeExplained { identity: identity.clone(), action: action.clone(), selection };
    let verdict = authorization::ask(&backend.access.authorizer, asked).await?;
    let wants_hint = call.query.flag("explain") == Some(true) && verdict.decision != Decision::Allowed;
    let hint = match wants_hint && may_explain(backend, call).await? {
        true => authorization::ask(&backend.access.authorizer, Hint { identity, action }).await?,
        false => None,
    };
    access::answer(&mut review, &question, &verdict, hint);
    Ok(review)
}

/// Whether the asker may see which roles and bindings the decision is based on: others' roles are not public.
async fn may_explain(backend: &Backend, call: &Call<'_>) -> Result<bool> {
    let target = Target::Resource {
        group: call.resource.gv.group.to_string(),
        version: call.resource.gv.version.to_string(),
        resource: call.resource.plural.to_string(),
        subresource: String::new(),
        namespace: call.namespace.to_owned(),
        name: String::new(),
    };
    authorization::may(&backend.access.authorizer, call.user, "explain", target).await
}

async fn rights(backend: &Backend, call: &Call<'_>, review: &Value) -> Result<Value> {
    let namespace = reviews::namespace_of(review)?.to_owned();
    admitted(backend, call, review).await?;
    let asked = ListGrants { identity: Arc::new(call.user.clone()), namespace };
    let grants = authorization::ask(&backend.access.authorizer, asked).await?;
    Ok(reviews::all_rights(review, grants))
}
