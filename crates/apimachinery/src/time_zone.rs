//! Time zones of the IANA database.

use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Whether a zone of this name exists. Case matters.
pub fn is_known(name: &str) -> bool {
    zone(name).is_some()
}

/// The offset of a zone from UTC in seconds, at a Unix time; `None` if there is no such zone.
pub fn offset(name: &str, unix_seconds: i64) -> Option<i64> {
    let zone = zone(name)?;
    // The last day of year 9999 is beyond the range of the library; its offsets are those of the day before.
    let seconds = unix_seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    let timestamp = Timestamp::from_second(seconds).ok()?;
    Some(i64::from(zone.to_offset(timestamp).seconds()))
}

fn zone(name: &str) -> Option<TimeZone> {
    // The database ignores case; the reference does not.
    DATABASE.get(name).ok().filter(|zone| zone.iana_name() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_zones_are_looked_up_by_exact_name() {
        let known =
            ["UTC", "GMT", "Etc/UTC", "Etc/GMT+5", "Europe/Paris", "US/Pacific", "EST", "Asia/Calcutta"];
        let unknown =
            ["", "utc", "europe/paris", "Mars/Base", "Z", "../etc/passwd", "Europe", "Etc/Unknown", "Local"];
        assert_eq!(known.map(is_known), [true; 8]);
        assert_eq!(unknown.map(is_known), [false; 9]);
    }

    #[test]
    fn time_zone_offset_depends_on_the_date() {
        let (january, july) = (1_704_067_200, 1_719_792_000);
        assert_eq!(offset("America/New_York", january), Some(-5 * 3600));
        assert_eq!(offset("America/New_York", july), Some(-4 * 3600));
        assert_eq!(offset("Asia/Kolkata", july), Some(19_800));
        // Before there were zones, and at both ends of the range of timestamps.
        assert_eq!(offset("Europe/Amsterdam", -5_000_000_000), offset("Europe/Amsterdam", -62_135_596_800));
        assert_eq!(offset("UTC", 253_402_300_799), Some(0));
        assert_eq!(offset("Mars/Base", january), None);
    }
}
