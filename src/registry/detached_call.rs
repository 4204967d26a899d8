//! A call that can be carried out on another thread: the owned form of [`Call`].

use std::sync::Arc;

use pilothouse_actors::permit::Permit;
use pilothouse_api::audit::Level;
use pilothouse_api::catalog::backing::Stored;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::response_format::ResponseFormat;
use pilothouse_types::clock::Moment;
use pilothouse_types::identity::Identity;
use pilothouse_types::trace::OpenSpan;

use super::work_limit::WorkLimit;
use super::{Call, CallBody, CallTarget, Execution, Origin, Requester, Warnings};

/// Everything that a [`Call`] borrows, owned.
pub struct DetachedCall {
    resource: Arc<Resource>,
    stored: Stored,
    namespace: String,
    name: String,
    subresource: String,
    alias: Option<Arc<Resource>>,
    query: Query<'static>,
    body: CallBody,
    response_format: ResponseFormat,
    user: Identity,
    origin: Origin,
    user_agent: String,
    permit: Permit,
    deadline: Option<Moment>,
    /// The audit level and whether managedFields are omitted, see [`super::audit_body::AuditBody`].
    audit_options: (Level, bool),
}

impl DetachedCall {
    /// Copies the call. It starts from the beginning on the other thread, as part of this step of its trace.
    pub fn new(call: &Call<'_>, step: &OpenSpan) -> DetachedCall {
        DetachedCall {
            resource: call.resource().clone(),
            stored: call.stored().clone(),
            namespace: call.namespace().to_owned(),
            name: call.name().to_owned(),
            subresource: call.subresource().to_owned(),
            alias: call.target.alias.cloned(),
            query: call.query.to_owned_pairs(),
            body: call.body.clone(),
            response_format: call.response_format,
            user: call.user().clone(),
            origin: call.requester.origin,
            user_agent: call.requester.user_agent.to_owned(),
            permit: call.permit().for_other_thread(step),
            deadline: call.execution.deadline,
            audit_options: call.warnings.audit_body.options(),
        }
    }

    /// Empty warnings with the audit options of the original ones.
    pub fn warnings(&self) -> Warnings {
        let warnings = Warnings::default();
        warnings.audit_body.enable(self.audit_options.0, self.audit_options.1);
        warnings
    }

    /// Borrows it as a call without a work limit.
    pub fn call<'a>(&'a self, warnings: &'a Warnings) -> Call<'a> {
        let target = CallTarget {
            namespace: &self.namespace,
            name: &self.name,
            subresource: &self.subresource,
            alias: self.alias.as_ref(),
            ..CallTarget::new(&self.resource, &self.stored)
        };
        let requester = Requester { user: &self.user, origin: self.origin, user_agent: &self.user_agent };
        let (permit, deadline, work) = (self.permit.clone(), self.deadline, WorkLimit::unlimited());
        Call {
            body: self.body.clone(),
            response_format: self.response_format,
            execution: Execution { permit, deadline, work },
            ..Call::new(target, requester, &self.query, warnings)
        }
    }
}
