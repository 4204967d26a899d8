//! The actor that owns one resource type: its objects, its history, its counter.
//!
//! Verbs talk to it, and the committer tells it what is durable. A write takes the next revision when it is passed to the
//! committer. One that fits the newest state of its key follows it at once, durable or not: the log is written in order, so
//! neither is durable without the other. One that does not fit waits until what it is refused for is durable.
//!
//! Order: when a write is durable, the snapshot has it, then the window, then broadcasters hear of it, then the writer
//! is answered; and writes appear in the order of their revisions. Readers see nothing that is not durable.
//!
//! A store that panics takes its type with it, so it raises [`Fatal`] on its way down: the server ends and starts again
//! from the log.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::dev::SendError;
use actix::{
    Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, MessageResult, Recipient,
    ResponseFuture,
};
use tokio::sync::oneshot;

use crate::clock::{Clock, Timestamp};
use crate::committer::{Commit, Committed, Committer};
use crate::engine::Write;
use crate::error::StoreError;
use crate::fatal::Fatal;
use crate::key_queue::{KeyQueue, Queued, QueuedReader, ReadResult};
use crate::limits::{EXPIRE_PER_TURN, RECORD_BYTES, STORE_MAILBOX};
use crate::notifier::ChangeNotifiers;
use crate::object::{Draft, Key, Object, Revision, TypeName};
use crate::permit::Permit;
use crate::record::{Operation, Record};
use crate::recover::State;
use crate::snapshot::Snapshot;
use crate::trim_queue::{TrimQueue, freed_by};
use crate::window::{Change, Event, EventStub, Window};
use crate::write_limiter::{WriteLimiter, WriteSlot};
use crate::write_turns::{self, BaseState, EndTurn, TakeTurn, TurnMode, WriteTurn, WriteTurns};

/// What a write answers: the object as it is now, or for a removal its last state at the revision of the removal.
pub type ObjectResult = Result<Arc<Object>, StoreError>;

/// Asks to store an object that must not be there yet.
/// Answers it, Exists, TooLarge, Busy or Unavailable. On Full the sender answers as for Busy, on Closed as for Unavailable.
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Create {
    /// The object.
    pub draft: Draft,
    /// The place of the request.
    pub permit: Permit,
}

/// Asks to store an object in place of the version at a revision.
/// Answers it, NotFound, Conflict, TooLarge, Busy or Unavailable. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Replace {
    /// The object.
    pub draft: Draft,
    /// The version it was made from.
    pub expected: Revision,
    /// The place of the request.
    pub permit: Permit,
    /// The turn in which it was made. It is over once the write is under way: the next may build on it.
    pub turn: Option<WriteTurn>,
}

/// Asks to remove the object if it is at a revision.
/// Answers its last state at the revision of the removal, NotFound, Conflict, Busy or Unavailable. Full and Closed as for
/// [`Create`].
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Remove {
    /// Which object.
    pub key: Key,
    /// The version that the removal was decided on.
    pub expected: Revision,
    /// The place of the request.
    pub permit: Permit,
}

/// Asks for one object. Answers it or NotFound. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "ObjectResult")]
pub struct Get {
    /// Which object.
    pub key: Key,
    /// The place of the request.
    pub permit: Permit,
}

/// Asks for one object as every write of it that came before this leaves it.
/// Answers it, that there is none, or Unavailable; never Busy, because it waits without a place among the writes: whoever
/// asks may have to know. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<Option<Arc<Object>>, StoreError>")]
pub struct GetSettled {
    /// Which object.
    pub key: Key,
    /// The place of the request. It bounds how many of these wait.
    pub permit: Permit,
}

/// Asks that the type go on to a revision above this one, if it has not: at a new revision at which nothing changes. Whoever was
/// told that a revision has expired takes the same one for the same list.
/// Answers when that is durable, or Busy or Unavailable. Nothing happens where something did within the history: no revision above
/// has expired then, and readers must not be able to make a log grow. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<(), StoreError>")]
pub struct AdvanceRevision {
    /// The revision that has expired.
    pub above: Revision,
    /// The place of the request.
    pub permit: Permit,
}

/// Asks for the whole present state, which costs a pointer. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<Snapshot, StoreError>")]
pub struct TakeSnapshot {
    /// The place of the request.
    pub permit: Permit,
}

/// Asks for what a watch begins with. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Result<Position, StoreError>")]
pub struct OpenWatch {
    /// The place of the request.
    pub permit: Permit,
}

/// What a watch begins with: the window holds every change after the snapshot.
#[derive(Clone)]
pub struct Position {
    /// The history to read from.
    pub window: Arc<Window>,
    /// The state now.
    pub snapshot: Snapshot,
    /// How long that history is.
    pub history: Duration,
}

/// Asks to let go of what is older than the history. Answers how many events went. The store does this by itself; a test
/// need not wait for it.
#[derive(Message)]
#[rtype(result = "usize")]
pub struct Expire;

/// Asks the store to end. Writes that are not durable yet are answered Unavailable.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Asks the store to let go of its history and to end, because its type is no more. It does if it has no objects, and nothing is
/// under way. Sent by the directory, which then keeps what the next store of that type goes on from.
#[derive(Message)]
#[rtype(result = "Retired")]
pub struct Retire;

/// What became of a [`Retire`].
pub enum Retired {
    /// The store has ended. The counter goes on here, and so does the window: whoever has it hears of what comes later.
    Ended(State),
    /// It has objects and stays.
    HasObjects,
    /// Something is under way, or the records of its history have no room yet on their way out: it is worth asking again.
    Busy,
}

/// What every store shares with the rest. Cheap to clone.
#[derive(Clone)]
pub struct StoreDeps {
    /// Who makes writes durable.
    pub committer: Addr<Committer>,
    /// How much it may hold.
    pub write_limiter: WriteLimiter,
    /// Where records go that nothing needs.
    pub trims: TrimQueue,
    /// Who hears of news.
    pub notifiers: ChangeNotifiers,
    /// Raised when a store dies.
    pub fatal: Fatal,
    /// The time.
    pub clock: Clock,
    /// How long a superseded version stays.
    pub history: Duration,
    /// How often a store looks for what is older.
    pub housekeeping_every: Duration,
}

/// What a writer wants.
enum WriteCommand {
    Create(Draft),
    Replace(Draft, Revision),
    Remove(Key, Revision),
}

impl WriteCommand {
    fn key(&self) -> &Key {
        match self {
            WriteCommand::Create(draft) | WriteCommand::Replace(draft, _) => &draft.key,
            WriteCommand::Remove(key, _) => key,
        }
    }

    /// Whether it fits this state of its key: why not, or what it takes the place of.
    fn check(&self, current: Option<&Arc<Object>>) -> Result<Option<Arc<Object>>, StoreError> {
        match (self, current) {
            (WriteCommand::Create(_), None) => Ok(None),
            (WriteCommand::Create(_), Some(_)) => Err(StoreError::Exists),
            (WriteCommand::Replace(..) | WriteCommand::Remove(..), None) => Err(StoreError::NotFound),
            (WriteCommand::Replace(_, expected) | WriteCommand::Remove(_, expected), Some(current)) => {
                let current = Arc::clone(current);
                if current.revision == *expected {
                    Ok(Some(current))
                } else {
                    Err(StoreError::Conflict(current))
                }
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            WriteCommand::Create(draft) | WriteCommand::Replace(draft, _) => draft.bytes.len(),
            WriteCommand::Remove(..) => 0,
        }
    }
}

/// A writer and the places it holds, given back when it is answered.
struct Responder<T = Arc<Object>> {
    reply: oneshot::Sender<Result<T, StoreError>>,
    _permit: Permit,
    _slot: WriteSlot,
}

impl<T> Responder<T> {
    fn answer(self, answer: Result<T, StoreError>) {
        // A writer that no longer listens needs no answer.
        let _gone = self.reply.send(answer);
    }
}

/// What was passed to the committer.
enum Pending {
    /// A change of an object.
    Write(Event, Responder),
    /// A revision at which nothing changes.
    Step(Revision, Timestamp, Responder<()>),
}

impl Pending {
    fn revision(&self) -> Revision {
        match self {
            Pending::Write(event, _) => event.revision(),
            Pending::Step(revision, ..) => *revision,
        }
    }
}

/// A key with writes under way.
#[derive(Default)]
struct KeyInFlight {
    /// What they leave.
    newest: Option<Arc<Object>>,
    /// The last of them.
    last: Revision,
    /// How many they are.
    writes: usize,
    /// Who waits for them.
    queue: KeyQueue<(WriteCommand, Responder)>,
}

/// The actor. See the module text.
pub struct Store {
    type_name: TypeName,
    /// What is durable.
    snapshot: Snapshot,
    window: Arc<Window>,
    /// The last revision that was given to a write; at least that of the snapshot.
    last: Revision,
    /// When that was; unknown until something happens after a start.
    last_at: Option<Timestamp>,
    /// Writes under way, by revision.
    pending: VecDeque<Pending>,
    /// Every key with a write under way.
    in_flight: HashMap<Key, KeyInFlight>,
    /// Who changes an object next.
    turns: WriteTurns,
    /// Whether writes that were under way were given up.
    gave_up: bool,
    /// This store, for the committer.
    me: Recipient<Committed>,
    deps: StoreDeps,
}

impl Store {
    /// The store of a type that starts from `state`.
    pub fn new(type_name: TypeName, state: State, deps: StoreDeps, ctx: &Context<Store>) -> Store {
        Store {
            type_name,
            last: state.snapshot.revision,
            snapshot: state.snapshot,
            window: state.window,
            last_at: None,
            pending: VecDeque::new(),
            in_flight: HashMap::new(),
            turns: WriteTurns::default(),
            gave_up: false,
            me: ctx.address().recipient(),
            deps,
        }
    }

    /// Takes a write in, or answers at once why not.
    fn submit(&mut self, command: WriteCommand, permit: Permit) -> oneshot::Receiver<ObjectResult> {
        let (reply, answer) = oneshot::channel();
        let refused = if self.deps.fatal.is_raised() {
            StoreError::Unavailable
        } else if command.bytes() > RECORD_BYTES {
            StoreError::TooLarge
        } else if let Some(slot) = self.deps.write_limiter.take(command.bytes()) {
            self.enter(command, Responder { reply, _permit: permit, _slot: slot });
            return answer;
        } else {
            StoreError::Busy
        };
        let _listening = reply.send(Err(refused));
        answer
    }

    /// What the writes of a key leave once all of them are durable.
    fn newest(&self, key: &Key) -> Option<&Arc<Object>> {
        match self.in_flight.get(key) {
            Some(way) => way.newest.as_ref(),
            None => self.snapshot.get(key.as_str()),
        }
    }

    /// Begins a write that fits the newest state. One that does not is refused, or waits until it can be said why.
    fn enter(&mut self, command: WriteCommand, writer: Responder) {
        let Err(refused) = command.check(self.newest(command.key())) else {
            return self.begin(command, writer);
        };
        match self.in_flight.get_mut(command.key()) {
            None => writer.answer(Err(refused)),
            Some(way) => {
                if let Err((_, writer)) = way.queue.push(way.last, (command, writer)) {
                    writer.answer(Err(StoreError::Busy));
                }
            }
        }
    }

    /// Passes on a write that fits the newest state of its key.
    fn begin(&mut self, command: WriteCommand, writer: Responder) {
        let passed = self.plan(command).and_then(|(operation, event)| {
            self.send_to_committer(event.revision(), Record { operation, at: event.at })?;
            Ok(event)
        });
        let event = match passed {
            Ok(event) => event,
            Err(refused) => return writer.answer(Err(refused)),
        };
        (self.last, self.last_at) = (event.revision(), Some(event.at));
        let way = self.in_flight.entry(event.object.key.clone()).or_default();
        way.newest = (event.change != Change::Removed).then(|| Arc::clone(&event.object));
        way.last = self.last;
        way.writes += 1;
        self.pending.push_back(Pending::Write(event, writer));
    }

    /// Goes on to a revision above this one, unless that is there.
    fn step(&mut self, above: Revision, writer: Responder<()>) {
        let now = self.deps.clock.now();
        let is_quiet = self.last_at.is_none_or(|last| last < now.minus(self.deps.history));
        if self.last > above || !is_quiet {
            return writer.answer(Ok(()));
        }
        let revision = self.last.next();
        if let Err(refused) = self.send_to_committer(revision, Record { operation: Operation::Step, at: now })
        {
            return writer.answer(Err(refused));
        }
        (self.last, self.last_at) = (revision, Some(now));
        self.pending.push_back(Pending::Step(revision, now, writer));
    }

    /// What a write does to the newest state of its key, at the next revision, or why it may not.
    fn plan(&self, command: WriteCommand) -> Result<(Operation, Event), StoreError> {
        let previous = command.check(self.newest(command.key()))?;
        let revision = self.last.next();
        let at = self.deps.clock.now();
        Ok(match command {
            WriteCommand::Create(draft) => {
                let object = Arc::new(Object::new(draft, revision));
                let event = Event::new(Change::Created, Arc::clone(&object), None, at);
                (Operation::Create(object), event)
            }
            WriteCommand::Replace(draft, expected) => {
                let object = Arc::new(Object::new(draft, revision));
                let event = Event::new(Change::Replaced, Arc::clone(&object), previous, at);
                (Operation::Replace(object, expected), event)
            }
            WriteCommand::Remove(key, expected) => {
                let previous = previous.ok_or(StoreError::NotFound)?;
                let object = Arc::new(previous.at(revision));
                let event = Event::new(Change::Removed, object, Some(previous), at);
                (Operation::Remove(key, expected), event)
            }
        })
    }

    fn basis(&self, key: &Key, turn: Option<WriteTurn>) -> BaseState {
        let is_durable = !self.in_flight.contains_key(key);
        BaseState { object: self.newest(key).cloned(), is_durable, turn }
    }

    fn give_turn(&self, key: &Key, to: write_turns::TurnWaiter, ctx: &Context<Store>) {
        let turn = WriteTurn::new(ctx.address(), key.clone());
        // Where nobody listens any more the turn is dropped here, and ends by itself.
        to.answer(Ok(self.basis(key, Some(turn))));
    }

    fn send_to_committer(&self, revision: Revision, record: Record) -> Result<(), StoreError> {
        let write = Write { type_name: self.type_name.clone(), revision, record };
        let commit = Commit { write, store: self.me.clone() };
        self.deps.committer.try_send(commit).map_err(|error| match error {
            SendError::Full(_) => StoreError::Busy,
            SendError::Closed(_) => StoreError::Unavailable,
        })
    }

    /// Makes visible what is durable, in the order that the module text promises.
    fn publish(&mut self, through: Revision) {
        let mut done = Vec::new();
        while self.pending.front().is_some_and(|pending| pending.revision() <= through) {
            let (event, writer) = match self.pending.pop_front() {
                Some(Pending::Write(event, writer)) => (event, writer),
                Some(Pending::Step(revision, at, writer)) => {
                    self.snapshot.revision = revision;
                    self.window.step(revision, at);
                    writer.answer(Ok(()));
                    continue;
                }
                None => break,
            };
            let object = Arc::clone(&event.object);
            match event.change {
                Change::Removed => self.snapshot.objects.remove(&object.key),
                Change::Created | Change::Replaced => {
                    self.snapshot.objects.insert(object.key.clone(), Arc::clone(&object))
                }
            };
            self.snapshot.revision = object.revision;
            if let Some(way) = self.in_flight.get_mut(&object.key) {
                way.writes -= 1;
            }
            let gone = self.window.append(Arc::new(event));
            self.trim(&gone);
            done.push((object, writer));
        }
        if done.is_empty() {
            return;
        }
        self.deps.notifiers.notify(&self.type_name);
        let mut keys = Vec::with_capacity(done.len());
        for (object, writer) in done {
            keys.push(object.key.clone());
            writer.answer(Ok(object));
        }
        for key in keys {
            self.resume_queue(&key);
        }
    }

    /// Some writes of the key are durable: who waited for these can go on.
    fn resume_queue(&mut self, key: &Key) {
        while let Some(way) = self.in_flight.get_mut(key) {
            match way.queue.pop(self.snapshot.revision) {
                Some(Queued::Reader(reader)) => {
                    reader.answer(Ok(self.snapshot.get(key.as_str()).cloned()));
                }
                Some(Queued::Write((command, writer))) => {
                    if command.check(way.newest.as_ref()).is_ok() {
                        self.begin(command, writer);
                        // Those behind it want to know what becomes of it.
                        if let Some(way) = self.in_flight.get_mut(key) {
                            way.queue.delay(way.last);
                        }
                        continue;
                    }
                    match command.check(self.snapshot.get(key.as_str())) {
                        Err(refused) => writer.answer(Err(refused)),
                        // It is refused for something that is still under way.
                        Ok(_) => way.queue.push_front(way.last, (command, writer)),
                    }
                }
                None if way.writes == 0 => drop(self.in_flight.remove(key)),
                None => return,
            }
        }
    }

    /// Whether nobody knows what is on disk, or nobody will write any more.
    fn is_over(&self) -> bool {
        self.gave_up || self.deps.fatal.is_raised()
    }

    /// Nobody knows what is on disk, or nobody will write any more.
    fn give_up(&mut self) {
        self.gave_up = true;
        for pending in self.pending.drain(..) {
            match pending {
                Pending::Write(_, writer) => writer.answer(Err(StoreError::Unavailable)),
                Pending::Step(.., writer) => writer.answer(Err(StoreError::Unavailable)),
            }
        }
        for next in self.in_flight.drain().flat_map(|(_, way)| way.queue.into_all()) {
            match next {
                Queued::Write((_, writer)) => writer.answer(Err(StoreError::Unavailable)),
                Queued::Reader(reader) => reader.answer(Err(StoreError::Unavailable)),
            }
        }
    }

    /// Lets go of a bounded number of events that are older than the history, and of the records only they needed.
    fn expire(&mut self, now: Timestamp) -> usize {
        // An event frees at most two records. Without room for them it stays: see `TrimQueue`.
        let most = EXPIRE_PER_TURN.min(self.deps.trims.room() / 2);
        let gone = self.window.forget_before(now.minus(self.deps.history), most);
        self.trim(&gone);
        gone.len()
    }

    fn trim(&self, gone: &[EventStub]) {
        if !gone.is_empty() {
            self.deps.trims.push(&self.type_name, gone.iter().flat_map(freed_by));
        }
    }
}

impl Actor for Store {
    type Context = Context<Store>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(STORE_MAILBOX);
        ctx.run_interval(self.deps.housekeeping_every, |store, _| {
            store.expire(store.deps.clock.now());
        });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.give_up();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.deps.fatal.raise(format!("the store of {} panicked", self.type_name));
        }
    }
}

/// The handler is done when the write is under way; this waits for its answer.
fn answered<T: Send + 'static>(
    answer: oneshot::Receiver<Result<T, StoreError>>,
) -> ResponseFuture<Result<T, StoreError>> {
    Box::pin(async move { answer.await.unwrap_or(Err(StoreError::Unavailable)) })
}

impl Handler<Create> for Store {
    type Result = ResponseFuture<ObjectResult>;

    fn handle(&mut self, Create { draft, permit }: Create, _: &mut Self::Context) -> Self::Result {
        answered(self.submit(WriteCommand::Create(draft), permit))
    }
}

impl Handler<Replace> for Store {
    type Result = ResponseFuture<ObjectResult>;

    fn handle(&mut self, command: Replace, _: &mut Self::Context) -> Self::Result {
        let Replace { draft, expected, permit, turn } = command;
        let answer = self.submit(WriteCommand::Replace(draft, expected), permit);
        drop(turn);
        answered(answer)
    }
}

impl Handler<Remove> for Store {
    type Result = ResponseFuture<ObjectResult>;

    fn handle(&mut self, command: Remove, _: &mut Self::Context) -> Self::Result {
        let Remove { key, expected, permit } = command;
        answered(self.submit(WriteCommand::Remove(key, expected), permit))
    }
}

impl Handler<Get> for Store {
    type Result = ObjectResult;

    fn handle(&mut self, command: Get, _: &mut Self::Context) -> Self::Result {
        self.snapshot.get(command.key.as_str()).cloned().ok_or(StoreError::NotFound)
    }
}

impl Handler<AdvanceRevision> for Store {
    type Result = ResponseFuture<Result<(), StoreError>>;

    fn handle(
        &mut self,
        AdvanceRevision { above, permit }: AdvanceRevision,
        _: &mut Self::Context,
    ) -> Self::Result {
        let (reply, answer) = oneshot::channel();
        if self.is_over() {
            return Box::pin(async { Err(StoreError::Unavailable) });
        }
        let Some(slot) = self.deps.write_limiter.take(0) else {
            return Box::pin(async { Err(StoreError::Busy) });
        };
        self.step(above, Responder { reply, _permit: permit, _slot: slot });
        answered(answer)
    }
}

impl Handler<GetSettled> for Store {
    type Result = ResponseFuture<ReadResult>;

    fn handle(&mut self, GetSettled { key, permit }: GetSettled, _: &mut Self::Context) -> Self::Result {
        let (reader, seen) = QueuedReader::new(permit);
        let is_over = self.is_over();
        match self.in_flight.get_mut(&key) {
            _ if is_over => reader.answer(Err(StoreError::Unavailable)),
            Some(way) => way.queue.push_reader(way.last, reader),
            None => reader.answer(Ok(self.snapshot.get(key.as_str()).cloned())),
        }
        answered(seen)
    }
}

impl Handler<TakeTurn> for Store {
    type Result = write_turns::PendingTurn;

    fn handle(&mut self, take: TakeTurn, ctx: &mut Self::Context) -> Self::Result {
        let TakeTurn { key, turn, permit } = take;
        let (waiting, basis) = write_turns::TurnWaiter::new(permit);
        let waits = match turn {
            TurnMode::Always => true,
            TurnMode::IfContended => self.in_flight.contains_key(&key) || self.turns.is_taken(&key),
            TurnMode::Never => false,
        };
        if self.is_over() {
            waiting.answer(Err(StoreError::Unavailable));
        } else if !waits {
            waiting.answer(Ok(self.basis(&key, None)));
        } else if let Some(first) = self.turns.enter(&key, waiting) {
            self.give_turn(&key, first, ctx);
        }
        basis
    }
}

impl Handler<EndTurn> for Store {
    type Result = ();

    fn handle(&mut self, EndTurn { key }: EndTurn, ctx: &mut Self::Context) {
        if let Some(next) = self.turns.end(&key) {
            self.give_turn(&key, next, ctx);
        }
    }
}

impl Handler<TakeSnapshot> for Store {
    type Result = Result<Snapshot, StoreError>;

    fn handle(&mut self, _: TakeSnapshot, _: &mut Self::Context) -> Self::Result {
        Ok(self.snapshot.clone())
    }
}

impl Handler<OpenWatch> for Store {
    type Result = Result<Position, StoreError>;

    fn handle(&mut self, _: OpenWatch, _: &mut Self::Context) -> Self::Result {
        let history = self.deps.history;
        Ok(Position { window: Arc::clone(&self.window), snapshot: self.snapshot.clone(), history })
    }
}

impl Handler<Committed> for Store {
    type Result = ();

    fn handle(&mut self, event: Committed, _: &mut Self::Context) {
        match event.through {
            Ok(revision) => self.publish(revision),
            Err(_) => self.give_up(),
        }
    }
}

impl Handler<Expire> for Store {
    type Result = usize;

    fn handle(&mut self, _: Expire, _: &mut Self::Context) -> Self::Result {
        self.expire(self.deps.clock.now())
    }
}

impl Handler<Retire> for Store {
    type Result = MessageResult<Retire>;

    fn handle(&mut self, _: Retire, ctx: &mut Self::Context) -> Self::Result {
        let in_flight = !self.pending.is_empty() || !self.in_flight.is_empty() || !self.turns.is_empty();
        let extent = self.window.extent();
        MessageResult(if !self.snapshot.objects.is_empty() {
            Retired::HasObjects
        } else if self.is_over()
            || in_flight
            || (extent.events + extent.archived) > self.deps.trims.room() / 2
        {
            Retired::Busy
        } else {
            let gone = self.window.forget_before(Timestamp(u64::MAX), usize::MAX);
            self.trim(&gone);
            ctx.stop();
            Retired::Ended(State { snapshot: self.snapshot.clone(), window: Arc::clone(&self.window) })
        })
    }
}

impl Handler<Stop> for Store {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}
