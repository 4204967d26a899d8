//! Human-readable durations: two units at most, and fewer for longer ones.

/// What a cell says of what cannot be told.
pub const UNKNOWN: &str = "<unknown>";

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// How much clocks of two machines may differ before a negative length is wrong, in seconds.
const CLOCK_SKEW: i64 = 1;

/// How long ago an instant was.
pub fn since(instant: Option<i64>, now: i64) -> String {
    instant.map_or_else(|| UNKNOWN.to_owned(), |then| length(now.saturating_sub(then)))
}

/// A length of time in seconds, as text.
pub fn length(seconds: i64) -> String {
    match seconds {
        _ if seconds < -CLOCK_SKEW => "<invalid>".to_owned(),
        _ if seconds < 0 => "0s".to_owned(),
        _ if seconds < 2 * MINUTE => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => two(seconds, (MINUTE, "m"), (1, "s")),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => two(seconds, (HOUR, "h"), (MINUTE, "m")),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(seconds, (DAY, "d"), (HOUR, "h")),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(seconds, (YEAR, "y"), (DAY, "d")),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// Two units, the second only if there is something of it.
fn two(seconds: i64, (long, of_long): (i64, &str), (short, of_short): (i64, &str)) -> String {
    let (longs, shorts) = (seconds / long, seconds % long / short);
    if shorts == 0 { format!("{longs}{of_long}") } else { format!("{longs}{of_long}{shorts}{of_short}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_lose_detail_as_they_grow() {
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
            assert_eq!(length(seconds), text, "{seconds}");
        }
        assert_eq!(since(None, 7), "<unknown>");
        assert_eq!(since(Some(i64::MIN), 7), length(i64::MAX));
    }
}
