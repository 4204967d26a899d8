//! The layer below the verbs: their dependencies ([`Backend`]), the parsed request ([`Call`]), access to the stores, conversion
//! between bodies, values and stored objects, admission, and the encoding of responses. Nothing here knows HTTP or a verb.

pub mod admission;
pub mod audit_body;
pub mod authorization;
pub mod conversion;
pub mod csr_signature;
pub mod declarative_validation;
pub mod definition_memory;
pub mod detached_call;
pub mod list_envelope;
pub mod loopback;
pub mod objects;
pub mod ownership;
pub mod present;
pub mod request_memory;
pub mod rewrite;
pub mod services;
pub mod stored_defaults;
pub mod stores;
pub mod webhook_address;
pub mod work_limit;
pub mod write_hooks;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use actix::Addr;
use bytes::Bytes;
use pilothouse_actors::committer::Committer;
use pilothouse_actors::permit::Permit;
use pilothouse_api::catalog::backing::Stored;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom_resource::CustomResource;
use pilothouse_api::subresources::{self, SubresourceStrategy};
use pilothouse_apimachinery::error_list::WarningList;
use pilothouse_apimachinery::managed_fields::ConvertedVersions;
use pilothouse_apimachinery::media::{Encoding, PatchType};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::response_format::ResponseFormat;
use pilothouse_apimachinery::status::{self, GroupResource, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_kinds::{self as kinds, Kind, UserInfo};
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::identity::Identity;
use pilothouse_types::memory::MemoryBudget;
use pilothouse_types::object::{Key, Object};

use crate::audit::Trail;
use crate::auth::service_account::issuer::Issuer;
use crate::flowcontrol::load_stats::LoadStats;
use crate::limits::{REQUEST_ANNOTATIONS, TRUNCATED_WARNING_CHARS, WARNING_CHARS, WARNING_HEADERS};

use self::admission::Chain;
use self::audit_body::AuditBody;
use self::authorization::Access;
use self::conversion::Conversions;
use self::definition_memory::DefinitionMemory;
use self::loopback::Loopback;
use self::objects::Objects;
use self::request_memory::{Claim, RequestMemory};
use self::stores::Stores;
use self::work_limit::WorkLimit;
use self::write_hooks::WriteHooks;

/// Where a request comes from. The user name does not tell: a user with impersonation rights can take the server's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client, or a controller that acts as its service account.
    Client,
    /// The server itself, for objects that it needs to work. Webhooks and AlwaysDeny are not applied to it.
    Server,
}

/// The dependencies of all verbs. One per HTTP worker. A function that works on objects alone takes [`Objects`].
pub struct Backend {
    /// Decodes, defaults, converts, validates and encodes objects.
    pub objects: Objects,
    /// Sends messages to the stores.
    pub stores: Stores,
    /// Writes to the disk; asked whether it works.
    pub committer: Addr<Committer>,
    /// The admission plug-ins.
    pub admission: Chain,
    /// The clock. Tests replace it.
    pub clock: Clock,
    /// The hooks of kinds for which more than storing happens.
    pub write_hooks: WriteHooks,
    /// Issues service account tokens.
    pub tokens: Arc<Issuer>,
    /// The memory of definitions that are compiled.
    pub definitions: DefinitionMemory,
    /// The memory of request bodies.
    pub requests: RequestMemory,
    /// The memory budget of lists.
    pub lists: MemoryBudget,
    /// Statistics for estimating the cost of requests.
    pub load: Arc<LoadStats>,
    /// Authenticates and authorizes users.
    pub access: Access,
    /// Audits requests of the server and its controllers.
    pub loopback: Arc<Loopback>,
    /// Calls conversion webhooks.
    pub conversions: Rc<Conversions>,
    /// Looks up the current version of a resource: custom resources are replaced when their definition changes, and removed
    /// with it.
    pub current_resource: CurrentResource,
}

/// Returns the resource that is currently served under the name of the given one.
pub type CurrentResource = Rc<dyn Fn(&Arc<Resource>) -> Option<Arc<Resource>>>;

impl Backend {
    /// Reads the object of the call.
    pub async fn read(&self, call: &Call<'_>) -> Result<Arc<Object>> {
        let object = self.stores.get(&call.stored.store, call.key(call.name), &call.permit).await;
        object.map_err(|error| Status::from_store(&error, call.group_resource(), call.name))
    }
}

/// One parsed request for a resource.
pub struct Call<'a> {
    /// The requested resource.
    pub resource: &'a Arc<Resource>,
    /// The store of its objects.
    pub stored: &'a Stored,
    /// The namespace of the path, empty for none.
    pub namespace: &'a str,
    /// The name of the path, empty for a collection.
    pub name: &'a str,
    /// The subresource, empty for the resource itself.
    pub subresource: &'a str,
    /// The resource of the path, if another one serves it: bindings are a subresource of pods.
    pub alias: Option<&'a Arc<Resource>>,
    /// The query parameters.
    pub query: &'a Query<'a>,
    /// The body of the request.
    pub body: Bytes,
    /// The encoding of the body.
    pub encoding: Encoding,
    /// The patch type, if it is a patch.
    pub patch: Option<PatchType>,
    /// The form of the response.
    pub form: ResponseFormat,
    /// Collects warnings for the client.
    pub warnings: &'a Warnings,
    /// The authenticated user.
    pub user: &'a Identity,
    /// Whether the request comes from a client or from the server itself.
    pub origin: Origin,
    /// The User-Agent header.
    pub user_agent: &'a str,
    /// The permit of the request. Every message carries a copy, so that a client that disconnects does not free it while a store
    /// still works on the request.
    pub permit: Permit,
    /// When the client stops waiting; `None` for requests of the server itself.
    pub deadline: Option<Moment>,
    /// Versions of its objects that a conversion webhook has made.
    pub converted_versions: ConvertedVersions,
    /// How much work the call may do on this thread.
    pub work: WorkLimit,
}

/// A request about one object or subresource without a body.
pub struct BodylessCall<'a> {
    /// The requested resource.
    pub resource: &'a Arc<Resource>,
    /// The namespace, empty for none.
    pub namespace: &'a str,
    /// The name, empty for a collection.
    pub name: &'a str,
    /// The subresource, empty for the resource itself.
    pub subresource: &'a str,
    /// The query parameters.
    pub query: &'a Query<'a>,
    /// Collects warnings.
    pub warnings: &'a Warnings,
    /// The authenticated user.
    pub user: &'a Identity,
    /// Whether the request comes from a client or from the server itself.
    pub origin: Origin,
    /// The User-Agent header.
    pub user_agent: &'a str,
}

impl<'a> BodylessCall<'a> {
    /// Makes a call without a permit, in the store of the resource.
    pub fn call(self) -> Result<Call<'a>> {
        let stored = self.resource.stored().ok_or_else(Status::no_such_resource)?;
        Ok(self.call_in(stored))
    }

    /// Makes a call without a permit, in another store. The resource itself may have none.
    pub fn call_in(self, stored: &'a Stored) -> Call<'a> {
        let BodylessCall {
            resource,
            namespace,
            name,
            subresource,
            query,
            warnings,
            user,
            origin,
            user_agent,
        } = self;
        Call {
            resource,
            stored,
            namespace,
            name,
            subresource,
            alias: None,
            query,
            body: Bytes::new(),
            encoding: Encoding::Json,
            patch: None,
            form: ResponseFormat::PLAIN,
            warnings,
            user,
            origin,
            user_agent,
            permit: Permit::none(),
            deadline: None,
            converted_versions: ConvertedVersions::default(),
            work: WorkLimit::unlimited(),
        }
    }
}

impl Call<'_> {
    /// The resource and subresource as the rules of webhooks and policies name them.
    pub fn requested_resource(&self) -> (&Arc<Resource>, &str) {
        self.alias.map_or((self.resource, self.subresource), |alias| (alias, ""))
    }

    /// Whether the memory that this call needs may be refused. Calls of the server itself have no deadline and are never refused.
    pub fn claim(&self) -> Claim<'_> {
        if self.deadline.is_some() { Claim::User(&self.user.name) } else { Claim::Granted }
    }

    /// Whether a client writes a CustomResourceDefinition, whose compilation takes memory. Writes of the server are never
    /// refused.
    pub fn writes_definition(&self) -> bool {
        self.claim() != Claim::Granted
            && *self.resource.kind == *"CustomResourceDefinition"
            && self.resource.custom.is_none()
    }

    /// Group and resource, for error messages.
    pub fn group_resource(&self) -> GroupResource<'_> {
        self.resource.name()
    }

    /// The key of an object with this name in the scope of the call.
    pub fn key(&self, name: &str) -> Key {
        if self.resource.namespaced { Key::namespaced(self.namespace, name) } else { Key::cluster(name) }
    }

    /// The group version and kind of the body and the response: those of the resource, unless a subresource has its own.
    pub fn body_kind(&self) -> (&GroupVersion, &str) {
        match self.resource.subresource(self.subresource) {
            Some(sub) => (&sub.gv, &sub.kind),
            None => (&self.resource.gv, &self.resource.kind),
        }
    }

    /// The definition of the body's kind, if it is a custom resource.
    pub fn custom(&self) -> Option<&CustomResource> {
        let custom = self.resource.custom.as_deref();
        custom.filter(|_| *self.body_kind().0 == self.resource.gv)
    }

    /// Whether the call is about the scale of a custom resource.
    pub fn is_custom_scale(&self) -> bool {
        self.resource.custom.is_some() && self.subresource == "scale"
    }

    /// How the subresource of the path is read and written.
    pub fn subresource_strategy(&self) -> Result<&SubresourceStrategy> {
        let own = self.resource.custom.as_ref().filter(|_| self.subresource == "scale");
        let strategy = match own {
            Some(custom) => custom.scale.as_ref(),
            None => subresources::strategy(self.subresource),
        };
        strategy.ok_or_else(Status::no_such_resource)
    }

    /// The kind with its rules. A kind in two groups is stored once, but each group has its own rules.
    pub fn kind(&self) -> Kind {
        Kind {
            rules: match self.resource.custom {
                Some(_) => &kinds::CUSTOM,
                None => kinds::rules(self.group_resource().group, &self.resource.kind),
            },
            namespaced: self.resource.namespaced,
            has_status: self.resource.subresource("status").is_some(),
        }
    }

    /// The user, in the form that the rules of kinds take.
    pub fn user_info(&self) -> UserInfo {
        UserInfo {
            name: self.user.name.clone(),
            uid: self.user.uid.clone(),
            groups: self.user.groups.clone(),
            extra: self.user.extra.iter().map(|(key, values)| (key.clone(), values.clone())).collect(),
        }
    }

    /// Adds warnings. Repeated attempts add them once.
    pub fn warn(&self, warnings: WarningList) {
        warnings.into_iter().for_each(|warning| self.warnings.add(warning));
    }

    /// 500 for a corrupt object.
    pub fn unreadable(&self, object: &Object) -> Box<Status> {
        Status::unreadable(self.group_resource(), object.key.as_str(), object.revision.0)
    }

    /// 422 for invalid fields, with the kind of the body.
    pub fn invalid_body(
        &self,
        name: &str,
        errors: &[pilothouse_apimachinery::field::FieldError],
    ) -> Box<Status> {
        let (gv, kind) = self.body_kind();
        Status::invalid(&gv.group, kind, name, errors)
    }

    /// 422 for invalid fields of an object that states its own kind, as custom resources do.
    pub fn invalid_object(
        &self,
        name: &str,
        object: &Value,
        errors: &[pilothouse_apimachinery::field::FieldError],
    ) -> Box<Status> {
        let kind = object.str("kind");
        if self.resource.custom.is_none() || kind.is_empty() {
            return self.invalid(name, errors);
        }
        let group = object.str("apiVersion").split_once('/').map_or("", |(group, _)| group);
        Status::invalid(group, kind, name, errors)
    }

    /// The etcd key that the reference would show in messages. For custom resources it includes their group.
    pub fn storage_key(&self, name: &str) -> String {
        let key = self.key(name);
        // In a dry run the reference reports the key before it adds its prefix.
        let prefix = if self.query.get("dryRun") == Some("All") { "" } else { "registry/" };
        match self.resource.custom {
            Some(_) => {
                format!("{prefix}{}/{}/{}", self.resource.gv.group, self.resource.plural, key.as_str())
            }
            None => format!("{prefix}{}/{}", status::storage_folder(self.group_resource()), key.as_str()),
        }
    }

    /// 422 for invalid fields, with the storage group of the kind: events have two groups.
    pub fn invalid(&self, name: &str, errors: &[pilothouse_apimachinery::field::FieldError]) -> Box<Status> {
        Status::invalid(&self.stored.version.group, &self.resource.kind, name, errors)
    }
}

/// Warnings for the client, which are sent even with an error, and annotations for the audit log.
#[derive(Debug, Default)]
pub struct Warnings {
    texts: RefCell<Vec<String>>,
    annotations: RefCell<BTreeMap<String, String>>,
    /// The body for the audit log.
    pub audit_body: AuditBody,
}

/// A point in the recording of [`Warnings`], to which they can be reset.
pub struct WarningsMark {
    texts: usize,
    annotations: BTreeMap<String, String>,
}

impl Warnings {
    /// Marks the current state, for [`Warnings::reset`].
    pub fn mark(&self) -> WarningsMark {
        WarningsMark { texts: self.texts.borrow().len(), annotations: self.annotations.borrow().clone() }
    }

    /// Forgets what was recorded since the mark: the call is carried out again.
    pub fn reset(&self, mark: WarningsMark) {
        self.texts.borrow_mut().truncate(mark.texts);
        self.annotations.replace(mark.annotations);
    }

    /// Adds a warning, up to a bound: a body with a thousand unknown fields must not cause a thousand headers.
    pub fn add(&self, text: impl Into<String>) {
        let mut all = self.texts.borrow_mut();
        let text = text.into();
        if all.len() < WARNING_HEADERS && !all.contains(&text) {
            all.push(text);
        }
    }

    /// All warnings in order, shortened to fit into headers.
    pub fn take(&self) -> Vec<String> {
        shorten(self.texts.take())
    }

    /// Adds an audit annotation, up to a bound. The first value of a key stays.
    pub fn annotate(&self, key: &str, text: String) {
        let mut annotations = self.annotations.borrow_mut();
        if annotations.len() < REQUEST_ANNOTATIONS && !annotations.contains_key(key) {
            annotations.insert(key.to_owned(), text);
        }
    }

    /// Adds annotations, body and status code to the audit trail of the request.
    pub fn record(&self, trail: &Trail, code: u16) {
        trail.add_annotations(self.annotations());
        trail.record_request(code, self.audit_body.body(), self.audit_body.identity());
    }

    /// Adds what another thread recorded for the same call.
    pub fn absorb(&self, other: &Warnings) {
        other.texts.take().into_iter().for_each(|text| self.add(text));
        other.annotations.take().into_iter().for_each(|(key, text)| self.annotate(&key, text));
        self.audit_body.absorb(&other.audit_body);
    }

    /// All audit annotations.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.annotations.borrow().clone()
    }
}

/// Shortens warnings as the reference does. If all together are too long, each is cut, including earlier ones. If they are still
/// too long, the rest is dropped.
fn shorten(mut all: Vec<String>) -> Vec<String> {
    let total: usize = all.iter().map(|text| text.chars().count()).sum();
    if total <= WARNING_CHARS {
        return all;
    }
    let mut written = 0;
    let mut keep_fitting = |text: &mut String| {
        let cut = text.char_indices().nth(TRUNCATED_WARNING_CHARS).map_or(text.len(), |(index, _)| index);
        text.truncate(cut);
        let fits = written < WARNING_CHARS;
        written += text.chars().count();
        fits
    };
    all.retain_mut(|text| keep_fitting(text));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_shortened_to_header_limits() {
        let lengths_after = |lengths: &[usize]| {
            let warnings = Warnings::default();
            for (index, length) in lengths.iter().enumerate() {
                warnings.add(format!("{index:03}{}", "ü".repeat(length - 3)));
            }
            warnings.take().iter().map(|text| text.chars().count()).collect::<Vec<_>>()
        };
        assert_eq!(lengths_after(&[4000, 96]), [4000, 96]);
        assert_eq!(
            lengths_after(&[4000, 97]),
            [256, 97],
            "over the total limit, earlier warnings are cut too"
        );
        assert_eq!(lengths_after(&[300; 40]), [256; 16], "warnings beyond the total limit are dropped");
    }
}
