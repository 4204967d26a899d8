//! What the verbs work with: their dependencies ([`Backend`]), the parsed request ([`Call`]), access to the stores, conversion
//! between bodies, values and stored objects, admission, and the encoding of responses. Nothing here knows HTTP or a verb.

pub mod admission;
pub mod aggregation;
pub mod audit_body;
pub mod authorization;
pub mod conversion;
pub mod csr_signature;
pub mod declarative_validation;
pub mod definition_memory;
pub mod detached_call;
pub mod list_envelope;
pub mod load_stats;
pub mod loopback;
pub mod objects;
pub mod ownership;
pub mod present;
pub mod request_memory;
pub mod rewrite;
pub mod services;
pub mod stores;
pub mod webhook_address;
pub mod work_limit;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pilothouse_actors::permit::Permit;
use pilothouse_api::catalog::resource::{Resource, Stored};
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
use crate::limits::{CUT_WARNING_CHARS, REQUEST_NOTES, WARNING_CHARS, WARNING_HEADERS};

use self::admission::Chain;
use self::audit_body::AuditBody;
use self::authorization::Access;
use self::conversion::Conversions;
use self::definition_memory::DefinitionMemory;
use self::load_stats::LoadStats;
use self::loopback::Loopback;
use self::objects::Objects;
use self::request_memory::{Claim, RequestMemory};
use self::services::Services;
use self::stores::Stores;
use self::work_limit::WorkLimit;

/// Where a request comes from. The name of its user does not tell: whoever may impersonate can take the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client, or a controller that acts as its service account.
    Client,
    /// The server itself, for the objects without which it would not work. No webhook and no AlwaysDeny can keep it from them.
    Server,
}

/// The dependencies of all verbs. One per HTTP worker. A function that works on objects alone takes [`Objects`].
pub struct Backend {
    /// Decodes, defaults, converts, validates and encodes objects.
    pub objects: Objects,
    /// Sends messages to the stores.
    pub stores: Stores,
    /// The admission plug-ins.
    pub admission: Chain,
    /// The source of time, which tests replace.
    pub clock: Clock,
    /// Allocates cluster IPs and node ports.
    pub services: Rc<Services>,
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
    /// Audits what the server and its controllers do.
    pub loopback: Arc<Loopback>,
    /// Calls conversion webhooks.
    pub conversions: Rc<Conversions>,
    /// The resource that is served under a name now: custom resources are replaced when their definition changes, and removed
    /// with it.
    pub served_now: ServedNow,
}

/// Finds the resource that is served under the name of another one now.
pub type ServedNow = Rc<dyn Fn(&Arc<Resource>) -> Option<Arc<Resource>>>;

impl Backend {
    /// Reads the object of the call.
    pub async fn read(&self, call: &Call<'_>) -> Result<Arc<Object>> {
        let found = self.stores.get(&call.stored.store, call.key(call.name), &call.permit).await;
        found.map_err(|error| Status::from_store(&error, call.of(), call.name))
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
    /// The user who asks.
    pub user: &'a Identity,
    /// Whether the server itself asks.
    pub origin: Origin,
    /// The User-Agent header.
    pub user_agent: &'a str,
    /// The seat of the request. Every message carries a copy, so that a client that disconnects does not free it while a store
    /// still works on the request.
    pub permit: Permit,
    /// When the client stops waiting; the server itself never does.
    pub ends: Option<Moment>,
    /// Converted versions of its objects, where a webhook makes them.
    pub elsewhere: ConvertedVersions,
    /// How much work may be done at once on this thread.
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
    /// The user who asks.
    pub user: &'a Identity,
    /// Whether the server itself asks.
    pub origin: Origin,
    /// The User-Agent.
    pub user_agent: &'a str,
}

impl<'a> BodylessCall<'a> {
    /// The call, which takes no seat.
    pub fn call(self) -> Result<Call<'a>> {
        let stored = self.resource.stored.as_ref().ok_or_else(Status::no_such_resource)?;
        Ok(self.call_in(stored))
    }

    /// The same with another store than that of the resource, which may have none.
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
            ends: None,
            elsewhere: ConvertedVersions::default(),
            work: WorkLimit::unlimited(),
        }
    }
}

impl Call<'_> {
    /// The resource and subresource as the rules of webhooks and policies name them.
    pub fn addressed(&self) -> (&Arc<Resource>, &str) {
        self.alias.map_or((self.resource, self.subresource), |alias| (alias, ""))
    }

    /// Whether the memory that this call needs may be refused. What the server does itself never waits for a client's answer.
    pub fn claim(&self) -> Claim<'_> {
        if self.ends.is_some() { Claim::User(&self.user.name) } else { Claim::Granted }
    }

    /// Whether a client writes a definition, whose compilation takes memory. What the server writes is never refused.
    pub fn writes_definition(&self) -> bool {
        self.claim() != Claim::Granted
            && *self.resource.kind == *"CustomResourceDefinition"
            && self.resource.custom.is_none()
    }

    /// The resource as errors name it.
    pub fn of(&self) -> GroupResource<'_> {
        self.resource.name()
    }

    /// The key of an object with this name in the scope of the call.
    pub fn key(&self, name: &str) -> Key {
        if self.resource.namespaced { Key::namespaced(self.namespace, name) } else { Key::cluster(name) }
    }

    /// The group version and kind of the body and the response: those of the resource, unless a subresource has its own.
    pub fn shown_kind(&self) -> (&GroupVersion, &str) {
        match self.resource.subresource(self.subresource) {
            Some(sub) => (&sub.gv, &sub.kind),
            None => (&self.resource.gv, &self.resource.kind),
        }
    }

    /// The custom definition of the shown kind, if it has one.
    pub fn custom(&self) -> Option<&CustomResource> {
        let custom = self.resource.custom.as_deref();
        custom.filter(|_| *self.shown_kind().0 == self.resource.gv)
    }

    /// Whether the call is about the scale of a custom resource.
    pub fn is_custom_scale(&self) -> bool {
        self.resource.custom.is_some() && self.subresource == "scale"
    }

    /// The subresource of the path, if it can be read and written.
    pub fn part(&self) -> Result<&SubresourceStrategy> {
        let own = self.resource.custom.as_ref().filter(|_| self.subresource == "scale");
        let part = match own {
            Some(custom) => custom.scale.as_ref(),
            None => subresources::of(self.subresource),
        };
        part.ok_or_else(Status::no_such_resource)
    }

    /// The rules of the kind. A kind in two groups is stored once, but each group has its own rules.
    pub fn kind(&self) -> Kind {
        Kind {
            rules: match self.resource.custom {
                Some(_) => &kinds::CUSTOM,
                None => kinds::rules(self.of().group, &self.resource.kind),
            },
            namespaced: self.resource.namespaced,
            has_status: self.resource.subresource("status").is_some(),
        }
    }

    /// The user as the rules of kinds see them.
    pub fn writer(&self) -> UserInfo {
        UserInfo {
            name: self.user.name.clone(),
            uid: self.user.uid.clone(),
            groups: self.user.groups.clone(),
            extra: self.user.extra.iter().map(|(key, values)| (key.clone(), values.clone())).collect(),
        }
    }

    /// Adds warnings. Repeated attempts add them once.
    pub fn warn(&self, warned: WarningList) {
        warned.into_iter().for_each(|warning| self.warnings.add(warning));
    }

    /// 500 for a corrupt object.
    pub fn unreadable(&self, object: &Object) -> Box<Status> {
        Status::unreadable(self.of(), object.key.as_str(), object.revision.0)
    }

    /// 422 for invalid fields, with the kind of the body.
    pub fn invalid_body(
        &self,
        name: &str,
        errors: &[pilothouse_apimachinery::field::FieldError],
    ) -> Box<Status> {
        let (gv, kind) = self.shown_kind();
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

    /// The storage key as messages show it. Custom resources include their group.
    pub fn registered(&self, name: &str) -> String {
        let key = self.key(name);
        // In a dry run the reference reports the key before it adds its prefix.
        let root = if self.query.get("dryRun") == Some("All") { "" } else { "registry/" };
        match self.resource.custom {
            Some(_) => {
                format!("{root}{}/{}/{}", self.resource.gv.group, self.resource.plural, key.as_str())
            }
            None => format!("{root}{}/{}", status::storage_folder(self.of()), key.as_str()),
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
    notes: RefCell<BTreeMap<String, String>>,
    /// The body for the audit log.
    pub received: AuditBody,
}

/// What was recorded up to a point of a call.
pub struct WarningsMark {
    texts: usize,
    notes: BTreeMap<String, String>,
}

impl Warnings {
    /// The present state, for [`Warnings::reset`].
    pub fn mark(&self) -> WarningsMark {
        WarningsMark { texts: self.texts.borrow().len(), notes: self.notes.borrow().clone() }
    }

    /// Forgets what was recorded since: the call begins again.
    pub fn reset(&self, mark: WarningsMark) {
        self.texts.borrow_mut().truncate(mark.texts);
        self.notes.replace(mark.notes);
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
        fitting(self.texts.take())
    }

    /// Adds an audit annotation, up to a bound. The first value of a key stays.
    pub fn note(&self, key: &str, text: String) {
        let mut notes = self.notes.borrow_mut();
        if notes.len() < REQUEST_NOTES && !notes.contains_key(key) {
            notes.insert(key.to_owned(), text);
        }
    }

    /// Takes over annotations and body into the trail of the request, and the status code.
    pub fn record(&self, trail: &Trail, code: u16) {
        trail.add_annotations(self.notes());
        trail.answered(code, self.received.body(), self.received.named());
    }

    /// Adds what another thread recorded for the same call.
    pub fn absorb(&self, other: &Warnings) {
        other.texts.take().into_iter().for_each(|text| self.add(text));
        other.notes.take().into_iter().for_each(|(key, text)| self.note(&key, text));
        self.received.absorb(&other.received);
    }

    /// All audit annotations.
    pub fn notes(&self) -> BTreeMap<String, String> {
        self.notes.borrow().clone()
    }
}

/// Shortens warnings as the reference does. If all together are too long, each is cut, including earlier ones. If they are still
/// too long, the rest is dropped.
fn fitting(mut all: Vec<String>) -> Vec<String> {
    let total: usize = all.iter().map(|text| text.chars().count()).sum();
    if total <= WARNING_CHARS {
        return all;
    }
    let mut written = 0;
    let mut room = |text: &mut String| {
        let cut = text.char_indices().nth(CUT_WARNING_CHARS).map_or(text.len(), |(at, _)| at);
        text.truncate(cut);
        let fits = written < WARNING_CHARS;
        written += text.chars().count();
        fits
    };
    all.retain_mut(|text| room(text));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_fit_into_headers() {
        let lengths_after = |lengths: &[usize]| {
            let warnings = Warnings::default();
            for (index, length) in lengths.iter().enumerate() {
                warnings.add(format!("{index:03}{}", "ü".repeat(length - 3)));
            }
            warnings.take().iter().map(|text| text.chars().count()).collect::<Vec<_>>()
        };
        assert_eq!(lengths_after(&[4000, 96]), [4000, 96]);
        assert_eq!(lengths_after(&[4000, 97]), [256, 97], "too long together: the first is cut too");
        assert_eq!(lengths_after(&[300; 40]), [256; 16], "what does not fit even so is left out");
    }
}
