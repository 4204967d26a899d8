//! Human-readable durations: two units at most, and fewer for longer ones.

/// The age of an object without a creation time.
pub const UNKNOWN: &str = "<unknown>";

/// A unit of time.
#[derive(Clone, Copy)]
struct Unit {
    seconds: i64,
    suffix: &'static str,
}

const SECONDS: Unit = Unit { seconds: 1, suffix: "s" };
const MINUTES: Unit = Unit { seconds: MINUTE, suffix: "m" };
const HOURS: Unit = Unit { seconds: HOUR, suffix: "h" };
const DAYS: Unit = Unit { seconds: DAY, suffix: "d" };
const YEARS: Unit = Unit { seconds: YEAR, suffix: "y" };

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Seconds by which clocks of two machines may differ before a negative duration is invalid.
const CLOCK_SKEW: i64 = 1;

/// How ages are written. Instants are Unix seconds.
#[derive(Clone, Copy, Debug)]
pub enum Ages {
    /// As they are at this instant.
    At(i64),
    /// Not at all: their instant stands between two [`AGE_MARK`]s, for texts that are kept while time goes on.
    Open,
}

/// What encloses the instant of an open age.
pub const AGE_MARK: char = '\0';

impl Ages {
    /// The time since an instant.
    pub fn since(self, instant: Option<i64>) -> String {
        match (self, instant) {
            (_, None) => UNKNOWN.to_owned(),
            (Ages::At(now), Some(then)) => format_duration(now.saturating_sub(then)),
            (Ages::Open, Some(then)) => format!("{AGE_MARK}{then}{AGE_MARK}"),
        }
    }
}

/// A duration in seconds, as text.
pub fn format_duration(seconds: i64) -> String {
    match seconds {
        _ if seconds < -CLOCK_SKEW => "<invalid>".to_owned(),
        _ if seconds < 0 => "0s".to_owned(),
        _ if seconds < 2 * MINUTE => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => two_units(seconds, MINUTES, SECONDS),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => two_units(seconds, HOURS, MINUTES),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two_units(seconds, DAYS, HOURS),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two_units(seconds, YEARS, DAYS),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// A duration in two units, without the second one if it is zero.
fn two_units(seconds: i64, long: Unit, short: Unit) -> String {
    let (longs, shorts) = (seconds / long.seconds, seconds % long.seconds / short.seconds);
    if shorts == 0 {
        format!("{longs}{}", long.suffix)
    } else {
        format!("{longs}{}{shorts}{}", long.suffix, short.suffix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_less_detail_the_longer_they_are() {
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (8 * HOUR - 1, "7h59m"),
            (8 * HOUR, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (8 * DAY - 1, "7d23h"),
            (8 * DAY, "8d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR, "2y"),
            (8 * YEAR - 1, "7y364d"),
            (8 * YEAR, "8y"),
            (i64::MAX, "292471208677y"),
        ] {
            assert_eq!(format_duration(seconds), text, "{seconds}");
        }
        let ages = Ages::At(7);
        assert_eq!(ages.since(None), "<unknown>");
        assert_eq!(ages.since(Some(i64::MIN)), format_duration(i64::MAX));
        assert_eq!(Ages::Open.since(None), "<unknown>");
    }
}
