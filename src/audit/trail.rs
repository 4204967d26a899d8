//! Collects the audit event of one request while it is served.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilothouse_api::audit::bodies::{BodyIdentity, compact};
use pilothouse_api::audit::event::{Event, EventMetadata, ObjectRef, ResponseStatus, TRUNCATED, span};
use pilothouse_api::audit::policy::Decision;
use pilothouse_api::audit::response::Response;
use pilothouse_api::audit::{Level, Stage};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::path::{Request, Target};
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_apimachinery::status::Status;
use pilothouse_types::clock::Clock;
use pilothouse_types::identity::Identity;
use pilothouse_types::memory::Reservation;

use crate::audit::backends::AuditBackends;
use crate::limits::{AUDIT_AGENT_BYTES, AUDIT_BODY_BYTES};

use super::Audit;

/// Requests that take longer than this get a latency annotation.
const SLOW: Duration = Duration::from_millis(500);

/// The response as far as it was recorded.
#[derive(Default)]
struct RecordedBody {
    encoding: Option<Encoding>,
    bytes: Vec<u8>,
    /// Whether the response exceeded the limit.
    is_truncated: bool,
}

/// Collects the audit event of one request while it is served.
pub struct Trail {
    /// Writes the events.
    pub backends: Arc<AuditBackends>,
    clock: Clock,
    registry: Arc<Registry>,
    /// The fields that all events of the request share.
    pub head: Arc<EventMetadata>,
    decision: Decision,
    object: RefCell<Option<ObjectRef>>,
    /// Whether the response does not end by itself, like that of a watch.
    pub is_long_running: bool,
    /// Whether authentication failed: such requests get a single event.
    pub is_refused: bool,
    impersonated: RefCell<Option<Arc<Identity>>>,
    response_status: RefCell<Option<ResponseStatus>>,
    request: RefCell<Option<Bytes>>,
    body: RefCell<RecordedBody>,
    reservation: RefCell<Option<Reservation>>,
    annotations: RefCell<BTreeMap<String, String>>,
    /// Annotations that only the last event gets.
    final_annotations: RefCell<BTreeMap<String, String>>,
    /// Whether the last event is written.
    pub is_finished: Cell<bool>,
}

/// A request that the policy audits.
pub struct AuditedRequest<'a> {
    /// The policy and its backends.
    pub audit: &'a Audit,
    /// The source of the times of later events.
    pub clock: &'a Clock,
    /// The schemas by which responses are decoded.
    pub registry: &'a Arc<Registry>,
    /// The fields that all events of the request share. Without a user, authentication has failed.
    pub head: EventMetadata,
    /// The parsed request.
    pub request: &'a Request<'a>,
    /// What the policy says about it.
    pub decision: Decision,
}

impl Trail {
    /// The trail of a request.
    pub fn new(
        AuditedRequest { audit, clock, registry, head, request, decision }: AuditedRequest<'_>,
    ) -> Trail {
        Trail {
            backends: audit.backends.clone(),
            clock: clock.clone(),
            registry: registry.clone(),
            is_refused: head.user.is_none(),
            head: Arc::new(head),
            decision,
            object: RefCell::new(object(request)),
            is_long_running: request.is_long_running(),
            impersonated: RefCell::default(),
            response_status: RefCell::default(),
            request: RefCell::default(),
            body: RefCell::default(),
            reservation: RefCell::new(Some(audit.backends.empty_reservation())),
            annotations: RefCell::default(),
            final_annotations: RefCell::default(),
            is_finished: Cell::new(false),
        }
    }

    /// Writes RequestReceived. `false`: a blocking backend failed, and the request must not go on.
    pub async fn receive(&self) -> bool {
        if self.write(self.event(Stage::RequestReceived), self.backends.empty_reservation()).await {
            return true;
        }
        self.backends.counts().count_rejected();
        self.is_finished.set(true);
        false
    }

    /// Records the impersonated user.
    pub fn set_impersonated(&self, identity: &Arc<Identity>) {
        self.impersonated.replace(Some(identity.clone()));
    }

    /// Annotates a request for a deprecated version.
    pub fn annotate_deprecated(&self, resource: &Resource) {
        if resource.deprecation().is_none() {
            return;
        }
        let mut final_annotations = self.final_annotations.borrow_mut();
        final_annotations.insert("k8s.io/deprecated".to_owned(), "true".to_owned());
        if let Some((major, minor)) = resource.removed {
            final_annotations.insert("k8s.io/removed-release".to_owned(), format!("{major}.{minor}"));
        }
    }

    /// Records a Status as the response.
    pub fn status(&self, status: &Status, json: &[u8]) {
        self.response_status.replace(Some(ResponseStatus::status(status)));
        if self.head.level == Level::RequestResponse {
            self.record_response(Encoding::Json, compact(json).as_deref().unwrap_or(json));
        }
    }

    /// Records a piece of the response.
    pub fn record_response(&self, encoding: Encoding, chunk: &[u8]) {
        if self.head.level < Level::RequestResponse {
            return;
        }
        let mut body = self.body.borrow_mut();
        let bytes = body.bytes.len() + chunk.len();
        if body.is_truncated {
            return;
        }
        let mut reservation = self.reservation.borrow_mut();
        let fits =
            |reservation: &mut Reservation| bytes <= AUDIT_BODY_BYTES && reservation.set(bytes).is_ok();
        if reservation.as_mut().is_some_and(fits) {
            body.encoding = Some(encoding);
            body.bytes.extend_from_slice(chunk);
            return;
        }
        *body = RecordedBody { is_truncated: true, ..RecordedBody::default() };
        self.annotations.borrow_mut().insert(TRUNCATED.to_owned(), "true".to_owned());
        // The recorded bytes are dropped, so that a slow client holds no audit budget.
        *reservation = Some(self.backends.empty_reservation());
    }

    /// Takes the recorded response out of the trail.
    pub fn response(&self) -> Option<Arc<Response>> {
        let body = self.body.take();
        Some(self.make_response(body.encoding?, body.bytes.into()))
    }

    /// The response recorded so far, when a long-running request begins to answer. An error is complete by then.
    pub fn recorded_response(&self) -> Option<Arc<Response>> {
        let body = self.body.borrow();
        Some(self.make_response(body.encoding?, Bytes::copy_from_slice(&body.bytes)))
    }

    fn make_response(&self, encoding: Encoding, body: Bytes) -> Arc<Response> {
        Arc::new(Response::new(encoding, body, self.decision.omits_managed_fields, self.registry.clone()))
    }

    /// The event of a stage, without the response.
    pub fn event(&self, stage: Stage) -> Event {
        let timestamp = if stage == Stage::RequestReceived { self.head.received } else { self.clock.now() };
        let mut annotations = self.annotations.borrow().clone();
        if stage == Stage::ResponseComplete {
            annotations.append(&mut self.final_annotations.borrow().clone());
            let latency = timestamp.since(self.head.received);
            if latency > SLOW && !self.is_long_running {
                annotations.insert("apiserver.latency.k8s.io/total".to_owned(), span(latency));
            }
        }
        Event {
            head: self.head.clone(),
            stage,
            impersonated_user: self.impersonated.borrow().clone(),
            object: self.object.borrow().clone(),
            response_status: self.response_status.borrow().clone(),
            request: self.request.borrow().clone(),
            response: None,
            stage_timestamp: timestamp,
            annotations,
        }
    }

    /// Writes an event unless the policy omits its stage, and waits for blocking backends.
    pub async fn write(&self, event: Event, reservation: Reservation) -> bool {
        if self.decision.omitted.contains(event.stage) {
            return true;
        }
        self.backends.write(event, reservation).await
    }

    /// Builds the last event, taking its contents out of the trail.
    fn last(&self) -> Option<(Event, Reservation)> {
        if self.is_finished.replace(true) {
            return None;
        }
        let panicked = std::thread::panicking();
        if panicked {
            self.response_status.replace(Some(ResponseStatus::panicked()));
        } else if self.response_status.borrow().is_none() {
            self.response_status.replace(Some(ResponseStatus::closed_early()));
        }
        let response = self.response();
        let mut event = self.event(if panicked { Stage::Panic } else { Stage::ResponseComplete });
        event.response = response;
        let reservation = self.reservation.take().unwrap_or_else(|| self.backends.empty_reservation());
        (!self.decision.omitted.contains(event.stage)).then_some((event, reservation))
    }

    /// Writes the last event.
    pub async fn end(&self) {
        if let Some((event, reservation)) = self.last() {
            self.backends.write_last(event, reservation).await;
        }
    }

    /// Records the request body, the object that it names, and the status code.
    pub fn record_request(&self, code: u16, body: Option<Bytes>, body_identity: Option<BodyIdentity>) {
        self.request.replace(body);
        if let (Some(object), Some(body_identity)) = (self.object.borrow_mut().as_mut(), body_identity) {
            let fill = |field: &mut String, text: String| {
                if field.is_empty() {
                    *field = text;
                }
            };
            fill(&mut object.namespace, body_identity.namespace);
            fill(&mut object.name, body_identity.name);
            fill(&mut object.uid, body_identity.uid);
            fill(&mut object.resource_version, body_identity.resource_version);
        }
        let mut status = self.response_status.borrow_mut();
        if status.is_none() {
            *status = Some(ResponseStatus::Code(code));
        }
    }

    /// Sets an annotation.
    pub fn annotate(&self, key: &str, text: String) {
        self.annotations.borrow_mut().insert(key.to_owned(), text);
    }

    /// Adds annotations. Those that are set already stay.
    pub fn add_annotations(&self, added: BTreeMap<String, String>) {
        let mut annotations = self.annotations.borrow_mut();
        for (key, text) in added {
            annotations.entry(key).or_insert(text);
        }
    }
}

/// Requests that the client abandoned, and those that panicked, get their last event here.
impl Drop for Trail {
    fn drop(&mut self) {
        if self.is_refused {
            return;
        }
        if let Some((event, reservation)) = self.last() {
            self.backends.write_later(event, reservation);
        }
    }
}

/// The User-Agent of a request, cut to a bound.
pub fn truncate_user_agent(agent: &[u8]) -> String {
    match agent.get(..AUDIT_AGENT_BYTES) {
        Some(prefix) if agent.len() > AUDIT_AGENT_BYTES => {
            format!("{}...TRUNCATED", String::from_utf8_lossy(prefix))
        }
        _ => String::from_utf8_lossy(agent).into_owned(),
    }
}

fn object(request: &Request<'_>) -> Option<ObjectRef> {
    let Target::Resource(resource) = &request.target else { return None };
    Some(ObjectRef {
        resource: resource.resource.to_owned(),
        namespace: resource.namespace.to_owned(),
        name: resource.authorized_name.to_string(),
        group: resource.group.to_owned(),
        version: resource.version.to_owned(),
        subresource: resource.subresource.to_owned(),
        ..ObjectRef::default()
    })
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use futures::FutureExt as _;
    use pilothouse_api::audit::Stages;
    use pilothouse_types::clock::Timestamp;
    use pilothouse_types::memory::MemoryBudget;
    use tokio::sync::mpsc;

    use super::*;
    use crate::audit::backends::batches::QueueItem;
    use crate::config::audit::{Batching, Delivery, Mode};
    use crate::metrics::Metrics;

    /// The trail of a request, and the receiver of its events.
    fn trail(omitted: Stages) -> (Trail, mpsc::Receiver<QueueItem>) {
        let mut backends = AuditBackends::new(
            Metrics::new(Timestamp(0)).unwrap().audit,
            MemoryBudget::standalone(1 << 20),
            MemoryBudget::standalone(1 << 20),
        );
        let batching = Batching { waiting: 10, max_batch_size: 1, wait: Duration::ZERO, rate: None };
        let delivery = Delivery { mode: Mode::Blocking, batching, truncation: None };
        let mut queue = None;
        backends
            .add(delivery, |receiver| {
                queue = Some(receiver);
                Ok(())
            })
            .unwrap();
        let decision = Decision { level: Level::RequestResponse, omitted, omits_managed_fields: false };
        let trail = Trail {
            reservation: RefCell::new(Some(backends.empty_reservation())),
            backends: Arc::new(backends),
            clock: Clock::manual(Timestamp(0)),
            registry: Arc::new(Registry::builtin().unwrap()),
            head: Arc::new(EventMetadata { level: decision.level, verb: "get", ..EventMetadata::default() }),
            decision,
            object: RefCell::default(),
            is_long_running: false,
            is_refused: false,
            impersonated: RefCell::default(),
            response_status: RefCell::default(),
            request: RefCell::default(),
            body: RefCell::default(),
            annotations: RefCell::default(),
            final_annotations: RefCell::default(),
            is_finished: Cell::new(false),
        };
        (trail, queue.unwrap())
    }

    fn record(queue: &mut mpsc::Receiver<QueueItem>) -> Option<serde_json::Value> {
        let Ok(QueueItem::Write(entry)) = queue.try_recv() else { return None };
        let mut text = Vec::new();
        entry.event.write_json(&mut text, true);
        Some(serde_json::from_slice(&text).unwrap())
    }

    /// Handles a request until the handler panics.
    async fn panic_in_handler(trail: Trail) {
        let handling = async move {
            let _context = trail;
            tokio::task::yield_now().await;
            panic!("a handler that fails on purpose");
        };
        assert!(AssertUnwindSafe(handling).catch_unwind().await.is_err());
    }

    #[actix_rt::test]
    async fn audit_records_panic_stage_of_a_panicking_handler() {
        let (trail, mut queue) = trail(Stages::default());
        panic_in_handler(trail).await;
        let record = record(&mut queue).expect("a record");
        assert_eq!((&record["stage"], &record["responseStatus"]["code"]), (&"Panic".into(), &500.into()));
        assert_eq!(record["responseStatus"]["message"], "APIServer panic'd");
        assert!(queue.try_recv().is_err(), "exactly one event");
        let (trail, mut queue) = self::trail(Stages::default().with(Stage::Panic));
        panic_in_handler(trail).await;
        assert!(queue.try_recv().is_err(), "the policy omits the stage");
    }

    #[actix_rt::test]
    async fn audit_records_request_abandoned_by_the_client() {
        let (trail, mut queue) = trail(Stages::default());
        drop(trail);
        let record = record(&mut queue).expect("a record");
        assert_eq!(record["stage"], "ResponseComplete");
        assert_eq!(record["responseStatus"]["message"], "Connection closed early");
    }

    #[actix_rt::test]
    async fn audit_truncates_oversized_response_and_releases_its_budget() {
        let (trail, mut queue) = trail(Stages::default());
        let chunk = vec![b' '; AUDIT_BODY_BYTES / 2 + 1];
        trail.record_response(Encoding::Json, &chunk);
        assert_eq!(trail.reservation.borrow().as_ref().unwrap().bytes(), chunk.len());
        trail.record_response(Encoding::Json, &chunk);
        assert_eq!(trail.reservation.borrow().as_ref().unwrap().bytes(), 0);
        trail.record_response(Encoding::Json, b"{}");
        drop(trail);
        let record = record(&mut queue).expect("a record");
        assert_eq!(record["annotations"][TRUNCATED], "true");
        assert_eq!(record.get("responseObject"), None);
    }

    #[test]
    fn long_user_agent_is_truncated() {
        assert_eq!(truncate_user_agent(b"curl"), "curl");
        assert_eq!(truncate_user_agent(&[b'x'; 1_024]).len(), 1_024);
        let truncated = truncate_user_agent(&[b'x'; 2_000]);
        assert!(
            truncated.starts_with("xxx") && truncated.ends_with("x...TRUNCATED") && truncated.len() == 1_036
        );
    }
}
