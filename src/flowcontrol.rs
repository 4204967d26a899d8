//! API Priority and Fairness, or without it the plain limits `--max-requests-inflight` and `--max-mutating-requests-inflight`.
//!
//! A request is classified by a FlowSchema and its priority level (`table`), its width in seats is estimated (`work_estimate`), and
//! it is executed, queued or rejected (`pilothouse_actors::fair_queuing`). An admitted request holds a permit until it is done.

mod configuration;
pub mod dump;
pub mod heavy_pool;
pub mod load_stats;
pub mod table;
mod work_estimate;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::fair_queuing::level::{Entry, Level, Rejection, Seat};
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
use crate::flowcontrol::load_stats::LoadStats;
use crate::limits::MAX_QUEUE_WAIT;
use crate::live_index::{LiveIndex, LiveIndexes};
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
    /// The authenticated user.
    pub user: &'a Arc<Identity>,
    /// The path of the URL.
    pub path: &'a str,
    /// The parsed request.
    pub request: &'a Request<'a>,
    /// The resource, if it is served.
    pub resource: Option<&'a Resource>,
    /// The query parameters.
    pub query: &'a Query<'a>,
}

impl RequestInfo<'_> {
    fn is_mutating(&self) -> bool {
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
        InFlight(["readOnly", "mutating"].map(|kind| metrics.requests.inflight.with_label_values(&[kind])))
    }

    fn count(&self, info: &RequestInfo<'_>) -> InFlightGuard {
        let gauge = self.0[usize::from(info.is_mutating())].clone();
        gauge.inc();
        InFlightGuard(gauge)
    }
}

/// Counts a request until dropped.
struct InFlightGuard(IntGauge);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// An admitted request: the contents of its permit.
struct AdmittedRequest<G> {
    _in_flight: InFlightGuard,
    seat: Option<Seat<G>>,
    executing: Option<ExecutingRequest>,
}

/// The values that the metrics need when the request ends.
struct ExecutingRequest {
    flow: Arc<Flow>,
    seats: u32,
    is_watch: bool,
    start: Timestamp,
    clock: Clock,
}

impl<G> Drop for AdmittedRequest<G> {
    fn drop(&mut self) {
        if let Some(ExecutingRequest { flow, seats, is_watch, start, clock }) = &self.executing {
            let now = clock.now();
            flow.series().end(*seats, *is_watch, seconds(*start, now));
            self.seat.take().into_iter().for_each(|seat| seat.give_back(now));
        }
    }
}

fn seconds(start: Timestamp, end: Timestamp) -> f64 {
    end.0.saturating_sub(start.0) as f64 / 1e6
}

/// Counts a queued request until dropped.
struct QueuedRequest<'a> {
    flow: &'a Flow,
    seats: u32,
}

impl<'a> QueuedRequest<'a> {
    fn new(flow: &'a Flow, seats: u32) -> QueuedRequest<'a> {
        flow.series().waiting.inc();
        flow.series().seats_wanted.add(i64::from(seats));
        QueuedRequest { flow, seats }
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.flow.series().waiting.dec();
        self.flow.series().seats_wanted.sub(i64::from(self.seats));
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
        // A slightly stale table suffices: it grants nothing, and a periodic task updates it soon.
        self.table.fresh().unwrap_or_else(|| self.table.stale()).classify(user, request)
    }

    /// Admits a request of this flow, at once or after waiting for at most `limit`.
    pub async fn enter(
        &self,
        flow: &Arc<Flow>,
        info: &RequestInfo<'_>,
        limit: Duration,
    ) -> Result<Permit, Rejection> {
        let work = work_estimate::estimate(info, &self.load, flow.level.max_seats());
        flow.series().widths.observe(f64::from(work.width()));
        let hash =
            self.secret.hash_one((&*flow.name, flow.schema.distinguisher.value(info.user, info.request)));
        let arrival = self.clock.now();
        let record = RequestRecord {
            flow: flow.clone(),
            user: info.user.clone(),
            verb: info.request.verb,
            path: info.path.into(),
            name: info.request.resource().map_or("", |resource| &resource.authorized_name).into(),
        };
        let (entry, start) = match flow.level.enter(arrival, hash, work, record) {
            Entry::Seated(seat) => (Ok(seat), arrival),
            Entry::Rejected(rejection) => (Err(rejection), arrival),
            Entry::Queued(waiter) => {
                flow.series().lengths.observe(waiter.length() as f64);
                let _waiting = QueuedRequest::new(flow, work.width());
                (waiter.wait(limit.min(MAX_QUEUE_WAIT)).await, self.clock.now())
            }
        };
        if !flow.is_exempt {
            flow.series().wait(entry.is_ok(), seconds(arrival, start));
        }
        let seat = entry.inspect_err(|rejection| flow.series().refuse(rejection.reason))?;
        flow.series().begin(work.width());
        let is_watch = info.request.verb == Verb::Watch;
        let executing = ExecutingRequest {
            flow: flow.clone(),
            seats: work.width(),
            is_watch,
            start,
            clock: self.clock.clone(),
        };
        let in_flight = self.inflight.count(info);
        Ok(Permit::holding(AdmittedRequest {
            _in_flight: in_flight,
            seat: Some(seat),
            executing: Some(executing),
        }))
    }

    /// Reports the state of the priority levels to the metrics.
    pub fn report(&self, metrics: &Metrics) {
        metrics.flows.update(&self.seats.snapshots(), self.seats.fair_fraction());
    }

    /// Renders the debug endpoint of this path; `None` if there is none.
    pub fn dump(&self, path: &str, query: &Query<'_>) -> Option<String> {
        dump::render(&self.seats, path, query)
    }

    /// Applies changed configuration to the priority levels, also for requests that are queued already.
    pub async fn settle(&self) -> Result<(), StoreError> {
        match self.table.query(Table::settle) {
            Answer::Now(result) => result,
            Answer::Later(result) => result.await,
        }
    }

    /// The priority levels, for the periodic task that adjusts borrowing and frees leaked seats.
    pub fn seats(&self) -> Arc<Levels<RequestRecord>> {
        self.seats.clone()
    }
}

/// The limits of requests in flight without API Priority and Fairness. Watches and other long-running requests do not count.
pub struct InFlightLimits {
    /// Of read-only and of mutating requests.
    levels: [Arc<Level<()>>; 2],
    inflight: InFlight,
    clock: Clock,
}

impl InFlightLimits {
    /// The limits of read-only and mutating requests; zero means no limit.
    pub fn new(read_only: u32, mutating: u32, metrics: &Metrics, clock: &Clock) -> InFlightLimits {
        let level = |limit: u32| {
            let kind = if limit == 0 { LevelKind::Exempt } else { LevelKind::Reject };
            Arc::new(Level::new(kind, limit, clock, &Arc::default()))
        };
        InFlightLimits {
            levels: [level(read_only), level(mutating)],
            inflight: InFlight::new(metrics),
            clock: clock.clone(),
        }
    }

    /// Admits a request. Users of `system:masters` are always admitted, so that an administrator can act on an overloaded server.
    pub fn enter(&self, info: &RequestInfo<'_>) -> Result<Permit, Rejection> {
        match self.levels[usize::from(info.is_mutating())].enter(self.clock.now(), 0, WorkEstimate::ONE, ()) {
            Entry::Seated(seat) => {
                let in_flight = self.inflight.count(info);
                Ok(Permit::holding(AdmittedRequest {
                    _in_flight: in_flight,
                    seat: Some(seat),
                    executing: None,
                }))
            }
            _ if info.user.is_in(MASTERS) => Ok(Permit::none()),
            Entry::Rejected(rejection) => Err(Rejection { retry_after: 1, ..rejection }),
            // Nothing waits without queues.
            Entry::Queued(_) => Ok(Permit::none()),
        }
    }
}
