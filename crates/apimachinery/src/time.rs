//! Times in RFC 3339, parsed as strictly and with the same errors as in Go. The arithmetic of dates is not that of `jiff`, whose
//! years end with 9999: in a zone east of Greenwich the last timestamp is in the year 10000, and CEL asks for it.

use std::fmt::Write as _;

/// The Unix time of Go's zero time, which stands for an absent time.
pub const ZERO_SECONDS: i64 = -62_135_596_800;

const SECONDS_LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
const MICROS_LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";
const DAY_SECONDS: i64 = 86_400;

/// Parses a time in seconds. A fraction is accepted and dropped.
pub fn parse_seconds(text: &str) -> Result<i64, String> {
    Reader::new(text, SECONDS_LAYOUT).instant(false).map(|(seconds, _)| seconds)
}

/// Parses a time in microseconds, which needs exactly six decimals: seconds and microseconds.
pub fn parse_micros(text: &str) -> Result<(i64, u32), String> {
    Reader::new(text, MICROS_LAYOUT).instant(true)
}

/// Prints a time in seconds.
pub fn format_seconds(seconds: i64) -> String {
    let mut out = format_date_time(seconds);
    out.push('Z');
    out
}

/// Prints a time in microseconds.
pub fn format_micros(seconds: i64, micros: u32) -> String {
    let mut out = format_date_time(seconds);
    let _ = write!(out, ".{micros:06}Z");
    out
}

fn format_date_time(seconds: i64) -> String {
    let (days, second_of_day) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let mut out = String::with_capacity(32);
    let _ = write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    out
}

/// The date of a day counted from 1970. Years begin in March here, so that the leap day comes last.
pub fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The day of a date, counted from 1970.
pub fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

struct Reader<'a> {
    text: &'a str,
    layout: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, layout: &'static str) -> Reader<'a> {
        Reader { text, layout, rest: text.as_bytes() }
    }

    fn instant(mut self, micros: bool) -> Result<(i64, u32), String> {
        let year = self.digits(4, "2006")?;
        self.literal("-")?;
        let month = self.ranged("01", 1..=12, "month")?;
        self.literal("-")?;
        let day = self.digits(2, "02")?;
        self.literal("T")?;
        let hour = self.hour()?;
        self.literal(":")?;
        let minute = self.ranged("04", 0..=59, "minute")?;
        self.literal(":")?;
        let second = self.ranged("05", 0..=59, "second")?;
        let fraction = if micros { self.micros()? } else { self.skip_fraction() };
        let offset = self.zone()?;
        if !self.rest.is_empty() {
            let extra = quoted(self.rest);
            return Err(format!("parsing time {}: extra text: {extra}", quoted(self.text.as_bytes())));
        }
        if day < 1 || day > days_in(year, month) {
            return Err(self.out_of_range("day"));
        }
        let seconds = days(year, month, day) * DAY_SECONDS + hour * 3600 + minute * 60 + second - offset;
        Ok((seconds, fraction))
    }

    fn parse_error(&self, rest: &[u8], element: &str) -> String {
        format!(
            "parsing time {} as {}: cannot parse {} as {}",
            quoted(self.text.as_bytes()),
            quoted(self.layout.as_bytes()),
            quoted(rest),
            quoted(element.as_bytes())
        )
    }

    fn out_of_range(&self, part: &str) -> String {
        format!("parsing time {}: {part} out of range", quoted(self.text.as_bytes()))
    }

    fn digits(&mut self, count: usize, element: &str) -> Result<i64, String> {
        match self.rest.split_at_checked(count) {
            Some((head, rest)) if head.iter().all(u8::is_ascii_digit) => {
                self.rest = rest;
                Ok(number(head))
            }
            _ => Err(self.parse_error(self.rest, element)),
        }
    }

    fn ranged(
        &mut self,
        element: &str,
        range: std::ops::RangeInclusive<i64>,
        part: &str,
    ) -> Result<i64, String> {
        let value = self.digits(2, element)?;
        if range.contains(&value) { Ok(value) } else { Err(self.out_of_range(part)) }
    }

    /// The hour may have a single digit, as in the reference.
    fn hour(&mut self) -> Result<i64, String> {
        match self.rest {
            [digit, rest @ ..] if digit.is_ascii_digit() && !rest.first().is_some_and(u8::is_ascii_digit) => {
                self.rest = rest;
                Ok(number(&[*digit]))
            }
            _ => self.ranged("15", 0..=23, "hour"),
        }
    }

    fn literal(&mut self, text: &str) -> Result<(), String> {
        match self.rest.strip_prefix(text.as_bytes()) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.parse_error(self.rest, text)),
        }
    }

    fn micros(&mut self) -> Result<u32, String> {
        match self.rest.split_at_checked(7) {
            Some(([b'.' | b',', digits @ ..], rest)) if digits.iter().all(u8::is_ascii_digit) => {
                self.rest = rest;
                Ok(u32::try_from(number(digits)).unwrap_or_default())
            }
            _ => Err(self.parse_error(self.rest, ".000000")),
        }
    }

    fn skip_fraction(&mut self) -> u32 {
        if let [b'.' | b',', digits @ ..] = self.rest {
            let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if count > 0 {
                self.rest = digits.get(count..).unwrap_or_default();
            }
        }
        0
    }

    fn zone(&mut self) -> Result<i64, String> {
        if let [b'Z', rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(0);
        }
        let Some((&[sign @ (b'+' | b'-'), h1, h2, b':', m1, m2], rest)) = self.rest.split_first_chunk::<6>()
        else {
            return Err(self.parse_error(self.rest, "Z07:00"));
        };
        if ![h1, h2, m1, m2].iter().all(u8::is_ascii_digit) {
            return Err(self.parse_error(self.rest, "Z07:00"));
        }
        let (hours, minutes) = (number(&[h1, h2]), number(&[m1, m2]));
        if hours > 24 {
            return Err(self.out_of_range("time zone offset hour"));
        }
        if minutes > 60 {
            return Err(self.out_of_range("time zone offset minute"));
        }
        self.rest = rest;
        let offset = hours * 3600 + minutes * 60;
        Ok(if sign == b'-' { -offset } else { offset })
    }
}

/// The number of at most six decimal digits.
fn number(digits: &[u8]) -> i64 {
    digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit.wrapping_sub(b'0')))
}

/// Text as Go's time errors quote it: non-ASCII characters byte by byte.
fn quoted(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(*byte)]),
            b' '..=b'\x7f' => out.push(char::from(*byte)),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_parsed_and_printed_in_utc() {
        assert_eq!(parse_seconds("1970-01-01T00:00:00Z"), Ok(0));
        assert_eq!(parse_seconds("2024-02-29T23:59:59.123456789+02:00"), Ok(1_709_243_999));
        assert_eq!(format_seconds(1_709_243_999), "2024-02-29T21:59:59Z");
        assert_eq!(parse_seconds("1970-01-01T1:00:00Z"), Ok(3_600));
        assert_eq!(parse_seconds("0001-01-01T00:00:00Z"), Ok(ZERO_SECONDS));
        assert_eq!(parse_micros("2024-01-01T00:00:00.000123Z"), Ok((1_704_067_200, 123)));
        assert_eq!(format_micros(1_704_067_200, 123), "2024-01-01T00:00:00.000123Z");
    }

    #[test]
    fn malformed_times_have_the_messages_of_go() {
        let error = |text| parse_seconds(text).unwrap_err();
        assert!(
            error("x\ny\"é").starts_with(r#"parsing time "x\x0ay\"\xc3\xa9" as"#),
            "{}",
            error("x\ny\"é")
        );
        assert_eq!(
            error("x"),
            r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#
        );
        assert_eq!(
            error("2024-01-01"),
            r#"parsing time "2024-01-01" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "T""#
        );
        assert!(error("2024-01-01T1:2:3Z").ends_with(r#"cannot parse "2:3Z" as "04""#));
        assert_eq!(
            error("2024-13-01T00:00:00Z"),
            r#"parsing time "2024-13-01T00:00:00Z": month out of range"#
        );
        assert_eq!(error("2023-02-29T00:00:00Z"), r#"parsing time "2023-02-29T00:00:00Z": day out of range"#);
        assert_eq!(
            error("2023-02-20T00:00:00Zx"),
            r#"parsing time "2023-02-20T00:00:00Zx": extra text: "x""#
        );
        assert_eq!(
            parse_micros("2024-01-01T00:00:00Z").unwrap_err(),
            r#"parsing time "2024-01-01T00:00:00Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#
        );
    }

    proptest! {
        #[test]
        fn printed_times_round_trip(seconds in -62_135_596_800i64..253_402_300_800, micros in 0u32..1_000_000) {
            prop_assert_eq!(parse_seconds(&format_seconds(seconds)), Ok(seconds));
            prop_assert_eq!(parse_micros(&format_micros(seconds, micros)), Ok((seconds, micros)));
        }

        #[test]
        fn parsing_times_never_panics(text in "\\PC*") {
            let _ = parse_seconds(&text);
            let _ = parse_micros(&text);
        }
    }
}
