//! Conversion of custom resources by webhook. Requests and responses are in `crates/api/src/custom_resource/conversion.rs`.
//!
//! Stores keep objects in the storage version. Objects are converted to the version of the request right after they are read, and
//! back right before they are stored; everything in between sees one version. A converted object is cached with the original, so
//! that later requests for the same version need no call. Watches take turns, so that only one of them makes the call.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::throttle::Throttle;
use pilothouse_actors::yield_every::YieldEvery;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::custom_resource;
use pilothouse_api::custom_resource::CustomResource;
use pilothouse_api::custom_resource::conversion::{
    self, Conversion, ConversionError, ConversionReview, FailureKind,
};
use pilothouse_api::draft::build_draft;
use pilothouse_apimachinery::codec;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::response_format::ResponseFormat;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_client::upstream::pool::{KeepAliveHandle, Pool, Purpose};
use pilothouse_client::webhook::cluster_webhooks::WebhookClients;
use pilothouse_types::clock::Clock;
use pilothouse_types::memory::MemoryBudget;
use pilothouse_types::object::{Draft, Key, Object, Pairs};
use pilothouse_types::trace::span::Attribute;
use tokio::sync::Mutex;

use crate::limits::{
    CONVERSION_BYTES, CONVERSION_CALLS, CONVERSION_OBJECTS, CONVERSION_ROUNDS, CONVERSION_TIMEOUT,
    CONVERSIONS_PER_TURN, HEAVY_BYTES,
};
use crate::metrics::Metrics;
use crate::metrics::conversion::ConversionLabels;
use crate::pki::random;

use super::present::{is_current_variant, variant};
use super::request_memory::{MemoryPriority, RequestReservation};
use super::webhook_address::WebhookTarget;
use super::webhook_call::{ReviewCall, WebhookCaller, check_status};
use super::{Backend, Call};

/// Calls conversion webhooks. One per worker.
pub struct Conversions {
    caller: WebhookCaller,
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
        let clients = WebhookClients::new(pool, Purpose::Conversion);
        Conversions {
            caller: WebhookCaller::new(clients, Arc::default(), CONVERSION_CALLS, to_endpoints),
            metrics,
            clock,
            turns: RefCell::default(),
            failures: Throttle::default(),
        }
    }

    fn turn(&self, ordinal: u32) -> Rc<Mutex<()>> {
        let mut turns = self.turns.borrow_mut();
        // Drop unused entries of replaced definitions.
        turns.retain(|other, turn| *other == ordinal || Rc::strong_count(turn) > 1);
        turns.entry(ordinal).or_default().clone()
    }
}

/// The conversion that an object needs before it can be used in this version; `None` if it has the version already.
fn needed_conversion<'c>(custom: &'c CustomResource, object: &Object) -> Option<&'c Conversion> {
    let conversion = custom.conversion.as_deref()?;
    // Stored objects begin with kind and apiVersion.
    let head = object.bytes.get(..object.item_offset()).unwrap_or_default();
    let own = format!(r#""apiVersion":"{}""#, custom.api_version);
    (object.is_readable() && memchr::memmem::find(head, own.as_bytes()).is_none()).then_some(conversion)
}

impl Backend {
    /// Converts objects to the version of a resource, in batches.
    pub async fn convert_to_version(
        &self,
        resource: &Resource,
        mut objects: Vec<Arc<Object>>,
        permit: &Permit,
        priority: MemoryPriority<'_>,
    ) -> Result<Vec<Arc<Object>>> {
        let Some(custom) = resource.custom.as_deref().filter(|custom| custom.conversion.is_some()) else {
            return Ok(objects);
        };
        let mut pending: Vec<usize> = Vec::new();
        let mut bytes = 0;
        let mut turn = YieldEvery::new(CONVERSIONS_PER_TURN);
        for index in 0..objects.len() {
            // Decoding cached conversions takes time as well: yield to other requests of this worker.
            turn.worked(1).await;
            let Some(object) =
                objects.get_mut(index).filter(|object| needed_conversion(custom, object).is_some())
            else {
                continue;
            };
            if let Some(converted) = cached_conversion(resource, custom, object) {
                *object = Arc::new(converted);
                continue;
            }
            bytes += object.bytes.len();
            pending.push(index);
            if pending.len() >= CONVERSION_OBJECTS || bytes >= CONVERSION_BYTES {
                let batch = std::mem::take(&mut pending);
                self.convert_batch(resource, &mut objects, &batch, permit, priority).await?;
                bytes = 0;
            }
        }
        self.convert_batch(resource, &mut objects, &pending, permit, priority).await?;
        Ok(objects)
    }

    /// Like [`Backend::convert_to_version`], for watches: one at a time, because all of them need the same objects.
    pub async fn convert_for_watch(
        &self,
        resource: &Resource,
        objects: Vec<Arc<Object>>,
    ) -> Result<Vec<Arc<Object>>> {
        let turn = self.conversions.turn(resource.ordinal);
        let _guard = turn.lock().await;
        self.convert_to_version(resource, objects, &Permit::none(), MemoryPriority::Granted).await
    }

    /// Whether an object must be converted by a webhook before it can be sent as this resource.
    pub fn needs_conversion(&self, resource: &Resource, object: &Object) -> bool {
        resource.custom.as_deref().is_some_and(|custom| needed_conversion(custom, object).is_some())
    }

    /// Converts one object to the version of the call; `None` if no conversion is needed.
    async fn convert_object(
        &self,
        call: &Call<'_>,
        object: &Object,
        priority: MemoryPriority<'_>,
    ) -> Result<Option<Object>> {
        let Some(custom) = call.resource().custom.as_deref() else { return Ok(None) };
        if needed_conversion(custom, object).is_none() {
            return Ok(None);
        }
        // The original may be short-lived, so the result is cached with a copy.
        let copy = Arc::new(object.at_revision(object.revision));
        if let Some(converted) = cached_conversion(call.resource(), custom, object) {
            return Ok(Some(converted));
        }
        let mut all =
            self.convert_to_version(call.resource(), vec![copy.clone()], call.permit(), priority).await?;
        let converted = all.pop().unwrap_or(copy);
        cache_conversion(&self.objects.encodings, call.resource(), object, &converted.bytes);
        Ok(Some(converted.at_revision(object.revision)))
    }

    /// Encodes a stored object as the response of the call, in the requested version.
    pub async fn encode_response(
        &self,
        call: &Call<'_>,
        object: &Object,
        priority: MemoryPriority<'_>,
    ) -> Result<Bytes> {
        let encoding = pin!(async {
            match self.convert_object(call, object, priority).await? {
                Some(converted) => self.objects.encode_object(call, &converted),
                None => self.objects.encode_object(call, object),
            }
        });
        let attributes = || vec![Attribute::text("mediaType", call.response_format.encoding.media_type())];
        call.permit().trace().step("SerializeObject", attributes, encoding).await
    }

    /// Decodes a stored object in the requested version, which verbs work on.
    pub async fn load_converted(
        &self,
        call: &Call<'_>,
        object: &Object,
        priority: MemoryPriority<'_>,
    ) -> Result<Value> {
        match self.convert_object(call, object, priority).await? {
            Some(converted) => self.objects.load(call, &converted),
            None => self.objects.load(call, object),
        }
    }

    /// Encodes a value for the store, in the storage version.
    pub async fn stored_draft(
        &self,
        call: &Call<'_>,
        key: Key,
        value: &Value,
        priority: MemoryPriority<'_>,
    ) -> Result<Draft> {
        let custom = call.resource().custom.as_deref();
        let Some((custom, conversion)) =
            custom.and_then(|custom| Some((custom, custom.conversion.as_deref()?)))
        else {
            self.check_storage_version(call)?;
            return self.objects.draft(call, key, value);
        };
        if custom.api_version == custom.storage_api_version {
            self.check_storage_version(call)?;
            return self.objects.draft(call, key, value);
        }
        let (converted, _reservation) = self
            .call_webhook(
                conversion,
                &custom.storage_api_version,
                vec![value.clone()],
                call.permit(),
                ConversionMemory::empty(self, priority),
            )
            .await?;
        let converted = converted.into_iter().next().unwrap_or_default();
        self.check_storage_version(call)?;
        Ok(build_draft(
            custom_resource::encode_stored(custom, &converted),
            key,
            &converted,
            custom.stored_fields(value),
        ))
    }

    /// Converts a value of a custom kind to another version.
    pub async fn convert_value(
        &self,
        call: &Call<'_>,
        custom: &CustomResource,
        value: Value,
    ) -> Result<Value> {
        match custom.conversion.as_deref() {
            Some(conversion) if value.str("apiVersion") != &*custom.api_version => {
                let conversion = self.call_webhook(
                    conversion,
                    &custom.api_version,
                    vec![value],
                    call.permit(),
                    ConversionMemory::empty(self, call.memory_priority()),
                );
                let (converted, _reservation) = conversion.await?;
                Ok(custom.prune_converted(converted.into_iter().next().unwrap_or_default()))
            }
            _ => Ok(custom.to_served_version(value)),
        }
    }

    /// Runs `work`, and again once the versions that it lacked are converted.
    pub async fn with_versions<T>(&self, call: &Call<'_>, work: impl Fn() -> Result<T>) -> Result<T> {
        let custom = call.resource().custom.as_deref();
        let Some((custom, conversion)) =
            custom.and_then(|custom| Some((custom, custom.conversion.as_deref()?)))
        else {
            return work();
        };
        for _ in 0..CONVERSION_ROUNDS {
            let result = work();
            let missing = call.converted_versions.take_missing();
            if missing.is_empty() {
                return result;
            }
            for (value, version) in missing {
                let (target, objects) = (version.to_string(), vec![value.clone()]);
                let (converted, _reservation) = self
                    .call_webhook(
                        conversion,
                        &target,
                        objects,
                        call.permit(),
                        ConversionMemory::empty(self, call.memory_priority()),
                    )
                    .await?;
                let converted =
                    custom.prune_converted_to(&target, converted.into_iter().next().unwrap_or_default());
                call.converted_versions.insert(value, version, converted);
            }
        }
        Err(Status::internal("managedFields refer to too many API versions"))
    }

    /// Converts the objects at these indices to the version of a resource.
    async fn convert_batch(
        &self,
        resource: &Resource,
        objects: &mut [Arc<Object>],
        indices: &[usize],
        permit: &Permit,
        priority: MemoryPriority<'_>,
    ) -> Result<()> {
        let Some(custom) = resource.custom.as_deref().filter(|_| !indices.is_empty()) else { return Ok(()) };
        let Some(conversion) = custom.conversion.as_deref() else { return Ok(()) };
        let mut values = Vec::with_capacity(indices.len());
        let memory = self.reserve_trees(indices.iter().filter_map(|index| objects.get(*index)), priority)?;
        for index in indices {
            let object = objects.get(*index).ok_or_else(|| Status::internal("no object to convert"))?;
            let broken = || Status::internal(format!("the stored object {:?} cannot be read", object.key));
            values.push(custom.read_stored(&object.bytes).ok_or_else(broken)?);
        }
        let (converted, _reservation) = self
            .call_webhook(
                conversion,
                &custom.api_version,
                values,
                permit,
                ConversionMemory { priority, reservation: memory },
            )
            .await?;
        for (index, value) in indices.iter().zip(converted) {
            let Some(object) = objects.get_mut(*index) else { continue };
            let converted = to_object(custom, object, &custom.prune_converted(value));
            cache_conversion(&self.objects.encodings, resource, object, &converted.bytes);
            *object = Arc::new(converted);
        }
        Ok(())
    }

    /// Reserves memory for the decoded form of stored objects, unless they are small.
    fn reserve_trees<'o>(
        &self,
        objects: impl Iterator<Item = &'o Arc<Object>>,
        priority: MemoryPriority<'_>,
    ) -> Result<RequestReservation> {
        let (text, trees) = objects.fold((0, 0), |(text, trees), object| {
            let bytes = &object.bytes;
            (text + bytes.len(), trees + codec::decoded_bytes_bound(Encoding::Json, bytes))
        });
        self.requests.reserve(if text > HEAVY_BYTES { trees } else { 0 }, priority)
    }

    /// Calls a conversion webhook and counts the call. The reservation for the objects sent grows by that for the call, and is
    /// returned with the result: a single reservation that grows is not refused because of its own size.
    async fn call_webhook(
        &self,
        conversion: &Conversion,
        version: &str,
        objects: Vec<Value>,
        permit: &Permit,
        memory: ConversionMemory<'_>,
    ) -> Result<(Vec<Value>, RequestReservation)> {
        let version = GroupVersion::parse(version).unwrap_or_else(|| GroupVersion::new("", version));
        let first = objects.first().map(|object| object.str("apiVersion").to_owned()).unwrap_or_default();
        let from = first.split('/').next_back().unwrap_or_default();
        let began = self.conversions.clock.moment();
        let mut span = permit.trace().open_at("Call conversion webhook", began);
        span.describe(|| {
            vec![
                Attribute::text("custom-resource-definition", conversion.definition.clone()),
                Attribute::text("desired-api-version", version.to_string()),
                Attribute::number("object-count", objects.len() as u64),
            ]
        });
        let converted = span.run(pin!(self.exchange(conversion, &version, &objects, permit, memory))).await;
        let ended = self.conversions.clock.moment();
        if converted.is_err() {
            span.fail();
        }
        span.end_at(ended);
        let took = ended.since(began).as_secs_f64();
        let converted = match converted {
            Err(ExchangeError::Memory(status)) => return Err(status),
            Err(ExchangeError::Conversion(error)) => Err(error),
            Ok(converted) => Ok(converted),
        };
        let failure = converted.as_ref().err().map(|error| error.failure);
        let labels = ConversionLabels { definition: &conversion.definition, from, to: &version.version };
        self.conversions.metrics.conversions.count_call(labels, took, failure);
        converted.map_err(|error| {
            if self.conversions.failures.allows(self.conversions.clock.moment()) {
                let definition = &conversion.definition;
                tracing::warn!(definition, error = error.message, "conversion webhook call failed");
            }
            Status::unexplained(error.message)
        })
    }

    /// Sends the request and decodes the response.
    async fn exchange(
        &self,
        conversion: &Conversion,
        target_version: &GroupVersion,
        objects: &[Value],
        permit: &Permit,
        mut memory: ConversionMemory<'_>,
    ) -> std::result::Result<(Vec<Value>, RequestReservation), ExchangeError> {
        let object_kind = objects.first().map(conversion::kind_text).unwrap_or_default();
        let failed = |reason: String| ConversionError {
            message: format!("conversion webhook for {object_kind} failed: {reason}"),
            failure: FailureKind::Call,
        };
        let version = conversion.version.ok_or_else(|| ConversionError {
            message: "no supported conversion review versions".to_owned(),
            failure: FailureKind::Call,
        })?;
        let target =
            WebhookTarget::new(&conversion.client_config, &conversion.authority_pem).map_err(failed)?;
        let uid = random::uuid();
        let review = ConversionReview { version, uid: &uid, desired_version: target_version, objects };
        let body = review.encode();
        // Many calls may wait for a slow webhook at the same time. The response is about as long as the request.
        let sent_bytes = memory.reservation.bytes();
        let call_bytes = body.len().saturating_mul(2);
        memory.resize(sent_bytes.saturating_add(call_bytes))?;
        let config = &conversion.client_config;
        let call = ReviewCall { config, target: &target, body, timeout: CONVERSION_TIMEOUT };
        let reply = self.conversions.caller.post(self, permit, call).await.map_err(failed)?;
        check_status(&reply).map_err(|failure| failed(failure.message))?;
        let tree = codec::decoded_bytes_bound(Encoding::Json, &reply.body);
        let call_bytes = reply.body.len().saturating_add(tree);
        memory.resize(sent_bytes.saturating_add(call_bytes))?;
        Ok((review.decode_response(&reply.body)?, memory.reservation))
    }
}

/// The memory of a conversion, and the priority by which it grows.
struct ConversionMemory<'u> {
    priority: MemoryPriority<'u>,
    reservation: RequestReservation,
}

impl<'u> ConversionMemory<'u> {
    /// For values whose memory the request has already reserved.
    fn empty(backend: &Backend, priority: MemoryPriority<'u>) -> ConversionMemory<'u> {
        ConversionMemory { priority, reservation: backend.requests.empty_reservation() }
    }

    fn resize(&mut self, bytes: usize) -> std::result::Result<(), ExchangeError> {
        self.reservation.resize(bytes, self.priority).map_err(ExchangeError::Memory)
    }
}

/// A failed call: the conversion itself, or no memory for it.
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
pub fn keep_alive_handles(resources: &[Arc<Resource>], pool: &Arc<Pool>) -> Vec<KeepAliveHandle> {
    let customs = resources.iter().filter_map(|resource| resource.custom.as_ref());
    let conversions = customs.filter_map(|custom| custom.conversion.as_ref());
    // All versions of a definition share one webhook.
    let named: BTreeMap<&str, &Arc<Conversion>> =
        conversions.map(|conversion| (conversion.definition.as_str(), conversion)).collect();
    let target = |conversion: &Arc<Conversion>| {
        WebhookTarget::new(&conversion.client_config, &conversion.authority_pem).ok()
    };
    let targets = named.into_values().filter_map(target);
    targets.map(|target| target.server.keep_alive(pool, Purpose::Conversion)).collect()
}

/// The cached conversion of an object.
fn cached_conversion(resource: &Resource, custom: &CustomResource, object: &Object) -> Option<Object> {
    let cached = object
        .variant(None, variant(resource, ResponseFormat::PLAIN), is_current_variant(resource), |_| Err(()))
        .ok()?;
    let value = codec::decode_stored(&cached, custom.registry.free_object(), &custom.registry)?;
    Some(to_object(custom, object, &value))
}

/// Caches the conversion of an object.
fn cache_conversion(encodings: &MemoryBudget, resource: &Resource, object: &Object, bytes: &Bytes) {
    let cached: std::result::Result<Bytes, ()> = object.variant(
        Some(encodings),
        variant(resource, ResponseFormat::PLAIN),
        is_current_variant(resource),
        |_| Ok(bytes.clone()),
    );
    drop(cached);
}

/// Builds a converted object, as if it were stored in that version.
fn to_object(custom: &CustomResource, object: &Object, value: &Value) -> Object {
    let encoded = codec::encode_draft(&custom.registry, custom.registry.free_object(), value);
    let draft = encoded.into_draft(object.key.clone(), object.labels.clone(), Pairs::default());
    Object::new(draft, object.revision)
}
