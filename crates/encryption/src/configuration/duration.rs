//! Durations as Go writes them.

use std::time::Duration;

/// A duration and its sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedDuration {
    /// Its length.
    pub length: Duration,
    /// Whether it is below zero.
    pub is_negative: bool,
}

/// The longest duration of Go, in nanoseconds.
const MAX_NANOS: u128 = i64::MAX as u128;

/// Parses a duration such as `300ms`, `1m30s` or `-2s`.
pub fn parse(text: &str) -> Result<SignedDuration, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let is_negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(SignedDuration { length: Duration::ZERO, is_negative: false });
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut length = Duration::ZERO;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit_seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return Err(invalid()),
        };
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let part = Duration::try_from_secs_f64(number * unit_seconds).map_err(|_| invalid())?;
        length = length.checked_add(part).ok_or_else(invalid)?;
        rest = tail;
    }
    // The reference refuses what does not fit, and a deadline that far ahead would overflow the clock.
    if length.as_nanos() > MAX_NANOS {
        return Err(invalid());
    }
    Ok(SignedDuration { length, is_negative: is_negative && !length.is_zero() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_a_sign() {
        for (text, millis, is_negative) in [
            ("0", 0, false),
            ("0s", 0, false),
            ("-0s", 0, false),
            ("3s", 3_000, false),
            ("1m30s", 90_000, false),
            ("1.5h", 5_400_000, false),
            ("-300ms", 300, true),
            ("+2s", 2_000, false),
            ("2562047h", 9_223_369_200_000, false),
        ] {
            let length = Duration::from_millis(millis);
            assert_eq!(parse(text), Ok(SignedDuration { length, is_negative }), "{text}");
        }
        for text in
            ["", "-", "5", "1x", "s", "1..2s", "99999999999999999999h", "1 s", "2562048h", "2562047h2562047h"]
        {
            assert_eq!(parse(text), Err(format!("time: invalid duration {text:?}")));
        }
    }
}
