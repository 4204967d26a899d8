//! The headers of the W3C by which a trace goes from one server to the next: `traceparent`, `tracestate` and `baggage`.

use super::span::{SpanId, TraceId};
use crate::limits::{BAGGAGE_MEMBERS, PROPAGATED_BYTES, STATE_MEMBERS};

/// The header that names trace and span.
pub const TRACE_PARENT: &str = "traceparent";
/// The header with what other systems know of the trace.
pub const TRACE_STATE: &str = "tracestate";
/// The header with what applications know.
pub const BAGGAGE: &str = "baggage";

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;
/// The last version of `traceparent` that is valid.
const LAST_VERSION: u8 = 254;
/// The flags that are valid in version 0.
const LAST_FLAGS: u8 = 2;

/// A span, as another server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// Its trace.
    pub trace_id: TraceId,
    /// The span itself.
    pub span_id: SpanId,
    /// Whether the trace is recorded.
    pub is_sampled: bool,
}

impl SpanContext {
    /// Reads `traceparent`.
    pub fn read(header: &str) -> Option<SpanContext> {
        let mut parts = header.splitn(5, '-');
        let [version] = bytes(parts.next()?)?;
        let trace_id = TraceId(bytes(parts.next()?)?);
        let span_id = SpanId(u64::from_be_bytes(bytes(parts.next()?)?));
        let [flags] = bytes(parts.next()?)?;
        if version > LAST_VERSION || (version == 0 && (parts.next().is_some() || flags > LAST_FLAGS)) {
            return None;
        }
        let is_valid = trace_id != TraceId::default() && span_id != SpanId::default();
        is_valid.then_some(SpanContext { trace_id, span_id, is_sampled: flags & SAMPLED != 0 })
    }

    /// Writes `traceparent`.
    fn write(&self) -> String {
        let SpanContext { trace_id, span_id, is_sampled } = self;
        let (trace_id, flags) = (u128::from_be_bytes(trace_id.0), u8::from(*is_sampled));
        format!("00-{trace_id:032x}-{:016x}-{flags:02x}", span_id.0)
    }
}

/// Bytes in lower case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: &u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut out = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (out, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *out = digit(high)? << 4 | digit(low)?;
    }
    Some(out)
}

/// What is passed on with a trace, as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Propagated {
    /// The value of `tracestate`.
    pub state: Option<String>,
    /// The value of `baggage`.
    pub baggage: Option<String>,
}

impl Propagated {
    /// Reads `tracestate` and `baggage`, each of which may come in several headers. One that is malformed or too long is left out: it
    /// must not break the trace.
    pub fn read(state: &[&str], baggage: &[&str]) -> Propagated {
        let is_state =
            |member: &str| member.split_once('=').is_some_and(|(key, value)| is_key(key) && is_value(value));
        let is_baggage = |member: &str| {
            let pair = member.split(';').next().and_then(|pair| pair.split_once('='));
            pair.is_some_and(|(key, value)| is_token(key.trim()) && value.bytes().all(is_visible))
        };
        Propagated {
            state: members(state, STATE_MEMBERS, is_state),
            baggage: members(baggage, BAGGAGE_MEMBERS, is_baggage),
        }
    }

    /// The headers for another server. `context`: the span that its work belongs to.
    pub(super) fn headers(&self, context: SpanContext) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        if context.trace_id != TraceId::default() {
            headers.push((TRACE_PARENT, context.write()));
            headers.extend(self.state.iter().map(|state| (TRACE_STATE, state.clone())));
        }
        headers.extend(self.baggage.iter().map(|baggage| (BAGGAGE, baggage.clone())));
        headers
    }

    /// Whether there is nothing to pass on.
    pub fn is_empty(&self) -> bool {
        *self == Propagated::default()
    }
}

/// The members of a list in headers, if all are well-formed and not too many.
fn members(values: &[&str], limit: usize, is_valid: impl Fn(&str) -> bool) -> Option<String> {
    if values.iter().map(|value| value.len()).sum::<usize>() > PROPAGATED_BYTES {
        return None;
    }
    let members =
        values.iter().flat_map(|value| value.split(',')).map(str::trim).filter(|member| !member.is_empty());
    let members: Vec<&str> = members.collect();
    let is_list =
        !members.is_empty() && members.len() <= limit && members.iter().all(|member| is_valid(member));
    is_list.then(|| members.join(","))
}

fn is_key(key: &str) -> bool {
    let is_key_byte = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'*' | b'/' | b'@')
    };
    !key.is_empty() && key.bytes().all(is_key_byte)
}

fn is_value(value: &str) -> bool {
    value.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'=' && byte != b',')
}

fn is_token(text: &str) -> bool {
    let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token_byte)
}

/// A character of a value of baggage, or white space around it.
fn is_visible(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'!'..=b'~') && byte != b'"' && byte != b'\\'
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn trace_parent_is_read_and_written() {
        let context = SpanContext::read(PARENT).unwrap();
        assert_eq!((context.span_id, context.is_sampled), (SpanId(0xb7ad_6b71_6920_3331), true));
        assert_eq!(context.write(), PARENT);
        let unsampled = SpanContext::read(&PARENT.replace("-01", "-00")).unwrap();
        assert!(!unsampled.is_sampled);
        let later = SpanContext::read(&format!("{}-more", PARENT.replacen("00", "cc", 1))).unwrap();
        assert_eq!(later, context, "later versions may have more parts");
    }

    #[test]
    fn malformed_trace_parents_are_ignored() {
        for header in [
            "",
            "00",
            &PARENT[..53],
            &PARENT.to_uppercase(),
            &PARENT.replacen("00", "ff", 1),
            &PARENT.replacen("00", "0", 1),
            &PARENT.replace("-01", "-03"),
            &format!("{PARENT}-more"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
        ] {
            assert_eq!(SpanContext::read(header), None, "{header:?}");
        }
    }

    #[test]
    fn state_and_baggage_are_passed_on_unless_they_are_malformed() {
        let propagated = Propagated::read(&["a=1, b@c=2", "d=3"], &["user=me;p=1", "x = %20"]);
        assert_eq!(propagated.state.as_deref(), Some("a=1,b@c=2,d=3"));
        assert_eq!(propagated.baggage.as_deref(), Some("user=me;p=1,x = %20"));
        let long = format!("a={}", "x".repeat(PROPAGATED_BYTES));
        let many = vec!["a=1"; BAGGAGE_MEMBERS + 1].join(",");
        for (state, baggage) in
            [("a", "b"), ("A=1", "b\u{e9}=1"), ("a=1,=2", "=1"), (&long, &long), (&many, &many)]
        {
            assert!(Propagated::read(&[state], &[baggage]).is_empty(), "{state:.20} {baggage:.20}");
        }
        assert!(Propagated::read(&[], &[""]).is_empty());
    }
}
