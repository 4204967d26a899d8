//! Every bound of this crate, by name, with its reason. `docs/queues.md` says what happens when one is reached.

use std::time::Duration;

/// Commands that may wait for one store through one handle. What bounds them all is the permit that each carries: a store
/// handles several hundred thousand turns a second, so a longer queue would only add latency.
pub const STORE_MAILBOX: usize = 1_024;
/// Writes that may wait for an earlier write of the same key. Writers of one hot key are asked to come back instead.
pub const WRITES_WAITING_PER_KEY: usize = 128;
/// Those who wait for their turn at one object. Past it a writer tries without one.
pub const TURNS_WAITING_PER_KEY: usize = 1_024;
/// Writes that the committer may hold for all stores together.
pub const COMMITTER_WRITES: usize = 8_192;
/// Bytes that the committer may hold for all stores together.
pub const COMMITTER_BYTES: usize = 32 << 20;
/// Commands that may wait for the committer: above [`COMMITTER_WRITES`], so that a write that got a place always gets in.
pub const COMMITTER_MAILBOX: usize = 2 * COMMITTER_WRITES;
/// Bytes of one object. It must fit into one batch; a request body is bounded below it.
pub const RECORD_BYTES: usize = BATCH_BYTES;
/// Writes in one durable batch: large enough that the sync is shared, small enough that nobody waits long for it.
pub const BATCH_WRITES: usize = 256;
/// Bytes in one durable batch.
pub const BATCH_BYTES: usize = 4 << 20;
/// Superseded records that one batch may remove besides its writes, so that trimming never makes a write wait.
pub const TRIM_PER_BATCH: usize = 512;
/// Superseded records that a batch may remove for each of its writes. A write frees at most two, so trimming keeps up,
/// and a lone write does not pay for a backlog.
pub const TRIM_PER_WRITE: usize = 4;
/// How often stores let go of what is older than the history, and how often the committer looks whether it is idle; then
/// it trims and settles.
pub const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(1);
/// Superseded records that may wait for removal in memory; more are found again by the scan at the next start.
pub const TRIM_WAITING: usize = 1 << 20;
/// How long a superseded version stays readable and watchable.
pub const HISTORY: Duration = Duration::from_secs(300);
/// Events that a store lets go of in one turn, so that readers do not wait for it.
pub const EXPIRE_PER_TURN: usize = 4_096;
/// Bytes of history that one type keeps in memory; past it the oldest events go early.
pub const WINDOW_BYTES: usize = 64 << 20;
/// Events of one type that only the log holds and that are remembered with 40 bytes each; past it the oldest go early.
pub const SHELVED_EVENTS: usize = 1 << 20;
/// Bytes of objects that one read from the log brings back.
pub const SHELF_BYTES: usize = SESSION_BYTES;
/// Reads from the log of one type whose events are kept for others who are as late.
pub const SHELF_READS_KEPT: usize = 2;
/// Reads from the log at a time: enough for a disk, few enough that a herd of late watches does not take all threads.
pub const SHELF_READERS: usize = 2;
/// States at older revisions that one type keeps for lists in chunks.
pub const CHECKPOINTS: usize = 16;
/// Bytes of objects that such states may hold besides what the window holds.
pub const CHECKPOINT_BYTES: usize = 16 << 20;
/// Other forms of one object version that are kept: other encodings, other versions. Whoever wants one more has it made
/// anew each time.
pub const VARIANTS_KEPT: usize = 4;
/// Frames of one event that are kept. Watches in more forms than that make theirs anew.
pub const FRAMES_KEPT: usize = 4;
/// Bytes that a watch session holds for a body that nobody reads. Then it stops pulling.
pub const SESSION_BYTES: usize = 256 << 10;
/// Events a session handles in one turn, so that one busy session does not hold its thread.
pub const SESSION_EVENTS_PER_TURN: usize = 256;
/// What may wait for a session: one wake, because all that it is asked to do stands on one note.
pub const SESSION_MAILBOX: usize = 1;
/// Small frames leave a session together, up to this many bytes: a chunk each would cost a write to the socket each.
pub const FEED_CHUNK_BYTES: usize = 64 << 10;
/// How often a session that wants bookmarks gets one.
pub const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Into how many moments the bookmarks of all sessions are spread, so that they do not all wake at once.
pub const BOOKMARK_SLOTS: u32 = 60;
/// Events of one type that a broadcaster handles in one turn, so that a burst does not hold its thread.
pub const BROADCAST_EVENTS_PER_TURN: usize = 1_024;
/// Sessions that a broadcaster calls before the other tasks of its thread have their turn: about a millisecond of work.
pub const CALLS_PER_TURN: usize = 64;
/// How long a type rests after its news, for each session that was called: about what a call costs, so that a crowd of some
/// hundreds that hears of every change takes half of a thread and no more.
pub const REST_PER_CALL: Duration = Duration::from_micros(20);
/// The most that a type rests once its crowd was called. More would make calls cheaper still, but clients that are told
/// more at once than they can read fall behind.
pub const LONGEST_REST: Duration = Duration::from_millis(10);
/// Commands that may wait for a broadcaster.
pub const BROADCASTER_MAILBOX: usize = 1_024;
/// Commands that may wait for an authenticator or authorizer.
pub const GUARD_MAILBOX: usize = 1_024;
/// Commands that may wait for the keeper of ports. Each carries the permit of a write.
pub const PORTS_MAILBOX: usize = 1_024;
/// Commands that may wait for a keeper of rounds. Each carries the permit of a write.
pub const ROUNDS_MAILBOX: usize = 1_024;
/// Items of one round, so that none takes long; the rest is the next round.
pub const ROUND_ITEMS: usize = 256;
/// Commands that may wait for the keeper of rates. Each carries the permit of a write.
pub const RATES_MAILBOX: usize = 1_024;
/// Requests that wait for a seat of one level of priority, whatever its configuration says. Such a request holds its head and
/// nothing else: its body is not read yet.
pub const REQUESTS_WAITING_PER_LEVEL: usize = 16_384;
/// Commands that may wait for the directory.
pub const DIRECTORY_MAILBOX: usize = 1_024;
/// What redb may cache. Its own default is 1 GiB; reads never go to disk here, so the cache only serves commits.
pub const REDB_CACHE_BYTES: usize = 8 << 20;

/// By how much a clock must have gone back to count as set back. Less is what clocks do by themselves.
pub const SET_BACK: Duration = Duration::from_secs(1);
