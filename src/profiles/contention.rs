//! Where threads wait for locks, if `--contention-profiling` is on. All locks are those of `pilothouse_types::lock`.

use std::time::Duration;

use pilothouse_types::clock::Timestamp;
use pilothouse_types::contention;
pub use pilothouse_types::contention::LockKind;

use super::builder::{Frame, ProfileBuilder};
use super::profile_proto::Profile;

/// The waits for locks of these kinds since the start; empty if they are not measured.
pub(super) fn profile(kinds: &[LockKind], now: Timestamp) -> Profile {
    let mut builder = ProfileBuilder::new(&[("contentions", "count"), ("delay", "nanoseconds")], now);
    builder.set_period("contentions", "count", 1, Duration::ZERO);
    for (place, waits) in contention::waits().into_iter().filter(|(place, _)| kinds.contains(&place.kind)) {
        let function = format!("{} {}:{}", place.kind.name(), place.file, place.line);
        let frame = Frame { function, file: place.file.to_owned(), line: place.line };
        let delay = i64::try_from(waits.total.as_nanos()).unwrap_or(i64::MAX);
        builder.add(&[frame], &[i64::try_from(waits.count).unwrap_or(i64::MAX), delay], &[]);
    }
    builder.finish()
}
