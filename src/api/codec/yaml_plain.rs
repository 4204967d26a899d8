//! What a YAML reader takes text without quotes for.

use crate::api::schema::time;

/// Whether plain text is read back as text, not as a number, a truth value, null or an instant.
pub(super) fn reads_as_text(text: &str) -> bool {
    const WORDS: [&str; 22] = [
        "y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "n", "N", "no", "No", "NO", "off", "Off", "OFF",
        "~", "null", "Null", "NULL", "true", "false",
    ];
    const MORE_WORDS: [&str; 16] = [
        "True", "TRUE", "False", "FALSE", ".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "+.inf", "+.Inf",
        "+.INF", "-.inf", "-.Inf", "-.INF",
    ];
    if text.is_empty() || WORDS.contains(&text) || MORE_WORDS.contains(&text) {
        return false;
    }
    match text.as_bytes().first() {
        Some(b'.') => !is_finite_number(text),
        Some(b'0'..=b'9' | b'+' | b'-') => {
            let plain = text.replace('_', "");
            !(is_instant(text) || is_integer(&plain) || is_yaml_float(&plain) || is_base_sixty(text))
        }
        _ => true,
    }
}

fn is_finite_number(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Whether text is an integer in any of the bases that a prefix can name.
fn is_integer(text: &str) -> bool {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, base) = match lower.as_str() {
        digits if digits.starts_with("0x") => (digits.get(2..), 16),
        digits if digits.starts_with("0b") => (digits.get(2..), 2),
        digits if digits.starts_with("0o") => (digits.get(2..), 8),
        digits if digits.len() > 1 && digits.starts_with('0') => (digits.get(1..), 8),
        digits => (Some(digits), 10),
    };
    let digits = digits.unwrap_or_default();
    let signed = text.starts_with(['-', '+']);
    let most = if signed { (i64::MAX as u64) + u64::from(negative) } else { u64::MAX };
    digits.starts_with(|c: char| c.is_ascii_hexdigit())
        && u64::from_str_radix(digits, base).is_ok_and(|number| number <= most)
}

fn is_yaml_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    unsigned.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'-' | b'+'))
        && is_finite_number(unsigned)
}

/// Whether text looks like minutes and seconds, `1:30`, which older readers take for a number.
fn is_base_sixty(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut parts = unsigned.split(':');
    let first = parts.next().unwrap_or_default();
    let number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    if !first.starts_with(|c: char| c.is_ascii_digit()) || !number(first) {
        return false;
    }
    let rest: Vec<&str> = parts.collect();
    let Some((last, between)) = rest.split_last() else { return false };
    let (last, fraction) = last.split_once('.').unwrap_or((last, ""));
    let sixty = |part: &str| match part.as_bytes() {
        [one] => one.is_ascii_digit(),
        [tens, ones] => (b'0'..=b'5').contains(tens) && ones.is_ascii_digit(),
        _ => false,
    };
    between.iter().all(|part| sixty(part)) && sixty(last) && number(fraction)
}

/// Whether text is a date, or a date with a time.
fn is_instant(text: &str) -> bool {
    let date_end = text.find(['T', 't', ' ']).unwrap_or(text.len());
    let (date, time) = text.split_at(date_end);
    let mut parts = date.splitn(3, '-');
    let (Some(year), Some(month), Some(day)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let pad = |part: &str| {
        let good = matches!(part.len(), 1 | 2) && part.bytes().all(|byte| byte.is_ascii_digit());
        good.then(|| format!("{part:0>2}"))
    };
    let (Some(month), Some(day)) = (pad(month), pad(day)) else { return false };
    let clock = match time.split_at_checked(1) {
        None => "00:00:00Z".to_owned(),
        Some((separator, clock)) => {
            let zone_at = clock.find(['Z', '+', '-']).unwrap_or(clock.len());
            let (clock, zone) = clock.split_at(zone_at);
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
    fn text_that_looks_like_something_else_is_found() {
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
}
