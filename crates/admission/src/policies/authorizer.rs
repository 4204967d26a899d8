//! The `authorizer` variable of CEL expressions.
//!
//! Evaluation is synchronous and authorization is not. So a check that is not in the cache is noted and the evaluation is
//! aborted; the caller has it answered and evaluates again. A check has a high CEL cost, so an evaluation makes few.

use std::fmt;
use std::sync::Arc;

use pilothouse_apimachinery::names;
use pilothouse_cel::{Fault, Foreign, Val};
use pilothouse_types::authorization::{Action, Target};
use pilothouse_types::lock::Lock;

/// An authorization check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationCheck {
    /// The namespace and name of the service account; `None` for the user of the request.
    pub account: Option<(String, String)>,
    /// The action.
    pub action: Action,
    /// The field selector; empty for all.
    pub fields: String,
    /// The label selector; empty for all.
    pub labels: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizationResult {
    /// Whether it is allowed.
    pub allowed: bool,
    /// The reason.
    pub reason: String,
    /// The error of the authorizer.
    pub error: Option<String>,
}

/// The checks of one request and their results, so that each is made once.
#[derive(Debug, Default)]
pub struct AuthorizationCache(Lock<CacheState>);

#[derive(Debug, Default)]
struct CacheState {
    results: Vec<(AuthorizationCheck, AuthorizationResult)>,
    pending: Vec<AuthorizationCheck>,
}

impl AuthorizationCache {
    /// The pending checks.
    pub fn pending(&self) -> Vec<AuthorizationCheck> {
        self.0.lock().pending.clone()
    }

    /// Whether a check is pending.
    pub fn has_pending(&self) -> bool {
        !self.0.lock().pending.is_empty()
    }

    /// Stores the result of a check.
    pub fn record(&self, check: AuthorizationCheck, result: AuthorizationResult) {
        let mut state = self.0.lock();
        state.pending.retain(|pending| *pending != check);
        state.results.push((check, result));
    }

    fn lookup(&self, check: AuthorizationCheck) -> Result<AuthorizationResult, Fault> {
        let mut state = self.0.lock();
        if let Some((_, result)) = state.results.iter().find(|(known, _)| *known == check) {
            return Ok(result.clone());
        }
        state.pending.push(check);
        // Not absorbed by `||`: aborts the evaluation.
        Err(Fault::Budget)
    }
}

/// The resource of the request, for `authorizer.requestResource`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestTarget {
    /// The group.
    pub group: String,
    /// The plural of the resource.
    pub resource: String,
    /// The subresource.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
}

/// The values of `authorizer` and `authorizer.requestResource`.
#[derive(Clone, Debug)]
pub struct Authorizer {
    /// The cached checks of the request.
    pub cache: Arc<AuthorizationCache>,
    target: RequestTarget,
}

impl Authorizer {
    /// For a request of this resource.
    pub fn new(target: RequestTarget) -> Authorizer {
        Authorizer { cache: Arc::default(), target }
    }

    /// The value of `authorizer`.
    pub fn authorizer(&self) -> Val<'static> {
        self.value(None, AuthorizerStep::Authorizer)
    }

    /// The value of `authorizer.requestResource`.
    pub fn request_resource(&self) -> Val<'static> {
        let resource =
            ResourceCheck { target: self.target.clone(), fields: String::new(), labels: String::new() };
        self.value(None, AuthorizerStep::Resource(resource))
    }

    fn value(&self, account: Option<(String, String)>, step: AuthorizerStep) -> Val<'static> {
        Val::Foreign(Arc::new(AuthorizerValue { cache: self.cache.clone(), account, step }))
    }
}

#[derive(Clone)]
struct ResourceCheck {
    target: RequestTarget,
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

/// A CEL value of the authorizer library.
struct AuthorizerValue {
    cache: Arc<AuthorizationCache>,
    account: Option<(String, String)>,
    step: AuthorizerStep,
}

impl fmt::Debug for AuthorizerValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}

impl AuthorizerValue {
    fn at_step(&self, step: AuthorizerStep) -> Result<Val<'static>, Fault> {
        let (cache, account) = (self.cache.clone(), self.account.clone());
        Ok(Val::Foreign(Arc::new(AuthorizerValue { cache, account, step })))
    }

    fn check(
        &self,
        verb: &str,
        target: Target,
        resource: Option<&ResourceCheck>,
    ) -> Result<Val<'static>, Fault> {
        let check = AuthorizationCheck {
            account: self.account.clone(),
            action: Action { verb: verb.to_owned(), target },
            fields: resource.map(|resource| resource.fields.clone()).unwrap_or_default(),
            labels: resource.map(|resource| resource.labels.clone()).unwrap_or_default(),
        };
        self.at_step(AuthorizerStep::Decision(self.cache.lookup(check)?))
    }

    fn for_service_account(&self, namespace: &str, name: &str) -> Result<Val<'static>, Fault> {
        if !names::dns_subdomain(name).is_empty() {
            return Err(Fault::error("Invalid service account name"));
        }
        if !names::dns_label(namespace).is_empty() {
            return Err(Fault::error("Invalid service account namespace"));
        }
        let account = Some((namespace.to_owned(), name.to_owned()));
        Ok(Val::Foreign(Arc::new(AuthorizerValue {
            cache: self.cache.clone(),
            account,
            step: AuthorizerStep::Authorizer,
        })))
    }
}

impl Foreign for AuthorizerValue {
    fn type_name(&self) -> &str {
        match self.step {
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
        let arguments: Option<Vec<String>> = args.iter().map(text).collect();
        let arguments = arguments.ok_or_else(Fault::no_overload)?;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match (&self.step, function, arguments.as_slice()) {
            (AuthorizerStep::Authorizer, "path", [path]) if path.trim().is_empty() => {
                Err(Fault::error("path must not be empty"))
            }
            (AuthorizerStep::Authorizer, "path", [path]) => {
                self.at_step(AuthorizerStep::Path((*path).to_owned()))
            }
            (AuthorizerStep::Authorizer, "group", [group]) => {
                self.at_step(AuthorizerStep::Group((*group).to_owned()))
            }
            (AuthorizerStep::Authorizer, "serviceAccount", [namespace, name]) => {
                self.for_service_account(namespace, name)
            }
            (AuthorizerStep::Group(_), "resource", [resource]) if resource.trim().is_empty() => {
                Err(Fault::error("resource must not be empty"))
            }
            (AuthorizerStep::Group(group), "resource", [resource]) => {
                let target = RequestTarget {
                    group: group.clone(),
                    resource: (*resource).to_owned(),
                    ..RequestTarget::default()
                };
                self.at_step(AuthorizerStep::Resource(ResourceCheck {
                    target,
                    fields: String::new(),
                    labels: String::new(),
                }))
            }
            (AuthorizerStep::Path(path), "check", [verb]) => {
                self.check(verb, Target::Path(path.clone()), None)
            }
            (AuthorizerStep::Resource(resource), "check", [verb]) => {
                let RequestTarget { group, resource: plural, subresource, namespace, name } =
                    resource.target.clone();
                let version = "*".to_owned();
                let target =
                    Target::Resource { group, version, resource: plural, subresource, namespace, name };
                self.check(verb, target, Some(resource))
            }
            (AuthorizerStep::Resource(resource), function, [text]) => {
                let mut resource = resource.clone();
                let field = match function {
                    "subresource" => &mut resource.target.subresource,
                    "namespace" => &mut resource.target.namespace,
                    "name" => &mut resource.target.name,
                    "fieldSelector" => &mut resource.fields,
                    "labelSelector" => &mut resource.labels,
                    _ => return Err(Fault::no_overload()),
                };
                (*text).clone_into(field);
                self.at_step(AuthorizerStep::Resource(resource))
            }
            (AuthorizerStep::Decision(result), "allowed", []) => Ok(Val::Bool(result.allowed)),
            (AuthorizerStep::Decision(result), "errored", []) => Ok(Val::Bool(result.error.is_some())),
            (AuthorizerStep::Decision(result), "error", []) => {
                Ok(Val::from(result.error.clone().unwrap_or_default()))
            }
            (AuthorizerStep::Decision(result), "reason", []) => Ok(Val::from(result.reason.clone())),
            _ => Err(Fault::no_overload()),
        }
    }
}
