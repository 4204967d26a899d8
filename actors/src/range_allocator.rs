//! The actor that allocates items of a range by a record that several servers share: node ports by their distance from the first one, for
//! example.
//!
//! One per record and server. It writes the record by compare-and-swap, so that no item is given twice, whichever server is asked. What
//! comes while the record is being written waits, is decided in order, and shares the next write: so writers on one server do not
//! conflict with each other.
//!
//! The record does not say who has an item. Whoever releases one must be certain to have it.

mod round;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use actix::{
    Actor, ActorFutureExt as _, AsyncContext as _, Context, Handler, Message, ResponseFuture, WrapFuture as _,
};
use pilothouse_types::bitmap::Bitmap;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Revision;
use tokio::sync::oneshot;

use self::round::{Command, RoundEnd};
use crate::fatal::Fatal;
use crate::limits::{ALLOCATOR_MAILBOX, RANGE_COMMANDS_WAITING, RANGE_ROUND_COMMANDS};
use crate::permit::Permit;
use crate::shared_range::{RangeError, RangeRecord, SharedRange};

/// One requested item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemRequest {
    /// This item and no other. It may be outside of the range.
    Exactly(i64),
    /// Any free item, searched from a random number.
    Any(u32),
}

/// Why an item is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// It is taken.
    Taken,
    /// It is outside of the range.
    Outside,
    /// No item is free.
    Full,
}

/// The refused item, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemRefusal {
    /// The index of the requested item.
    pub index: usize,
    /// The reason.
    pub reason: RefusalReason,
}

/// Allocates items, all or none. Returns them in the order of the requests, or the first refusal. With the error UnknownOutcome nobody knows
/// whether they are taken: they stay so until a repair. On Full the sender waits, within its own permit; on Closed the server ends.
#[derive(Message)]
#[rtype(result = "Result<Result<Vec<usize>, ItemRefusal>, RangeError>")]
pub struct AllocateItems {
    /// The requested items.
    pub requests: Vec<ItemRequest>,
    /// The seat of the request.
    pub permit: Permit,
}

/// Checks whether these items are free, without taking them. Returns the first refusal. Full and Closed as for [`AllocateItems`].
#[derive(Message)]
#[rtype(result = "Result<Result<(), ItemRefusal>, RangeError>")]
pub struct CheckItems {
    /// The items to check. They may be outside of the range.
    pub items: Vec<i64>,
    /// The seat of the request.
    pub permit: Permit,
}

/// Releases items, once: after any error but Busy and Unreachable somebody else may have them. Full and Closed as for [`AllocateItems`].
#[derive(Message)]
#[rtype(result = "Result<(), RangeError>")]
pub struct ReleaseItems {
    /// The items.
    pub items: Vec<usize>,
}

/// Reads the record; `None` if there is none. Full and Closed as for [`AllocateItems`].
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Result<Option<RangeRecord>, RangeError>")]
pub struct ReadItems;

/// Makes the record if there is none, and repairs it. Returns what was done; if that is not everything, the sender may look again. Full and
/// Closed as for [`AllocateItems`].
#[derive(Message)]
#[rtype(result = "Result<RepairOutcome, RangeError>")]
pub struct RepairItems(pub RepairPlan);

/// What a repair has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairOutcome {
    /// The items that were not taken, and are now.
    pub added: Vec<usize>,
    /// The items that were taken, and are free now.
    pub freed: Vec<usize>,
    /// Whether everything could be done: if somebody has changed the record since it was seen, an item that seemed to be leaked may have
    /// been given to somebody.
    pub is_complete: bool,
}

/// What a repair is going to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairPlan {
    /// The revision of the record in which the following was found; `None` if there was none.
    pub seen: Option<Revision>,
    /// Items that are used and not taken.
    pub missing: Vec<usize>,
    /// Items that are taken and not used.
    pub leaked: Vec<usize>,
    /// All items that stay taken, for a record that is of another range.
    pub kept: Vec<usize>,
    /// What is done if somebody has changed the record since.
    pub if_changed: IfChanged,
}

/// What a repair does with a record that is no longer the one it was planned for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfChanged {
    /// Nothing: the sender looks again.
    LookAgain,
    /// It takes what is missing, and frees nothing.
    #[default]
    AddMissing,
}

/// The range of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRange {
    /// Its text, as the record has it.
    pub text: String,
    /// How many items it has.
    pub size: usize,
    /// How many of the first items are given last, because clients choose them themselves.
    pub lower_band: usize,
}

impl ItemRange {
    /// Searches the upper band first and then the lower one.
    fn search(&self, allocated: &Bitmap, random: u32) -> Option<usize> {
        let search_band = |from: usize, to: usize| {
            let start = from + usize::try_from(random).unwrap_or(0).checked_rem(to.checked_sub(from)?)?;
            allocated.next_free(start, to).or_else(|| allocated.next_free(from, start))
        };
        let lower = self.lower_band.min(self.size);
        search_band(lower, self.size).or_else(|| search_band(0, lower))
    }

    fn check_free(&self, allocated: &Bitmap, item: i64) -> Result<usize, RefusalReason> {
        let in_range = usize::try_from(item).ok().filter(|item| *item < self.size);
        let item = in_range.ok_or(RefusalReason::Outside)?;
        if allocated.contains(item) { Err(RefusalReason::Taken) } else { Ok(item) }
    }
}

/// The actor. See the module documentation.
pub struct RangeAllocator {
    range: Arc<ItemRange>,
    shared: Arc<dyn SharedRange>,
    /// The record as it was seen last, unless that is unknown. Others may have changed it since.
    known: Option<Option<RangeRecord>>,
    waiting: VecDeque<Command>,
    is_in_round: bool,
    /// Raised if this actor panics: no Service could get a port or an address until the server starts again.
    fatal: Fatal,
}

impl RangeAllocator {
    /// The actor of this range.
    pub fn new(range: ItemRange, shared: Arc<dyn SharedRange>, fatal: Fatal) -> RangeAllocator {
        let (range, waiting) = (Arc::new(range), VecDeque::new());
        RangeAllocator { range, shared, known: None, waiting, is_in_round: false, fatal }
    }

    /// Queues a command and waits for its answer.
    fn submit<T: Send + 'static>(
        &mut self,
        context: &mut Context<RangeAllocator>,
        command: impl FnOnce(oneshot::Sender<Result<T, RangeError>>) -> Command,
    ) -> ResponseFuture<Result<T, RangeError>> {
        let (reply, receiver) = oneshot::channel();
        let command = command(reply);
        if self.waiting.len() < RANGE_COMMANDS_WAITING {
            self.waiting.push_back(command);
            self.start_round(context);
        } else {
            command.fail(&RangeError::Store(StoreError::Busy));
        }
        Box::pin(async move { receiver.await.unwrap_or(Err(RangeError::Store(StoreError::Unavailable))) })
    }

    fn start_round(&mut self, context: &mut Context<RangeAllocator>) {
        if self.is_in_round || self.waiting.is_empty() {
            return;
        }
        self.is_in_round = true;
        let count = self.waiting.len().min(RANGE_ROUND_COMMANDS);
        let commands: Vec<Command> = self.waiting.drain(..count).collect();
        let (range, shared, known) = (Arc::clone(&self.range), Arc::clone(&self.shared), self.known.take());
        let round = async move {
            let end = round::run(&range, &*shared, known, &commands).await;
            (commands, end)
        };
        context.spawn(round.into_actor(self).map(|(commands, end), allocator, context| {
            allocator.end_round(commands, end);
            allocator.start_round(context);
        }));
    }

    fn end_round(&mut self, commands: Vec<Command>, end: Result<RoundEnd, RangeError>) {
        self.is_in_round = false;
        match end {
            Ok(RoundEnd { record, decisions }) => {
                for (command, decision) in commands.into_iter().zip(decisions) {
                    command.answer(decision, record.as_ref());
                }
                self.known = Some(record);
            }
            Err(error) => {
                commands.into_iter().for_each(|command| command.fail(&error));
                if let RangeError::Store(StoreError::Unreachable | StoreError::UnknownOutcome) = error {
                    // Who came meanwhile would otherwise wait as long again, and those behind them even longer. Nothing of theirs was sent.
                    let error = RangeError::Store(StoreError::Unreachable);
                    std::mem::take(&mut self.waiting).into_iter().for_each(|command| command.fail(&error));
                }
            }
        }
    }
}

impl Actor for RangeAllocator {
    type Context = Context<RangeAllocator>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(ALLOCATOR_MAILBOX);
    }
}

impl Drop for RangeAllocator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fatal.raise("the allocator of a shared range panicked".to_owned());
        }
    }
}

impl Handler<AllocateItems> for RangeAllocator {
    type Result = ResponseFuture<Result<Result<Vec<usize>, ItemRefusal>, RangeError>>;

    fn handle(&mut self, command: AllocateItems, context: &mut Self::Context) -> Self::Result {
        let AllocateItems { requests, permit } = command;
        self.submit(context, |reply| Command::Allocate { requests, permit, reply })
    }
}

impl Handler<CheckItems> for RangeAllocator {
    type Result = ResponseFuture<Result<Result<(), ItemRefusal>, RangeError>>;

    fn handle(&mut self, command: CheckItems, context: &mut Self::Context) -> Self::Result {
        let CheckItems { items, permit } = command;
        self.submit(context, |reply| Command::Check { items, permit, reply })
    }
}

impl Handler<ReleaseItems> for RangeAllocator {
    type Result = ResponseFuture<Result<(), RangeError>>;

    fn handle(&mut self, command: ReleaseItems, context: &mut Self::Context) -> Self::Result {
        self.submit(context, |reply| Command::Release { items: command.items, reply })
    }
}

impl Handler<ReadItems> for RangeAllocator {
    type Result = ResponseFuture<Result<Option<RangeRecord>, RangeError>>;

    fn handle(&mut self, _: ReadItems, context: &mut Self::Context) -> Self::Result {
        self.submit(context, |reply| Command::Read { reply })
    }
}

impl Handler<RepairItems> for RangeAllocator {
    type Result = ResponseFuture<Result<RepairOutcome, RangeError>>;

    fn handle(&mut self, RepairItems(items): RepairItems, context: &mut Self::Context) -> Self::Result {
        self.submit(context, |reply| Command::Repair { items, reply })
    }
}
