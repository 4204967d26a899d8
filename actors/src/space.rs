//! How much room the store has left, and what is refused when it has too little.
//!
//! Refusing growth early keeps the last bytes for what frees space: deletions, and the small updates that lead to them, such as the
//! removal of a finalizer. The committer measures; the stores ask before they accept a write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::engine::Stats;
use crate::limits::{SPACE_LOW_FACTOR, full_mark};

/// How much room is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SpaceLevel {
    /// Enough.
    #[default]
    Ample,
    /// Somebody should look: history is kept short, so that objects have the rest.
    Low,
    /// Writes that let the store grow are refused.
    Full,
}

impl SpaceLevel {
    /// The level as metrics and logs name it.
    pub fn as_str(self) -> &'static str {
        match self {
            SpaceLevel::Ample => "ample",
            SpaceLevel::Low => "low",
            SpaceLevel::Full => "full",
        }
    }
}

/// The level of a store, shared by those who ask for it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Space(Arc<AtomicU8>);

impl Space {
    /// The present level.
    pub fn level(&self) -> SpaceLevel {
        match self.0.load(Ordering::Relaxed) {
            0 => SpaceLevel::Ample,
            1 => SpaceLevel::Low,
            _ => SpaceLevel::Full,
        }
    }

    /// Whether writes that let the store grow are refused.
    pub fn is_full(&self) -> bool {
        self.level() == SpaceLevel::Full
    }

    /// Sets the level and returns the one before.
    pub(crate) fn set(&self, level: SpaceLevel) -> SpaceLevel {
        let before = self.level();
        self.0.store(level as u8, Ordering::Relaxed);
        before
    }
}

/// The marks at which the level changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceLimits {
    /// The most bytes that all records may take; `None` without a quota.
    pub quota_bytes: Option<u64>,
}

impl SpaceLimits {
    /// The level of a store of this size. A level is left only when there is a little more room than where it began, so that it does
    /// not change with every write.
    pub(crate) fn level(self, stats: &Stats, present: SpaceLevel) -> SpaceLevel {
        let margins = [self.disk_margin(stats), self.quota_margin(stats)];
        margins.into_iter().flatten().map(|margin| margin.level(present)).max().unwrap_or_default()
    }

    fn disk_margin(self, stats: &Stats) -> Option<Margin> {
        let disk = stats.disk?;
        let full = full_mark(disk.total_bytes);
        // Pages of the file that are free can be used again, although the disk does not count them.
        let reusable = disk.file_bytes.saturating_sub(stats.record_bytes + stats.record_bytes / 4);
        let free = disk.free_bytes.saturating_sub(disk.kept_bytes);
        Some(Margin { left: free.saturating_add(reusable), full, low: full * SPACE_LOW_FACTOR })
    }

    fn quota_margin(self, stats: &Stats) -> Option<Margin> {
        let quota = self.quota_bytes?;
        let left = quota.saturating_sub(stats.record_bytes);
        // A record that fits must not exceed the quota by much.
        let full = full_mark(quota);
        Some(Margin { left, full, low: full * SPACE_LOW_FACTOR })
    }
}

/// The room that is left of one resource.
struct Margin {
    left: u64,
    /// With less, the store is full.
    full: u64,
    /// With less, the room is low.
    low: u64,
}

impl Margin {
    fn level(&self, present: SpaceLevel) -> SpaceLevel {
        let is_below = |mark: u64, level: SpaceLevel| {
            let mark = if present >= level { mark + mark / 4 } else { mark };
            self.left < mark
        };
        if is_below(self.full, SpaceLevel::Full) {
            SpaceLevel::Full
        } else if is_below(self.low, SpaceLevel::Low) {
            SpaceLevel::Low
        } else {
            SpaceLevel::Ample
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Disk;

    const MIB: u64 = 1 << 20;

    fn level(free: u64, file: u64, records: u64, present: SpaceLevel) -> SpaceLevel {
        level_with(0, free, file, records, present)
    }

    fn level_with(kept: u64, free: u64, file: u64, records: u64, present: SpaceLevel) -> SpaceLevel {
        let disk = Disk {
            free_bytes: free * MIB,
            total_bytes: 64 * MIB,
            file_bytes: file * MIB,
            kept_bytes: kept * MIB,
        };
        let stats = Stats { records: 1, file_bytes: 0, record_bytes: records * MIB, disk: Some(disk) };
        SpaceLimits::default().level(&stats, present)
    }

    #[test]
    fn space_that_is_kept_for_deletions_is_no_room() {
        assert_eq!(level(7, 10, 8, SpaceLevel::Full), SpaceLevel::Low);
        assert_eq!(level_with(4, 7, 10, 8, SpaceLevel::Full), SpaceLevel::Full);
        assert_eq!(level_with(4, 9, 10, 8, SpaceLevel::Full), SpaceLevel::Low);
        assert_eq!(
            level_with(4, 2, 40, 8, SpaceLevel::Ample),
            SpaceLevel::Ample,
            "30 MiB of the file are free"
        );
    }

    #[test]
    fn level_counts_free_pages_of_the_file_as_room() {
        assert_eq!(level(40, 10, 8, SpaceLevel::Ample), SpaceLevel::Ample);
        assert_eq!(level(10, 10, 8, SpaceLevel::Ample), SpaceLevel::Low);
        assert_eq!(level(3, 10, 8, SpaceLevel::Ample), SpaceLevel::Full);
        assert_eq!(level(3, 40, 8, SpaceLevel::Ample), SpaceLevel::Ample, "30 MiB of the file are free");
    }

    #[test]
    fn level_is_left_only_with_some_more_room() {
        assert_eq!(level(4, 10, 8, SpaceLevel::Low), SpaceLevel::Low);
        assert_eq!(level(4, 10, 8, SpaceLevel::Full), SpaceLevel::Full);
        assert_eq!(level(5, 10, 8, SpaceLevel::Full), SpaceLevel::Low);
        assert_eq!(level(16, 10, 8, SpaceLevel::Low), SpaceLevel::Low);
        assert_eq!(level(20, 10, 8, SpaceLevel::Low), SpaceLevel::Ample);
    }

    #[test]
    fn quota_bounds_the_bytes_of_records() {
        let limits = SpaceLimits { quota_bytes: Some(64 * MIB) };
        let level = |records: u64| {
            let stats = Stats { records: 1, file_bytes: 0, record_bytes: records * MIB, disk: None };
            limits.level(&stats, SpaceLevel::Ample)
        };
        assert_eq!([level(0), level(50), level(61), level(99)], {
            use SpaceLevel::{Ample, Full, Low};
            [Ample, Low, Full, Full]
        });
    }
}
