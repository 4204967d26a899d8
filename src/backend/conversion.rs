//! Conversion of custom resources by webhook: see `api/custom/conversion.rs`.
//!
//! Stores keep objects in the storage version. Objects are converted to the version of the request right after they are read, and
//! back right before they are stored; everything in between sees one version. A converted object is cached with the original, so
//! that later requests for the same version need no call. Watches take turns, so that only one of them makes the call.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::throttle::Throttle;
use pilothouse_actors::yield_every::YieldEvery;
use pilothouse_admission::webhooks::response;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom_resource;
use pilothouse_api::custom_resource::CustomResource;
use pilothouse_api::custom_resource::conversion::{self, Conversion, ConversionError, FailureKind};
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::response_format::ResponseFormat;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_types::clock::Clock;
use pilothouse_types::memory::MemoryBudget;
use pilothouse_types::object::{Draft, Key, Object, Pairs};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use crate::kubeconfig::users::Users;
use crate::limits::{
    CONVERSION_BYTES, CONVERSION_OBJECTS, CONVERSION_QUESTIONS, CONVERSION_ROUNDS, CONVERSION_TIMEOUT,
    CONVERSIONS_PER_TURN, HEAVY_BYTES, HOOK_ANSWER_BYTES,
};
use crate::metrics::Metrics;
use crate::random;
use crate::upstream::pool::{KeepAliveHandle, Pool, Purpose};
use crate::webhook::cluster_webhooks::{WebhookClients, WebhookRequest, seconds};

use super::objects::drafted;
use super::present::{is_living, variant};
use super::request_memory::{BodyMemory, Claim};
use super::webhook_address::{self, WebhookTarget};
use super::{Backend, Call};

/// Calls conversion webhooks. One per worker.
pub struct Conversions {
    peers: WebhookClients,
    places: Semaphore,
    to_endpoints: bool,
    metrics: Arc<Metrics>,
    clock: Clock,
    /// Turns of the watches of a version, by the resource's ordinal: the first converts what the others need as well.
    turns: RefCell<BTreeMap<u32, Rc<Mutex<()>>>>,
    /// Limits log lines about calls that fail.
    failures: Throttle,
}

impl Conversions {
    /// `to_endpoints`: a service is called at one of its endpoints instead of its cluster IP.
    pub fn new(to_endpoints: bool, metrics: Arc<Metrics>, clock: Clock, pool: Arc<Pool>) -> Conversions {
        Conversions {
            peers: WebhookClients::new(pool, Purpose::Conversion),
            places: Semaphore::new(CONVERSION_QUESTIONS),
            to_endpoints,
            metrics,
            clock,
            turns: RefCell::default(),
            failures: Throttle::default(),
        }
    }

    fn turn(&self, ordinal: u32) -> Rc<Mutex<()>> {
        let mut turns = self.turns.borrow_mut();
        // Drop unused entries of replaced definitions.
        turns.retain(|known, turn| *known == ordinal || Rc::strong_count(turn) > 1);
        turns.entry(ordinal).or_default().clone()
    }
}

/// The webhook needed to show an object in a version; `None` if no conversion is needed.
fn asked<'c>(custom: &'c CustomResource, object: &Object) -> Option<&'c Conversion> {
    let conversion = custom.conversion.as_deref()?;
    // Stored objects begin with kind and apiVersion.
    let head = object.bytes.get(..object.item_at()).unwrap_or_default();
    let own = format!(r#""apiVersion":"{}""#, custom.api_version);
    (object.is_readable() && memchr::memmem::find(head, own.as_bytes()).is_none()).then_some(conversion)
}

impl Backend {
    /// Converts objects to the version of a resource, in batches.
    pub async fn in_version(
        &self,
        resource: &Resource,
        mut objects: Vec<Arc<Object>>,
        permit: &Permit,
        claim: Claim<'_>,
    ) -> Result<Vec<Arc<Object>>> {
        let Some(custom) = resource.custom.as_deref().filter(|custom| custom.conversion.is_some()) else {
            return Ok(objects);
        };
        let mut waiting: Vec<usize> = Vec::new();
        let mut weight = 0;
        let mut turn = YieldEvery::new(CONVERSIONS_PER_TURN);
        for place in 0..objects.len() {
            // Also cached conversions are decoded: other requests of this worker go on in between.
            turn.worked(1).await;
            let Some(object) = objects.get_mut(place).filter(|object| asked(custom, object).is_some()) else {
                continue;
            };
            if let Some(made) = known(resource, custom, object) {
                *object = Arc::new(made);
                continue;
            }
            weight += object.bytes.len();
            waiting.push(place);
            if waiting.len() >= CONVERSION_OBJECTS || weight >= CONVERSION_BYTES {
                let batch = std::mem::take(&mut waiting);
                self.make(resource, &mut objects, &batch, permit, claim).await?;
                weight = 0;
            }
        }
        self.make(resource, &mut objects, &waiting, permit, claim).await?;
        Ok(objects)
    }

    /// Like [`Backend::in_version`], for watches: one after the other, because all need the same objects.
    pub async fn in_version_by_turns(
        &self,
        resource: &Resource,
        objects: Vec<Arc<Object>>,
    ) -> Result<Vec<Arc<Object>>> {
        let turn = self.conversions.turn(resource.ordinal);
        let _mine = turn.lock().await;
        self.in_version(resource, objects, &Permit::none(), Claim::Granted).await
    }

    /// Whether an object must be converted before a resource can show it.
    pub fn is_foreign(&self, resource: &Resource, object: &Object) -> bool {
        resource.custom.as_deref().is_some_and(|custom| asked(custom, object).is_some())
    }

    /// Converts one object to the version of the call; `None` if no conversion is needed.
    async fn converted(&self, call: &Call<'_>, object: &Object, claim: Claim<'_>) -> Result<Option<Object>> {
        let Some(custom) = call.resource.custom.as_deref() else { return Ok(None) };
        if asked(custom, object).is_none() {
            return Ok(None);
        }
        // The original may be short-lived, so the result is cached with a copy.
        let copy = Arc::new(object.at(object.revision));
        if let Some(made) = known(call.resource, custom, object) {
            return Ok(Some(made));
        }
        let mut all = self.in_version(call.resource, vec![copy.clone()], &call.permit, claim).await?;
        let made = all.pop().unwrap_or(copy);
        keep(&self.objects.encodings, call.resource, object, &made.bytes);
        Ok(Some(made.at(object.revision)))
    }

    /// Encodes a stored object as the response of the call, in its version.
    pub async fn encode_response(&self, call: &Call<'_>, object: &Object, claim: Claim<'_>) -> Result<Bytes> {
        match self.converted(call, object, claim).await? {
            Some(made) => self.objects.show(call, &made),
            None => self.objects.show(call, object),
        }
    }

    /// Decodes a stored object in the version that verbs work on.
    pub async fn read_in_version(&self, call: &Call<'_>, object: &Object, claim: Claim<'_>) -> Result<Value> {
        match self.converted(call, object, claim).await? {
            Some(made) => self.objects.load(call, &made),
            None => self.objects.load(call, object),
        }
    }

    /// Encodes a value for the store, in the storage version.
    pub async fn stored_draft(
        &self,
        call: &Call<'_>,
        key: Key,
        value: &Value,
        claim: Claim<'_>,
    ) -> Result<Draft> {
        let custom = call.resource.custom.as_deref();
        let Some((custom, conversion)) =
            custom.and_then(|custom| Some((custom, custom.conversion.as_deref()?)))
        else {
            return self.objects.draft(call, key, value);
        };
        if custom.api_version == custom.stored_as {
            return self.objects.draft(call, key, value);
        }
        let (made, _held) = self
            .ask(
                conversion,
                &custom.stored_as,
                vec![value.clone()],
                &call.permit,
                ConversionMemory::empty(self, claim),
            )
            .await?;
        let made = made.into_iter().next().unwrap_or_default();
        Ok(drafted(custom_resource::stored(custom, &made), key, &made, custom.kept(value)))
    }

    /// Converts a value of a custom kind to another version.
    pub async fn value_in_version(
        &self,
        call: &Call<'_>,
        custom: &CustomResource,
        value: Value,
    ) -> Result<Value> {
        match custom.conversion.as_deref() {
            Some(conversion) if value.str("apiVersion") != &*custom.api_version => {
                let conversion = self.ask(
                    conversion,
                    &custom.api_version,
                    vec![value],
                    &call.permit,
                    ConversionMemory::empty(self, call.claim()),
                );
                let (made, _held) = conversion.await?;
                Ok(custom.known(made.into_iter().next().unwrap_or_default()))
            }
            _ => Ok(custom.shown(value)),
        }
    }

    /// Runs `work`, and again after the versions that it misses are converted. At most once per version of the definition.
    pub async fn with_versions<T>(&self, call: &Call<'_>, work: impl Fn() -> Result<T>) -> Result<T> {
        let custom = call.resource.custom.as_deref();
        let Some((custom, conversion)) =
            custom.and_then(|custom| Some((custom, custom.conversion.as_deref()?)))
        else {
            return work();
        };
        for _ in 0..CONVERSION_ROUNDS {
            let done = work();
            let wanted = call.elsewhere.take_wanted();
            if wanted.is_empty() {
                return done;
            }
            for (value, version) in wanted {
                let (wanted, sent) = (version.to_string(), vec![value.clone()]);
                let (made, _held) = self
                    .ask(conversion, &wanted, sent, &call.permit, ConversionMemory::empty(self, call.claim()))
                    .await?;
                let made = custom.known_in(&wanted, made.into_iter().next().unwrap_or_default());
                call.elsewhere.tell(value, version, made);
            }
        }
        Err(Status::internal("the owners of the object speak too many versions"))
    }

    /// Converts the objects at these indices to the version of a resource.
    async fn make(
        &self,
        resource: &Resource,
        objects: &mut [Arc<Object>],
        places: &[usize],
        permit: &Permit,
        claim: Claim<'_>,
    ) -> Result<()> {
        let Some(custom) = resource.custom.as_deref().filter(|_| !places.is_empty()) else { return Ok(()) };
        let Some(conversion) = custom.conversion.as_deref() else { return Ok(()) };
        let mut sent = Vec::with_capacity(places.len());
        let memory = self.reserve_trees(places.iter().filter_map(|place| objects.get(*place)), claim)?;
        for place in places {
            let object = objects.get(*place).ok_or_else(|| Status::internal("no object to convert"))?;
            let broken = || Status::internal(format!("the stored object {:?} cannot be read", object.key));
            sent.push(custom.read_stored(&object.bytes).ok_or_else(broken)?);
        }
        let (made, _held) = self
            .ask(conversion, &custom.api_version, sent, permit, ConversionMemory { claim, held: memory })
            .await?;
        for (place, value) in places.iter().zip(made) {
            let Some(object) = objects.get_mut(*place) else { continue };
            let made = object_of(custom, object, &custom.known(value));
            keep(&self.objects.encodings, resource, object, &made.bytes);
            *object = Arc::new(made);
        }
        Ok(())
    }

    /// Reserves what stored objects take that are decoded to be sent, unless that is little.
    fn reserve_trees<'o>(
        &self,
        objects: impl Iterator<Item = &'o Arc<Object>>,
        claim: Claim<'_>,
    ) -> Result<BodyMemory> {
        let (text, trees) = objects.fold((0, 0), |(text, trees), object| {
            let bytes = &object.bytes;
            (text + bytes.len(), trees + codec::decoded_bytes_bound(Encoding::Json, bytes))
        });
        self.requests.reserve(if text > HEAVY_BYTES { trees } else { 0 }, claim)
    }

    /// Calls a conversion webhook and counts the call. The memory of what is sent grows by that of the call; the answer comes with
    /// all of it. One reservation that grows is never refused because of what it has itself.
    async fn ask(
        &self,
        conversion: &Conversion,
        wanted: &str,
        sent: Vec<Value>,
        permit: &Permit,
        memory: ConversionMemory<'_>,
    ) -> Result<(Vec<Value>, BodyMemory)> {
        let wanted = GroupVersion::parse(wanted).unwrap_or_else(|| GroupVersion::new("", wanted));
        let first = sent.first().map(|object| object.str("apiVersion").to_owned()).unwrap_or_default();
        let from = first.split('/').next_back().unwrap_or_default();
        let began = self.conversions.clock.moment();
        let made = self.exchange(conversion, &wanted, &sent, permit, memory).await;
        let took = self.conversions.clock.elapsed(began).as_secs_f64();
        let made = match made {
            Err(ExchangeError::Memory(status)) => return Err(status),
            Err(ExchangeError::Conversion(wrong)) => Err(wrong),
            Ok(made) => Ok(made),
        };
        let failure = made.as_ref().err().map(|wrong| wrong.failure);
        let versions = (conversion.definition.as_str(), from, &*wanted.version);
        self.conversions.metrics.conversions.asked(versions, took, failure);
        made.map_err(|wrong| {
            if self.conversions.failures.allows(self.conversions.clock.moment()) {
                let definition = &conversion.definition;
                tracing::warn!(definition, why = wrong.why, "conversion webhook call failed");
            }
            Status::unexplained(wrong.why)
        })
    }

    async fn exchange(
        &self,
        conversion: &Conversion,
        wanted: &GroupVersion,
        sent: &[Value],
        permit: &Permit,
        mut memory: ConversionMemory<'_>,
    ) -> std::result::Result<(Vec<Value>, BodyMemory), ExchangeError> {
        let of = sent.first().map(conversion::called).unwrap_or_default();
        let failed = |why: String| ConversionError {
            why: format!("conversion webhook for {of} failed: {why}"),
            failure: FailureKind::Call,
        };
        let version = conversion.version.ok_or_else(|| ConversionError {
            why: "no supported conversion review versions".to_owned(),
            failure: FailureKind::Call,
        })?;
        let target = WebhookTarget::of(&conversion.way, &conversion.authority_pem).map_err(failed)?;
        let uid = random::uuid();
        let body = conversion::question(version, &uid, &wanted.to_string(), sent);
        // The webhook may take its time, and many may wait for it. Its response is about as long.
        let of_sent = memory.held.bytes();
        let of_call = body.len().saturating_mul(2);
        memory.resize(of_sent.saturating_add(of_call))?;
        let parameter = format!("timeout={}", seconds(CONVERSION_TIMEOUT));
        let asked = async {
            let _place = self.conversions.places.acquire().await.map_err(|error| error.to_string())?;
            let at = webhook_address::connect_address(
                self,
                permit,
                self.conversions.to_endpoints,
                &conversion.way,
            )
            .await?;
            let question = WebhookRequest {
                target: format!("{}?{parameter}", target.path),
                body: Bytes::from(body),
                says_port: target.says_port,
                most: HOOK_ANSWER_BYTES,
            };
            let access = || Users::default().of(&target.known_as);
            self.conversions.peers.ask(&target.place, access, at, &question).await
        };
        let reply = timeout(CONVERSION_TIMEOUT, asked).await;
        let reply = reply.unwrap_or_else(|_| Err("context deadline exceeded".to_owned())).map_err(|why| {
            failed(format!("Post {}: {why}", quoted(&format!("{}?{parameter}", target.url))))
        })?;
        if !(200..=206).contains(&reply.status) {
            let is_text = reply.content_type.is_empty() || reply.content_type.starts_with("text/");
            let why = response::refused(reply.status, is_text, &reply.body).why;
            return Err(failed(why.trim_start_matches("failed to call webhook: ").to_owned()).into());
        }
        let tree = codec::decoded_bytes_bound(Encoding::Json, &reply.body);
        let of_call = reply.body.len().saturating_add(tree);
        memory.resize(of_sent.saturating_add(of_call))?;
        Ok((conversion::converted(&reply.body, (version, &uid), wanted, sent)?, memory.held))
    }
}

/// What a conversion takes, and on whose behalf.
struct ConversionMemory<'u> {
    claim: Claim<'u>,
    held: BodyMemory,
}

impl<'u> ConversionMemory<'u> {
    /// Of values that the request holds and counts already.
    fn empty(backend: &Backend, claim: Claim<'u>) -> ConversionMemory<'u> {
        ConversionMemory { claim, held: backend.requests.body() }
    }

    fn resize(&mut self, bytes: usize) -> std::result::Result<(), ExchangeError> {
        self.held.resize(bytes, self.claim).map_err(ExchangeError::Memory)
    }
}

/// Why a call failed: by itself, or because there was no memory for it.
enum ExchangeError {
    Conversion(ConversionError),
    Memory(Box<Status>),
}

impl From<ConversionError> for ExchangeError {
    fn from(error: ConversionError) -> ExchangeError {
        ExchangeError::Conversion(error)
    }
}

/// Handles that keep connections to the conversion webhooks of these resources open.
pub fn wanted(resources: &[Arc<Resource>], pool: &Arc<Pool>) -> Vec<KeepAliveHandle> {
    let customs = resources.iter().filter_map(|resource| resource.custom.as_ref());
    let conversions = customs.filter_map(|custom| custom.conversion.as_ref());
    // All versions of a definition share one webhook.
    let named: BTreeMap<&str, &Arc<Conversion>> =
        conversions.map(|conversion| (conversion.definition.as_str(), conversion)).collect();
    let target =
        |conversion: &Arc<Conversion>| WebhookTarget::of(&conversion.way, &conversion.authority_pem).ok();
    let targets = named.into_values().filter_map(target);
    targets.map(|target| target.place.wanted(pool, Purpose::Conversion)).collect()
}

/// The cached conversion of an object.
fn known(resource: &Resource, custom: &CustomResource, object: &Object) -> Option<Object> {
    let kept = object
        .variant(None, variant(resource, ResponseFormat::PLAIN), is_living(resource), |_| Err(()))
        .ok()?;
    let value = codec::decode_stored(&kept, custom.registry.free_object(), &custom.registry)?;
    Some(object_of(custom, object, &value))
}

/// Caches the conversion of an object.
fn keep(encodings: &MemoryBudget, resource: &Resource, object: &Object, bytes: &Bytes) {
    let kept: std::result::Result<Bytes, ()> = object.variant(
        Some(encodings),
        variant(resource, ResponseFormat::PLAIN),
        is_living(resource),
        |_| Ok(bytes.clone()),
    );
    drop(kept);
}

/// A converted object, as if it had been stored in that version.
fn object_of(custom: &CustomResource, object: &Object, value: &Value) -> Object {
    let encoded = codec::encode_draft(&custom.registry, custom.registry.free_object(), value);
    let draft = encoded.into_draft(object.key.clone(), object.labels.clone(), Pairs::default());
    Object::new(draft, object.revision)
}
