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

use crate::bell::Bells;
use crate::clock::{Clock, Timestamp};
use crate::committer::{Commit, Committed, Committer};
use crate::engine::Write;
use crate::error::StoreError;
use crate::fatal::Fatal;
use crate::gauge::{Gauge, Place};
use crate::limits::{EXPIRE_PER_TURN, RECORD_BYTES, STORE_MAILBOX};
use crate::line::{Line, Reader, Seen, Waiting};
use crate::object::{Draft, Key, Object, Revision, TypeName};
use crate::permit::Permit;
use crate::record::{Operation, Record};
use crate::recover::State;
use crate::snapshot::Snapshot;
use crate::trims::{Trims, freed_by};
use crate::turns::{self, Basis, EndTurn, TakeTurn, Turn, Turning, Turns};
use crate::window::{Change, Event, Trace, Window};

/// What a write answers: the object as it is now, or for a removal its last state at the revision of the removal.
pub type Answer = Result<Arc<Object>, StoreError>;

/// Asks to store an object that must not be there yet.
/// Answers it, Exists, TooLarge, Busy or Unavailable. On Full the sender answers as for Busy, on Closed as for Unavailable.
#[derive(Message)]
#[rtype(result = "Answer")]
pub struct Create {
    /// The object.
    pub draft: Draft,
    /// The place of the request.
    pub permit: Permit,
}

/// Asks to store an object in place of the version at a revision.
/// Answers it, NotFound, Conflict, TooLarge, Busy or Unavailable. Full and Closed as for [`Create`].
#[derive(Message)]
#[rtype(result = "Answer")]
pub struct Replace {
    /// The object.
    pub draft: Draft,
    /// The version it was made from.
    pub expected: Revision,
    /// The place of the request.
    pub permit: Permit,
    /// The turn in which it was made. It is over once the write is under way: the next may build on it.
    pub turn: Option<Turn>,
}

/// Asks to remove the object if it is at a revision.
/// Answers its last state at the revision of the removal, NotFound, Conflict, Busy or Unavailable. Full and Closed as for
/// [`Create`].
#[derive(Message)]
#[rtype(result = "Answer")]
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
#[rtype(result = "Answer")]
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
pub struct Settled {
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
pub struct Step {
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
#[rtype(result = "Rested")]
pub struct Rest;

/// What became of a [`Rest`].
pub enum Rested {
    /// The store has ended. The counter goes on here, and so does the window: whoever has it hears of what comes later.
    Ended(State),
    /// It has objects and stays.
    HasObjects,
    /// Something is under way, or the records of its history have no room yet on their way out: it is worth asking again.
    Busy,
}

/// What every store shares with the rest. Cheap to clone.
#[derive(Clone)]
pub struct Surroundings {
    /// Who makes writes durable.
    pub committer: Addr<Committer>,
    /// How much it may hold.
    pub gauge: Gauge,
    /// Where records go that nothing needs.
    pub trims: Trims,
    /// Who hears of news.
    pub bells: Bells,
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
enum Demand {
    Create(Draft),
    Replace(Draft, Revision),
    Remove(Key, Revision),
}

impl Demand {
    fn key(&self) -> &Key {
        match self {
            Demand::Create(draft) | Demand::Replace(draft, _) => &draft.key,
            Demand::Remove(key, _) => key,
        }
    }

    /// Whether it fits this state of its key: why not, or what it takes the place of.
    fn check(&self, current: Option<&Arc<Object>>) -> Result<Option<Arc<Object>>, StoreError> {
        match (self, current) {
            (Demand::Create(_), None) => Ok(None),
            (Demand::Create(_), Some(_)) => Err(StoreError::Exists),
            (Demand::Replace(..) | Demand::Remove(..), None) => Err(StoreError::NotFound),
            (Demand::Replace(_, expected) | Demand::Remove(_, expected), Some(current)) => {
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
            Demand::Create(draft) | Demand::Replace(draft, _) => draft.bytes.len(),
            Demand::Remove(..) => 0,
        }
    }
}

/// A writer and the places it holds, given back when it is answered.
struct Writer<T = Arc<Object>> {
    reply: oneshot::Sender<Result<T, StoreError>>,
    _permit: Permit,
    _place: Place,
}

impl<T> Writer<T> {
    fn answer(self, answer: Result<T, StoreError>) {
        // A writer that no longer listens needs no answer.
        let _gone = self.reply.send(answer);
    }
}

/// What was passed to the committer.
enum Pending {
    /// A change of an object.
    Write(Event, Writer),
    /// A revision at which nothing changes.
    Step(Revision, Timestamp, Writer<()>),
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
struct UnderWay {
    /// What they leave.
    newest: Option<Arc<Object>>,
    /// The last of them.
    last: Revision,
    /// How many they are.
    writes: usize,
    /// Who waits for them.
    line: Line<(Demand, Writer)>,
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
    under_way: HashMap<Key, UnderWay>,
    /// Who changes an object next.
    turns: Turns,
    /// Whether writes that were under way were given up.
    gave_up: bool,
    /// This store, for the committer.
    me: Recipient<Committed>,
    around: Surroundings,
}

impl Store {
    /// The store of a type that starts from `state`.
    pub fn new(type_name: TypeName, state: State, around: Surroundings, ctx: &Context<Store>) -> Store {
        Store {
            type_name,
            last: state.snapshot.revision,
            snapshot: state.snapshot,
            window: state.window,
            last_at: None,
            pending: VecDeque::new(),
            under_way: HashMap::new(),
            turns: Turns::default(),
            gave_up: false,
            me: ctx.address().recipient(),
            around,
        }
    }

    /// Takes a write in, or answers at once why not.
    fn submit(&mut self, demand: Demand, permit: Permit) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        let refused = if self.around.fatal.is_raised() {
            StoreError::Unavailable
        } else if demand.bytes() > RECORD_BYTES {
            StoreError::TooLarge
        } else if let Some(place) = self.around.gauge.take(demand.bytes()) {
            self.enter(demand, Writer { reply, _permit: permit, _place: place });
            return answer;
        } else {
            StoreError::Busy
        };
        let _listening = reply.send(Err(refused));
        answer
    }

    /// What the writes of a key leave once all of them are durable.
    fn newest(&self, key: &Key) -> Option<&Arc<Object>> {
        match self.under_way.get(key) {
            Some(way) => way.newest.as_ref(),
            None => self.snapshot.get(key.as_str()),
        }
    }

    /// Begins a write that fits the newest state. One that does not is refused, or waits until it can be said why.
    fn enter(&mut self, demand: Demand, writer: Writer) {
        let Err(refused) = demand.check(self.newest(demand.key())) else { return self.begin(demand, writer) };
        match self.under_way.get_mut(demand.key()) {
            None => writer.answer(Err(refused)),
            Some(way) => {
                if let Err((_, writer)) = way.line.push(way.last, (demand, writer)) {
                    writer.answer(Err(StoreError::Busy));
                }
            }
        }
    }

    /// Passes on a write that fits the newest state of its key.
    fn begin(&mut self, demand: Demand, writer: Writer) {
        let passed = self.plan(demand).and_then(|(operation, event)| {
            self.pass_on(event.revision(), Record { operation, at: event.at })?;
            Ok(event)
        });
        let event = match passed {
            Ok(event) => event,
            Err(refused) => return writer.answer(Err(refused)),
        };
        (self.last, self.last_at) = (event.revision(), Some(event.at));
        let way = self.under_way.entry(event.object.key.clone()).or_default();
        way.newest = (event.change != Change::Removed).then(|| Arc::clone(&event.object));
        way.last = self.last;
        way.writes += 1;
        self.pending.push_back(Pending::Write(event, writer));
    }

    /// Goes on to a revision above this one, unless that is there.
    fn step(&mut self, above: Revision, writer: Writer<()>) {
        let now = self.around.clock.now();
        let is_quiet = self.last_at.is_none_or(|last| last < now.minus(self.around.history));
        if self.last > above || !is_quiet {
            return writer.answer(Ok(()));
        }
        let revision = self.last.next();
        if let Err(refused) = self.pass_on(revision, Record { operation: Operation::Step, at: now }) {
            return writer.answer(Err(refused));
        }
        (self.last, self.last_at) = (revision, Some(now));
        self.pending.push_back(Pending::Step(revision, now, writer));
    }

    /// What a write does to the newest state of its key, at the next revision, or why it may not.
    fn plan(&self, demand: Demand) -> Result<(Operation, Event), StoreError> {
        let previous = demand.check(self.newest(demand.key()))?;
        let revision = self.last.next();
        let at = self.around.clock.now();
        Ok(match demand {
            Demand::Create(draft) => {
                let object = Arc::new(Object::new(draft, revision));
                let event = Event::new(Change::Created, Arc::clone(&object), None, at);
                (Operation::Create(object), event)
            }
            Demand::Replace(draft, expected) => {
                let object = Arc::new(Object::new(draft, revision));
                let event = Event::new(Change::Replaced, Arc::clone(&object), previous, at);
                (Operation::Replace(object, expected), event)
            }
            Demand::Remove(key, expected) => {
                let previous = previous.ok_or(StoreError::NotFound)?;
                let object = Arc::new(previous.at(revision));
                let event = Event::new(Change::Removed, object, Some(previous), at);
                (Operation::Remove(key, expected), event)
            }
        })
    }

    fn basis(&self, key: &Key, turn: Option<Turn>) -> Basis {
        let is_durable = !self.under_way.contains_key(key);
        Basis { object: self.newest(key).cloned(), is_durable, turn }
    }

    fn give_turn(&self, key: &Key, to: turns::Waiting, ctx: &Context<Store>) {
        let turn = Turn::new(ctx.address(), key.clone());
        // Where nobody listens any more the turn is dropped here, and ends by itself.
        to.answer(Ok(self.basis(key, Some(turn))));
    }

    fn pass_on(&self, revision: Revision, record: Record) -> Result<(), StoreError> {
        let write = Write { type_name: self.type_name.clone(), revision, record };
        let commit = Commit { write, store: self.me.clone() };
        self.around.committer.try_send(commit).map_err(|error| match error {
            SendError::Full(_) => StoreError::Busy,
            SendError::Closed(_) => StoreError::Unavailable,
        })
    }

    /// Makes visible what is durable, in the order that the module text promises.
    fn reveal(&mut self, through: Revision) {
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
            if let Some(way) = self.under_way.get_mut(&object.key) {
                way.writes -= 1;
            }
            let gone = self.window.append(Arc::new(event));
            self.trim(&gone);
            done.push((object, writer));
        }
        if done.is_empty() {
            return;
        }
        self.around.bells.ring(&self.type_name);
        let mut keys = Vec::with_capacity(done.len());
        for (object, writer) in done {
            keys.push(object.key.clone());
            writer.answer(Ok(object));
        }
        for key in keys {
            self.go_on_with(&key);
        }
    }

    /// Some writes of the key are durable: who waited for these can go on.
    fn go_on_with(&mut self, key: &Key) {
        while let Some(way) = self.under_way.get_mut(key) {
            match way.line.pop(self.snapshot.revision) {
                Some(Waiting::Reader(reader)) => {
                    reader.answer(Ok(self.snapshot.get(key.as_str()).cloned()));
                }
                Some(Waiting::Write((demand, writer))) => {
                    if demand.check(way.newest.as_ref()).is_ok() {
                        self.begin(demand, writer);
                        // Those behind it want to know what becomes of it.
                        if let Some(way) = self.under_way.get_mut(key) {
                            way.line.delay(way.last);
                        }
                        continue;
                    }
                    match demand.check(self.snapshot.get(key.as_str())) {
                        Err(refused) => writer.answer(Err(refused)),
                        // It is refused for something that is still under way.
                        Ok(_) => way.line.push_front(way.last, (demand, writer)),
                    }
                }
                None if way.writes == 0 => drop(self.under_way.remove(key)),
                None => return,
            }
        }
    }

    /// Whether nobody knows what is on disk, or nobody will write any more.
    fn is_over(&self) -> bool {
        self.gave_up || self.around.fatal.is_raised()
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
        for next in self.under_way.drain().flat_map(|(_, way)| way.line.into_all()) {
            match next {
                Waiting::Write((_, writer)) => writer.answer(Err(StoreError::Unavailable)),
                Waiting::Reader(reader) => reader.answer(Err(StoreError::Unavailable)),
            }
        }
    }

    /// Lets go of a bounded number of events that are older than the history, and of the records only they needed.
    fn expire(&mut self, now: Timestamp) -> usize {
        // An event frees at most two records. Without room for them it stays: see `Trims`.
        let most = EXPIRE_PER_TURN.min(self.around.trims.room() / 2);
        let gone = self.window.forget_before(now.minus(self.around.history), most);
        self.trim(&gone);
        gone.len()
    }

    fn trim(&self, gone: &[Trace]) {
        if !gone.is_empty() {
            self.around.trims.push(&self.type_name, gone.iter().flat_map(freed_by));
        }
    }
}

impl Actor for Store {
    type Context = Context<Store>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(STORE_MAILBOX);
        ctx.run_interval(self.around.housekeeping_every, |store, _| {
            store.expire(store.around.clock.now());
        });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.give_up();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.around.fatal.raise(format!("the store of {} panicked", self.type_name));
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
    type Result = ResponseFuture<Answer>;

    fn handle(&mut self, Create { draft, permit }: Create, _: &mut Self::Context) -> Self::Result {
        answered(self.submit(Demand::Create(draft), permit))
    }
}

impl Handler<Replace> for Store {
    type Result = ResponseFuture<Answer>;

    fn handle(&mut self, command: Replace, _: &mut Self::Context) -> Self::Result {
        let Replace { draft, expected, permit, turn } = command;
        let answer = self.submit(Demand::Replace(draft, expected), permit);
        drop(turn);
        answered(answer)
    }
}

impl Handler<Remove> for Store {
    type Result = ResponseFuture<Answer>;

    fn handle(&mut self, command: Remove, _: &mut Self::Context) -> Self::Result {
        let Remove { key, expected, permit } = command;
        answered(self.submit(Demand::Remove(key, expected), permit))
    }
}

impl Handler<Get> for Store {
    type Result = Answer;

    fn handle(&mut self, command: Get, _: &mut Self::Context) -> Self::Result {
        self.snapshot.get(command.key.as_str()).cloned().ok_or(StoreError::NotFound)
    }
}

impl Handler<Step> for Store {
    type Result = ResponseFuture<Result<(), StoreError>>;

    fn handle(&mut self, Step { above, permit }: Step, _: &mut Self::Context) -> Self::Result {
        let (reply, answer) = oneshot::channel();
        if self.is_over() {
            return Box::pin(async { Err(StoreError::Unavailable) });
        }
        let Some(place) = self.around.gauge.take(0) else {
            return Box::pin(async { Err(StoreError::Busy) });
        };
        self.step(above, Writer { reply, _permit: permit, _place: place });
        answered(answer)
    }
}

impl Handler<Settled> for Store {
    type Result = ResponseFuture<Seen>;

    fn handle(&mut self, Settled { key, permit }: Settled, _: &mut Self::Context) -> Self::Result {
        let (reader, seen) = Reader::new(permit);
        let is_over = self.is_over();
        match self.under_way.get_mut(&key) {
            _ if is_over => reader.answer(Err(StoreError::Unavailable)),
            Some(way) => way.line.push_reader(way.last, reader),
            None => reader.answer(Ok(self.snapshot.get(key.as_str()).cloned())),
        }
        answered(seen)
    }
}

impl Handler<TakeTurn> for Store {
    type Result = turns::Awaited;

    fn handle(&mut self, take: TakeTurn, ctx: &mut Self::Context) -> Self::Result {
        let TakeTurn { key, turn, permit } = take;
        let (waiting, basis) = turns::Waiting::new(permit);
        let waits = match turn {
            Turning::Always => true,
            Turning::IfContended => self.under_way.contains_key(&key) || self.turns.is_taken(&key),
            Turning::Never => false,
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
        let history = self.around.history;
        Ok(Position { window: Arc::clone(&self.window), snapshot: self.snapshot.clone(), history })
    }
}

impl Handler<Committed> for Store {
    type Result = ();

    fn handle(&mut self, event: Committed, _: &mut Self::Context) {
        match event.through {
            Ok(revision) => self.reveal(revision),
            Err(_) => self.give_up(),
        }
    }
}

impl Handler<Expire> for Store {
    type Result = usize;

    fn handle(&mut self, _: Expire, _: &mut Self::Context) -> Self::Result {
        self.expire(self.around.clock.now())
    }
}

impl Handler<Rest> for Store {
    type Result = MessageResult<Rest>;

    fn handle(&mut self, _: Rest, ctx: &mut Self::Context) -> Self::Result {
        let under_way = !self.pending.is_empty() || !self.under_way.is_empty() || !self.turns.is_empty();
        let extent = self.window.extent();
        MessageResult(if !self.snapshot.objects.is_empty() {
            Rested::HasObjects
        } else if self.is_over()
            || under_way
            || (extent.events + extent.shelved) > self.around.trims.room() / 2
        {
            Rested::Busy
        } else {
            let gone = self.window.forget_before(Timestamp(u64::MAX), usize::MAX);
            self.trim(&gone);
            ctx.stop();
            Rested::Ended(State { snapshot: self.snapshot.clone(), window: Arc::clone(&self.window) })
        })
    }
}

impl Handler<Stop> for Store {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}
