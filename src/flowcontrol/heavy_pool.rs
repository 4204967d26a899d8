//! Threads for heavy work: large bodies, patches, validation, documents.
//!
//! A worker thread serves thousands of connections, and whatever it computes for one of them the others wait for. So a request
//! whose work is large is carried out on one of these threads instead, with a backend of its own: decoding, patching, admission,
//! CEL, validation, conversion and encoding all happen there, and the waiting for stores and webhooks in between leaves the
//! thread to the next request. The worker only waits for the result.
//!
//! The queue is bounded and fair ([`FairQueue`]): priority levels take turns, and within a level its users. One user runs a part
//! of what a lane runs at most. Requests of exempt levels have a thread of their own, so that an administrator is never behind
//! others. Health checks never come here.
//!
//! Steps of responses that are being sent have a lane of their own on the same threads. They never wait for anything, so they must
//! not queue behind requests that wait for a slow webhook and leave the thread idle.

pub mod costly_calls;
pub mod fair_queue;

use std::cell::LazyCell;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use actix::Arbiter;
use futures::FutureExt as _;
use futures::future::{Either, LocalBoxFuture, select};
use pilothouse_types::activity::QueueDepth;
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::lock::Lock;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::yield_now;

use self::fair_queue::{FairQueue, PushOutcome, WorkOwner};
use crate::limits::{HEAVY_RUNNING_PER_THREAD, HEAVY_RUNNING_PER_USER, HEAVY_USERS_PER_LEVEL, HEAVY_WAITING};
use crate::metrics::Metrics;
use crate::metrics::heavy_work::LaneMetrics;

/// The error for heavy work that was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeavyError {
    /// The queue is full: the client may retry.
    Busy,
    /// The work panicked, or the server stops.
    Failed,
}

type Job<B> = Box<dyn FnOnce(Rc<B>) -> LocalBoxFuture<'static, ()> + Send>;

/// The threads for heavy work and their queues. One per server, shared by all workers. Each thread has a backend `B`.
pub struct HeavyPool<B> {
    /// For requests of all levels but the exempt ones.
    shared: Arc<Lane<B>>,
    /// For requests of exempt levels.
    exempt: Arc<Lane<B>>,
    /// For steps of the responses to the former, on the same threads.
    shared_steps: Arc<Lane<B>>,
    /// For steps of the responses to the latter, on the same thread.
    exempt_steps: Arc<Lane<B>>,
    /// The threads of the shared lanes.
    threads: usize,
}

impl<B: 'static> HeavyPool<B> {
    /// Queues for this many threads, which [`HeavyPool::start`] starts, and one more for exempt levels.
    pub fn new(threads: usize, metrics: &Metrics, clock: &Clock) -> HeavyPool<B> {
        let lane = |name, bounds| Lane::new(bounds, metrics.heavy.lane(name), clock.clone());
        HeavyPool {
            shared: lane("shared", LaneBounds::for_requests(threads)),
            exempt: lane("exempt", LaneBounds::for_requests(1)),
            shared_steps: lane("shared_steps", LaneBounds::FOR_STEPS),
            exempt_steps: lane("exempt_steps", LaneBounds::FOR_STEPS),
            threads,
        }
    }

    /// Starts the threads; `make` makes the backend of each on it, when it is first needed. Must be called inside an actix System,
    /// which ends them.
    pub fn start(&self, make: impl Fn() -> B + Clone + Send + 'static) -> io::Result<()> {
        let shared = std::iter::repeat_n((&self.shared, &self.shared_steps), self.threads);
        for (requests, steps) in shared.chain([(&self.exempt, &self.exempt_steps)]) {
            let (lanes, make) = ([requests.clone(), steps.clone()], make.clone());
            let is_spawned = Arbiter::try_new()?.spawn_fn(move || {
                let backend = Rc::new(LazyCell::new(move || Rc::new(make())));
                for lane in lanes {
                    let backend = backend.clone();
                    actix::spawn(run_jobs(lane, move || Rc::clone(LazyCell::force(&backend))));
                }
            });
            if !is_spawned {
                return Err(io::Error::other("a thread for heavy work ended"));
            }
        }
        Ok(())
    }

    /// Carries out work that may wait in between, and returns its result. If the caller stops waiting, the work stops as well.
    pub async fn run<T, F, W>(&self, owner: &WorkOwner, work: F) -> Result<T, HeavyError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<B>) -> W + Send + 'static,
        W: Future<Output = T> + 'static,
    {
        let (job, result) = job(work);
        let ticket = self.lane(owner).enter(owner, job)?;
        result.await.map_err(|_| match ticket.is_displaced.load(Ordering::Acquire) {
            true => HeavyError::Busy,
            false => HeavyError::Failed,
        })
    }

    /// Carries out work that does not wait.
    pub async fn compute<T: Send + 'static>(
        &self,
        owner: &WorkOwner,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HeavyError> {
        self.run(owner, |_| async move { work() }).await
    }

    /// Carries out a step of a response that is being sent. It waits for its turn among such steps, and is never refused: the
    /// response has already begun. So the queue has no bound of its own. A response has one step at a time in it, besides the
    /// encoding of its next item, and the memory budgets of lists, watches and pages of proxies bound the responses.
    pub async fn step<T: Send + 'static>(
        &self,
        owner: &WorkOwner,
        work: impl FnOnce(&B) -> T + Send + 'static,
    ) -> Result<T, HeavyError> {
        let (job, result) = job(|backend: Rc<B>| async move { work(&backend) });
        let _ticket = self.step_lane(owner).enter(owner, job)?;
        result.await.map_err(|_| HeavyError::Failed)
    }

    /// What waits in each lane, and what runs.
    pub fn queues(&self) -> Vec<QueueDepth> {
        let lanes = [
            ("shared", &self.shared),
            ("exempt", &self.exempt),
            ("shared steps", &self.shared_steps),
            ("exempt steps", &self.exempt_steps),
        ];
        let depths = lanes.into_iter().flat_map(|(name, lane)| {
            let state = lane.state.lock();
            let waiting = QueueDepth {
                name: format!("heavy work that waits, {name}"),
                depth: state.queue.len(),
                bound: Some(lane.bounds.waiting).filter(|bound| *bound != usize::MAX),
            };
            let running = state.running.values().sum();
            [waiting, QueueDepth::unbounded(format!("heavy work that runs, {name}"), running)]
        });
        depths.collect()
    }

    fn lane(&self, owner: &WorkOwner) -> &Arc<Lane<B>> {
        if owner.is_exempt { &self.exempt } else { &self.shared }
    }

    fn step_lane(&self, owner: &WorkOwner) -> &Arc<Lane<B>> {
        if owner.is_exempt { &self.exempt_steps } else { &self.shared_steps }
    }
}

/// The pool, for the work of one request or watch.
pub struct OwnedPool<B> {
    /// The threads.
    pub pool: Arc<HeavyPool<B>>,
    /// The request on whose behalf the work is done.
    pub owner: WorkOwner,
}

impl<B> Clone for OwnedPool<B> {
    fn clone(&self) -> OwnedPool<B> {
        OwnedPool { pool: self.pool.clone(), owner: self.owner.clone() }
    }
}

impl<B: 'static> OwnedPool<B> {
    /// See [`HeavyPool::step`].
    pub async fn step<T: Send + 'static>(
        &self,
        work: impl FnOnce(&B) -> T + Send + 'static,
    ) -> Result<T, HeavyError> {
        self.pool.step(&self.owner, work).await
    }
}

/// Work as a job, which stops if nobody waits for its result any more.
fn job<B: 'static, T, F, W>(work: F) -> (Job<B>, oneshot::Receiver<T>)
where
    T: Send + 'static,
    F: FnOnce(Rc<B>) -> W + Send + 'static,
    W: Future<Output = T> + 'static,
{
    let (mut sender, result) = oneshot::channel();
    let job: Job<B> = Box::new(move |backend| {
        async move {
            let outcome = {
                let caller_gone = pin!(sender.closed());
                match select(pin!(work(backend)), caller_gone).await {
                    Either::Left((outcome, _)) => Some(outcome),
                    Either::Right(_) => None,
                }
            };
            if let Some(outcome) = outcome {
                // The caller may have gone meanwhile.
                let _ = sender.send(outcome);
            }
        }
        .boxed_local()
    });
    (job, result)
}

/// How much work of a lane may wait and run.
#[derive(Clone, Copy)]
struct LaneBounds {
    /// The work that may wait.
    waiting: usize,
    /// The work of one user that may run at a time.
    running_per_user: usize,
    /// The work of one priority level that may run at a time: less than there are slots, so that a level whose work waits for a
    /// slow webhook leaves some to the others.
    running_per_level: usize,
}

impl LaneBounds {
    /// Steps are not refused. None of them waits once it has begun, so nobody can occupy the slots with them: taking turns is
    /// fair enough.
    const FOR_STEPS: LaneBounds =
        LaneBounds { waiting: usize::MAX, running_per_user: usize::MAX, running_per_level: usize::MAX };

    /// The bounds of a lane of requests with this many threads.
    fn for_requests(threads: usize) -> LaneBounds {
        let running_per_user = HEAVY_RUNNING_PER_USER * threads;
        let running_per_level = HEAVY_USERS_PER_LEVEL * running_per_user;
        LaneBounds { waiting: HEAVY_WAITING, running_per_user, running_per_level }
    }
}

/// A queue and the threads that empty it.
struct Lane<B> {
    state: Lock<LaneState<B>>,
    /// Notified of new work, and of ended work, which may let that of the same user run.
    arrived: Notify,
    bounds: LaneBounds,
    next_number: AtomicU64,
    metrics: LaneMetrics,
    clock: Clock,
}

struct LaneState<B> {
    queue: FairQueue<QueuedJob<B>>,
    /// The running work by user, and by priority level.
    running: HashMap<Arc<str>, usize>,
    running_per_level: HashMap<Arc<str>, usize>,
}

struct QueuedJob<B> {
    number: u64,
    job: Job<B>,
    since: Moment,
    is_displaced: Arc<AtomicBool>,
}

impl<B> Lane<B> {
    /// A lane without work.
    fn new(bounds: LaneBounds, metrics: LaneMetrics, clock: Clock) -> Arc<Lane<B>> {
        let state = LaneState {
            queue: FairQueue::new(bounds.waiting),
            running: HashMap::new(),
            running_per_level: HashMap::new(),
        };
        Arc::new(Lane {
            state: Lock::new(state),
            arrived: Notify::new(),
            bounds,
            next_number: AtomicU64::new(0),
            metrics,
            clock,
        })
    }

    fn enter(self: &Arc<Lane<B>>, owner: &WorkOwner, job: Job<B>) -> Result<Ticket<B>, HeavyError> {
        let (number, is_displaced) = (self.next_number.fetch_add(1, Ordering::Relaxed), Arc::default());
        let ticket = Ticket { lane: self.clone(), number, is_displaced };
        let (since, is_displaced) = (self.clock.moment(), ticket.is_displaced.clone());
        let queued = QueuedJob { number, job, since, is_displaced };
        // Displaced or refused work may be large: it is dropped after the lock is released.
        let (outcome, length) = {
            let mut state = self.state.lock();
            let outcome = state.queue.push(&owner.level, &owner.user, queued);
            (outcome, state.queue.len())
        };
        self.metrics.waiting(length);
        match outcome {
            PushOutcome::Queued => {}
            PushOutcome::Displaced(other) => {
                other.is_displaced.store(true, Ordering::Release);
                self.metrics.refuse();
            }
            PushOutcome::Refused(_) => {
                self.metrics.refuse();
                return Err(HeavyError::Busy);
            }
        }
        self.arrived.notify_waiters();
        Ok(ticket)
    }

    /// Waits for the next job.
    async fn next(self: &Arc<Lane<B>>) -> (Job<B>, RunningJob<B>) {
        loop {
            // Registered before the check, so that no arrival is missed. All threads are woken, because one that waits here may be
            // busy with an earlier job.
            let arrived = self.arrived.notified();
            if let Some(next) = self.try_next() {
                return next;
            }
            arrived.await;
        }
    }

    fn try_next(self: &Arc<Lane<B>>) -> Option<(Job<B>, RunningJob<B>)> {
        let mut state = self.state.lock();
        let LaneState { queue, running, running_per_level } = &mut *state;
        let count =
            |running: &HashMap<Arc<str>, usize>, name: &str| running.get(name).copied().unwrap_or_default();
        let (level, user, queued) = queue.pop(|level, user| {
            count(running, user) < self.bounds.running_per_user
                && count(running_per_level, level) < self.bounds.running_per_level
        })?;
        *running.entry(user.clone()).or_default() += 1;
        *running_per_level.entry(level.clone()).or_default() += 1;
        let length = queue.len();
        drop(state);
        self.metrics.waiting(length);
        self.metrics.begin(self.clock.elapsed(queued.since).as_secs_f64());
        Some((queued.job, RunningJob { lane: self.clone(), level, user }))
    }
}

/// The position of a caller in the queue. Dropping it removes the work from the queue.
struct Ticket<B> {
    lane: Arc<Lane<B>>,
    number: u64,
    is_displaced: Arc<AtomicBool>,
}

impl<B> Drop for Ticket<B> {
    fn drop(&mut self) {
        let mut state = self.lane.state.lock();
        let removed = state.queue.remove(|queued| queued.number == self.number);
        let length = state.queue.len();
        drop(state);
        if removed.is_some() {
            self.lane.metrics.waiting(length);
        }
    }
}

/// Counts a job until dropped.
struct RunningJob<B> {
    lane: Arc<Lane<B>>,
    level: Arc<str>,
    user: Arc<str>,
}

impl<B> Drop for RunningJob<B> {
    fn drop(&mut self) {
        let mut state = self.lane.state.lock();
        let LaneState { running, running_per_level, .. } = &mut *state;
        for (running, name) in [(running, &self.user), (running_per_level, &self.level)] {
            if let Some(count) = running.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    running.remove(name);
                }
            }
        }
        drop(state);
        self.lane.metrics.end();
        self.lane.arrived.notify_waiters();
    }
}

/// Takes jobs from a lane as long as the thread lives. Several are begun at a time, because they wait for stores in between.
/// `backend` returns the backend of the thread, which is made on first use.
async fn run_jobs<B: 'static>(lane: Arc<Lane<B>>, backend: impl Fn() -> Rc<B>) {
    let slots = Arc::new(Semaphore::new(HEAVY_RUNNING_PER_THREAD));
    while let Ok(slot) = slots.clone().acquire_owned().await {
        let (job, running) = lane.next().await;
        let work = job(backend());
        actix::spawn(async move {
            work.await;
            drop((running, slot));
        });
        // The job has its first turn before this thread takes another, which an idle thread may take meanwhile.
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures::future::pending;
    use pilothouse_types::clock::Timestamp;

    use super::*;

    const WAITING: usize = 3;

    /// A pool with one thread, this one, whose backend notes what was done.
    fn pool() -> HeavyPool<RefCell<Vec<u32>>> {
        let metrics = Metrics::new(Timestamp(0)).unwrap();
        let lane = |name, bounds| Lane::new(bounds, metrics.heavy.lane(name), Clock::system());
        let requests =
            LaneBounds { waiting: WAITING, running_per_user: 1, running_per_level: HEAVY_USERS_PER_LEVEL };
        HeavyPool {
            shared: lane("shared", requests),
            exempt: lane("exempt", requests),
            shared_steps: lane("shared_steps", LaneBounds::FOR_STEPS),
            exempt_steps: lane("exempt_steps", LaneBounds::FOR_STEPS),
            threads: 1,
        }
    }

    fn owner(user: &str) -> WorkOwner {
        owner_in("level", user)
    }

    fn owner_in(level: &str, user: &str) -> WorkOwner {
        WorkOwner { level: level.into(), user: user.into(), is_exempt: user == "exempt" }
    }

    fn begin(lane: &Arc<Lane<RefCell<Vec<u32>>>>) -> Rc<RefCell<Vec<u32>>> {
        let done = Rc::new(RefCell::new(Vec::new()));
        let backend = done.clone();
        actix::spawn(run_jobs(lane.clone(), move || backend.clone()));
        done
    }

    #[actix_rt::test]
    async fn heavy_pool_alternates_users_and_has_an_exempt_lane() {
        let pool = Rc::new(pool());
        let all = [("greedy", 1), ("greedy", 2), ("greedy", 3), ("modest", 4), ("exempt", 5)];
        let callers = all.map(|(user, number)| {
            let pool = pool.clone();
            actix::spawn(async move {
                let note = move |done: Rc<RefCell<Vec<u32>>>| async move { done.borrow_mut().push(number) };
                pool.run(&owner(user), note).await
            })
        });
        // All work is queued before anything runs; the last of the greedy user was displaced.
        yield_now().await;
        let (shared, exempt) = (begin(&pool.shared), begin(&pool.exempt));
        let mut results = Vec::new();
        for caller in callers {
            results.push(caller.await.unwrap());
        }
        assert_eq!(results, [Ok(()), Ok(()), Err(HeavyError::Busy), Ok(()), Ok(())]);
        assert_eq!((shared.take(), exempt.take()), (vec![1, 4, 2], vec![5]));
    }

    #[actix_rt::test]
    async fn heavy_pool_bounds_the_running_work_of_a_level() {
        let pool = Rc::new(pool());
        begin(&pool.shared);
        for number in 0..HEAVY_USERS_PER_LEVEL {
            let pool = pool.clone();
            actix::spawn(
                async move { pool.run(&owner(&format!("slow{number}")), |_| pending::<()>()).await },
            );
        }
        let running = || pool.shared.state.lock().running_per_level.get("level").copied();
        while running() != Some(HEAVY_USERS_PER_LEVEL) {
            yield_now().await;
        }
        let (same, user) = (pool.clone(), owner("modest"));
        let waiter = actix::spawn(async move { same.compute(&user, || 1).await });
        while pool.shared.state.lock().queue.len() == 0 {
            yield_now().await;
        }
        assert_eq!(pool.compute(&owner_in("other", "modest"), || 7).await, Ok(7));
        assert_eq!(pool.shared.state.lock().queue.len(), 1, "the same level has no slot left");
        waiter.abort();
    }

    #[actix_rt::test]
    async fn pending_work_blocks_only_its_own_user() {
        let pool = Rc::new(pool());
        begin(&pool.shared);
        let other = pool.clone();
        let stuck = actix::spawn(async move { other.run(&owner("slow"), |_| pending::<()>()).await });
        yield_now().await;
        assert_eq!(pool.compute(&owner("modest"), || 7).await, Ok(7));
        assert_eq!(pool.shared.state.lock().running.len(), 1);
        // Cancelling the caller ends its work.
        stuck.abort();
        assert!(stuck.await.is_err());
        assert_eq!(pool.compute(&owner("slow"), || 8).await, Ok(8));
    }

    #[actix_rt::test]
    async fn cancelled_work_is_removed_from_the_queue() {
        let pool = Rc::new(pool());
        let other = pool.clone();
        let caller = actix::spawn(async move { other.compute(&owner("a"), || 1).await });
        yield_now().await;
        assert_eq!(pool.shared.state.lock().queue.len(), 1);
        caller.abort();
        assert!(caller.await.is_err());
        assert_eq!(pool.shared.state.lock().queue.len(), 0);
    }

    /// Spawns a request that never completes, of a user and a level of its own.
    fn spawn_pending_request(pool: &Rc<HeavyPool<RefCell<Vec<u32>>>>, number: usize) {
        let (pool, name) = (pool.clone(), format!("slow{number}"));
        actix::spawn(async move { pool.run(&owner_in(&name, &name), |_| pending::<()>()).await });
    }

    #[actix_rt::test]
    async fn response_step_does_not_wait_for_pending_requests() {
        let pool = Rc::new(pool());
        begin(&pool.shared);
        begin(&pool.shared_steps);
        for number in 0..HEAVY_RUNNING_PER_THREAD {
            spawn_pending_request(&pool, number);
            while pool.shared.state.lock().running.len() <= number {
                yield_now().await;
            }
        }
        // No slot is left, and then no room in the queue either.
        for number in 0..WAITING {
            spawn_pending_request(&pool, HEAVY_RUNNING_PER_THREAD + number);
        }
        while pool.shared.state.lock().queue.len() < WAITING {
            yield_now().await;
        }
        assert_eq!(pool.compute(&owner("modest"), || 1).await, Err(HeavyError::Busy));
        assert_eq!(pool.step(&owner("modest"), |_| 7).await, Ok(7));
        assert_eq!(pool.step(&owner_in("slow0", "slow0"), |_| 8).await, Ok(8));
        let state = pool.shared.state.lock();
        assert_eq!((state.running.len(), state.queue.len()), (HEAVY_RUNNING_PER_THREAD, WAITING));
    }

    #[actix_rt::test]
    async fn response_steps_alternate_users_and_are_never_refused() {
        let pool = Rc::new(pool());
        let greedy = 4 * WAITING;
        let users = std::iter::repeat_n("greedy", greedy).chain(["modest"]);
        let callers: Vec<_> = (0..)
            .zip(users)
            .map(|(number, user)| {
                let pool = pool.clone();
                actix::spawn(async move {
                    pool.step(&owner(user), move |done| done.borrow_mut().push(number)).await
                })
            })
            .collect();
        while pool.shared_steps.state.lock().queue.len() <= greedy {
            yield_now().await;
        }
        let done = begin(&pool.shared_steps);
        for caller in callers {
            assert_eq!(caller.await.unwrap(), Ok(()));
        }
        assert!(done.take().starts_with(&[0, greedy as u32, 1]));
    }

    #[actix_rt::test]
    async fn panic_fails_the_work_but_not_the_thread() {
        let pool = pool();
        begin(&pool.shared);
        let result = pool.compute(&owner("a"), || panic!("on purpose")).await;
        assert_eq!(result.map(|()| 0), Err(HeavyError::Failed));
        assert_eq!(pool.compute(&owner("a"), || 1).await, Ok(1));
    }
}
