//! A round: commands that are decided together, and at most one change of the record for all of them.

use std::collections::{BTreeMap, BTreeSet};

use pilothouse_types::bitmap::Bitmap;
use pilothouse_types::error::StoreError;
use pilothouse_types::object::Revision;
use tokio::sync::oneshot;

use super::{IfChanged, ItemRange, ItemRefusal, ItemRequest, RefusalReason, RepairOutcome, RepairPlan};
use crate::limits::RANGE_ROUND_ATTEMPTS;
use crate::permit::Permit;
use crate::shared_range::{RangeContent, RangeError, RangeRecord, RangeWrite, SharedRange};

/// What is answered to an allocation: items, in the order of their requests, or the first refusal.
pub(super) type AllocationResult = Result<Result<Vec<usize>, ItemRefusal>, RangeError>;
/// What is answered to a check.
pub(super) type CheckResult = Result<Result<(), ItemRefusal>, RangeError>;

/// A command and who waits for it.
pub(super) enum Command {
    Allocate { requests: Vec<ItemRequest>, permit: Permit, reply: oneshot::Sender<AllocationResult> },
    Check { items: Vec<i64>, permit: Permit, reply: oneshot::Sender<CheckResult> },
    Release { items: Vec<usize>, reply: oneshot::Sender<Result<(), RangeError>> },
    Read { reply: oneshot::Sender<Result<Option<RangeRecord>, RangeError>> },
    Repair { items: RepairPlan, reply: oneshot::Sender<Result<RepairOutcome, RangeError>> },
}

/// The decision about a command, which counts once the record is written.
pub(super) enum Decision {
    Allocate(AllocationResult),
    Check(CheckResult),
    Release(Result<(), RangeError>),
    Read,
    Repair(Result<RepairOutcome, RangeError>),
}

impl Command {
    /// Answers what was decided, by a record that was current then.
    pub(super) fn answer(self, decision: Decision, record: Option<&RangeRecord>) {
        match (self, decision) {
            (Command::Allocate { reply, permit, .. }, Decision::Allocate(result)) => {
                let _gone = reply.send(result);
                drop(permit);
            }
            (Command::Check { reply, permit, .. }, Decision::Check(result)) => {
                let _gone = reply.send(result);
                drop(permit);
            }
            (Command::Release { reply, .. }, Decision::Release(result)) => drop(reply.send(result)),
            (Command::Read { reply }, Decision::Read) => drop(reply.send(Ok(record.cloned()))),
            (Command::Repair { reply, .. }, Decision::Repair(result)) => drop(reply.send(result)),
            // A decision is made by the command that it answers.
            (command, _) => command.fail(&RangeError::Store(StoreError::Unavailable)),
        }
    }

    /// Answers that nothing was decided.
    pub(super) fn fail(self, error: &RangeError) {
        let error = error.clone();
        match self {
            Command::Allocate { reply, .. } => drop(reply.send(Err(error))),
            Command::Check { reply, .. } => drop(reply.send(Err(error))),
            Command::Release { reply, .. } => drop(reply.send(Err(error))),
            Command::Read { reply } => drop(reply.send(Err(error))),
            Command::Repair { reply, .. } => drop(reply.send(Err(error))),
        }
    }

    fn decide(&self, draft: &mut Draft<'_>) -> Decision {
        match self {
            Command::Allocate { requests, .. } => Decision::Allocate(draft.allocate(requests)),
            Command::Check { items, .. } => Decision::Check(draft.check(items)),
            Command::Release { items, .. } => Decision::Release(draft.release(items)),
            Command::Read { .. } => Decision::Read,
            Command::Repair { items, .. } => Decision::Repair(draft.repair(items)),
        }
    }
}

/// How a round has ended: the decisions, and the record by which they were made.
pub(super) struct RoundEnd {
    pub(super) record: Option<RangeRecord>,
    pub(super) decisions: Vec<Decision>,
}

/// Decides the commands, in order, and writes what they change. `known` is the record as it was seen last, if it was: if somebody else has
/// changed it since, everything is decided again.
pub(super) async fn run(
    range: &ItemRange,
    shared: &dyn SharedRange,
    known: Option<Option<RangeRecord>>,
    commands: &[Command],
) -> Result<RoundEnd, RangeError> {
    let mut uncertain = Uncertain::default();
    let (mut record, mut is_current) = match known {
        Some(record) => (record, false),
        None => (shared.read().await?, true),
    };
    for _attempt in 0..RANGE_ROUND_ATTEMPTS {
        let mut draft = Draft::new(range, record.as_ref(), &uncertain);
        let decisions = commands.iter().map(|command| command.decide(&mut draft)).collect();
        let Draft { content, changed, .. } = draft;
        if changed.is_empty() && !needs_write(record.as_ref(), &content) {
            if is_current {
                return Ok(RoundEnd { record, decisions });
            }
            // A refusal by a record that somebody has changed since might be wrong.
            (record, is_current) = (shared.read().await?, true);
            continue;
        }
        let Some(content) = content else { return Err(RangeError::Missing) };
        let expected = record.as_ref().map(|record| record.revision);
        match shared.write(expected, content.clone()).await {
            RangeWrite::Written(revision) => {
                let record = Some(RangeRecord { revision, content });
                return Ok(RoundEnd { record, decisions });
            }
            RangeWrite::Changed(current) => record = current,
            RangeWrite::Failed(error) => return Err(unless_uncertain(error, &uncertain)),
            // If it is still on its way, it compares the same revision as the next attempt, so at most one of them succeeds.
            RangeWrite::Unknown => {
                uncertain.0.extend(changed.into_iter().map(|item| (item, expected)));
                let read = shared.read().await;
                record = read.map_err(|_| RangeError::Store(StoreError::UnknownOutcome))?;
            }
        }
        is_current = true;
    }
    Err(unless_uncertain(RangeError::Store(StoreError::Busy), &uncertain))
}

/// Whether a repair has made the record or given it another range.
fn needs_write(record: Option<&RangeRecord>, content: &Option<RangeContent>) -> bool {
    record.map(|record| &record.content.range) != content.as_ref().map(|content| &content.range)
}

/// An error after which it is certain that nothing was written, unless an earlier attempt may have been.
fn unless_uncertain(error: RangeError, uncertain: &Uncertain) -> RangeError {
    if uncertain.0.is_empty() { error } else { RangeError::Store(StoreError::UnknownOutcome) }
}

/// Items of earlier attempts of which nobody knows whether they were written, with the revision that the record had to have. As long as it
/// has that one, they were not.
#[derive(Default)]
struct Uncertain(BTreeMap<usize, Option<Revision>>);

impl Uncertain {
    /// Whether nobody knows who has changed an item of this record.
    fn contains(&self, item: usize, record: Option<&RangeRecord>) -> bool {
        let revision = record.map(|record| record.revision);
        self.0.get(&item).is_some_and(|expected| *expected != revision)
    }
}

/// What the record is going to be.
struct Draft<'a> {
    range: &'a ItemRange,
    /// The record that it replaces.
    base: Option<&'a RangeRecord>,
    content: Option<RangeContent>,
    /// The items that differ from the record, or have in the meantime.
    changed: BTreeSet<usize>,
    /// If these are taken, nobody knows by whom.
    uncertain: &'a Uncertain,
}

impl<'a> Draft<'a> {
    fn new(range: &'a ItemRange, base: Option<&'a RangeRecord>, uncertain: &'a Uncertain) -> Draft<'a> {
        let content = base.map(|record| record.content.clone());
        Draft { range, base, content, changed: BTreeSet::new(), uncertain }
    }

    /// The items that are taken, if they may be changed.
    fn allocated(&mut self) -> Result<&mut Bitmap, RangeError> {
        let content = self.content.as_mut().ok_or(RangeError::Missing)?;
        if content.range != self.range.text {
            return Err(RangeError::OtherRange);
        }
        Ok(&mut content.allocated)
    }

    /// Allocates all items, or none.
    fn allocate(&mut self, requests: &[ItemRequest]) -> AllocationResult {
        let (range, uncertain, base) = (self.range, self.uncertain, self.base);
        let allocated = self.allocated()?;
        let mut items = Vec::with_capacity(requests.len());
        let mut refusal = None;
        for (index, request) in requests.iter().enumerate() {
            let item = match *request {
                ItemRequest::Any(random) => range.search(allocated, random).ok_or(RefusalReason::Full),
                ItemRequest::Exactly(item) => range.check_free(allocated, item),
            };
            match item {
                Ok(item) => {
                    allocated.insert(item);
                    items.push(item);
                }
                Err(reason) => {
                    refusal = Some((ItemRefusal { index, reason }, *request));
                    break;
                }
            }
        }
        let Some((refusal, request)) = refusal else {
            self.changed.extend(items.iter().copied());
            return Ok(Ok(items));
        };
        for item in items {
            allocated.remove(item);
        }
        match (refusal.reason, request) {
            (RefusalReason::Taken, ItemRequest::Exactly(item))
                if usize::try_from(item).is_ok_and(|item| uncertain.contains(item, base)) =>
            {
                Err(RangeError::Store(StoreError::UnknownOutcome))
            }
            _ => Ok(Err(refusal)),
        }
    }

    /// Checks that these items are free. Like the reference's dry run it ignores the range.
    fn check(&mut self, items: &[i64]) -> CheckResult {
        let allocated = self.allocated()?;
        let taken = |item: &i64| usize::try_from(*item).is_ok_and(|item| allocated.contains(item));
        Ok(match items.iter().position(taken) {
            Some(index) => Err(ItemRefusal { index, reason: RefusalReason::Taken }),
            None => Ok(()),
        })
    }

    /// Frees items. One of which nobody knows whether it was freed already stays: somebody else may have it now.
    fn release(&mut self, items: &[usize]) -> Result<(), RangeError> {
        let (uncertain, base) = (self.uncertain, self.base);
        let allocated = self.allocated()?;
        let released = items.iter().copied();
        let released = released.filter(|item| !uncertain.contains(*item, base) && allocated.remove(*item));
        let released: Vec<usize> = released.collect();
        self.changed.extend(released);
        Ok(())
    }

    /// Makes the record and takes what is used and not taken; frees what was found to be leaked, if the record is still the one in which it
    /// was found.
    fn repair(&mut self, repaired: &RepairPlan) -> Result<RepairOutcome, RangeError> {
        let is_same = self.base.map(|record| record.revision) == repaired.seen;
        if repaired.if_changed == IfChanged::LookAgain && !is_same {
            return Ok(RepairOutcome::default());
        }
        let content = match &mut self.content {
            Some(content) if content.range == self.range.text => content,
            // What is kept of a record of another range was judged by the record that was seen.
            _ if !is_same => return Ok(RepairOutcome::default()),
            content => {
                let allocated = repaired.kept.iter().copied().collect();
                content.insert(RangeContent { range: self.range.text.clone(), allocated })
            }
        };
        let taken = repaired.missing.iter().copied().filter(|item| content.allocated.insert(*item));
        let added: Vec<usize> = taken.collect();
        self.changed.extend(added.iter().copied());
        let leaked = if is_same { repaired.leaked.as_slice() } else { &[] };
        let freed: Vec<usize> =
            leaked.iter().copied().filter(|item| content.allocated.remove(*item)).collect();
        self.changed.extend(freed.iter().copied());
        Ok(RepairOutcome { added, freed, is_complete: is_same || repaired.leaked.is_empty() })
    }
}
