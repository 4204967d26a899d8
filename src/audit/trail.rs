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

use crate::audit_backends::AuditBackends;
use crate::limits::{AUDIT_AGENT_BYTES, AUDIT_BODY_BYTES};

use super::Audit;

/// Requests that take longer than this say so.
const SLOW: Duration = Duration::from_millis(500);

/// The response as far as it was recorded.
#[derive(Default)]
struct Answer {
    encoding: Option<Encoding>,
    bytes: Vec<u8>,
    /// Whether the response exceeded the limit.
    cut: bool,
}

/// Collects the audit event of one request while it is served.
pub struct Trail {
    /// Writes the events.
    pub ledger: Arc<AuditBackends>,
    clock: Clock,
    registry: Arc<Registry>,
    /// What all events of the request have in common.
    pub head: Arc<EventMetadata>,
    decision: Decision,
    object: RefCell<Option<ObjectRef>>,
    /// Whether the response has no end of its own, as that of a watch.
    pub is_long_running: bool,
    /// Whether authentication failed: such requests get a single event.
    pub is_refused: bool,
    acts_as: RefCell<Option<Arc<Identity>>>,
    answered: RefCell<Option<ResponseStatus>>,
    request: RefCell<Option<Bytes>>,
    answer: RefCell<Answer>,
    held: RefCell<Option<Reservation>>,
    notes: RefCell<BTreeMap<String, String>>,
    /// Annotations that only the last event gets.
    late: RefCell<BTreeMap<String, String>>,
    /// Whether the last event is written.
    pub is_over: Cell<bool>,
}

impl Trail {
    /// The trail of a request that the policy wants to have audited. Without a user in `head`, authentication has failed.
    pub fn new(
        audit: &Audit,
        (clock, registry): (&Clock, &Arc<Registry>),
        head: EventMetadata,
        (parsed, decision): (&Request<'_>, Decision),
    ) -> Trail {
        Trail {
            ledger: audit.ledger.clone(),
            clock: clock.clone(),
            registry: registry.clone(),
            is_refused: head.user.is_none(),
            head: Arc::new(head),
            decision,
            object: RefCell::new(object(parsed)),
            is_long_running: parsed.is_long_running(),
            acts_as: RefCell::default(),
            answered: RefCell::default(),
            request: RefCell::default(),
            answer: RefCell::default(),
            held: RefCell::new(Some(audit.ledger.room())),
            notes: RefCell::default(),
            late: RefCell::default(),
            is_over: Cell::new(false),
        }
    }

    /// Writes RequestReceived. `false`: a blocking backend failed, and the request must not go on.
    pub async fn receive(&self) -> bool {
        if self.write(self.event(Stage::RequestReceived), self.ledger.room()).await {
            return true;
        }
        self.ledger.counts().refused();
        self.is_over.set(true);
        false
    }

    /// Records the impersonated user.
    pub fn acts_as(&self, identity: &Arc<Identity>) {
        self.acts_as.replace(Some(identity.clone()));
    }

    /// Annotates requests for deprecated versions.
    pub fn deprecated(&self, resource: &Resource) {
        if resource.deprecation().is_none() {
            return;
        }
        let mut late = self.late.borrow_mut();
        late.insert("k8s.io/deprecated".to_owned(), "true".to_owned());
        if let Some((major, minor)) = resource.removed {
            late.insert("k8s.io/removed-release".to_owned(), format!("{major}.{minor}"));
        }
    }

    /// Records a Status as the response.
    pub fn status(&self, status: &Status, json: &[u8]) {
        self.answered.replace(Some(ResponseStatus::status(status)));
        if self.head.level == Level::RequestResponse {
            self.told(Encoding::Json, compact(json).as_deref().unwrap_or(json));
        }
    }

    /// Records a piece of the response.
    pub fn told(&self, encoding: Encoding, piece: &[u8]) {
        if self.head.level < Level::RequestResponse {
            return;
        }
        let mut answer = self.answer.borrow_mut();
        let bytes = answer.bytes.len() + piece.len();
        if answer.cut {
            return;
        }
        let mut room = self.held.borrow_mut();
        let fits = |held: &mut Reservation| bytes <= AUDIT_BODY_BYTES && held.set(bytes).is_ok();
        if room.as_mut().is_some_and(fits) {
            answer.encoding = Some(encoding);
            answer.bytes.extend_from_slice(piece);
            return;
        }
        *answer = Answer { cut: true, ..Answer::default() };
        self.notes.borrow_mut().insert(TRUNCATED.to_owned(), "true".to_owned());
        // The recorded bytes are dropped, so a slow reader holds no audit budget.
        *room = Some(self.ledger.room());
    }

    /// Takes the recorded response out of the trail.
    pub fn response(&self) -> Option<Arc<Response>> {
        let answer = self.answer.take();
        Some(self.kept(answer.encoding?, answer.bytes.into()))
    }

    /// The response recorded so far, when a long-running request begins to answer. An error is complete by then.
    pub fn so_far(&self) -> Option<Arc<Response>> {
        let answer = self.answer.borrow();
        Some(self.kept(answer.encoding?, Bytes::copy_from_slice(&answer.bytes)))
    }

    fn kept(&self, encoding: Encoding, sent: Bytes) -> Arc<Response> {
        Arc::new(Response::new(encoding, sent, self.decision.drops_owners, self.registry.clone()))
    }

    /// The event of a stage, without the response.
    pub fn event(&self, stage: Stage) -> Event {
        let at = if stage == Stage::RequestReceived { self.head.received } else { self.clock.now() };
        let mut notes = self.notes.borrow().clone();
        if stage == Stage::ResponseComplete {
            notes.append(&mut self.late.borrow().clone());
            let took = at.since(self.head.received);
            if took > SLOW && !self.is_long_running {
                notes.insert("apiserver.latency.k8s.io/total".to_owned(), span(took));
            }
        }
        Event {
            head: self.head.clone(),
            stage,
            acts_as: self.acts_as.borrow().clone(),
            object: self.object.borrow().clone(),
            answered: self.answered.borrow().clone(),
            request: self.request.borrow().clone(),
            response: None,
            at,
            notes,
        }
    }

    /// Writes an event unless the policy omits its stage, and waits for blocking backends.
    pub async fn write(&self, event: Event, held: Reservation) -> bool {
        if self.decision.omitted.contain(event.stage) {
            return true;
        }
        self.ledger.write(event, held).await
    }

    /// Builds the last event, taking its contents out of the trail.
    fn last(&self) -> Option<(Event, Reservation)> {
        if self.is_over.replace(true) {
            return None;
        }
        let panicked = std::thread::panicking();
        if panicked {
            self.answered.replace(Some(ResponseStatus::panicked()));
        } else if self.answered.borrow().is_none() {
            self.answered.replace(Some(ResponseStatus::early()));
        }
        let response = self.response();
        let mut event = self.event(if panicked { Stage::Panic } else { Stage::ResponseComplete });
        event.response = response;
        let held = self.held.take().unwrap_or_else(|| self.ledger.room());
        (!self.decision.omitted.contain(event.stage)).then_some((event, held))
    }

    /// Writes the last event.
    pub async fn end(&self) {
        if let Some((event, held)) = self.last() {
            self.ledger.write_last(event, held).await;
        }
    }

    /// Takes over what was recorded of the body, and the status code.
    pub fn answered(&self, code: u16, body: Option<Bytes>, named: Option<BodyIdentity>) {
        self.request.replace(body);
        if let (Some(object), Some(named)) = (self.object.borrow_mut().as_mut(), named) {
            let fill = |field: &mut String, text: String| {
                if field.is_empty() {
                    *field = text;
                }
            };
            fill(&mut object.namespace, named.namespace);
            fill(&mut object.name, named.name);
            fill(&mut object.uid, named.uid);
            fill(&mut object.resource_version, named.resource_version);
        }
        let mut answered = self.answered.borrow_mut();
        if answered.is_none() {
            *answered = Some(ResponseStatus::Code(code));
        }
    }

    /// Sets an annotation.
    pub fn annotate(&self, key: &str, text: String) {
        self.notes.borrow_mut().insert(key.to_owned(), text);
    }

    /// Adds annotations. Those that are set already stay.
    pub fn add_annotations(&self, all: BTreeMap<String, String>) {
        let mut notes = self.notes.borrow_mut();
        for (key, text) in all {
            notes.entry(key).or_insert(text);
        }
    }
}

/// Requests that the client abandoned, and those that panicked, get their last event here.
impl Drop for Trail {
    fn drop(&mut self) {
        if self.is_refused {
            return;
        }
        if let Some((event, held)) = self.last() {
            self.ledger.write_later(event, held);
        }
    }
}

/// The User-Agent of a request, cut to a bound.
pub fn cut_agent(agent: &[u8]) -> String {
    match agent.get(..AUDIT_AGENT_BYTES) {
        Some(begin) if agent.len() > AUDIT_AGENT_BYTES => {
            format!("{}...TRUNCATED", String::from_utf8_lossy(begin))
        }
        _ => String::from_utf8_lossy(agent).into_owned(),
    }
}

fn object(parsed: &Request<'_>) -> Option<ObjectRef> {
    let Target::Resource(found) = &parsed.target else { return None };
    Some(ObjectRef {
        resource: found.resource.to_owned(),
        namespace: found.namespace.to_owned(),
        name: found.authorized_name.to_string(),
        group: found.group.to_owned(),
        version: found.version.to_owned(),
        subresource: found.subresource.to_owned(),
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
    use crate::audit_backends::batches::QueueItem;
    use crate::config::audit::{Batching, Delivery, Mode};
    use crate::metrics::Metrics;

    /// The trail of a request, and the receiver of its events.
    fn trail(omitted: Stages) -> (Trail, mpsc::Receiver<QueueItem>) {
        let mut ledger = AuditBackends::new(
            Metrics::new(Timestamp(0)).unwrap().audit,
            MemoryBudget::alone(1 << 20),
            MemoryBudget::alone(1 << 20),
        );
        let batching = Batching { waiting: 10, most: 1, wait: Duration::ZERO, rate: None };
        let delivery = Delivery { mode: Mode::Blocking, batching, truncation: None };
        let mut queue = None;
        ledger
            .add(delivery, |words| {
                queue = Some(words);
                Ok(())
            })
            .unwrap();
        let decision = Decision { level: Level::RequestResponse, omitted, drops_owners: false };
        let trail = Trail {
            held: RefCell::new(Some(ledger.room())),
            ledger: Arc::new(ledger),
            clock: Clock::manual(Timestamp(0)),
            registry: Arc::new(Registry::builtin().unwrap()),
            head: Arc::new(EventMetadata { level: decision.level, verb: "get", ..EventMetadata::default() }),
            decision,
            object: RefCell::default(),
            is_long_running: false,
            is_refused: false,
            acts_as: RefCell::default(),
            answered: RefCell::default(),
            request: RefCell::default(),
            answer: RefCell::default(),
            notes: RefCell::default(),
            late: RefCell::default(),
            is_over: Cell::new(false),
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
    async fn broken(trail: Trail) {
        let handling = async move {
            let _context = trail;
            tokio::task::yield_now().await;
            panic!("a handler that fails on purpose");
        };
        assert!(AssertUnwindSafe(handling).catch_unwind().await.is_err());
    }

    #[actix_rt::test]
    async fn a_request_that_breaks_the_server_is_written_down_so() {
        let (trail, mut queue) = trail(Stages::default());
        broken(trail).await;
        let record = record(&mut queue).expect("a record");
        assert_eq!((&record["stage"], &record["responseStatus"]["code"]), (&"Panic".into(), &500.into()));
        assert_eq!(record["responseStatus"]["message"], "APIServer panic'd");
        assert!(queue.try_recv().is_err(), "and once");
        let (trail, mut queue) = self::trail(Stages::default().with(Stage::Panic));
        broken(trail).await;
        assert!(queue.try_recv().is_err(), "unless the policy leaves that out");
    }

    #[actix_rt::test]
    async fn a_request_that_nobody_waits_for_any_more_is_written_down() {
        let (trail, mut queue) = trail(Stages::default());
        drop(trail);
        let record = record(&mut queue).expect("a record");
        assert_eq!(record["stage"], "ResponseComplete");
        assert_eq!(record["responseStatus"]["message"], "Connection closed early");
    }

    #[actix_rt::test]
    async fn an_answer_that_is_too_long_is_left_out_and_holds_no_room() {
        let (trail, mut queue) = trail(Stages::default());
        let piece = vec![b' '; AUDIT_BODY_BYTES / 2 + 1];
        trail.told(Encoding::Json, &piece);
        assert_eq!(trail.held.borrow().as_ref().unwrap().bytes(), piece.len());
        trail.told(Encoding::Json, &piece);
        assert_eq!(trail.held.borrow().as_ref().unwrap().bytes(), 0);
        trail.told(Encoding::Json, b"{}");
        drop(trail);
        let record = record(&mut queue).expect("a record");
        assert_eq!(record["annotations"][TRUNCATED], "true");
        assert_eq!(record.get("responseObject"), None);
    }

    #[test]
    fn long_agents_are_cut() {
        assert_eq!(cut_agent(b"curl"), "curl");
        assert_eq!(cut_agent(&[b'x'; 1_024]).len(), 1_024);
        let cut = cut_agent(&[b'x'; 2_000]);
        assert!(cut.starts_with("xxx") && cut.ends_with("x...TRUNCATED") && cut.len() == 1_036);
    }
}
