//! Matches a request against policies and bindings, and prepares the variables of their expressions.

use std::sync::Arc;

use pilothouse_admission::matching::{AdmissionAttributes, Match, MatchConstraints};
use pilothouse_admission::policies::authorizer::Authorizer;
use pilothouse_admission::policies::policy::{Binding, Policy};
use pilothouse_admission::policies::request::{self, KindRef};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known;

use super::super::attributes::{
    Options, attributes_of, expression_authorizer, kind_ref, options, request_info,
};
use super::super::lookup::NAMESPACES;
use super::super::{Kinds, Operation, Write, versioned};
use super::params;

/// Matches one request.
pub struct PolicyMatcher<'a> {
    /// The write.
    pub write: &'a Write<'a>,
    /// The new object, as it was before any policy changed it.
    object: &'a Value,
    /// The attributes of the request as it was made.
    pub attributes: AdmissionAttributes<'a>,
    others: &'a [Arc<Resource>],
    equivalents: Vec<AdmissionAttributes<'a>>,
    options: Options,
    /// The `authorizer` variable.
    pub authorizer: Authorizer,
    /// The namespace of the request, once it was needed.
    namespace: Option<Value>,
    kinds: &'a Kinds,
}

/// A request that matched a policy.
#[derive(Clone, Copy)]
pub struct Matched<'a> {
    /// The resource that the rule of the policy matched.
    pub resource: &'a Arc<Resource>,
    attributes: AdmissionAttributes<'a>,
}

/// Variables of expressions about a request.
pub struct Context {
    /// The request, as if it had been made for the matched resource.
    pub request: Value,
    /// The request as it was made.
    pub original_request: Value,
    /// The namespace that it is in, with all of its metadata; null if it is in none.
    pub namespace: Value,
}

impl<'a> PolicyMatcher<'a> {
    /// `others` are the resources that serve the same objects.
    pub fn new(
        write: &'a Write<'a>,
        object: &'a Value,
        others: &'a [Arc<Resource>],
        kinds: &'a Kinds,
    ) -> PolicyMatcher<'a> {
        let attributes = attributes_of(write, object);
        let equivalents = others
            .iter()
            .map(|resource| {
                attributes.for_resource(&resource.gv.group, &resource.gv.version, &resource.plural)
            })
            .collect();
        PolicyMatcher {
            write,
            object,
            authorizer: expression_authorizer(&attributes),
            attributes,
            others,
            equivalents,
            options: options(write),
            namespace: None,
            kinds,
        }
    }

    /// Matches a policy. Returns the match and the resource of the policy's parameters; an error if the policy is misconfigured.
    pub async fn match_policy(
        &mut self,
        policy: &Policy,
    ) -> std::result::Result<Option<(Matched<'a>, Option<Arc<Resource>>)>, String> {
        let Some(matching) = &policy.matching else {
            return Err("policy contained no match constraints, a required field".to_owned());
        };
        match self.matches(matching).await? {
            None => Ok(None),
            Some(matched) => Ok(Some((matched, params::resource(policy, self.kinds)?))),
        }
    }

    /// Matches a binding. Returns its parameters; none if it does not match.
    pub async fn match_binding(
        &mut self,
        binding: &Binding,
        params_resource: Option<&Arc<Resource>>,
    ) -> std::result::Result<Vec<Value>, String> {
        if let Some(matching) = &binding.matching
            && self.matches(matching).await?.is_none()
        {
            return Ok(Vec::new());
        }
        params::collect(self.write, params_resource, binding, self.attributes.namespace).await
    }

    /// Whether the constraints match, and with which resource.
    async fn matches(
        &mut self,
        matching: &MatchConstraints,
    ) -> std::result::Result<Option<Matched<'a>>, String> {
        if !matching.selects_object(self.object, self.write.old) {
            return Ok(None);
        }
        let Some(matched) = matching.rules_match(&self.attributes, &self.equivalents) else {
            return Ok(None);
        };
        if matching.selects_namespaces() && !self.selects_namespace(matching).await? {
            return Ok(None);
        }
        let as_requested =
            Matched { resource: self.write.call.requested_resource().0, attributes: self.attributes };
        Ok(Some(match matched {
            Match::Exact => as_requested,
            Match::Equivalent(index) => match (self.others.get(index), self.equivalents.get(index)) {
                (Some(resource), Some(attributes)) => Matched { resource, attributes: *attributes },
                _ => as_requested,
            },
        }))
    }

    async fn selects_namespace(&mut self, matching: &MatchConstraints) -> std::result::Result<bool, String> {
        let is_namespace = self.attributes.resource == well_known::NAMESPACES;
        if self.attributes.namespace.is_empty() && !is_namespace {
            return Ok(true);
        }
        let is_written = is_namespace
            && self.attributes.subresource.is_empty()
            && self.write.operation != Operation::Delete;
        if is_written {
            return Ok(matching.selects_namespace(self.object.get_path(&["metadata", "labels"])));
        }
        let namespace = self.namespace().await.map_err(|status| status.message)?;
        Ok(matching.selects_namespace(namespace.get_path(&["metadata", "labels"])))
    }

    /// The namespace of the request, with all fields.
    async fn namespace(&mut self) -> Result<&Value> {
        if self.namespace.is_none() {
            let name = self.attributes.namespace;
            let namespace = NAMESPACES.get(self.write, name).await?;
            let resource = GroupResource { group: "", resource: well_known::NAMESPACES };
            let namespace = namespace.ok_or_else(|| Status::not_found(resource, name))?;
            let complete =
                versioned::complete(self.write, &namespace, &GroupVersion::new("", "v1"), "Namespace")?;
            self.namespace = Some(complete);
        }
        Ok(self.namespace.as_ref().unwrap_or(&Value::Null))
    }

    /// The variables of the expressions of a policy.
    pub async fn context(&mut self, matched: &Matched<'_>) -> Result<Context> {
        let kind = kind_ref(versioned::kind(matched.resource, self.attributes.subresource));
        let is_namespace = kind == KindRef { group: "", version: "v1", kind: "Namespace" };
        let namespace = match self.attributes.namespace {
            name if name.is_empty() || is_namespace => Value::Null,
            _ => self.namespace().await?.clone(),
        };
        let info = request_info(self.write, self.attributes, &self.options);
        Ok(Context {
            request: request::request(&info, &matched.attributes, kind),
            original_request: request::request(&info, &self.attributes, kind),
            namespace,
        })
    }
}
