//! The memory of watches: how many a user may have, and the frames that clients have not read.
//!
//! A frame of one event is shared by all watches ([`pilothouse_types::frame`]). A client that does not read keeps it
//! alive, and a slow one can keep many. So each watch also counts the bytes that it holds, and notes when its client last read
//! something ([`WatchHoldings`]). A watch without memory for its next frame waits; meanwhile watches of the user who
//! holds most, whose clients do not read, are cut ([`WatchMemory::relieve`]). They resume where they were.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::task::AtomicWaker;
use pilothouse_types::clock::{Clock, Moment};
use pilothouse_types::frame::LargeFrame;
use pilothouse_types::limits::LARGE_FRAME_BYTES;
use pilothouse_types::lock::Lock;
use pilothouse_types::memory::{MemoryBudget, OutOfMemory, Reservation};

use crate::limits::{RELIEF_INTERVAL, UNREAD_BEFORE_CUT, WATCH_BYTES};
use crate::throttle::Throttle;
use pilothouse_types::user_shares::{UserShare, UserShares};

/// The memory of the watches of one server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WatchMemory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The memory of open watches without their frames.
    open: MemoryBudget,
    /// Frames that no client has read yet.
    frames: MemoryBudget,
    users: UserShares,
    /// The watches that hold counted frames, or did.
    holders: Lock<HashMap<u64, Arc<WatchHoldings>>>,
    next_holder: AtomicU64,
    /// At most one relief in [`RELIEF_INTERVAL`].
    relieved: Throttle,
    cut: AtomicU64,
    clock: Clock,
}

impl WatchMemory {
    /// The watches of one user may be `watches_per_user` at most.
    pub fn new(
        open: MemoryBudget,
        frames: MemoryBudget,
        watches_per_user: usize,
        clock: Clock,
    ) -> WatchMemory {
        WatchMemory(Arc::new(Shared {
            open,
            frames,
            users: UserShares::new(watches_per_user),
            holders: Lock::default(),
            next_holder: AtomicU64::new(0),
            relieved: Throttle::with_span(RELIEF_INTERVAL),
            cut: AtomicU64::new(0),
            clock,
        }))
    }

    /// Without bounds, for tests.
    pub fn unbounded() -> WatchMemory {
        let budget = || MemoryBudget::standalone(usize::MAX);
        WatchMemory::new(budget(), budget(), usize::MAX, Clock::system())
    }

    /// A new watch of this user.
    pub fn open(&self, user: &str) -> Result<WatchAccount, OutOfMemory> {
        let open = self.0.open.take(WATCH_BYTES)?;
        let share = self.0.users.take(user, 1).ok_or(OutOfMemory)?;
        let holdings = Arc::new(WatchHoldings {
            id: self.0.next_holder.fetch_add(1, Ordering::Relaxed),
            user: Arc::clone(share.user()),
            clock: self.0.clock.clone(),
            bytes: AtomicUsize::new(0),
            taken_at: AtomicU64::new(0),
            cut: CutSignal::default(),
        });
        let queued = self.0.frames.empty_reservation();
        Ok(WatchAccount {
            memory: self.clone(),
            holdings,
            is_listed: false,
            queued,
            _open: open,
            _share: share,
        })
    }

    /// The number of watches that were cut because their clients did not read.
    pub fn cut(&self) -> u64 {
        self.0.cut.load(Ordering::Relaxed)
    }

    /// Cuts watches whose clients do not read: of the user who holds most, those first that have waited longest, until an eighth of
    /// the budget is free. One caller does it at a time, the others wait for its effect.
    fn relieve(&self) {
        let now = self.0.clock.moment();
        if !self.0.relieved.allows(now) {
            return;
        }
        let holders = self.0.holders.lock();
        let mut unread: HashMap<&Arc<str>, Vec<(&Arc<WatchHoldings>, usize)>> = HashMap::new();
        for holder in holders.values() {
            let bytes = holder.bytes.load(Ordering::Relaxed);
            if bytes > 0 && !holder.cut.is_raised() && holder.unread_for(now) >= UNREAD_BEFORE_CUT {
                unread.entry(&holder.user).or_default().push((holder, bytes));
            }
        }
        let sum = |watches: &Vec<(&Arc<WatchHoldings>, usize)>| {
            watches.iter().map(|(_, bytes)| bytes).sum::<usize>()
        };
        let Some((user, mut watches)) = unread.into_iter().max_by_key(|(_, watches)| sum(watches)) else {
            return;
        };
        watches.sort_by_key(|(holder, _)| std::cmp::Reverse(holder.unread_for(now)));
        let target = self.0.frames.limit() / 8;
        let (mut freed, mut cut) = (0, 0);
        for (holder, bytes) in watches {
            if freed >= target {
                break;
            }
            holder.cut.raise();
            (freed, cut) = (freed + bytes, cut + 1);
        }
        self.0.cut.fetch_add(cut, Ordering::Relaxed);
        tracing::warn!(user = %user, watches = cut, bytes = freed, "terminated watches of slow clients to free memory");
    }
}

/// The share of one watch in the memory of all. Dropped with its session.
#[derive(Debug)]
pub struct WatchAccount {
    memory: WatchMemory,
    holdings: Arc<WatchHoldings>,
    /// Whether the holdings are listed. Most watches never hold anything large, and cost no lock.
    is_listed: bool,
    /// The share of the small frames in its queue.
    queued: Reservation,
    _open: Reservation,
    _share: UserShare,
}

impl WatchAccount {
    /// Whether there is memory to make a frame of about this size.
    pub(crate) fn may_make(&self, bytes: usize) -> Result<(), OutOfMemory> {
        if bytes < LARGE_FRAME_BYTES || self.memory.0.frames.has_room_for(bytes) {
            return Ok(());
        }
        self.memory.relieve();
        Err(OutOfMemory)
    }

    /// Whether a queue that holds more than a small frame may grow.
    pub(crate) fn may_grow(&self) -> bool {
        let can_grow = !self.memory.0.frames.is_exhausted();
        if !can_grow {
            self.memory.relieve();
        }
        can_grow
    }

    /// The bytes of a large frame, noted as held by this watch until they are sent.
    pub(crate) fn hold(&mut self, frame: Arc<LargeFrame>) -> Result<Bytes, OutOfMemory> {
        let reserved = frame.reserve(&self.memory.0.frames).inspect_err(|_| self.memory.relieve())?;
        self.enlist();
        Ok(Bytes::from_owner(HeldFrame::new(Held::Shared(frame), &self.holdings, reserved)))
    }

    /// Several small frames in one piece, which exists for this watch alone.
    pub(crate) fn hold_joined(&mut self, chunk: Bytes) -> Bytes {
        if chunk.len() < LARGE_FRAME_BYTES {
            return chunk;
        }
        self.enlist();
        let reserved = Arc::new(self.memory.0.frames.charge(chunk.len()));
        Bytes::from_owner(HeldFrame::new(Held::Joined(chunk), &self.holdings, reserved))
    }

    /// Lists the holdings among those that may be cut.
    fn enlist(&mut self) {
        if !std::mem::replace(&mut self.is_listed, true) {
            self.memory.0.holders.lock().insert(self.holdings.id, Arc::clone(&self.holdings));
        }
    }

    /// Counts the small frames of a queue, which are never refused, as held by this watch.
    pub(crate) fn hold_queued(&mut self, bytes: usize) {
        let before = self.queued.bytes();
        self.queued.charge_to(bytes);
        if bytes > before {
            self.enlist();
            self.holdings.add(bytes - before);
        } else {
            self.holdings.remove(before - bytes);
        }
    }

    /// Whether the watch was cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.holdings.cut.is_raised()
    }

    /// Tells the sender of the response that the watch is cut.
    pub(crate) fn cut_signal(&self) -> CutSignal {
        self.holdings.cut.clone()
    }
}

impl Drop for WatchAccount {
    fn drop(&mut self) {
        if self.is_listed {
            self.memory.0.holders.lock().remove(&self.holdings.id);
        }
    }
}

/// The frames that one watch has given to its client, and the client has not taken.
#[derive(Debug)]
struct WatchHoldings {
    id: u64,
    user: Arc<str>,
    clock: Clock,
    bytes: AtomicUsize,
    /// When it began to hold something, or the client last took something, in microseconds.
    taken_at: AtomicU64,
    cut: CutSignal,
}

impl WatchHoldings {
    fn add(&self, bytes: usize) {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.note_progress();
        }
    }

    fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.note_progress();
    }

    fn note_progress(&self) {
        let now = self.clock.moment().since(Moment::default());
        self.taken_at.store(u64::try_from(now.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long its client has read nothing.
    fn unread_for(&self, now: Moment) -> Duration {
        now.since(Moment::default().plus(Duration::from_micros(self.taken_at.load(Ordering::Relaxed))))
    }
}

/// The bytes of a held frame.
enum Held {
    /// A frame that others may hold as well.
    Shared(Arc<LargeFrame>),
    /// Several frames in one piece.
    Joined(Bytes),
}

/// Bytes that a watch holds, and their share of the memory.
struct HeldFrame {
    held: Held,
    holdings: Arc<WatchHoldings>,
    _reserved: Arc<Reservation>,
}

impl HeldFrame {
    fn new(held: Held, holdings: &Arc<WatchHoldings>, reserved: Arc<Reservation>) -> HeldFrame {
        let frame = HeldFrame { held, holdings: Arc::clone(holdings), _reserved: reserved };
        holdings.add(frame.as_ref().len());
        frame
    }
}

impl AsRef<[u8]> for HeldFrame {
    fn as_ref(&self) -> &[u8] {
        match &self.held {
            Held::Shared(frame) => frame.bytes(),
            Held::Joined(bytes) => bytes,
        }
    }
}

impl Drop for HeldFrame {
    fn drop(&mut self) {
        self.holdings.remove(self.as_ref().len());
    }
}

/// Tells the sender of a response, or the server of a connection, to stop at once and drop its buffers.
#[derive(Clone, Debug, Default)]
pub struct CutSignal(Arc<Cut>);

#[derive(Debug, Default)]
struct Cut {
    is_raised: AtomicBool,
    waker: AtomicWaker,
}

impl CutSignal {
    /// Cuts the response.
    pub fn raise(&self) {
        self.0.is_raised.store(true, Ordering::SeqCst);
        self.0.waker.wake();
    }

    /// Whether the response is cut.
    pub fn is_raised(&self) -> bool {
        self.0.is_raised.load(Ordering::SeqCst)
    }

    /// Ready when the response is cut. One task may wait at a time.
    pub fn poll_raised(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.waker.register(cx.waker());
        if self.is_raised() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Future for CutSignal {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_raised(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use pilothouse_types::clock::Timestamp;
    use pilothouse_types::frame::Frame;

    use super::*;

    const FRAME: usize = 1 << 20;
    const FRAMES: usize = 8;

    fn memory(watches_per_user: usize) -> (WatchMemory, Clock) {
        let clock = Clock::manual(Timestamp(1_000_000));
        let (open, frames) = (MemoryBudget::standalone(1 << 30), MemoryBudget::standalone(FRAMES * FRAME));
        (WatchMemory::new(open, frames, watches_per_user, clock.clone()), clock)
    }

    fn large_frame() -> Arc<LargeFrame> {
        match Frame::from(Bytes::from(vec![b'x'; FRAME])) {
            Frame::Large(frame) => frame,
            Frame::Small(_) => panic!("a frame of {FRAME} bytes is large"),
        }
    }

    fn frame(account: &mut WatchAccount) -> Option<Bytes> {
        account.may_make(FRAME).ok()?;
        account.hold(large_frame()).ok()
    }

    #[test]
    fn watches_are_limited_per_user() {
        let (memory, _) = memory(2);
        let held: Vec<WatchAccount> = (0..3).filter_map(|_| memory.open("one").ok()).collect();
        assert_eq!(held.len(), 2);
        assert!(memory.open("other").is_ok());
        drop(held);
        assert!(memory.open("one").is_ok());
        assert_eq!(memory.0.open.bytes(), 0);
    }

    #[test]
    fn relief_cuts_unread_watches_of_the_largest_user_only() {
        let (memory, clock) = memory(usize::MAX);
        let mut greedy: Vec<WatchAccount> = (0..5).map(|_| memory.open("greedy").unwrap()).collect();
        let mut modest = memory.open("modest").unwrap();
        let mut reader = memory.open("greedy").unwrap();
        let unread: Vec<Bytes> = greedy.iter_mut().filter_map(frame).collect();
        let modest_frame = frame(&mut modest).unwrap();
        let _read: Vec<Bytes> = (0..2).filter_map(|_| frame(&mut reader)).collect();
        assert_eq!(memory.0.frames.bytes(), FRAMES * FRAME);
        assert!(frame(&mut modest).is_none(), "full, and nobody has been idle for long");
        assert_eq!(memory.cut(), 0);

        clock.advance(UNREAD_BEFORE_CUT);
        reader.holdings.note_progress();
        assert!(frame(&mut modest).is_none());
        assert_eq!(memory.cut(), 1, "an eighth is enough");
        let is_cut = |account: &WatchAccount| account.cut_signal().now_or_never().is_some();
        let cut: Vec<bool> = greedy.iter().map(is_cut).collect();
        assert_eq!(cut.iter().filter(|cut| **cut).count(), 1);
        assert!(modest.cut_signal().now_or_never().is_none() && reader.cut_signal().now_or_never().is_none());
        // The sender of a watch that is cut drops its buffers.
        drop(unread);
        assert!(frame(&mut modest).is_some());
        drop(modest_frame);
    }

    #[test]
    fn watch_with_queued_small_frames_can_be_cut() {
        let (memory, clock) = memory(usize::MAX);
        let mut unread = memory.open("greedy").unwrap();
        unread.hold_queued(FRAMES * FRAME);
        clock.advance(UNREAD_BEFORE_CUT);
        assert!(frame(&mut memory.open("modest").unwrap()).is_none());
        assert!(memory.cut() == 1 && unread.cut_signal().now_or_never().is_some());
        unread.hold_queued(0);
        assert_eq!((memory.0.frames.bytes(), unread.holdings.bytes.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn shared_frame_counts_once() {
        let (memory, _) = memory(usize::MAX);
        let mut watches: Vec<WatchAccount> = (0..100).map(|_| memory.open("one").unwrap()).collect();
        let shared = large_frame();
        let held: Vec<Bytes> =
            watches.iter_mut().filter_map(|watch| watch.hold(Arc::clone(&shared)).ok()).collect();
        assert_eq!(held.len(), watches.len());
        assert_eq!(memory.0.frames.bytes(), FRAME);
        drop(held);
        assert_eq!(memory.0.frames.bytes(), 0);
    }
}
