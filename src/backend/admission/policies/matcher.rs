//! One request, on its way from policy to policy: which of them mean it, and what they are told of it.

use std::sync::Arc;

use pilothouse_admission::matching::{AdmissionAttributes, Match, MatchConstraints};
use pilothouse_admission::policies::authorizer::Authorizer;
use pilothouse_admission::policies::policy::{Binding, Policy};
use pilothouse_admission::policies::request;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known;

use super::super::attributes::{Options, attributes_of, options, request_value, rights, triple};
use super::super::lookup::NAMESPACES;
use super::super::{Kinds, Operation, Write, versioned};
use super::params;

/// The request.
pub struct PolicyMatcher<'a> {
    /// As a write.
    pub write: &'a Write<'a>,
    /// What would be stored, as it is when policies are found.
    object: &'a Value,
    /// As rules see it.
    pub asked: AdmissionAttributes<'a>,
    others: &'a [Arc<Resource>],
    equivalents: Vec<AdmissionAttributes<'a>>,
    options: Options,
    /// How its policies ask who may do what.
    pub rights: Authorizer,
    /// The namespace of the request, once somebody wanted to know.
    namespace: Option<Value>,
    kinds: &'a Kinds,
}

/// What a request is in the eyes of the policy that it matched.
#[derive(Clone, Copy)]
pub struct Matched<'a> {
    /// The resource that the policy names.
    pub resource: &'a Arc<Resource>,
    asked: AdmissionAttributes<'a>,
}

/// What expressions are told of a request.
pub struct Context {
    /// The request as if it had been made for the resource that was matched.
    pub request: Value,
    /// The request as it was made.
    pub asked: Value,
    /// The namespace that it is in, with all of its metadata; null if it is in none.
    pub namespace: Value,
}

impl<'a> PolicyMatcher<'a> {
    /// Of a write. `others` are the resources that show the same objects.
    pub fn new(
        write: &'a Write<'a>,
        object: &'a Value,
        others: &'a [Arc<Resource>],
        kinds: &'a Kinds,
    ) -> PolicyMatcher<'a> {
        let asked = attributes_of(write, object);
        let equivalents =
            others.iter().map(|one| asked.as_of(&one.gv.group, &one.gv.version, &one.plural)).collect();
        PolicyMatcher {
            write,
            object,
            rights: rights(&asked),
            asked,
            others,
            equivalents,
            options: options(write),
            namespace: None,
            kinds,
        }
    }

    /// What a request is to a policy that means it, and the resource of the policy's parameters. The error says why that is
    /// not known.
    pub async fn concerns(
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

    /// The parameters of a binding that means the request; none if it does not.
    pub async fn prepare(
        &mut self,
        binding: &Binding,
        of_params: Option<&Arc<Resource>>,
    ) -> std::result::Result<Vec<Value>, String> {
        if let Some(matching) = &binding.matching
            && self.matches(matching).await?.is_none()
        {
            return Ok(Vec::new());
        }
        params::collect(self.write, of_params, binding, self.asked.namespace).await
    }

    /// Whether a request is meant, and as what.
    async fn matches(
        &mut self,
        matching: &MatchConstraints,
    ) -> std::result::Result<Option<Matched<'a>>, String> {
        if !matching.selects_object(self.object, self.write.old) {
            return Ok(None);
        }
        let Some(found) = matching.rules_match(&self.asked, &self.equivalents) else { return Ok(None) };
        if matching.selects_namespaces() && !self.selects_namespace(matching).await? {
            return Ok(None);
        }
        let own = Matched { resource: self.write.call.addressed().0, asked: self.asked };
        Ok(Some(match found {
            Match::AsAsked => own,
            Match::As(place) => match (self.others.get(place), self.equivalents.get(place)) {
                (Some(resource), Some(asked)) => Matched { resource, asked: *asked },
                _ => own,
            },
        }))
    }

    async fn selects_namespace(&mut self, matching: &MatchConstraints) -> std::result::Result<bool, String> {
        let is_namespace = self.asked.resource == well_known::NAMESPACES;
        if self.asked.namespace.is_empty() && !is_namespace {
            return Ok(true);
        }
        let is_written =
            is_namespace && self.asked.subresource.is_empty() && self.write.operation != Operation::Delete;
        if is_written {
            return Ok(matching.selects_namespace(self.object.at(&["metadata", "labels"])));
        }
        let namespace = self.namespace().await.map_err(|status| status.message)?;
        Ok(matching.selects_namespace(namespace.at(&["metadata", "labels"])))
    }

    /// The namespace of the request, as a client would be shown it.
    async fn namespace(&mut self) -> Result<&Value> {
        if self.namespace.is_none() {
            let name = self.asked.namespace;
            let found = NAMESPACES.get(self.write, name).await?;
            let of = GroupResource { group: "", resource: well_known::NAMESPACES };
            let found = found.ok_or_else(|| Status::not_found(of, name))?;
            let shown = versioned::whole(self.write, &found, &GroupVersion::new("", "v1"), "Namespace")?;
            self.namespace = Some(shown);
        }
        Ok(self.namespace.as_ref().unwrap_or(&Value::Null))
    }

    /// What the expressions of a policy are told.
    pub async fn context(&mut self, matched: &Matched<'_>) -> Result<Context> {
        let kind = triple(versioned::kind(matched.resource, self.asked.subresource));
        let is_namespace = kind == ("", "v1", "Namespace");
        let namespace = match self.asked.namespace {
            name if name.is_empty() || is_namespace => Value::Null,
            _ => self.namespace().await?.clone(),
        };
        let told = request_value(self.write, self.asked, &self.options);
        Ok(Context {
            request: request::request(&told, &matched.asked, kind),
            asked: request::request(&told, &self.asked, kind),
            namespace,
        })
    }
}
