//! How expressions ask who may do what.
//!
//! Expressions do not wait, and whoever answers may take its time. So the first time that a question comes up it is noted
//! and the evaluation ends; whoever evaluates has it answered and begins again. An evaluation pays so much for a question
//! that it asks few.

use std::fmt;
use std::sync::Arc;

use pilothouse_actors::authorizer::{Action, Target};
use pilothouse_actors::lock::Lock;

use crate::api::cel::{Fault, Foreign, Val};
use crate::api::names;

/// May somebody do this?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationCheck {
    /// The namespace and name of the service account that it is about; nothing means whoever makes the request.
    pub account: Option<(String, String)>,
    /// What.
    pub action: Action,
    /// To objects with these fields; empty for all.
    pub fields: String,
    /// To objects with these labels; empty for all.
    pub labels: String,
}

/// What came of a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizationResult {
    /// Whether they may.
    pub allowed: bool,
    /// Why.
    pub reason: String,
    /// What went wrong on the way.
    pub error: Option<String>,
}

/// What has been asked on behalf of one request, and what came of it: each question is asked once.
#[derive(Debug, Default)]
pub struct AuthorizationCache(Lock<CacheState>);

#[derive(Debug, Default)]
struct CacheState {
    known: Vec<(AuthorizationCheck, AuthorizationResult)>,
    wanted: Vec<AuthorizationCheck>,
}

impl AuthorizationCache {
    /// What nobody has answered yet.
    pub fn wanted(&self) -> Vec<AuthorizationCheck> {
        self.0.lock().wanted.clone()
    }

    /// Whether there is such a question.
    pub fn is_waiting(&self) -> bool {
        !self.0.lock().wanted.is_empty()
    }

    /// Answers a question.
    pub fn tell(&self, question: AuthorizationCheck, answer: AuthorizationResult) {
        let mut asked = self.0.lock();
        asked.wanted.retain(|wanted| *wanted != question);
        asked.known.push((question, answer));
    }

    fn ask(&self, question: AuthorizationCheck) -> Result<AuthorizationResult, Fault> {
        let mut asked = self.0.lock();
        if let Some((_, answer)) = asked.known.iter().find(|(known, _)| *known == question) {
            return Ok(answer.clone());
        }
        asked.wanted.push(question);
        // Nothing makes up for it: the evaluation ends here.
        Err(Fault::Budget)
    }
}

/// What the request is about, for those who ask about just that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestTarget {
    /// The group.
    pub group: String,
    /// The plural of the resource.
    pub resource: String,
    /// The part of the object.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The object.
    pub name: String,
}

/// The two values by which expressions ask.
#[derive(Clone, Debug)]
pub struct Authorizer {
    /// What has been asked.
    pub answers: Arc<AuthorizationCache>,
    about: RequestTarget,
}

impl Authorizer {
    /// Of a request about this.
    pub fn new(about: RequestTarget) -> Authorizer {
        Authorizer { answers: Arc::default(), about }
    }

    /// The one that asks about anything.
    pub fn authorizer(&self) -> Val<'static> {
        self.value(None, AuthorizerStep::Authorizer)
    }

    /// The one that asks about what the request is about.
    pub fn of_request(&self) -> Val<'static> {
        let resource =
            ResourceCheck { about: self.about.clone(), fields: String::new(), labels: String::new() };
        self.value(None, AuthorizerStep::Resource(resource))
    }

    fn value(&self, account: Option<(String, String)>, form: AuthorizerStep) -> Val<'static> {
        Val::Foreign(Arc::new(AuthorizerValue { answers: self.answers.clone(), account, form }))
    }
}

#[derive(Clone)]
struct ResourceCheck {
    about: RequestTarget,
    fields: String,
    labels: String,
}

#[derive(Clone)]
enum AuthorizerStep {
    Authorizer,
    Path(String),
    Group(String),
    Resource(ResourceCheck),
    Decision(AuthorizationResult),
}

/// A value that can be asked.
struct AuthorizerValue {
    answers: Arc<AuthorizationCache>,
    account: Option<(String, String)>,
    form: AuthorizerStep,
}

impl fmt::Debug for AuthorizerValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}

impl AuthorizerValue {
    fn with(&self, form: AuthorizerStep) -> Result<Val<'static>, Fault> {
        let (answers, account) = (self.answers.clone(), self.account.clone());
        Ok(Val::Foreign(Arc::new(AuthorizerValue { answers, account, form })))
    }

    fn check(
        &self,
        verb: &str,
        target: Target,
        resource: Option<&ResourceCheck>,
    ) -> Result<Val<'static>, Fault> {
        let question = AuthorizationCheck {
            account: self.account.clone(),
            action: Action { verb: verb.to_owned(), target },
            fields: resource.map(|resource| resource.fields.clone()).unwrap_or_default(),
            labels: resource.map(|resource| resource.labels.clone()).unwrap_or_default(),
        };
        self.with(AuthorizerStep::Decision(self.answers.ask(question)?))
    }

    fn of_account(&self, namespace: &str, name: &str) -> Result<Val<'static>, Fault> {
        if !names::dns_subdomain(name).is_empty() {
            return Err(Fault::error("Invalid service account name"));
        }
        if !names::dns_label(namespace).is_empty() {
            return Err(Fault::error("Invalid service account namespace"));
        }
        let account = Some((namespace.to_owned(), name.to_owned()));
        Ok(Val::Foreign(Arc::new(AuthorizerValue {
            answers: self.answers.clone(),
            account,
            form: AuthorizerStep::Authorizer,
        })))
    }
}

impl Foreign for AuthorizerValue {
    fn type_name(&self) -> &str {
        match self.form {
            AuthorizerStep::Authorizer => "kubernetes.authorization.Authorizer",
            AuthorizerStep::Path(_) => "kubernetes.authorization.PathCheck",
            AuthorizerStep::Group(_) => "kubernetes.authorization.GroupCheck",
            AuthorizerStep::Resource(_) => "kubernetes.authorization.ResourceCheck",
            AuthorizerStep::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    fn call(&self, function: &str, args: &[Val<'_>]) -> Result<Val<'static>, Fault> {
        let text = |arg: &Val<'_>| match arg {
            Val::String(text) => Some(text.to_string()),
            _ => None,
        };
        let texts: Option<Vec<String>> = args.iter().map(text).collect();
        let texts = texts.ok_or_else(Fault::no_overload)?;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        match (&self.form, function, texts.as_slice()) {
            (AuthorizerStep::Authorizer, "path", [path]) if path.trim().is_empty() => {
                Err(Fault::error("path must not be empty"))
            }
            (AuthorizerStep::Authorizer, "path", [path]) => {
                self.with(AuthorizerStep::Path((*path).to_owned()))
            }
            (AuthorizerStep::Authorizer, "group", [group]) => {
                self.with(AuthorizerStep::Group((*group).to_owned()))
            }
            (AuthorizerStep::Authorizer, "serviceAccount", [namespace, name]) => {
                self.of_account(namespace, name)
            }
            (AuthorizerStep::Group(_), "resource", [resource]) if resource.trim().is_empty() => {
                Err(Fault::error("resource must not be empty"))
            }
            (AuthorizerStep::Group(group), "resource", [resource]) => {
                let about = RequestTarget {
                    group: group.clone(),
                    resource: (*resource).to_owned(),
                    ..RequestTarget::default()
                };
                self.with(AuthorizerStep::Resource(ResourceCheck {
                    about,
                    fields: String::new(),
                    labels: String::new(),
                }))
            }
            (AuthorizerStep::Path(path), "check", [verb]) => {
                self.check(verb, Target::Path(path.clone()), None)
            }
            (AuthorizerStep::Resource(resource), "check", [verb]) => {
                let RequestTarget { group, resource: plural, subresource, namespace, name } =
                    resource.about.clone();
                let version = "*".to_owned();
                let target =
                    Target::Resource { group, version, resource: plural, subresource, namespace, name };
                self.check(verb, target, Some(resource))
            }
            (AuthorizerStep::Resource(resource), function, [text]) => {
                let mut resource = resource.clone();
                let place = match function {
                    "subresource" => &mut resource.about.subresource,
                    "namespace" => &mut resource.about.namespace,
                    "name" => &mut resource.about.name,
                    "fieldSelector" => &mut resource.fields,
                    "labelSelector" => &mut resource.labels,
                    _ => return Err(Fault::no_overload()),
                };
                (*text).clone_into(place);
                self.with(AuthorizerStep::Resource(resource))
            }
            (AuthorizerStep::Decision(answer), "allowed", []) => Ok(Val::Bool(answer.allowed)),
            (AuthorizerStep::Decision(answer), "errored", []) => Ok(Val::Bool(answer.error.is_some())),
            (AuthorizerStep::Decision(answer), "error", []) => {
                Ok(Val::from(answer.error.clone().unwrap_or_default()))
            }
            (AuthorizerStep::Decision(answer), "reason", []) => Ok(Val::from(answer.reason.clone())),
            _ => Err(Fault::no_overload()),
        }
    }
}
