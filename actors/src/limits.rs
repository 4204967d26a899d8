//! Every bound of this crate, by name, with its reason. `docs/queues.md` says what happens when one is reached.

use std::time::Duration;

/// Commands that may wait for one store through one handle. The permits bound their total: a store handles several hundred
/// thousand turns a second, so a longer queue would only add latency.
pub const STORE_MAILBOX: usize = 1_024;
/// Writes that may wait for an earlier write of the same key. Further writers of a hot key get a 429.
pub const WRITES_WAITING_PER_KEY: usize = 128;
/// Requests that may wait for their turn at one object. Further writers try without a turn.
pub const TURNS_WAITING_PER_KEY: usize = 1_024;
/// Writes that the committer may hold for all stores together.
pub const COMMITTER_WRITES: usize = 8_192;
/// Bytes that the committer may hold for all stores together.
pub const COMMITTER_BYTES: usize = 32 << 20;
/// Commands that may wait for the committer: more than [`COMMITTER_WRITES`], so that a write with a place always fits.
pub const COMMITTER_MAILBOX: usize = 2 * COMMITTER_WRITES;
/// The size of one object. It must fit into one batch; request bodies are bounded below it.
pub const RECORD_BYTES: usize = BATCH_BYTES;
/// Writes in one durable batch: enough to share the sync, few enough that nobody waits long.
pub const BATCH_WRITES: usize = 256;
/// Bytes in one durable batch.
pub const BATCH_BYTES: usize = 4 << 20;
/// Objects of a stopped store that are read together, and the bytes of their records with which no more are: a page of a copy.
pub const LIVE_PAGE_OBJECTS: usize = 256;
/// See [`LIVE_PAGE_OBJECTS`].
pub const LIVE_PAGE_BYTES: usize = 4 << 20;
/// Superseded records that one batch may remove besides its writes, so that trimming never makes a write wait.
pub const TRIM_PER_BATCH: usize = 512;
/// Superseded records that a batch may remove for each of its writes. A write frees at most two, so trimming keeps up, and a
/// single write does not pay for a backlog.
pub const TRIM_PER_WRITE: usize = 4;
/// How often stores expire old history, and how often the committer checks whether it is idle; if so, it trims and settles.
pub const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// Superseded records that may wait for removal before stores stop to expire events. See `trim_queue.rs` for exceptions.
pub const TRIM_WAITING: usize = 1 << 20;
/// With less room than this on a disk of this size, or within a quota, writes that let the store grow are refused: 16 MiB, or a
/// sixteenth of what is smaller than that.
pub fn full_mark(total_bytes: u64) -> u64 {
    (16 << 20).min(total_bytes / 16)
}
/// The room counts as low when it is less than this many times the mark for full.
pub const SPACE_LOW_FACTOR: u64 = 4;
/// A batch of so many bytes may use the reserve on the disk. While the disk is full, batches are not larger, unless by one large write.
pub const RESERVED_BATCH_BYTES: usize = 128 << 10;
/// Points of the log that are kept of each type to say how old its objects are, and how far they are apart at first.
pub const WRITE_TIME_POINTS: usize = 512;
/// The time between two such points, as long as they are not too many.
pub const WRITE_TIME_STEP: Duration = Duration::from_secs(60);
/// The most rounds of idle work, one a [`HOUSEKEEPING_INTERVAL`], that are left out while the disk is full.
pub const IDLE_PAUSE_ROUNDS: u32 = 64;
/// How often a write that needs no more space begins again when it was undone on account of others that do: each time the file of the
/// store is opened again.
pub const FULL_DISK_REPEATS: u32 = 3;
/// The reserve on the disk is restored when the disk has this many times its size.
pub const RESERVE_MIN_FREE_FACTOR: u64 = 4;
/// By how many bytes an object may still grow when the store is full: enough for a deletion timestamp, a condition or a renewed lease.
pub const GROWTH_WHEN_FULL: usize = 1 << 10;
/// The largest page of a damaged store that is read: larger than a record of [`RECORD_BYTES`] needs. A damaged reference may name any.
pub const SALVAGE_PAGE_BYTES: u64 = 64 << 20;
/// The depth to which trees of a damaged store are read. redb itself reads none that is deeper.
pub const SALVAGE_DEPTH: usize = 128;
/// How long a superseded version stays readable and watchable.
pub const HISTORY: Duration = Duration::from_secs(300);
/// Bytes of superseded versions of all types that the log keeps for the history.
pub const HISTORY_BYTES: u64 = 1 << 30;
/// One type may have this part of them.
pub const HISTORY_PER_TYPE_DIVISOR: u64 = 8;
/// Bytes of superseded versions that a type may always have, so that a short interruption of a watch costs no relist.
pub const HISTORY_LEAST_BYTES: u64 = 256 << 10;
/// Events that a store expires in one turn, so that readers do not wait for it.
pub const EXPIRE_PER_TURN: usize = 4_096;
/// Bytes of history that one type keeps in memory; beyond that the oldest events leave early.
pub const WINDOW_BYTES: usize = 64 << 20;
/// Events that a type may keep in memory, whatever `--watch-cache-sizes` says: the watches of busy types should not read the disk.
pub const WINDOW_LEAST_EVENTS: usize = 100;
/// How long events stay in memory that cannot be read again, whatever that flag says. Both are the reference's values.
pub const EVENTS_STAY: Duration = Duration::from_secs(75);
/// Events of one type that only the log holds, remembered with 40 bytes each; beyond that the oldest are dropped early.
pub const ARCHIVED_EVENTS: usize = 1 << 20;
/// Bytes of objects that one read from the log returns.
pub const ARCHIVE_READ_BYTES: usize = SESSION_BYTES;
/// Reads from the log that are cached per type, for other watches that are equally late.
pub const ARCHIVE_READS_CACHED: usize = 2;
/// Concurrent reads from the log: enough for a disk, few enough that many late watches do not take all threads.
pub const ARCHIVE_READERS: usize = 2;
/// Concurrent reads of older states of a type from a shared log. Each reads all objects of the type.
pub const PAST_READERS: usize = 2;
/// Objects of such a state that are taken over in one turn of a thread.
pub const PAST_OBJECTS_PER_TURN: usize = 512;
/// Snapshots at older revisions that one type keeps for chunked lists.
pub const CHECKPOINTS: usize = 16;
/// Those among them that were read from a shared log.
pub const PAST_CHECKPOINTS: usize = 2;
/// Bytes of objects that such snapshots may hold besides the window.
pub const CHECKPOINT_BYTES: usize = 16 << 20;
/// The pause between two groups of watches that are closed one after the other.
pub const CLOSING_PAUSE: Duration = Duration::from_millis(50);
/// Watches of such a group, if there are few of them: 200 a second for each worker, where the reference ends as many in all.
pub const CLOSED_AT_ONCE: usize = 10;
/// Cached frames of one event. Watches in further forms encode theirs anew.
pub const FRAMES_CACHED: usize = 4;
/// Bytes that a watch session buffers for a client that does not read. Then it stops.
pub const SESSION_BYTES: usize = 256 << 10;
/// Events that a session handles in one turn, so that a busy session does not block its thread.
pub const SESSION_EVENTS_PER_TURN: usize = 256;
/// Larger objects are encoded by other threads, unless encoding is a plain copy.
pub const ENCODED_ASYNC_BYTES: usize = 128 << 10;
/// Bytes of an object that count as one more event of a turn: also if little of a large object is sent, encoding it takes long.
pub const SESSION_BYTES_PER_EVENT: usize = 2 << 10;
/// Announced events after which a session that takes none of them counts as stalled.
pub const STALLED_AFTER_EVENTS: usize = 64;
/// Small frames are joined up to this many bytes: a chunk each would cost a socket write each.
pub const FEED_CHUNK_BYTES: usize = 64 << 10;
/// The memory of an idle watch: its session, the state of its stream, its entry in the index of watchers.
pub const WATCH_BYTES: usize = 8 << 10;
/// How long a client must have read nothing before its watch may be cut in favour of others.
pub const UNREAD_BEFORE_CUT: Duration = Duration::from_secs(1);
/// How often watches may be cut, so that the first ones have given back their memory before others follow.
pub const RELIEF_INTERVAL: Duration = Duration::from_millis(50);
/// How long a session that found no memory waits before it tries again.
pub const MEMORY_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of unread frames of all watches, without a memory limit.
pub const WATCH_FRAMES_BYTES: usize = 256 << 20;
/// Bytes of history that all types together keep in memory, without a memory limit.
pub const WINDOWS_BYTES: usize = 512 << 20;
/// Bytes of history that a type may keep even if all types together have too much: a quiet type must not lose its history to a busy
/// one, and none may lose its newest events.
pub const WINDOW_LEAST_BYTES: usize = 1 << 20;
/// Gaps that a window tells apart. With more, the oldest two become one, and whoever stands between them has to list again.
pub const WINDOW_GAPS: usize = 64;
/// Bytes of cached encodings of all objects, without a memory limit.
pub const ENCODINGS_BYTES: usize = 1 << 30;
/// How often a session that wants bookmarks gets one.
pub const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// The number of slots over which bookmarks are spread, so that sessions do not all wake at once.
pub const BOOKMARK_SLOTS: u32 = 60;
/// Events of one type that a broadcaster handles in one turn, so that a burst does not block its thread.
pub const BROADCAST_EVENTS_PER_TURN: usize = 1_024;
/// Sessions that a broadcaster wakes before other tasks of its thread run: about a millisecond of work.
pub const WAKES_PER_TURN: usize = 64;
/// How long a type pauses per woken session, even if no event waits: about the cost of a wake, so that some hundreds of sessions
/// that see every change take at most half of a thread.
pub const PAUSE_PER_WAKE: Duration = Duration::from_micros(20);
/// The longest pause of a type. Longer ones did not make events cheaper, and they delay events.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// Commands that may wait for a broadcaster.
pub const BROADCASTER_MAILBOX: usize = 1_024;
/// Commands that may wait for an authenticator or authorizer.
pub const AUTH_MAILBOX: usize = 1_024;
/// Commands that may wait for an allocator of ports or addresses. Each carries the permit of a write.
pub const ALLOCATOR_MAILBOX: usize = 1_024;
/// Commands that may wait while a record is written which servers share. Each carries the permit of a write; further ones get a 429.
pub const RANGE_COMMANDS_WAITING: usize = 4_096;
/// Commands that are decided together, so that no write of the record takes long; the rest waits for the next one.
pub const RANGE_ROUND_COMMANDS: usize = 256;
/// How often they are decided again because another server has changed the record. Each time another server has got something done.
pub const RANGE_ROUND_ATTEMPTS: usize = 32;
/// Commands that may wait for a batcher. Each carries the permit of a write.
pub const BATCHER_MAILBOX: usize = 1_024;
/// Items of one round, so that none takes long; the rest forms the next round.
pub const BATCHER_ITEMS: usize = 256;
/// Commands that may wait for the rate limiter. Each carries the permit of a write.
pub const RATES_MAILBOX: usize = 1_024;
/// Requests that may wait for a seat of one priority level, whatever its configuration. Such a request holds only its head: its
/// body is not read yet.
pub const REQUESTS_WAITING_PER_LEVEL: usize = 16_384;
/// Commands that may wait for the directory.
pub const DIRECTORY_MAILBOX: usize = 1_024;
/// How often the time of the log is noted while no writes come.
pub const LOG_TIME_INTERVAL: Duration = Duration::from_secs(60);
/// For how long after the last write it is noted.
pub const LOG_TIME_NOTED_FOR: Duration = Duration::from_secs(3_600);
/// The cache of redb. Its own default is 1 GiB; reads never go to disk here, so the cache only serves commits.
pub const REDB_CACHE_BYTES: usize = 8 << 20;
/// Files that take less of the disk are never compacted: it would not be worth the time.
pub const COMPACTION_MIN_BYTES: u64 = 16 << 20;
/// A file is compacted if it takes more than this many times the bytes of its records. The more is free, the less time it takes.
pub const COMPACTION_MIN_RATIO: u64 = 4;
/// A store with more bytes of records is not compacted while it runs: writes would have to wait for more than some seconds.
pub const COMPACTION_MAX_RECORD_BYTES: u64 = 256 << 20;
/// For each of these bytes of records, one more second without writes must have passed: about ten times as long as it takes.
pub const COMPACTION_BYTES_PER_QUIET_SECOND: u64 = 4 << 20;

/// By how much a clock must have gone back to count as set back. Smaller steps are normal clock corrections.
pub const CLOCK_SET_BACK: Duration = Duration::from_secs(1);
/// How often a store proposes a write to a shared log that was refused for a state which has changed again. Then the client gets a 429.
pub const PROPOSAL_ATTEMPTS: u32 = 5;
/// Readers of a type that may wait until the state is recent enough. Further ones get a 429.
pub const READERS_WAITING: usize = 1 << 16;
/// Types that wait to be added or removed. Whoever adds a further one waits for a place.
pub const TYPE_CHANGES_WAITING: usize = 64;
/// How long a reader waits for changes that a shared log certainly has. Then it gets a 503.
pub const BARRIER_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of changes that wait while the objects of their type are read. With more, the objects are read again.
pub const LOADING_BYTES: usize = 16 << 20;
/// Bytes of changes of a shared log that are held until they are decoded, or that stores may not have applied yet. Above that, the log
/// is followed no further, and it keeps the rest.
pub const UNAPPLIED_BYTES: usize = 64 << 20;
/// Objects of a shared log that are decoded together at the start. With more, all processors decode them.
pub const DECODED_TOGETHER: usize = 4096;
/// How long to wait before a shared log is followed again, when it could not be.
pub const FOLLOW_PAUSE: Duration = Duration::from_millis(250);
