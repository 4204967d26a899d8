//! What the reference calls the registry: the layer between the verbs and the stores. It has the verbs' dependencies
//! ([`Backend`]), the parsed request ([`Call`]), access to the stores, conversion between bodies, values and stored objects,
//! admission, and the encoding of responses. Nothing here knows HTTP or a verb.

pub mod admission;
pub mod audit_body;
pub mod authorization;
mod call;
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
pub mod storage_version;
pub mod stores;
pub mod webhook_address;
pub mod webhook_call;
pub mod work_limit;
pub mod write_hooks;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_actors::permit::Permit;
use pilothouse_actors::storage_health::StorageHealth;
use pilothouse_actors::store::Freshness;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::clock::Clock;
use pilothouse_types::memory::MemoryBudget;
use pilothouse_types::object::{Key, Object};

use crate::audit::Trail;
use crate::auth::service_account::issuer::Issuer;
use crate::flowcontrol::load_stats::LoadStats;
use crate::limits::{REQUEST_ANNOTATIONS, TRUNCATED_WARNING_CHARS, WARNING_CHARS, WARNING_HEADERS};

use self::admission::Chain;
use self::audit_body::AuditBody;
use self::authorization::Access;
pub use self::call::{Call, CallBody, CallTarget, Execution, Origin, Requester};
use self::conversion::Conversions;
use self::definition_memory::DefinitionMemory;
use self::loopback::Loopback;
use self::objects::Objects;
use self::request_memory::RequestMemory;
use self::stores::Stores;
use self::write_hooks::WriteHooks;

/// The dependencies of all verbs. One per HTTP worker. A function that works on objects alone takes [`Objects`].
pub struct Backend {
    /// Decodes, defaults, converts, validates and encodes objects.
    pub objects: Objects,
    /// Sends messages to the stores.
    pub stores: Stores,
    /// Writes to the disk; asked whether it works.
    pub health: StorageHealth,
    /// The admission plug-ins.
    pub admission: Chain,
    /// How objects are deleted.
    pub deletions: DeletionSettings,
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
    /// The same, but in another version if that of the resource is no longer served.
    pub served_version: CurrentResource,
    /// Finds a served resource by its name, for requests of the server to itself.
    pub find_resource: FindResource,
}

/// How objects are deleted.
#[derive(Clone, Copy, Debug)]
pub struct DeletionSettings {
    /// Whether finalizers tell a garbage collector what to do with dependents.
    pub collects_garbage: bool,
    /// How many objects of a collection are deleted at the same time.
    pub concurrent: usize,
}

/// Finds the resource of a group and version with this name; `None` if it is not served.
pub type FindResource = Rc<dyn Fn(&GroupVersion, &str) -> Option<Arc<Resource>>>;

/// Returns the resource that is currently served under the name of the given one.
pub type CurrentResource = Rc<dyn Fn(&Arc<Resource>) -> Option<Arc<Resource>>>;

impl Backend {
    /// Reads the object of the call.
    pub async fn read(&self, call: &Call<'_>) -> Result<Arc<Object>> {
        self.read_at(call, Freshness::Latest).await
    }

    /// Like [`Backend::read`], of a state that is recent enough.
    pub async fn read_at(&self, call: &Call<'_>, freshness: Freshness) -> Result<Arc<Object>> {
        let (store, key) = (&call.stored().store, call.key(call.name()));
        let object = self.stores.get_at(store, key, freshness, call.permit()).await;
        object.map_err(|error| Status::from_store(&error, call.group_resource(), call.name()))
    }

    /// Reads and decodes an object of another type than the call's. Errors report it as `reported`: clients know some objects
    /// by another name.
    pub async fn read_stored(
        &self,
        stored_type: &StoredType,
        key: Key,
        permit: &Permit,
        reported: GroupResource<'_>,
    ) -> Result<Value> {
        let name = key.name().to_owned();
        let object = self.stores.get(&stored_type.type_name(), key, permit).await;
        let object = object.map_err(|error| Status::from_store(&error, reported, &name))?;
        let version = GroupVersion::new(stored_type.group, stored_type.version);
        self.objects.load_kind(&version, stored_type.kind, &object)
    }
}

/// Warnings for the client, which are sent even with an error, annotations for the audit log, and a time for metrics.
#[derive(Debug, Default)]
pub struct Warnings {
    texts: RefCell<Vec<String>>,
    annotations: RefCell<BTreeMap<String, String>>,
    /// How long the request has waited for admission webhooks.
    webhook_time: Cell<Duration>,
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

    /// The request has waited so long for admission webhooks.
    pub fn add_webhook_time(&self, time: Duration) {
        self.webhook_time.set(self.webhook_time.get().saturating_add(time));
    }

    /// How long the request has waited for admission webhooks.
    pub fn webhook_time(&self) -> Duration {
        self.webhook_time.get()
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
        self.add_webhook_time(other.webhook_time());
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
