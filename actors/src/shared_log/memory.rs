//! A shared log in memory, for tests: each server gets a member of its own, which can be cut off and can lose answers. Values that begin
//! with [`SEALED`] need a service to be decoded, which can be down.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{self, BoxStream, StreamExt as _};
use pilothouse_types::lock::Lock;
use pilothouse_types::object::{Draft, Key, Revision, TypeName, UnreadableReason};
use tokio::sync::watch;

use super::{
    ChangeBatch, Decoded, FollowError, Followed, Loaded, PastError, Proposal, ProposalOutcome,
    ProposedChange, SharedChange, SharedEntry, SharedLog, SharedLogError,
};

/// Makes an object of a value.
pub type Decode = fn(&Key, &Bytes) -> Result<Draft, UnreadableReason>;

/// What values begin with that a service has to decode.
pub const SEALED: &str = "sealed ";

/// The log that all members share. Cheap to clone.
#[derive(Clone)]
pub struct MemoryLog {
    content: Arc<Lock<Content>>,
    newest: Arc<watch::Sender<Revision>>,
    decode: Decode,
}

#[derive(Default)]
struct Content {
    revision: Revision,
    compacted: Revision,
    entries: BTreeMap<(TypeName, Key), MemoryEntry>,
    changes: Vec<SharedChange>,
    /// All changes that ever were.
    history: Vec<SharedChange>,
}

struct MemoryEntry {
    revision: Revision,
    created: Revision,
    value: Bytes,
}

impl MemoryLog {
    /// An empty log.
    pub fn new(decode: Decode) -> MemoryLog {
        let content = Content { revision: Revision::FIRST, ..Content::default() };
        MemoryLog { content: Arc::new(Lock::new(content)), newest: Arc::default(), decode }
    }

    /// The log as one server uses it.
    pub fn member(&self) -> Arc<Member> {
        let log = self.clone();
        let (is_cut_off, is_service_down, ignored) = (Arc::default(), Arc::default(), Arc::default());
        let (is_silent, questions, lost_answers) = (Arc::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Member { log, is_cut_off, is_service_down, is_silent, questions, lost_answers, ignored })
    }

    /// Forgets all changes up to now.
    pub fn compact(&self) {
        let mut content = self.content.lock();
        content.compacted = content.revision;
        content.changes.clear();
    }

    /// Removes objects at one revision, as an expiring lease does.
    pub fn expire(&self, type_name: &TypeName, keys: &[Key]) {
        let mut content = self.content.lock();
        let revision = content.revision.next();
        content.revision = revision;
        for key in keys {
            content.entries.remove(&(type_name.clone(), key.clone()));
            content.push(SharedChange {
                type_name: type_name.clone(),
                key: key.clone(),
                revision,
                value: None,
            });
        }
        drop(content);
        self.newest.send_replace(revision);
    }

    /// All changes that ever were.
    pub fn history(&self) -> Vec<SharedChange> {
        self.content.lock().history.clone()
    }

    /// All entries: type, key, revision, value.
    pub fn entries(&self) -> Vec<SharedEntry> {
        self.content.lock().entries()
    }

    fn write(&self, proposal: Proposal) -> ProposalOutcome {
        let mut content = self.content.lock();
        let Proposal { type_name, key, expected, change } = proposal;
        let value = match change {
            ProposedChange::Put(value) => Some(value),
            ProposedChange::Remove => None,
        };
        let place = (type_name.clone(), key.clone());
        let present = content.entries.get(&place).map(|entry| (entry.revision, entry.created));
        let current = present.map(|(revision, _)| revision);
        if current != expected {
            return ProposalOutcome::Refused { current, at: content.revision };
        }
        let revision = content.revision.next();
        content.revision = revision;
        let created = present.map_or(revision, |(_, created)| created);
        match value.clone() {
            Some(value) => drop(content.entries.insert(place, MemoryEntry { revision, created, value })),
            None => drop(content.entries.remove(&place)),
        }
        content.push(SharedChange { type_name, key, revision, value });
        drop(content);
        self.newest.send_replace(revision);
        ProposalOutcome::Accepted(revision)
    }
}

impl Content {
    fn push(&mut self, change: SharedChange) {
        self.changes.push(change.clone());
        self.history.push(change);
    }

    fn entries(&self) -> Vec<SharedEntry> {
        let entries = self.entries.iter().map(|((type_name, key), entry)| SharedEntry {
            type_name: type_name.clone(),
            key: key.clone(),
            revision: entry.revision,
            created: entry.created,
            value: entry.value.clone(),
        });
        entries.collect()
    }

    /// The state at the oldest revision from which all changes are known.
    fn past(&self) -> Loaded {
        let revision = self.compacted.max(Revision::FIRST);
        Loaded { revision, entries: self.entries_at(revision) }
    }

    /// The entries at a revision.
    fn entries_at(&self, at: Revision) -> Vec<SharedEntry> {
        let mut entries: BTreeMap<(&TypeName, &Key), SharedEntry> = BTreeMap::new();
        for change in self.history.iter().take_while(|change| change.revision <= at) {
            let place = (&change.type_name, &change.key);
            let Some(value) = change.value.clone() else {
                entries.remove(&place);
                continue;
            };
            let created = entries.get(&place).map_or(change.revision, |entry| entry.created);
            let (type_name, key, revision) = (change.type_name.clone(), change.key.clone(), change.revision);
            entries.insert(place, SharedEntry { type_name, key, revision, created, value });
        }
        entries.into_values().collect()
    }

    /// The changes after a revision, about as many.
    fn read(&self, after: Revision, limit: usize) -> Result<Option<ChangeBatch>, FollowError> {
        if after < self.compacted {
            return Err(FollowError::Compacted);
        }
        let news = self.changes.partition_point(|change| change.revision <= after);
        let news = self.changes.get(news..).unwrap_or_default();
        // All changes of a revision are in one batch.
        let through = news.iter().take(limit).last().map(|last| last.revision);
        let changes = news.iter().take_while(|change| Some(change.revision) <= through);
        let changes: Vec<SharedChange> = changes.cloned().collect();
        Ok(changes.last().map(|last| ChangeBatch { revision: last.revision, changes: changes.clone() }))
    }
}

/// One server's access to the log.
pub struct Member {
    log: MemoryLog,
    is_cut_off: Arc<AtomicBool>,
    is_service_down: Arc<AtomicBool>,
    /// Whether questions for the revision and proposals get no answer for now.
    is_silent: Arc<AtomicBool>,
    /// How often the revision was asked for.
    questions: AtomicUsize,
    /// How many of the next answers to proposals are lost: of every other the proposal, too.
    lost_answers: AtomicUsize,
    /// The types that the server does not know.
    ignored: Arc<Lock<HashSet<TypeName>>>,
}

impl Member {
    /// Cuts the server off, or connects it again.
    pub fn set_cut_off(&self, is_cut_off: bool) {
        self.is_cut_off.store(is_cut_off, Ordering::SeqCst);
    }

    /// Takes the service down that decodes values, or starts it again.
    pub fn set_service_down(&self, is_down: bool) {
        self.is_service_down.store(is_down, Ordering::SeqCst);
    }

    /// Leaves questions for the revision and proposals unanswered, or answers them.
    pub fn set_silent(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::SeqCst);
    }

    /// How often the revision was asked for.
    pub fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }

    /// Loses the answers to the next proposals.
    pub fn lose_answers(&self, answers: usize) {
        self.lost_answers.store(answers, Ordering::SeqCst);
    }

    /// The server does not know this type.
    pub fn ignore(&self, type_name: TypeName) {
        self.ignored.lock().insert(type_name);
    }

    /// The server knows this type again.
    pub fn know(&self, type_name: &TypeName) -> bool {
        self.ignored.lock().remove(type_name)
    }

    fn check(&self) -> Result<(), SharedLogError> {
        check(&self.is_cut_off)
    }
}

async fn until_answered(is_silent: &AtomicBool) {
    while is_silent.load(Ordering::SeqCst) {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

fn check(is_cut_off: &AtomicBool) -> Result<(), SharedLogError> {
    match is_cut_off.load(Ordering::SeqCst) {
        true => Err(SharedLogError::Unavailable("it is cut off".into())),
        false => Ok(()),
    }
}

/// The most changes that arrive at once.
const BATCH_CHANGES: usize = 3;

impl SharedLog for Member {
    fn load(&self) -> BoxFuture<'static, Result<Loaded, SharedLogError>> {
        let content = self.log.content.lock();
        let mut loaded = Loaded { revision: content.revision, entries: content.entries() };
        loaded.entries.retain(|entry| !self.ignored.lock().contains(&entry.type_name));
        let result = self.check().map(|()| loaded);
        async move { result }.boxed()
    }

    fn load_past(&self) -> BoxFuture<'static, Result<Loaded, SharedLogError>> {
        let mut loaded = self.log.content.lock().past();
        loaded.entries.retain(|entry| !self.ignored.lock().contains(&entry.type_name));
        let result = self.check().map(|()| loaded);
        async move { result }.boxed()
    }

    fn load_type(&self, type_name: &TypeName) -> BoxFuture<'static, Result<Loaded, SharedLogError>> {
        let loaded = self.load();
        let type_name = type_name.clone();
        async move {
            let mut loaded = loaded.await?;
            loaded.entries.retain(|entry| entry.type_name == type_name);
            Ok(loaded)
        }
        .boxed()
    }

    fn load_type_at(
        &self,
        type_name: &TypeName,
        revision: Revision,
    ) -> BoxStream<'static, Result<Vec<SharedEntry>, PastError>> {
        let content = self.log.content.lock();
        let mut entries = match self.check() {
            Ok(()) if revision < content.compacted => {
                return stream::iter([Err(PastError::Compacted)]).boxed();
            }
            Ok(()) => content.entries_at(revision),
            Err(error) => return stream::iter([Err(error.into())]).boxed(),
        };
        entries.retain(|entry| entry.type_name == *type_name);
        let parts: Vec<_> = entries.chunks(BATCH_CHANGES).map(|part| Ok(part.to_vec())).collect();
        stream::iter(parts).boxed()
    }

    fn follow(&self, after: Revision) -> BoxStream<'static, Result<Followed, FollowError>> {
        let (log, is_cut_off, ignored) =
            (self.log.clone(), Arc::clone(&self.is_cut_off), Arc::clone(&self.ignored));
        let newest = log.newest.subscribe();
        let batches = stream::unfold((after, newest), move |(after, mut newest)| {
            let (log, is_cut_off, ignored) = (log.clone(), Arc::clone(&is_cut_off), Arc::clone(&ignored));
            async move {
                loop {
                    if !is_cut_off.load(Ordering::SeqCst) {
                        let batch = log.content.lock().read(after, BATCH_CHANGES);
                        match batch {
                            Ok(Some(mut batch)) => {
                                batch.changes.retain(|change| !ignored.lock().contains(&change.type_name));
                                let revision = batch.revision;
                                return Some((Ok(Followed::Changes(batch)), (revision, newest)));
                            }
                            Ok(None) => {}
                            Err(error) => return Some((Err(error), (after, newest))),
                        }
                    }
                    // Also when it is connected again, which nothing announces.
                    let pause = tokio::time::sleep(std::time::Duration::from_millis(1));
                    tokio::select! {
                        _ = newest.changed() => {}
                        () = pause => {}
                    }
                }
            }
        });
        batches.boxed()
    }

    fn current_revision(&self) -> BoxFuture<'static, Result<Revision, SharedLogError>> {
        self.questions.fetch_add(1, Ordering::SeqCst);
        let (log, is_cut_off, is_silent) =
            (self.log.clone(), Arc::clone(&self.is_cut_off), Arc::clone(&self.is_silent));
        async move {
            until_answered(&is_silent).await;
            check(&is_cut_off).map(|()| log.content.lock().revision)
        }
        .boxed()
    }

    fn propose(&self, proposal: Proposal) -> BoxFuture<'static, ProposalOutcome> {
        if let Err(error) = self.check() {
            return async move { ProposalOutcome::Failed(error) }.boxed();
        }
        let fewer = |left: usize| left.checked_sub(1);
        let outcome = match self.lost_answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer) {
            Ok(left) if left % 2 == 0 => ProposalOutcome::Unknown,
            Ok(_) => {
                self.log.write(proposal);
                ProposalOutcome::Unknown
            }
            Err(_) => self.log.write(proposal),
        };
        let is_silent = Arc::clone(&self.is_silent);
        async move {
            // The change may arrive before the answer.
            tokio::task::yield_now().await;
            until_answered(&is_silent).await;
            outcome
        }
        .boxed()
    }

    fn decode(&self, _: &TypeName, key: &Key, value: &Bytes) -> Result<Decoded, UnreadableReason> {
        (self.log.decode)(key, value).map(|draft| Decoded { draft, key_id: None })
    }

    fn may_wait(&self, value: &[u8]) -> bool {
        value.starts_with(SEALED.as_bytes())
    }

    fn decode_all(
        &self,
        _: &TypeName,
        values: Vec<(Key, Bytes)>,
    ) -> BoxFuture<'static, Vec<Result<Decoded, UnreadableReason>>> {
        let (decode, is_service_down) = (self.log.decode, Arc::clone(&self.is_service_down));
        async move {
            let mut decoded = Vec::new();
            for (key, value) in values {
                while value.starts_with(SEALED.as_bytes()) && is_service_down.load(Ordering::SeqCst) {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                decoded.push(decode(&key, &value).map(|draft| Decoded { draft, key_id: None }));
            }
            decoded
        }
        .boxed()
    }
}
