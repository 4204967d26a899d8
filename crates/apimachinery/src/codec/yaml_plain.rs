//! The meaning of plain YAML scalars.

use crate::time;

/// The meaning of a plain scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Plain {
    Text,
    /// A date or a timestamp: decoded as text, but other parsers give it a type of its own.
    Instant,
    Null,
    Bool(bool),
    Int(i64),
    /// An integer beyond the signed range.
    Large(u64),
    Float(f64),
}

impl Plain {
    /// The tag of its type.
    pub(super) fn tag(self) -> &'static str {
        match self {
            Plain::Text => "!!str",
            Plain::Instant => "!!timestamp",
            Plain::Null => "!!null",
            Plain::Bool(_) => "!!bool",
            Plain::Int(_) | Plain::Large(_) => "!!int",
            Plain::Float(_) => "!!float",
        }
    }
}

/// Resolves a plain scalar by the YAML 1.1 rules of the ecosystem: three spellings of each word, no more.
pub(super) fn resolve(text: &str) -> Plain {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Plain::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Plain::Bool(false)
        }
        "" | "~" | "null" | "Null" | "NULL" => Plain::Null,
        ".nan" | ".NaN" | ".NAN" => Plain::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Plain::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Plain::Float(f64::NEG_INFINITY),
        _ => match text.as_bytes().first() {
            Some(b'.') => finite(text).map_or(Plain::Text, Plain::Float),
            Some(b'0'..=b'9' | b'+' | b'-') => number(text),
            _ => Plain::Text,
        },
    }
}

/// Whether a plain scalar is read back as text, also by YAML 1.1 parsers with base-60 numbers.
pub(super) fn reads_as_text(text: &str) -> bool {
    resolve(text) == Plain::Text && !is_base_sixty(text)
}

/// The meaning of text that begins like a number.
fn number(text: &str) -> Plain {
    if is_instant(text) {
        return Plain::Instant;
    }
    let plain = text.replace('_', "");
    let binary = || plain.strip_prefix("0b").and_then(|digits| i64::from_str_radix(digits, 2).ok());
    integer(&plain)
        .or_else(|| float(&plain).map(Plain::Float))
        .or_else(|| binary().map(Plain::Int))
        .unwrap_or(Plain::Text)
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// An integer in any base.
fn integer(text: &str) -> Option<Plain> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => ("-", text.get(1..)?),
        b'+' => ("+", text.get(1..)?),
        _ => ("", text),
    };
    let (digits, base) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (digits.get(2..)?, 16),
        [b'0', b'b' | b'B', ..] => (digits.get(2..)?, 2),
        [b'0', b'o' | b'O', ..] => (digits.get(2..)?, 8),
        [b'0', _, ..] => (digits.get(1..)?, 8),
        _ => (digits, 10),
    };
    // The number parser would accept another sign.
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    let signed = i64::from_str_radix(&format!("{sign}{digits}"), base).map(Plain::Int);
    let large = || u64::from_str_radix(digits, base).ok().filter(|_| sign.is_empty()).map(Plain::Large);
    signed.ok().or_else(large)
}

fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_allowed = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'-' | b'+');
    finite(text).filter(|_| unsigned.bytes().all(is_allowed))
}

/// Whether text looks like `1:30`, which YAML 1.1 parsers read as a base-60 number.
fn is_base_sixty(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut parts = unsigned.split(':');
    let first = parts.next().unwrap_or_default();
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    if !first.starts_with(|c: char| c.is_ascii_digit()) || !is_number(first) {
        return false;
    }
    let rest: Vec<&str> = parts.collect();
    let Some((last, between)) = rest.split_last() else { return false };
    let (last, fraction) = last.split_once('.').unwrap_or((last, ""));
    let is_sexagesimal = |part: &str| match part.as_bytes() {
        [one] => one.is_ascii_digit(),
        [tens, ones] => (b'0'..=b'5').contains(tens) && ones.is_ascii_digit(),
        _ => false,
    };
    between.iter().all(|part| is_sexagesimal(part)) && is_sexagesimal(last) && is_number(fraction)
}

/// Whether text is a date or a timestamp.
fn is_instant(text: &str) -> bool {
    let date_end = text.find(['T', 't', ' ']).unwrap_or(text.len());
    let (date, time) = text.split_at(date_end);
    let mut parts = date.splitn(3, '-');
    let (Some(year), Some(month), Some(day)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let pad = |part: &str| {
        let is_valid = matches!(part.len(), 1 | 2) && part.bytes().all(|byte| byte.is_ascii_digit());
        is_valid.then(|| format!("{part:0>2}"))
    };
    let (Some(month), Some(day)) = (pad(month), pad(day)) else { return false };
    let clock = match time.split_at_checked(1) {
        None => "00:00:00Z".to_owned(),
        Some((separator, clock)) => {
            let zone_start = clock.find(['Z', '+', '-']).unwrap_or(clock.len());
            let (clock, zone) = clock.split_at(zone_start);
            let (whole, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
            let padded: Option<Vec<String>> = whole.split(':').map(pad).collect();
            let Some(padded) = padded else { return false };
            // With a space between date and time there is no zone, with a T there must be one.
            let zone = match (separator, zone) {
                (" ", "") => "Z",
                (" ", _) => return false,
                (_, zone) => zone,
            };
            if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
                return false;
            }
            format!("{}{zone}", padded.join(":"))
        }
    };
    year.len() == 4 && time::parse_seconds(&format!("{year}-{month}-{day}T{clock}")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_plain_scalars_are_not_text() {
        for text in [
            "",
            "y",
            "No",
            "~",
            "1",
            "-0b1",
            "0o7",
            "08",
            "1_000",
            ".5",
            "1e3",
            "-.inf",
            "1:30:59.5",
            "2001-1-2",
            "2001-01-02 3:04:05",
        ] {
            assert!(!reads_as_text(text), "{text}");
        }
        for text in [
            "yEs",
            "oN",
            "nULL",
            "1.2.3",
            "1e999",
            "0x",
            "-",
            "+",
            ".",
            "1:60",
            "2001-02-30",
            "2001-01-02 03:04:05Z",
            "99999999999999999999x",
        ] {
            assert!(reads_as_text(text), "{text}");
        }
    }

    #[test]
    fn plain_scalars_resolve_by_yaml_1_1_rules() {
        for (text, expected) in [
            ("On", Plain::Bool(true)),
            ("off", Plain::Bool(false)),
            ("~", Plain::Null),
            ("+12", Plain::Int(12)),
            ("-0x1_F", Plain::Int(-31)),
            ("0X1f", Plain::Int(31)),
            ("010", Plain::Int(8)),
            ("08", Plain::Float(8.0)),
            ("0b11", Plain::Int(3)),
            ("1__0", Plain::Int(10)),
            ("18446744073709551615", Plain::Large(u64::MAX)),
            ("-9223372036854775808", Plain::Int(i64::MIN)),
            ("18446744073709551616", Plain::Float(18_446_744_073_709_551_616.0)),
            ("1.", Plain::Float(1.0)),
            ("-.5e1", Plain::Float(-5.0)),
            ("2001-01-02", Plain::Instant),
            ("tRUE", Plain::Text),
            ("1:30", Plain::Text),
            ("--1", Plain::Text),
        ] {
            assert_eq!(resolve(text), expected, "{text}");
        }
    }
}
