//! Profiles of the running server, in the format of pprof: where its processor time goes, who holds its memory, and where threads wait
//! for locks. The pages are `http/handler/profiling.rs`.

pub mod builder;
pub mod contention;
pub mod cpu;
pub mod memory;
pub mod profile_proto;

use pilothouse_types::clock::Clock;
use pilothouse_types::memory::MemoryLedger;

use self::contention::LockKind;
use self::cpu::{CpuProfileError, CpuProfiler};
use self::profile_proto::Profile;

/// What profiles are made from.
pub struct Profiles {
    cpu: CpuProfiler,
    ledger: MemoryLedger,
    clock: Clock,
}

impl Profiles {
    /// Profiles of the server with this memory.
    pub fn new(ledger: MemoryLedger, clock: Clock) -> Profiles {
        Profiles { cpu: CpuProfiler::new(&ledger), ledger, clock }
    }

    /// Samples the processor time of all threads for so many seconds. Only one at a time.
    pub async fn cpu(&self, seconds: u64) -> Result<Profile, CpuProfileError> {
        self.cpu.record(seconds, &self.clock).await
    }

    /// Who holds memory now.
    pub fn memory(&self) -> Profile {
        memory::profile(&self.ledger, self.clock.now())
    }

    /// How long threads have waited for locks since the start.
    pub fn contention(&self, kinds: &[LockKind]) -> Profile {
        contention::profile(kinds, self.clock.now())
    }
}
