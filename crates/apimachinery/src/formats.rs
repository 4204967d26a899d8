//! String formats in schemas. Unknown formats are ignored.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

use crate::time;

/// A string format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 24 hexadecimal digits.
    BsonObjectId,
    /// An absolute URI, or an absolute path.
    Uri,
    /// An email address.
    Email,
    /// A host name.
    Hostname,
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// A CIDR.
    Cidr,
    /// A MAC address.
    Mac,
    /// A UUID of this version; 0 for any.
    Uuid(u8),
    /// An ISBN of 10 or 13 digits; 0 for either.
    Isbn(u8),
    /// A credit card number.
    CreditCard,
    /// A social security number.
    Ssn,
    /// A colour in hexadecimal.
    HexColor,
    /// A colour in decimal.
    RgbColor,
    /// Base64.
    Byte,
    /// Any text.
    Password,
    /// A date.
    Date,
    /// A duration.
    Duration,
    /// A date-time.
    DateTime,
}

static HOSTNAME: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$",
    )
    .ok()
});
static UUID: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?([0-9a-f])[0-9a-f]{3}-?([0-9a-f])[0-9a-f]{3}-?[0-9a-f]{12}$")
        .ok()
});
/// A count and a unit, anywhere in a text.
static COUNTED: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"([0-9]+)[\t\n\f\r ]*([A-Za-zµ]+)").ok());
/// A time of day with a zone, as in the second half of a date-time. Any character may precede the fraction.
static CLOCK: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(?:.[0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})$").ok()
});

impl Format {
    /// The format of this name; dashes are ignored.
    pub fn named(name: &str) -> Option<Format> {
        Some(match name.replace('-', "").as_str() {
            "bsonobjectid" => Format::BsonObjectId,
            "uri" => Format::Uri,
            "email" => Format::Email,
            "hostname" => Format::Hostname,
            "ipv4" => Format::Ipv4,
            "ipv6" => Format::Ipv6,
            "cidr" => Format::Cidr,
            "mac" => Format::Mac,
            "uuid" => Format::Uuid(0),
            "uuid3" => Format::Uuid(3),
            "uuid4" => Format::Uuid(4),
            "uuid5" => Format::Uuid(5),
            "isbn" => Format::Isbn(0),
            "isbn10" => Format::Isbn(10),
            "isbn13" => Format::Isbn(13),
            "creditcard" => Format::CreditCard,
            "ssn" => Format::Ssn,
            "hexcolor" => Format::HexColor,
            "rgbcolor" => Format::RgbColor,
            "byte" => Format::Byte,
            "password" => Format::Password,
            "date" => Format::Date,
            "duration" => Format::Duration,
            "datetime" => Format::DateTime,
            _ => return None,
        })
    }

    /// Whether a text has this format.
    pub fn holds(self, text: &str) -> bool {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match self {
            Format::BsonObjectId => text.len() == 24 && is_hex(text),
            Format::Uri => is_request_uri(text),
            Format::Email => is_email(text),
            Format::Hostname => {
                let is_short = text.len() <= 255 && text.split('.').all(|label| label.len() <= 63);
                is_short && HOSTNAME.as_ref().is_some_and(|pattern| pattern.is_match(text))
            }
            // An IPv4 address may be written inside of an IPv6 one.
            Format::Ipv4 => is_ipv4(text) || (text.contains('.') && text.parse::<Ipv6Addr>().is_ok()),
            Format::Ipv6 => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
            Format::Cidr => text.split_once('/').is_some_and(|(address, length)| {
                let bits = if is_ipv4(address) { 32 } else { 128 };
                (bits == 32 || address.parse::<Ipv6Addr>().is_ok())
                    && is_number(length)
                    && length.parse::<u32>().is_ok_and(|length| length <= bits)
            }),
            Format::Mac => is_mac(text),
            Format::Uuid(version) => {
                UUID.as_ref().and_then(|pattern| pattern.captures(text)).is_some_and(|captures| {
                    let part =
                        |group| captures.get(group).map_or("", |part| part.as_str()).to_ascii_lowercase();
                    match version {
                        0 => true,
                        3 => part(1) == "3",
                        version => {
                            part(1) == version.to_string()
                                && matches!(part(2).as_str(), "8" | "9" | "a" | "b")
                        }
                    }
                })
            }
            Format::Isbn(length) => is_isbn(text, length),
            Format::CreditCard => is_card(text),
            // With both separators, because the length is checked, too.
            Format::Ssn => {
                let parts: Vec<&str> = text.split(['-', ' ']).collect();
                let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
                parts.iter().all(|part| is_number(part)) && lengths == [3, 2, 4]
            }
            Format::HexColor => {
                let digits = text.strip_prefix('#').unwrap_or(text);
                matches!(digits.len(), 3 | 6) && is_hex(digits)
            }
            Format::RgbColor => {
                let inner = text.strip_prefix("rgb(").and_then(|text| text.strip_suffix(')'));
                inner.is_some_and(|inner| {
                    let parts: Vec<&str> = inner.split(',').map(|part| part.trim_matches(SPACES)).collect();
                    let is_plain = |part: &str| is_number(part) && (part == "0" || !part.starts_with('0'));
                    parts.len() == 3 && parts.iter().all(|part| is_plain(part) && part.parse::<u8>().is_ok())
                })
            }
            Format::Byte => is_base64(text),
            Format::Password => true,
            Format::Date => is_date(text),
            Format::Duration => is_duration(text),
            Format::DateTime => is_instant(text),
        }
    }
}

fn is_ipv4(text: &str) -> bool {
    // Leading zeros are accepted.
    let parts: Vec<&str> = text.split('.').collect();
    let is_lenient = parts.len() == 4
        && parts.iter().all(|part| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u8>().is_ok()
        });
    is_lenient || text.parse::<Ipv4Addr>().is_ok()
}

fn is_mac(text: &str) -> bool {
    let pairs = |separator: char, width: usize| {
        let parts: Vec<&str> = text.split(separator).collect();
        let bytes = parts.len() * width / 2;
        matches!(bytes, 6 | 8 | 20)
            && parts
                .iter()
                .all(|part| part.len() == width && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    pairs(':', 2) || pairs('-', 2) || pairs('.', 4)
}

fn is_email(text: &str) -> bool {
    let address = match (text.rfind('<'), text.strip_suffix('>')) {
        (Some(start), Some(_)) => text.get(start + 1..text.len() - 1).unwrap_or_default(),
        _ => text,
    };
    let Some((user, host)) = address.rsplit_once('@') else { return false };
    let is_atom = |c: char| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    let is_dotted = |part: &str| {
        !part.is_empty() && part.split('.').all(|label| !label.is_empty() && label.chars().all(is_atom))
    };
    is_dotted(host) && (is_dotted(user) || (user.len() > 2 && user.starts_with('"') && user.ends_with('"')))
}

fn is_isbn(text: &str, length: u8) -> bool {
    let plain: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'-' | b' ')).collect();
    let value = |byte: &u8| u32::from(byte.wrapping_sub(b'0'));
    let is_number = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
    let (head, last) = match plain.split_last() {
        Some((last, head)) => (head, *last),
        None => return false,
    };
    let is_isbn_10 =
        length != 13 && plain.len() == 10 && is_number(head) && (last.is_ascii_digit() || last == b'X') && {
            let sum: u32 = (1u32..).zip(head).map(|(weight, digit)| weight * value(digit)).sum();
            let check = if last == b'X' { 10 } else { value(&last) };
            (sum + 10 * check).is_multiple_of(11)
        };
    let is_isbn_13 = length != 10 && plain.len() == 13 && is_number(&plain) && {
        let weights = [1u32, 3].into_iter().cycle();
        let sum: u32 = weights.zip(head).map(|(weight, digit)| weight * value(digit)).sum();
        value(&last) == (10 - sum % 10) % 10
    };
    is_isbn_10 || is_isbn_13
}

/// Prefixes and lengths of card numbers.
const CARDS: [(&str, &str, usize); 11] = [
    ("4", "4", 13),
    ("4", "4", 16),
    ("51", "55", 16),
    ("6011", "6011", 16),
    ("65", "65", 16),
    ("34", "34", 15),
    ("37", "37", 15),
    ("300", "305", 14),
    ("36", "36", 14),
    ("38", "38", 14),
    ("35", "35", 16),
];
/// Prefixes with one digit less.
const SHORT_CARDS: [&str; 2] = ["2131", "1800"];

fn is_card(text: &str) -> bool {
    let plain: String = text.chars().filter(char::is_ascii_digit).collect();
    let has_prefix = |(first, last, length): &(&str, &str, usize)| {
        plain.len() == *length
            && plain.get(..first.len()).is_some_and(|prefix| (*first..=*last).contains(&prefix))
    };
    let is_short = plain.len() == 15 && SHORT_CARDS.iter().any(|prefix| plain.starts_with(prefix));
    if !is_short && !CARDS.iter().any(has_prefix) {
        return false;
    }
    let digits: Vec<u32> = plain.chars().filter_map(|c| c.to_digit(10)).collect();
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(index, digit)| match index % 2 {
            0 => *digit,
            _ if *digit > 4 => digit * 2 - 9,
            _ => digit * 2,
        })
        .sum();
    sum.is_multiple_of(10)
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let is_base64_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && body.bytes().all(is_base64_digit)
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && time::parse_seconds(&format!("{text}T00:00:00Z")).is_ok()
}

/// A date, a T, and a time with a zone. Text after another T is ignored.
fn is_instant(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(day), Some(clock)) = (parts.next(), parts.next()) else { return false };
    let Some(captures) = CLOCK.as_ref().and_then(|pattern| pattern.captures(clock)) else { return false };
    let is_at_most =
        |group: usize, maximum: &str| captures.get(group).is_some_and(|part| part.as_str() <= maximum);
    is_date(day) && is_at_most(1, "23") && is_at_most(2, "59") && is_at_most(3, "59")
}

/// A duration: `1h30m`, or counts of named units with anything in between.
fn is_duration(text: &str) -> bool {
    /// The names of units. The last one may have a suffix: `sec`, `secs`, `seconds`.
    const UNITS: [&[&str]; 8] = [
        &["ns", "nano"],
        &["us", "µs", "micro"],
        &["ms", "milli"],
        &["s", "sec"],
        &["m", "min"],
        &["h", "hr", "hour"],
        &["d", "day"],
        &["w", "wk", "week"],
    ];
    if is_plain_duration(text) {
        return true;
    }
    let Some(pattern) = COUNTED.as_ref() else { return false };
    let mut has_unit = false;
    for captures in pattern.captures_iter(text) {
        let part = |group| captures.get(group).map_or("", |part: regex::Match<'_>| part.as_str());
        if part(1).parse::<i64>().is_err() {
            return false;
        }
        let unit = part(2).to_lowercase();
        has_unit |= UNITS.iter().any(|names| {
            names.contains(&unit.as_str()) || names.last().is_some_and(|last| unit.starts_with(last))
        });
    }
    has_unit
}

/// Signed counts with units, without separators.
fn is_plain_duration(text: &str) -> bool {
    const UNITS: [&str; 8] = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"];
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let mut any = false;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (count, tail) = rest.split_at(end);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let whole = count.split('.').next().unwrap_or_default();
        let is_in_range = whole.is_empty() || whole.parse::<i64>().is_ok();
        let is_number = count.matches('.').count() <= 1 && count.contains(|c: char| c.is_ascii_digit());
        if !is_number || !is_in_range || !UNITS.contains(&unit) {
            return false;
        }
        (rest, any) = (tail, true);
    }
    any
}

/// A request URI: an absolute URI or an absolute path, without a fragment.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.contains(|c: char| c.is_ascii_control()) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '-' | '.'));
    let letter_first = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let (has_scheme, rest) = match end {
        Some(end)
            if text.get(end..).is_some_and(|rest| rest.starts_with(':')) && (letter_first || end == 0) =>
        {
            if end == 0 {
                return false;
            }
            (true, text.get(end + 1..).unwrap_or_default())
        }
        _ => (false, text),
    };
    let rest = rest.split('?').next().unwrap_or_default();
    if !rest.starts_with('/') {
        return has_scheme;
    }
    let path = match rest.strip_prefix("//").filter(|_| has_scheme) {
        Some(authority) => {
            let end = authority.find('/').unwrap_or(authority.len());
            let (authority, path) = authority.split_at(end);
            if !is_authority(authority) {
                return false;
            }
            path
        }
        None => rest,
    };
    has_valid_escapes(path)
}

fn has_valid_escapes(text: &str) -> bool {
    text.split('%')
        .skip(1)
        .all(|after| after.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)))
}

/// A host with optional port and user.
fn is_authority(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').map_or((None, text), |(user, host)| (Some(user), host));
    let is_user_char = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if user.is_some_and(|user| !user.chars().all(is_user_char) || !has_valid_escapes(user)) {
        return false;
    }
    let is_port = |port: &str| {
        port.is_empty()
            || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if let Some(inner) = host.strip_prefix('[') {
        return inner.rsplit_once(']').is_some_and(|(_, port)| is_port(port));
    }
    let (name, port) = host.rfind(':').map_or((host, ""), |colon| host.split_at(colon));
    let is_host_char =
        |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:[]<>\"".contains(c);
    // Only non-ASCII bytes may be escaped in a host.
    let mut escapes = name.split('%');
    let is_plain = escapes.next().is_none_or(|first| first.chars().all(is_host_char));
    let is_escaped = escapes.all(|after| {
        let byte = after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        byte.is_some_and(|byte| byte >= 0x80)
            && after.get(2..).is_some_and(|rest| rest.chars().all(is_host_char))
    });
    is_port(port) && is_plain && is_escaped
}

/// The whitespace that `\s` matches in Go.
const SPACES: [char; 5] = [' ', '\t', '\n', '\x0c', '\r'];

#[cfg(test)]
mod tests {
    use super::*;

    /// Format, valid and invalid texts.
    const CASES: [(&str, &[&str], &[&str]); 17] = [
        (
            "date-time",
            &["2024-01-02T03:04:05Z", "2024-01-02T03:04:05.123+02:00", "2024-01-02t03:04:05z"],
            &[
                "x",
                "2024-13-01T00:00:00Z",
                "2024-01-02",
                "2024-01-02 03:04:05Z",
                "2024-01-02T03:04:05",
                "2024-01-02T03:04:60Z",
                "2024-01-02T24:04:05Z",
                "2024-01-02T03:04:05+0200",
            ],
        ),
        ("date", &["2024-02-29"], &["2023-02-29", "2024-1-1"]),
        ("ipv4", &["10.0.0.1", "010.0.0.1", "::ffff:10.0.0.1"], &["10.0.0", "::1", "10.0.0.256"]),
        ("ipv6", &["::1", "fe80::1"], &["10.0.0.1", "g::"]),
        ("cidr", &["10.0.0.0/8", "fe80::/64"], &["10.0.0.0", "10.0.0.0/33"]),
        ("uuid", &["0f8fad5b-d9cb-469f-a165-70867728950e"], &["0f8fad5b"]),
        ("uuid4", &["0f8fad5b-d9cb-469f-a165-70867728950e"], &["0f8fad5b-d9cb-369f-a165-70867728950e"]),
        ("hostname", &["a", "a.example.com", "1a"], &["-a", "a_b", "a..b"]),
        ("email", &["a@b.c", "A B <a@b.c>"], &["a", "@b", "a@"]),
        (
            "uri",
            &["http://a/b", "/a", "/a b", "a:b", "a:", "*", "//", "http://[::1]:80/x?y#z", "http://u:p@h:1"],
            &["", "a", "http://a b", ":a", "/%zz", "http://h:x", "http://a%20b", "a/b", "/a\n"],
        ),
        ("byte", &["YWJj"], &["YWJ", "****"]),
        (
            "duration",
            &["1h", "22 ns", "1.5s", "-1h30m", "0", "2 weeks", "x 3 days!", "1 Hour", "1hr"],
            &["", "1", "h", "1 year", "3 hrs", "99999999999999999999s", "1 kilos"],
        ),
        (
            "creditcard",
            &[
                "4111 1111 1111 1111",
                "5555-5555-5555-4444",
                "378282246310005",
                "30569309025904",
                "6011111111111117",
                "3530111333300000",
            ],
            &[
                "4111",
                "4111111111111112",
                "9111111111111111111",
                "1234567812345670",
                "0000000000000000",
                "2221000000000009",
            ],
        ),
        ("ssn", &["111-22-3333", "111 22 3333"], &["111223333", "111-223333", "11122-3333", "1112-23333"]),
        (
            "rgbcolor",
            &["rgb(0,10,255)", "rgb( 1 , 2 , 3 )"],
            &["rgb(01,2,3)", "rgb(256,1,1)", "rgb(1,2)", "RGB(1,2,3)"],
        ),
        ("hexcolor", &["#fff", "AABBCC"], &["#ffff", "ggg"]),
        ("mac", &["01:23:45:67:89:ab", "0123.4567.89ab"], &["01:23:45:67:89", "01:23-45:67:89:ab"]),
    ];

    #[test]
    fn formats_accept_valid_and_refuse_invalid_texts() {
        for (name, valid, invalid) in CASES {
            let format = Format::named(name).unwrap();
            valid.iter().for_each(|text| assert!(format.holds(text), "{name} {text}"));
            invalid.iter().for_each(|text| assert!(!format.holds(text), "{name} {text}"));
        }
        assert_eq!(Format::named("int32"), None);
        assert!(Format::Isbn(0).holds("978-0321751041") && !Format::Isbn(0).holds("978-0321751042"));
    }

    #[test]
    fn formats_never_panic_on_multibyte_characters() {
        const NAMES: [&str; 24] = [
            "bsonobjectid",
            "uri",
            "email",
            "hostname",
            "ipv4",
            "ipv6",
            "cidr",
            "mac",
            "uuid",
            "uuid3",
            "uuid4",
            "uuid5",
            "isbn",
            "isbn10",
            "isbn13",
            "creditcard",
            "ssn",
            "hexcolor",
            "rgbcolor",
            "byte",
            "password",
            "date",
            "duration",
            "datetime",
        ];
        const TEXTS: [&str; 13] = [
            "2024-01-02T03:04:05+02:00",
            "2024-01-02T03:04:05.5Z",
            "0f8fad5b-d9cb-469f-a165-70867728950e",
            "10.0.0.0/8",
            "fe80::1/64",
            "00:00:5e:00:53:01",
            "978-0321751041",
            "4111 1111 1111 1111",
            "111-22-3333",
            "rgb(1,2,3)",
            "#aabbcc",
            "YWJj",
            "\"a b\" <a@b.c>",
        ];
        assert!(!Format::DateTime.holds("2024-01-02T03:04:05+1é2"));
        for name in NAMES {
            let format = Format::named(name).unwrap();
            for text in TEXTS {
                // Multi-byte characters inserted at every position must not cause a panic.
                for (letter, index) in
                    ["é", "€", "😀"].iter().flat_map(|l| (0..=text.len()).map(move |index| (l, index)))
                {
                    for width in 0..=4 {
                        let rest = text.get(index + width..).unwrap_or_default();
                        let mixed = format!("{}{letter}{rest}", &text[..index]);
                        let is_strict = !matches!(
                            name,
                            "uri"
                                | "email"
                                | "password"
                                | "hostname"
                                | "creditcard"
                                | "duration"
                                | "datetime"
                        );
                        assert!(!(is_strict && format.holds(&mixed)), "{name} {mixed}");
                    }
                }
            }
        }
    }
}
