//! Percent-encoding and query parameters.

use std::borrow::Cow;
use std::time::Duration;

use super::field::quoted;
use super::status::{self, Status};

/// Decodes percent-encoding; `None` if an escape is invalid. Invalid UTF-8 becomes the replacement character, which no name may
/// contain.
pub fn unescape(text: &str, plus_is_space: bool) -> Option<Cow<'_, str>> {
    if !text.bytes().any(|b| b == b'%' || (plus_is_space && b == b'+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                out.push(u8::try_from(high << 4 | low).ok()?);
            }
            b'+' if plus_is_space => out.push(b' '),
            other => out.push(other),
        }
    }
    Some(Cow::Owned(match String::from_utf8(out) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }))
}

/// The unescaped path of a request. Borrowed unless it contains an escape.
///
/// An escaped slash becomes a plain one: names with a slash are refused later, so nothing is lost.
pub fn decode_path(raw: &str) -> status::Result<Cow<'_, str>> {
    unescape(raw, false)
        .ok_or_else(|| Status::bad_request(format!("invalid URL escape in the path {}", quoted(raw))))
}

/// The decoded query parameters, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    /// Parses a query string. Pairs that cannot be decoded are dropped, as in the reference.
    pub fn parse(raw: &'a str) -> Query<'a> {
        if raw.is_empty() {
            return Query::default();
        }
        let pairs = raw.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
        Query(
            pairs
                .filter_map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    Some((unescape(key, true)?, unescape(value, true)?))
                })
                .collect(),
        )
    }

    /// A copy that does not borrow from the request.
    pub fn to_owned_pairs(&self) -> Query<'static> {
        let owned = |text: &Cow<'_, str>| Cow::Owned(text.clone().into_owned());
        Query(self.0.iter().map(|(key, value)| (owned(key), owned(value))).collect())
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// Every value of `key`.
    pub fn all<'q>(&'q self, key: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// The first value of `key`, empty when absent.
    pub fn text(&self, key: &str) -> String {
        self.get(key).unwrap_or_default().to_owned()
    }

    /// Whether `key` is set: any value except `false` and `0` sets it, also the empty one. `None` if absent.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// The integer `key`; `None` when absent.
    pub fn integer(&self, key: &str) -> status::Result<Option<i64>> {
        self.get(key).map(integer).transpose()
    }

    /// Whether to indent JSON; `None` if the parameter is absent or empty.
    pub fn pretty(&self) -> Option<bool> {
        let value = self.get("pretty").filter(|value| !value.is_empty())?;
        Some(matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
    }

    /// The client's timeout: `timeout=30s`. `None` if it is zero or absent.
    pub fn timeout(&self) -> status::Result<Option<Duration>> {
        let Some(value) = self.get("timeout").filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let invalid = |detail: &str| {
            Status::bad_request(format!("invalid timeout specified in the request URL - time: {detail}"))
        };
        let seconds = duration(value).map_err(|detail| invalid(&detail))?;
        // A negative timeout counts as the shortest possible one.
        let timeout = Duration::try_from_secs_f64(seconds.max(0.0))
            .map_err(|_| invalid(&format!("invalid duration {}", quoted(value))))?;
        Ok(Some(timeout).filter(|timeout| !timeout.is_zero()))
    }
}

/// A 64-bit integer, or the reference's error.
fn integer(text: &str) -> status::Result<i64> {
    use std::num::IntErrorKind;
    text.parse::<i64>().map_err(|error| {
        let detail = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        Status::bad_request(format!("strconv.ParseInt: parsing {}: {detail}", quoted(text)))
    })
}

/// Parses a Go duration such as `1h15m30.5s`, in seconds.
fn duration(text: &str) -> Result<f64, String> {
    let invalid = || format!("invalid duration {}", quoted(text));
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0.0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (count, tail) = rest.split_at(end);
        let count: f64 = count.parse().map_err(|_| invalid())?;
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let scale = match unit {
            "" => return Err(format!("missing unit in duration {}", quoted(text))),
            "ns" => 1e-9,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(format!("unknown unit {} in duration {}", quoted(unit), quoted(text))),
        };
        total += count * scale;
        rest = tail;
    }
    Ok(sign * total)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn path_without_escapes_is_borrowed_and_others_are_decoded() {
        assert!(matches!(decode_path("/api/v1/pods").unwrap(), Cow::Borrowed(_)));
        assert_eq!(decode_path("/a%2Fb%20c+d").unwrap(), "/a/b c+d");
        for malformed in ["/%", "/%4", "/%zz", "/%+1"] {
            assert_eq!(decode_path(malformed).unwrap_err().code, 400, "{malformed}");
        }
    }

    #[test]
    fn parameters_are_decoded_and_malformed_ones_dropped() {
        let query = Query::parse("labelSelector=a%3Db+c&limit=5&bad=%zz&x;y=1&watch&dryRun=All&dryRun=");
        assert_eq!(query.get("labelSelector"), Some("a=b c"));
        assert_eq!(query.integer("limit").unwrap(), Some(5));
        assert_eq!((query.get("bad"), query.get("x")), (None, None));
        assert_eq!(query.flag("watch"), Some(true));
        assert_eq!(query.all("dryRun").collect::<Vec<_>>(), ["All", ""]);
        assert!(Query::parse("").is_empty());
    }

    #[test]
    fn flag_is_true_for_any_value_except_false_and_zero() {
        for (raw, expected) in [
            ("watch", Some(true)),
            ("watch=1", Some(true)),
            ("watch=no", Some(true)),
            ("watch=False", Some(false)),
            ("watch=0", Some(false)),
            ("other=1", None),
        ] {
            assert_eq!(Query::parse(raw).flag("watch"), expected, "{raw}");
        }
    }

    #[test]
    fn invalid_integer_parameters_are_refused() {
        let error = Query::parse("limit=abc").integer("limit").unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (400, r#"strconv.ParseInt: parsing "abc": invalid syntax"#)
        );
        let error = Query::parse("limit=9223372036854775808").integer("limit").unwrap_err();
        assert!(error.message.ends_with("value out of range"));
        assert!(Query::parse("limit=").integer("limit").is_err());
    }

    #[test]
    fn timeout_is_a_go_duration() {
        let timeout = |raw| Query::parse(raw).timeout().map_err(|error| error.message);
        assert_eq!(timeout("timeout=1m30s"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(timeout("timeout=1.5h"), Ok(Some(Duration::from_secs(5400))));
        assert_eq!(timeout("timeout=0"), Ok(None));
        assert_eq!(timeout("timeout="), Ok(None));
        assert_eq!(timeout("timeout=-1s"), Ok(None));
        let error =
            |detail: &str| Err(format!("invalid timeout specified in the request URL - time: {detail}"));
        assert_eq!(timeout("timeout=30"), error(r#"missing unit in duration "30""#));
        assert_eq!(timeout("timeout=3x"), error(r#"unknown unit "x" in duration "3x""#));
        assert_eq!(timeout("timeout=s"), error(r#"invalid duration "s""#));
    }

    #[test]
    fn pretty_is_a_go_boolean() {
        assert_eq!(Query::parse("pretty=true").pretty(), Some(true));
        assert_eq!(Query::parse("pretty=yes").pretty(), Some(false));
        assert_eq!(Query::parse("pretty=").pretty(), None);
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_queries_never_panics(raw in "\\PC{0,64}") {
            let query = Query::parse(&raw);
            let _ = (query.timeout(), query.integer(&raw), decode_path(&raw));
        }

        #[test]
        fn escaped_values_round_trip(text in "\\PC{0,24}") {
            let escaped: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let raw = format!("k={escaped}");
            let query = Query::parse(&raw);
            prop_assert_eq!(query.get("k"), Some(text.as_str()));
        }
    }
}
