//! API Priority and Fairness, or without it the plain limits `--max-requests-inflight` and `--max-mutating-requests-inflight`.
//!
//! A request is classified by a FlowSchema and its priority level (`table`), its width in seats is estimated (`work_estimate`), and
//! it is executed, queued or rejected (`pilothouse_actors::fair_queuing`). An admitted request holds a permit until it is done.

mod configuration;
pub mod dump;
pub mod table;
mod work_estimate;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::fair_queuing::level::{Entry, Level, Refused, Seat};
use pilothouse_actors::fair_queuing::levels::Levels;
use pilothouse_actors::fair_queuing::queues::{LevelKind, WorkEstimate};
use pilothouse_actors::permit::Permit;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::path::Request;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::verb::Verb;
use pilothouse_apimachinery::well_known::MASTERS;
use pilothouse_types::clock::{Clock, Timestamp};
use pilothouse_types::error::StoreError;
use pilothouse_types::identity::Identity;
use prometheus::IntGauge;

use self::dump::RequestRecord;
use self::table::{Flow, Table};
use crate::auth::live_index::{LiveIndex, LiveIndexes};
use crate::backend::load_stats::LoadStats;
use crate::limits::LONGEST_WAIT;
use crate::metrics::Metrics;

/// How concurrent requests are limited.
pub enum RequestLimiter {
    /// API Priority and Fairness.
    Fair(FlowController),
    /// One limit for read-only requests and one for mutating requests.
    Plain(InFlightLimits),
}

/// The attributes of a request that classification and width estimation need.
pub struct RequestInfo<'a> {
    /// The user.
    pub user: &'a Arc<Identity>,
    /// Its path.
    pub path: &'a str,
    /// The parsed request.
    pub request: &'a Request<'a>,
    /// The resource, if it is served.
    pub resource: Option<&'a Resource>,
    /// The query parameters.
    pub query: &'a Query<'a>,
}

impl RequestInfo<'_> {
    fn writes(&self) -> bool {
        !matches!(
            self.request.verb,
            Verb::Get | Verb::List | Verb::Watch | Verb::Proxy | Verb::Head | Verb::Options
        )
    }
}

/// The gauges of requests in flight: read-only and mutating.
struct InFlight([IntGauge; 2]);

impl InFlight {
    fn new(metrics: &Metrics) -> InFlight {
        InFlight(["readOnly", "mutating"].map(|kind| metrics.inflight.with_label_values(&[kind])))
    }

    fn count(&self, asked: &RequestInfo<'_>) -> Counted {
        let gauge = self.0[usize::from(asked.writes())].clone();
        gauge.inc();
        Counted(gauge)
    }
}

/// Counts a request until dropped.
struct Counted(IntGauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// An admitted request: the contents of its permit.
struct AdmittedRequest<G> {
    _counted: Counted,
    seat: Option<Seat<G>>,
    begun: Option<ExecutingRequest>,
}

/// What the metrics need when it ends.
struct ExecutingRequest {
    flow: Arc<Flow>,
    seats: u32,
    is_watch: bool,
    at: Timestamp,
    clock: Clock,
}

impl<G> Drop for AdmittedRequest<G> {
    fn drop(&mut self) {
        if let Some(ExecutingRequest { flow, seats, is_watch, at, clock }) = &self.begun {
            let now = clock.now();
            flow.counted().end(*seats, *is_watch, seconds(*at, now));
            self.seat.take().into_iter().for_each(|seat| seat.give_back(now));
        }
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.0.saturating_sub(from.0) as f64 / 1e6
}

/// Counts a queued request until dropped.
struct QueuedRequest<'a> {
    flow: &'a Flow,
    seats: u32,
}

impl<'a> QueuedRequest<'a> {
    fn begin(flow: &'a Flow, seats: u32) -> QueuedRequest<'a> {
        flow.counted().waiting.inc();
        flow.counted().seats_wanted.add(i64::from(seats));
        QueuedRequest { flow, seats }
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.flow.counted().waiting.dec();
        self.flow.counted().seats_wanted.sub(i64::from(self.seats));
    }
}

/// API Priority and Fairness. One per server.
pub struct FlowController {
    table: Arc<LiveIndex<Table>>,
    seats: Arc<Levels<RequestRecord>>,
    /// Keys the hash of flows, so that clients cannot choose their queues.
    secret: RandomState,
    load: Arc<LoadStats>,
    inflight: InFlight,
    clock: Clock,
}

impl FlowController {
    /// Reads all FlowSchemas and PriorityLevelConfigurations, which share this many seats.
    pub async fn open(
        indexes: &LiveIndexes,
        total: u32,
        load: Arc<LoadStats>,
        metrics: &Arc<Metrics>,
        clock: &Clock,
    ) -> Result<FlowController, StoreError> {
        let seats = Arc::new(Levels::new(total, clock.clone()));
        let table = Table::new(seats.clone(), metrics.clone());
        Ok(FlowController {
            table: indexes.open(table::TYPES, table).await?,
            seats,
            secret: RandomState::new(),
            load,
            inflight: InFlight::new(metrics),
            clock: clock.clone(),
        })
    }

    /// Classifies a request. Needs the authenticated user; authorization comes later.
    pub fn flow(&self, user: &Identity, request: &Request<'_>) -> Option<Arc<Flow>> {
        // A slightly stale table will do: it grants nothing, and a loop updates it soon.
        self.table.fresh().unwrap_or_else(|| self.table.stale()).of(user, request)
    }

    /// Admits a request of this flow, at once or after waiting for at most `most`.
    pub async fn enter(
        &self,
        flow: &Arc<Flow>,
        asked: &RequestInfo<'_>,
        most: Duration,
    ) -> Result<Permit, Refused> {
        let work = work_estimate::estimate(asked, &self.load, flow.level.widest());
        flow.counted().widths.observe(f64::from(work.width()));
        let hash =
            self.secret.hash_one((&*flow.name, flow.schema.distinguisher.value(asked.user, asked.request)));
        let came = self.clock.now();
        let visit = RequestRecord {
            flow: flow.clone(),
            user: asked.user.clone(),
            verb: asked.request.verb,
            path: asked.path.into(),
            name: asked.request.resource().map_or("", |found| &found.authorized_name).into(),
        };
        let (entry, at) = match flow.level.enter(came, hash, work, visit) {
            Entry::Seated(seat) => (Ok(seat), came),
            Entry::Refused(refused) => (Err(refused), came),
            Entry::Waits(waiter) => {
                flow.counted().lengths.observe(waiter.length() as f64);
                let _waiting = QueuedRequest::begin(flow, work.width());
                (waiter.wait(most.min(LONGEST_WAIT)).await, self.clock.now())
            }
        };
        if !flow.is_exempt {
            flow.counted().wait(entry.is_ok(), seconds(came, at));
        }
        let seat = entry.inspect_err(|refused| flow.counted().refuse(refused.why))?;
        flow.counted().begin(work.width());
        let is_watch = asked.request.verb == Verb::Watch;
        let begun = ExecutingRequest {
            flow: flow.clone(),
            seats: work.width(),
            is_watch,
            at,
            clock: self.clock.clone(),
        };
        let counted = self.inflight.count(asked);
        Ok(Permit::holding(AdmittedRequest { _counted: counted, seat: Some(seat), begun: Some(begun) }))
    }

    /// Reports the state of the priority levels to the metrics.
    pub fn tell(&self, metrics: &Metrics) {
        metrics.flows.tell(&self.seats.told(), self.seats.fair_part());
    }

    /// Answers the debug endpoint of this path; `None` if there is none.
    pub fn dump(&self, path: &str, query: &Query<'_>) -> Option<String> {
        dump::answer(&self.seats, path, query)
    }

    /// Applies changed configuration to the priority levels, so that queued requests profit from it.
    pub async fn settle(&self) -> Result<(), StoreError> {
        match self.table.look(Table::settle) {
            Answer::Now(settled) => settled,
            Answer::Later(settled) => settled.await,
        }
    }

    /// The priority levels, for the periodic loop that adjusts borrowing and frees leaked seats.
    pub fn seats(&self) -> Arc<Levels<RequestRecord>> {
        self.seats.clone()
    }
}

/// The limits of requests in flight without API Priority and Fairness. Watches and other long-running requests do not count.
pub struct InFlightLimits {
    /// For read-only and for mutating requests.
    levels: [Arc<Level<()>>; 2],
    inflight: InFlight,
    clock: Clock,
}

impl InFlightLimits {
    /// The limits of read-only and mutating requests; zero means no limit.
    pub fn new(reading: u32, writing: u32, metrics: &Metrics, clock: &Clock) -> InFlightLimits {
        let level = |limit: u32| {
            let shape = if limit == 0 { LevelKind::Exempt } else { LevelKind::Reject };
            Arc::new(Level::new(shape, limit, clock, &Arc::default()))
        };
        InFlightLimits {
            levels: [level(reading), level(writing)],
            inflight: InFlight::new(metrics),
            clock: clock.clone(),
        }
    }

    /// Admits a request. Users of `system:masters` are always admitted, so that an administrator can act on an overloaded server.
    pub fn enter(&self, asked: &RequestInfo<'_>) -> Result<Permit, Refused> {
        match self.levels[usize::from(asked.writes())].enter(self.clock.now(), 0, WorkEstimate::ONE, ()) {
            Entry::Seated(seat) => {
                let counted = self.inflight.count(asked);
                Ok(Permit::holding(AdmittedRequest { _counted: counted, seat: Some(seat), begun: None }))
            }
            _ if asked.user.is_in(MASTERS) => Ok(Permit::none()),
            Entry::Refused(refused) => Err(Refused { seconds: 1, ..refused }),
            // Nothing waits without queues.
            Entry::Waits(_) => Ok(Permit::none()),
        }
    }
}
