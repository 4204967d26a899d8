//! A call that can be carried out on another thread: the owned form of [`Call`].

use std::sync::Arc;

use bytes::Bytes;
use pilothouse_actors::permit::Permit;
use pilothouse_api::audit::Level;
use pilothouse_api::catalog::backing::Stored;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::managed_fields::ConvertedVersions;
use pilothouse_apimachinery::media::{Encoding, PatchType};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::response_format::ResponseFormat;
use pilothouse_types::clock::Moment;
use pilothouse_types::identity::Identity;

use super::work_limit::WorkLimit;
use super::{Call, Origin, Warnings};

/// Everything that a [`Call`] borrows, owned.
pub struct DetachedCall {
    resource: Arc<Resource>,
    stored: Stored,
    namespace: String,
    name: String,
    subresource: String,
    alias: Option<Arc<Resource>>,
    query: Query<'static>,
    body: Bytes,
    encoding: Encoding,
    patch: Option<PatchType>,
    form: ResponseFormat,
    user: Identity,
    origin: Origin,
    user_agent: String,
    permit: Permit,
    deadline: Option<Moment>,
    /// The audit level and whether managedFields are omitted, see [`super::audit_body::AuditBody`].
    audit_options: (Level, bool),
}

impl DetachedCall {
    /// Copies the call. It starts from the beginning on the other thread.
    pub fn new(call: &Call<'_>) -> DetachedCall {
        DetachedCall {
            resource: call.resource.clone(),
            stored: call.stored.clone(),
            namespace: call.namespace.to_owned(),
            name: call.name.to_owned(),
            subresource: call.subresource.to_owned(),
            alias: call.alias.cloned(),
            query: call.query.to_owned_pairs(),
            body: call.body.clone(),
            encoding: call.encoding,
            patch: call.patch,
            form: call.form,
            user: call.user.clone(),
            origin: call.origin,
            user_agent: call.user_agent.to_owned(),
            permit: call.permit.clone(),
            deadline: call.deadline,
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
        Call {
            resource: &self.resource,
            stored: &self.stored,
            namespace: &self.namespace,
            name: &self.name,
            subresource: &self.subresource,
            alias: self.alias.as_ref(),
            query: &self.query,
            body: self.body.clone(),
            encoding: self.encoding,
            patch: self.patch,
            form: self.form,
            warnings,
            user: &self.user,
            origin: self.origin,
            user_agent: &self.user_agent,
            permit: self.permit.clone(),
            deadline: self.deadline,
            converted_versions: ConvertedVersions::default(),
            work: WorkLimit::unlimited(),
        }
    }
}
