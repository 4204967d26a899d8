//! Timestamps and durations: parsing, formatting, arithmetic.

use std::num::IntErrorKind;

use base64::Engine as _;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::time_zone;

/// A timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

const SECOND: i128 = 1_000_000_000;
const FIRST_SECOND: i64 = -62_135_596_800;
const LAST_SECOND: i64 = 253_402_300_799;

impl Instant {
    /// 0001-01-01T00:00:00Z, Go's zero time.
    pub const ZERO: Instant = Instant { seconds: FIRST_SECOND, nanos: 0 };

    /// The timestamp at these Unix seconds, if its year is within 1 to 9999.
    pub fn from_unix(seconds: i64, nanos: u32) -> Option<Instant> {
        (FIRST_SECOND..=LAST_SECOND).contains(&seconds).then_some(Instant { seconds, nanos })
    }

    /// Parses RFC 3339.
    pub fn parse(text: &str) -> Result<Instant, String> {
        let seconds = time::parse_seconds(text)?;
        let fraction = text.get(19..).unwrap_or_default();
        let digits: String = match fraction.strip_prefix(['.', ',']) {
            Some(rest) => rest.chars().take_while(char::is_ascii_digit).take(9).collect(),
            None => String::new(),
        };
        let nanos = format!("{digits:0<9}").parse().unwrap_or(0);
        Instant::from_unix(seconds, nanos).ok_or_else(|| "timestamp overflow".to_owned())
    }

    /// Formats RFC 3339.
    pub fn to_rfc3339(self) -> String {
        let mut text = time::format_seconds(self.seconds);
        if self.nanos > 0 {
            text.pop();
            let digits = format!("{:09}", self.nanos);
            text = format!("{text}.{}Z", digits.trim_end_matches('0'));
        }
        text
    }

    /// Adds a duration in nanoseconds.
    pub fn plus(self, nanos: i128) -> Option<Instant> {
        let total_nanos = i128::from(self.seconds) * SECOND + i128::from(self.nanos) + nanos;
        let seconds = i64::try_from(total_nanos.div_euclid(SECOND)).ok()?;
        Instant::from_unix(seconds, u32::try_from(total_nanos.rem_euclid(SECOND)).ok()?)
    }

    /// The duration since another timestamp, in nanoseconds.
    pub fn since(self, other: Instant) -> Option<i64> {
        let seconds = i128::from(self.seconds) - i128::from(other.seconds);
        i64::try_from(seconds * SECOND + i128::from(self.nanos) - i128::from(other.nanos)).ok()
    }

    /// A component of the date or time, by the name of its CEL function, at this UTC offset in seconds.
    pub fn component(self, function: &str, utc_offset: i64) -> Option<i64> {
        const DAY: i64 = 86_400;
        let local = self.seconds + utc_offset;
        let (days, second_of_day) = (local.div_euclid(DAY), local.rem_euclid(DAY));
        let (year, month, day) = time::date(days);
        Some(match function {
            "getFullYear" => year,
            "getMonth" => month - 1,
            "getDayOfYear" => days - time::days(year, 1, 1),
            "getDayOfMonth" => day - 1,
            "getDate" => day,
            "getDayOfWeek" => (days + 4).rem_euclid(7),
            "getHours" => second_of_day / 3600,
            "getMinutes" => second_of_day / 60 % 60,
            "getSeconds" => second_of_day % 60,
            "getMilliseconds" => i64::from(self.nanos / 1_000_000),
            _ => return None,
        })
    }
}

/// The UTC offset in seconds at a timestamp, from an offset such as `-07:30` or an IANA time zone name.
pub fn offset(zone: &str, instant: Instant) -> Result<i64, String> {
    let Some((hours, minutes)) = zone.split_once(':') else {
        return match zone {
            "" | "UTC" | "Local" => Ok(0),
            _ if zone.contains("..") || zone.starts_with(['/', '\\']) => {
                Err("time: invalid location name".to_owned())
            }
            _ => time_zone::offset(zone, instant.seconds).ok_or_else(|| format!("unknown time zone {zone}")),
        };
    };
    let (hours, minutes) = (parse_integer(hours)?, parse_integer(minutes)?);
    let hours = hours.wrapping_mul(60);
    let total_minutes =
        if zone.starts_with('-') { hours.wrapping_sub(minutes) } else { hours.wrapping_add(minutes) };
    // The reference computes in nanoseconds, so an absurd offset wraps around.
    Ok(total_minutes.wrapping_mul(60_000_000_000) / 1_000_000_000)
}

fn parse_integer(text: &str) -> Result<i64, String> {
    let atoi_error = |reason| format!("strconv.Atoi: parsing {}: {reason}", quoted(text));
    text.parse::<i64>().map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => atoi_error("value out of range"),
        _ => atoi_error("invalid syntax"),
    })
}

const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3_600 * SECOND),
];

/// Parses a duration such as `1h30m` or `-1.5s`, in nanoseconds.
pub fn parse_duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quoted(text));
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total_nanos: i128 = 0;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(|| format!("time: missing unit in duration {}", quoted(text)))?;
        let (number, remaining) = rest.split_at(end);
        let end = remaining.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(remaining.len());
        let (unit, remaining) = remaining.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() > 19 {
            return Err(invalid());
        }
        let (_, unit_nanos) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| format!("time: unknown unit {} in duration {}", quoted(unit), quoted(text)))?;
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        let digits: String = fraction.chars().take(18).collect();
        let fraction_digits: i128 =
            if digits.is_empty() { 0 } else { digits.parse().map_err(|_| invalid())? };
        let scale = 10i128.pow(u32::try_from(digits.len()).unwrap_or(0));
        total_nanos += whole * unit_nanos + fraction_digits * unit_nanos / scale;
        rest = remaining;
    }
    i64::try_from(sign * total_nanos).map_err(|_| invalid())
}

/// Parses a duration of the schema format `duration`, which also allows `3 days` and `2 weeks`.
pub fn parse_lenient_duration(text: &str) -> Result<i64, String> {
    parse_duration(text).or_else(|error| {
        let mut total_nanos: i128 = 0;
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).filter(|end| *end > 0).ok_or(error.clone())?;
            let (number, remaining) = rest.split_at(end);
            let remaining = remaining.trim_start();
            let end = remaining.find(|c: char| !c.is_alphabetic()).unwrap_or(remaining.len());
            let (unit, remaining) = remaining.split_at(end);
            let unit_nanos = match unit {
                "d" | "day" | "days" => 86_400 * SECOND,
                "w" | "wk" | "week" | "weeks" => 604_800 * SECOND,
                "h" | "hr" | "hour" | "hours" => 3_600 * SECOND,
                "m" | "min" | "minute" | "minutes" => 60 * SECOND,
                "s" | "sec" | "second" | "seconds" => SECOND,
                "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => 1_000_000,
                "us" | "µs" | "micro" | "micros" | "microsecond" | "microseconds" => 1_000,
                "ns" | "nano" | "nanos" | "nanosecond" | "nanoseconds" => 1,
                _ => return Err(error),
            };
            total_nanos += number.parse::<u64>().map_err(|_| error.clone())? as i128 * unit_nanos;
            rest = remaining.trim_start();
        }
        i64::try_from(total_nanos).map_err(|_| error)
    })
}

/// Formats a duration in seconds.
pub fn format_duration(nanos: i64) -> String {
    let (sign, magnitude) = (if nanos < 0 { "-" } else { "" }, i128::from(nanos).abs());
    let (seconds, rest) = (magnitude / SECOND, magnitude % SECOND);
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let digits = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", digits.trim_end_matches('0'))
}

/// Decodes base64.
pub fn decode_base64(text: &str) -> Result<Vec<u8>, String> {
    base64::engine::general_purpose::STANDARD.decode(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_parse_and_format() {
        for text in ["2024-02-29T12:34:56Z", "0001-01-01T00:00:00Z", "2024-01-01T00:00:00.123456789Z"] {
            assert_eq!(Instant::parse(text).unwrap().to_rfc3339(), text);
        }
        assert_eq!(
            Instant::parse("2024-01-01T01:00:00.5+01:00").unwrap().to_rfc3339(),
            "2024-01-01T00:00:00.5Z"
        );
        assert!(Instant::parse("2024-13-01T00:00:00Z").is_err());
        let instant = Instant::parse("2024-02-29T23:30:00Z").unwrap();
        assert_eq!(instant.component("getDayOfYear", 0), Some(59));
        assert_eq!(instant.component("getDate", 3600), Some(1));
        assert_eq!(instant.component("getDayOfWeek", 0), Some(4));
        let summer = Instant::parse("2024-07-01T12:00:00Z").unwrap();
        let table = [
            ("-07:30", Ok(-27_000)),
            ("05:45", Ok(20_700)),
            ("-00:30", Ok(-1_800)),
            ("America/New_York", Ok(-14_400)),
            ("UTC", Ok(0)),
            ("Mars/Olympus", Err("unknown time zone Mars/Olympus")),
            ("Z", Err("unknown time zone Z")),
            ("../x", Err("time: invalid location name")),
            ("a:00", Err("strconv.Atoi: parsing \"a\": invalid syntax")),
            ("1:", Err("strconv.Atoi: parsing \"\": invalid syntax")),
            (
                "99999999999999999999:0",
                Err("strconv.Atoi: parsing \"99999999999999999999\": value out of range"),
            ),
        ];
        for (zone, expected) in table {
            assert_eq!(offset(zone, summer), expected.map_err(str::to_owned), "{zone}");
        }
    }

    #[test]
    fn durations_parse_and_format() {
        for (text, nanos, formatted) in [
            ("1h30m", 5_400_000_000_000, "5400s"),
            ("-1.5s", -1_500_000_000, "-1.5s"),
            ("0", 0, "0s"),
            ("1ms2us3ns", 1_002_003, "0.001002003s"),
            (".5m", 30_000_000_000, "30s"),
        ] {
            assert_eq!(parse_duration(text), Ok(nanos), "{text}");
            assert_eq!(format_duration(nanos), formatted);
        }
        for bad in ["", "1", "1x", "s", "1.2.3s", "9999999999h", "-"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_lenient_duration("3 days"), Ok(259_200_000_000_000));
        assert!(parse_lenient_duration("3 moons").is_err());
    }
}
