//! The forms that texts of custom resources may be said to have. Names that are not known here mean nothing.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

use crate::api::schema::time;

/// A form of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 24 hexadecimal digits.
    BsonObjectId,
    /// An absolute URI, or an absolute path.
    Uri,
    /// An address of mail.
    Email,
    /// The name of a host.
    Hostname,
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// A range of addresses.
    Cidr,
    /// A MAC address.
    Mac,
    /// A UUID of a version; 0 for any.
    Uuid(u8),
    /// An ISBN of 10 or 13 digits; 0 for either.
    Isbn(u8),
    /// The number of a credit card.
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
    /// A day.
    Date,
    /// A length of time.
    Duration,
    /// An instant.
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
static DURATION: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"^\s*(\d+(\.\d+)?\s*(ns|us|µs|μs|ms|s|m|h|d|w|nanos?(econds?)?|micros?(econds?)?|millis?(econds?)?|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?|weeks?)\s*)+$").ok()
});

impl Format {
    /// The format of this name, which may be written with dashes.
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

    /// Whether a text has this form.
    pub fn holds(self, text: &str) -> bool {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match self {
            Format::BsonObjectId => text.len() == 24 && hex(text),
            Format::Uri => {
                let scheme = text.split_once(':').map(|(scheme, rest)| (scheme, !rest.is_empty()));
                let absolute = scheme.is_some_and(|(scheme, rest)| {
                    let mut letters = scheme.chars();
                    rest && letters.next().is_some_and(|first| first.is_ascii_alphabetic())
                        && letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
                });
                (text.starts_with('/') || absolute) && !text.contains(|c: char| c.is_control() || c == ' ')
            }
            Format::Email => is_email(text),
            Format::Hostname => {
                let short = text.len() <= 255 && text.split('.').all(|label| label.len() <= 63);
                short && HOSTNAME.as_ref().is_some_and(|pattern| pattern.is_match(text))
            }
            Format::Ipv4 => is_ipv4(text),
            Format::Ipv6 => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
            Format::Cidr => text.split_once('/').is_some_and(|(address, length)| {
                let most = if is_ipv4(address) { 32 } else { 128 };
                (most == 32 || address.parse::<Ipv6Addr>().is_ok())
                    && digits(length)
                    && length.parse::<u32>().is_ok_and(|length| length <= most)
            }),
            Format::Mac => is_mac(text),
            Format::Uuid(version) => {
                UUID.as_ref().and_then(|pattern| pattern.captures(text)).is_some_and(|found| {
                    let part = |at| found.get(at).map_or("", |found| found.as_str()).to_ascii_lowercase();
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
            Format::Ssn => {
                let parts: Vec<&str> = text.split(['-', ' ']).collect();
                let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
                parts.iter().all(|part| digits(part))
                    && (lengths == [3, 2, 4] || lengths == [9] || lengths == [5, 4] || lengths == [3, 6])
            }
            Format::HexColor => {
                let digits = text.strip_prefix('#').unwrap_or(text);
                matches!(digits.len(), 3 | 6) && hex(digits)
            }
            Format::RgbColor => {
                let inner = text.strip_prefix("rgb(").and_then(|text| text.strip_suffix(')'));
                inner.is_some_and(|inner| {
                    let parts: Vec<&str> = inner.split(',').map(str::trim).collect();
                    parts.len() == 3 && parts.iter().all(|part| digits(part) && part.parse::<u8>().is_ok())
                })
            }
            Format::Byte => is_base64(text),
            Format::Password => true,
            Format::Date => is_date(text),
            Format::Duration => DURATION.as_ref().is_some_and(|pattern| pattern.is_match(text)),
            Format::DateTime => is_instant(text),
        }
    }
}

fn is_ipv4(text: &str) -> bool {
    // Leading zeros have always been taken.
    let parts: Vec<&str> = text.split('.').collect();
    let sloppy = parts.len() == 4
        && parts.iter().all(|part| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u8>().is_ok()
        });
    sloppy || text.parse::<Ipv4Addr>().is_ok()
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
        (Some(at), Some(_)) => text.get(at + 1..text.len() - 1).unwrap_or_default(),
        _ => text,
    };
    let Some((user, host)) = address.rsplit_once('@') else { return false };
    let atom = |c: char| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    let dotted = |part: &str| {
        !part.is_empty() && part.split('.').all(|label| !label.is_empty() && label.chars().all(atom))
    };
    dotted(host) && (dotted(user) || (user.len() > 2 && user.starts_with('"') && user.ends_with('"')))
}

fn is_isbn(text: &str, length: u8) -> bool {
    let plain: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'-' | b' ')).collect();
    let value = |byte: &u8| u32::from(byte.wrapping_sub(b'0'));
    let numbers = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
    let (head, last) = match plain.split_last() {
        Some((last, head)) => (head, *last),
        None => return false,
    };
    let ten =
        length != 13 && plain.len() == 10 && numbers(head) && (last.is_ascii_digit() || last == b'X') && {
            let sum: u32 = (1u32..).zip(head).map(|(at, digit)| at * value(digit)).sum();
            let check = if last == b'X' { 10 } else { value(&last) };
            (sum + 10 * check).is_multiple_of(11)
        };
    let thirteen = length != 10 && plain.len() == 13 && numbers(&plain) && {
        let weights = [1u32, 3].into_iter().cycle();
        let sum: u32 = weights.zip(head).map(|(weight, digit)| weight * value(digit)).sum();
        value(&last) == (10 - sum % 10) % 10
    };
    ten || thirteen
}

fn is_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    if !(13..=19).contains(&digits.len()) {
        return false;
    }
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| match at % 2 {
            0 => *digit,
            _ if *digit > 4 => digit * 2 - 9,
            _ => digit * 2,
        })
        .sum();
    sum.is_multiple_of(10)
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && body.bytes().all(letters)
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && time::parse_seconds(&format!("{text}T00:00:00Z")).is_ok()
}

/// An instant as ISO 8601 has it: with or without a fraction and a zone, and with a space or a T in between.
fn is_instant(text: &str) -> bool {
    let Some((day, rest)) = text.split_at_checked(10) else { return false };
    let Some(clock) = rest.strip_prefix(['T', 't', ' ']) else { return is_date(day) && rest.is_empty() };
    let end = clock.find(['Z', 'z', '+', '-']).unwrap_or(clock.len());
    let (clock, zone) = clock.split_at(end);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let zone = match zone {
        "" | "Z" | "z" => "Z".to_owned(),
        zone => match zone.split_at_checked(3) {
            Some((hours, minutes)) if zone.len() == 5 => format!("{hours}:{minutes}"),
            _ => zone.to_owned(),
        },
    };
    time::parse_seconds(&format!("{day}T{clock}{zone}")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_forms() {
        let table: [(&str, &[&str], &[&str]); 12] = [
            (
                "date-time",
                &["2024-01-02T03:04:05Z", "2024-01-02T03:04:05.123+02:00"],
                &["x", "2024-13-01T00:00:00Z"],
            ),
            ("date", &["2024-02-29"], &["2023-02-29", "2024-1-1"]),
            ("ipv4", &["10.0.0.1", "010.0.0.1"], &["10.0.0", "::1", "10.0.0.256"]),
            ("ipv6", &["::1", "fe80::1"], &["10.0.0.1", "g::"]),
            ("cidr", &["10.0.0.0/8", "fe80::/64"], &["10.0.0.0", "10.0.0.0/33"]),
            ("uuid", &["0f8fad5b-d9cb-469f-a165-70867728950e"], &["0f8fad5b"]),
            ("uuid4", &["0f8fad5b-d9cb-469f-a165-70867728950e"], &["0f8fad5b-d9cb-369f-a165-70867728950e"]),
            ("hostname", &["a", "a.example.com", "1a"], &["-a", "a_b", "a..b"]),
            ("email", &["a@b.c", "A B <a@b.c>"], &["a", "@b", "a@"]),
            ("uri", &["http://a/b", "/a"], &["a", "http://a b"]),
            ("byte", &["YWJj"], &["YWJ", "****"]),
            ("duration", &["1h", "22 ns", "1.5s"], &["", "1", "h"]),
        ];
        for (name, good, bad) in table {
            let format = Format::named(name).unwrap();
            good.iter().for_each(|text| assert!(format.holds(text), "{name} {text}"));
            bad.iter().for_each(|text| assert!(!format.holds(text), "{name} {text}"));
        }
        assert_eq!(Format::named("int32"), None);
        assert!(Format::Isbn(0).holds("978-0321751041") && !Format::Isbn(0).holds("978-0321751042"));
        assert!(Format::CreditCard.holds("4111 1111 1111 1111") && !Format::CreditCard.holds("4111"));
    }

    #[test]
    fn letters_of_more_bytes_than_one_stand_anywhere() {
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
            "2024-01-02T03:04:05+0200",
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
                // In place of one, two, three and four bytes, at every place: none may panic, whatever is said.
                for (letter, at) in
                    ["é", "€", "😀"].iter().flat_map(|l| (0..=text.len()).map(move |at| (l, at)))
                {
                    for width in 0..=4 {
                        let behind = text.get(at + width..).unwrap_or_default();
                        let mixed = format!("{}{letter}{behind}", &text[..at]);
                        let strict =
                            !matches!(name, "uri" | "email" | "password" | "hostname" | "creditcard");
                        assert!(!(strict && format.holds(&mixed)), "{name} {mixed}");
                    }
                }
            }
        }
    }
}
