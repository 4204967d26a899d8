//! Profiles of processor time: the `pprof` crate interrupts the running threads a hundred times a second and walks their stacks.
//!
//! Everything but the wait happens on a thread of its own: naming the functions of all stacks takes long. The crate keeps its table of
//! stacks for the rest of the process, so the first profile reserves that memory for good.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pilothouse_types::clock::Clock;
use pilothouse_types::lock::Lock;
use pilothouse_types::memory::{MemoryBudget, MemoryLedger, Reservation};
use pprof::{Frames, ProfilerGuard, ProfilerGuardBuilder};
use tokio::sync::{Semaphore, oneshot};

use super::builder::{Frame, ProfileBuilder};
use super::profile_proto::Profile;
use crate::limits::{CPU_PROFILE_FREQUENCY, CPU_PROFILER_BYTES};

/// Stacks are not walked that begin in these libraries, as the crate advises: the walk itself uses them, and could wait for a lock
/// that the interrupted thread holds.
const SKIPPED_LIBRARIES: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// Why there is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuProfileError {
    /// Another one is being recorded.
    #[error("cpu profiling already in use")]
    Busy,
    /// The server has no memory for the stacks.
    #[error("the server has no memory for a profile at the moment")]
    NoMemory,
    /// The profiler does not work here.
    #[error("{0}")]
    Unavailable(String),
}

impl CpuProfileError {
    fn unavailable(error: &impl ToString) -> CpuProfileError {
        CpuProfileError::Unavailable(error.to_string())
    }
}

/// Records one profile at a time.
pub(super) struct CpuProfiler {
    slot: Arc<Semaphore>,
    memory: MemoryBudget,
    /// What the table of stacks takes, from the first profile on. While one is recorded, it takes as much again: the table for the next
    /// one is made before that of this one is dropped.
    reserved: Lock<Option<Reservation>>,
}

impl CpuProfiler {
    pub(super) fn new(ledger: &MemoryLedger) -> CpuProfiler {
        CpuProfiler {
            slot: Arc::new(Semaphore::new(1)),
            memory: ledger.steady("cpu_profiler", 2 * CPU_PROFILER_BYTES),
            reserved: Lock::default(),
        }
    }

    /// Records for so many seconds, or until the future is dropped.
    pub(super) async fn record(&self, seconds: u64, clock: &Clock) -> Result<Profile, CpuProfileError> {
        let slot = Arc::clone(&self.slot).try_acquire_owned().map_err(|_| CpuProfileError::Busy)?;
        self.reserve()?;
        let next_table = self.memory.take(CPU_PROFILER_BYTES).map_err(|_| CpuProfileError::NoMemory)?;
        let (profile_sender, profile) = oneshot::channel();
        let (caller, caller_gone) = mpsc::channel::<Infallible>();
        let (length, clock) = (Duration::from_secs(seconds), clock.clone());
        let work = move || {
            let (_slot, _next_table) = (slot, next_table);
            let result = record_until(length, &caller_gone, &clock);
            // The client may be gone.
            let _gone = profile_sender.send(result);
        };
        let spawned = thread::Builder::new().name("cpu-profile".to_owned()).spawn(work);
        spawned.map_err(|error| CpuProfileError::unavailable(&error))?;
        let result = profile.await.map_err(|error| CpuProfileError::unavailable(&error))?;
        drop(caller);
        result
    }

    fn reserve(&self) -> Result<(), CpuProfileError> {
        let mut reserved = self.reserved.lock();
        if reserved.is_none() {
            *reserved = Some(self.memory.take(CPU_PROFILER_BYTES).map_err(|_| CpuProfileError::NoMemory)?);
        }
        Ok(())
    }
}

fn record_until(
    length: Duration,
    caller_gone: &mpsc::Receiver<Infallible>,
    clock: &Clock,
) -> Result<Profile, CpuProfileError> {
    let (begin, begin_moment) = (clock.now(), clock.moment());
    let guard = ProfilerGuardBuilder::default()
        .frequency(CPU_PROFILE_FREQUENCY)
        .blocklist(&SKIPPED_LIBRARIES)
        .build()
        .map_err(|error| CpuProfileError::unavailable(&error))?;
    // Nothing is ever sent: this ends after the time, or when the caller is dropped.
    if caller_gone.recv_timeout(length) == Err(RecvTimeoutError::Disconnected) {
        return Err(CpuProfileError::Unavailable("the client is gone".to_owned()));
    }
    let elapsed = clock.elapsed(begin_moment);
    let stacks = stacks(guard)?;
    let mut builder = ProfileBuilder::new(&[("samples", "count"), ("cpu", "nanoseconds")], begin);
    let period = 1_000_000_000 / i64::from(CPU_PROFILE_FREQUENCY);
    builder.set_period("cpu", "nanoseconds", period, elapsed);
    builder.add_comment("without the time in the C library and in the kernel");
    for ((thread, stack), count) in stacks {
        builder.add(&stack, &[count, count.saturating_mul(period)], &[("thread", &thread)]);
    }
    Ok(builder.finish())
}

/// The name of a thread and the stack that it had, with the number of times.
type CountedStacks = HashMap<(String, Vec<Frame>), i64>;

/// The stacks so far. Sampling ends before their functions are looked up.
fn stacks(guard: ProfilerGuard<'_>) -> Result<CountedStacks, CpuProfileError> {
    let report = guard.report().build_unresolved().map_err(|error| CpuProfileError::unavailable(&error))?;
    drop(guard);
    let mut stacks = CountedStacks::new();
    for (unresolved, count) in report.data {
        let Frames { frames, thread_name, .. } = Frames::from(unresolved);
        let frames = frames.iter().flatten().map(|symbol| Frame {
            function: symbol.name(),
            file: symbol.filename.as_ref().map(|file| file.display().to_string()).unwrap_or_default(),
            line: symbol.lineno(),
        });
        let stack = frames.skip_while(|frame| is_of_profiler(&frame.function)).collect();
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        *stacks.entry((thread_name, stack)).or_default() += count;
    }
    Ok(stacks)
}

/// Whether a function walks the stack. Optimized builds have none of them as frames of their own.
fn is_of_profiler(function: &str) -> bool {
    let path = function.trim_start_matches('<');
    path.starts_with("backtrace::") || path.starts_with("pprof::")
}
