//! A span: a step of the work on a request, as it is handed over when it has ended.

use std::borrow::Cow;

use super::context::SpanContext;
use crate::limits::ATTRIBUTE_BYTES;

/// Spans have nanoseconds, timestamps have microseconds.
pub(super) const NANOS_PER_MICRO: u64 = 1_000;

/// The id of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

/// The id of a span within its trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpanId(pub u64);

/// On which side of a request a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A step within this server.
    Internal,
    /// The request of a client.
    Server,
    /// A request to another server.
    Client,
}

/// The name of the span of a request to another server.
pub fn client_span_name(method: &str) -> &'static str {
    match method {
        "GET" => "HTTP GET",
        "HEAD" => "HTTP HEAD",
        "POST" => "HTTP POST",
        "PUT" => "HTTP PUT",
        "PATCH" => "HTTP PATCH",
        "DELETE" => "HTTP DELETE",
        "OPTIONS" => "HTTP OPTIONS",
        _ => "HTTP",
    }
}

/// Something that is known about a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// What it is.
    pub key: &'static str,
    /// Its value.
    pub value: AttributeValue,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
}

impl Attribute {
    /// A text.
    pub fn text(key: &'static str, value: impl Into<Cow<'static, str>>) -> Attribute {
        Attribute { key, value: AttributeValue::Text(value.into()) }
    }

    /// A number.
    pub fn number(key: &'static str, value: impl TryInto<i64>) -> Attribute {
        Attribute { key, value: AttributeValue::Number(value.try_into().unwrap_or(i64::MAX)) }
    }

    /// The same with at most [`ATTRIBUTE_BYTES`] bytes: clients choose some values.
    #[must_use]
    pub(super) fn shortened(mut self) -> Attribute {
        if let AttributeValue::Text(text) = &mut self.value
            && text.len() > ATTRIBUTE_BYTES
        {
            let end = (0..=ATTRIBUTE_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
            *text = Cow::Owned(text.get(..end).unwrap_or_default().to_owned());
        }
        self
    }
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The trace that it belongs to.
    pub trace_id: TraceId,
    /// Its id.
    pub id: SpanId,
    /// The span during which it began.
    pub parent: Option<SpanId>,
    /// What the systems before this one know of the trace.
    pub trace_state: Option<String>,
    /// The name of the step.
    pub name: Cow<'static, str>,
    /// On which side of a request it is.
    pub kind: SpanKind,
    /// When it began, in nanoseconds since the Unix epoch.
    pub began: u64,
    /// When it ended, likewise.
    pub ended: u64,
    /// What is known about it.
    pub attributes: Vec<Attribute>,
    /// The span that caused it, but is of another trace.
    pub link: Option<SpanContext>,
    /// Whether it has failed.
    pub is_error: bool,
}
