//! Negotiates the encodings of bodies and responses.
//!
//! The reference negotiates in two steps with different error messages: first by media type alone, then with parameters and
//! transformations. Both are here, in that order.

use super::status::{Result, Status};
use super::well_known::{CBOR, CBOR_SEQUENCE, JSON, PROTOBUF, YAML};
use crate::well_known::{APPLY_PATCH, CBOR_APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH};

/// An encoding of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
    /// `application/cbor`
    Cbor,
}

impl Encoding {
    /// The media type of this encoding.
    pub fn media_type(self) -> &'static str {
        match self {
            Encoding::Json => JSON,
            Encoding::Yaml => YAML,
            Encoding::Protobuf => PROTOBUF,
            Encoding::Cbor => CBOR,
        }
    }

    /// The media type of a watch in this encoding; `None` if it does not support watches.
    pub fn stream_type(self) -> Option<&'static str> {
        match self {
            Encoding::Json => Some(JSON),
            Encoding::Yaml => None,
            Encoding::Protobuf => Some("application/vnd.kubernetes.protobuf;stream=watch"),
            Encoding::Cbor => Some(CBOR_SEQUENCE),
        }
    }

    /// The media type with its watch parameter, as messages print it.
    fn offered_stream(self) -> Option<&'static str> {
        match self {
            Encoding::Json => Some("application/json;stream=watch"),
            other => other.stream_type(),
        }
    }
}

/// The media type of logs.
const PLAIN: &str = "text/plain";

/// The encodings that an endpoint offers, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedEncodings {
    encodings: &'static [Encoding],
    streams: bool,
    /// Whether the objects are custom resources, which have no Protobuf form.
    custom: bool,
}

impl OfferedEncodings {
    /// The offer for documents that are no API objects.
    pub const JSON_ONLY: OfferedEncodings =
        OfferedEncodings { encodings: &[Encoding::Json], streams: false, custom: false };

    /// The offer for objects; CBOR only with its feature gate.
    pub fn objects(cbor: bool) -> OfferedEncodings {
        const ALL: [Encoding; 4] = [Encoding::Json, Encoding::Yaml, Encoding::Protobuf, Encoding::Cbor];
        OfferedEncodings {
            encodings: if cbor { &ALL } else { ALL.split_at(3).0 },
            streams: false,
            custom: false,
        }
    }

    /// The offer for custom resources.
    pub fn custom(self) -> OfferedEncodings {
        OfferedEncodings { custom: true, ..self }
    }

    /// Whether full objects are available in an encoding.
    fn has_full_objects(self, encoding: Encoding) -> bool {
        !(self.custom && encoding == Encoding::Protobuf)
    }

    /// The offer of a watchable endpoint: its error messages list stream types, too.
    pub fn watchable(self) -> OfferedEncodings {
        OfferedEncodings { streams: true, ..self }
    }

    /// The media types as messages list them.
    pub fn names(self) -> String {
        let names: Vec<&str> = self.encodings.iter().map(|encoding| encoding.media_type()).collect();
        names.join(", ")
    }

    fn stream_names(self) -> String {
        let names: Vec<&str> =
            self.encodings.iter().filter_map(|encoding| encoding.offered_stream()).collect();
        names.join(", ")
    }

    fn all_names(self) -> String {
        if self.streams { format!("{}, {}", self.names(), self.stream_names()) } else { self.names() }
    }

    fn find(self, media: &str) -> Option<Encoding> {
        self.encodings.iter().copied().find(|encoding| encoding.media_type() == media)
    }

    /// Whether this is a media type of streams only. It cannot be negotiated, but does not count as unknown.
    fn is_stream(self, media: &str) -> bool {
        self.streams && media == CBOR_SEQUENCE && self.find(CBOR).is_some()
    }
}

/// A requested transformation: `as=KIND;g=GROUP;v=VERSION`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transform<'a> {
    /// The requested kind.
    pub kind: &'a str,
    /// The group of the kind.
    pub group: &'a str,
    /// The version of the kind.
    pub version: &'a str,
}

/// The result of a negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated<'a> {
    /// The encoding of the response.
    pub encoding: Encoding,
    /// The requested transformation.
    pub transform: Option<Transform<'a>>,
    /// Whether to indent JSON.
    pub pretty: bool,
}

impl Negotiated<'_> {
    /// The result for a client whose Accept header is empty, or names no known media type.
    pub const DEFAULT: Negotiated<'static> =
        Negotiated { encoding: Encoding::Json, transform: None, pretty: false };
}

/// One item of an Accept header.
struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    parameters: &'a str,
    quality: f64,
}

impl Clause<'_> {
    /// Parses an item; malformed ones are ignored. A lone asterisk means everything.
    fn parse(item: &str) -> Option<Clause<'_>> {
        let (media, parameters) = item.split_once(';').unwrap_or((item, ""));
        let (kind, subtype) = match media.split_once('/') {
            Some((kind, subtype)) if !subtype.is_empty() && !subtype.contains('/') => (kind, subtype),
            Some(("*", "")) => ("*", "*"),
            None if trimmed(media) == "*" => ("*", "*"),
            _ => return None,
        };
        let quality = raw_parameter(parameters, "q").map_or(1.0, |q| q.parse().unwrap_or(0.0));
        Some(Clause { kind: trimmed(kind), subtype: trimmed(subtype), parameters, quality })
    }

    /// Whether the clause precedes another one: by quality, or because it is more specific. Both count independently, so this is
    /// no total order, and the sorting algorithm matters.
    fn precedes(&self, other: &Clause<'_>) -> bool {
        self.quality > other.quality
            || (self.kind != "*" && other.kind == "*")
            || (self.subtype != "*" && other.subtype == "*")
    }

    fn accepts(&self, media: &str) -> bool {
        let (kind, subtype) = media.split_once('/').unwrap_or((media, ""));
        let exact = self.kind == kind && self.subtype == subtype;
        exact || (self.subtype == "*" && (self.kind == "*" || self.kind == kind))
    }
}

/// The most items of an Accept header that are read: more than real clients send.
const MAX_CLAUSES: usize = 64;

fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut all: Vec<Clause<'_>> = accept.split(',').filter_map(Clause::parse).take(MAX_CLAUSES).collect();
    // Insertion sort, as in the reference: each item moves up past those that it precedes.
    for index in 1..all.len() {
        let target = (0..index).rev().take_while(|before| precedes(&all, index, *before)).last();
        if let Some(target) = target {
            all.get_mut(target..=index).unwrap_or_default().rotate_right(1);
        }
    }
    all
}

fn precedes(all: &[Clause<'_>], left: usize, right: usize) -> bool {
    all.get(left).zip(all.get(right)).is_some_and(|(left, right)| left.precedes(right))
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(' ')
}

/// The last value of a parameter. One without a value, or with a second equals sign, is ignored.
fn raw_parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = parameters.split(';').filter_map(|pair| pair.split_once('='));
    pairs
        .rfind(|(key, value)| trimmed(key) == name && !value.is_empty() && !value.contains('='))
        .map(|(_, value)| value)
}

fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    raw_parameter(parameters, name).map(trimmed)
}

/// The first `offered` media type that the client accepts, in the client's order; an empty header accepts all.
pub fn choose<'a>(accept: &str, offered: &[&'a str]) -> Option<&'a str> {
    let accept = if accept.is_empty() { "*/*" } else { accept };
    clauses(accept).iter().find_map(|clause| offered.iter().copied().find(|media| clause.accepts(media)))
}

/// Negotiates the encoding of a response. `allows`: whether an encoding supports a transformation.
pub fn negotiate<'a>(
    accept: &'a str,
    offer: OfferedEncodings,
    allows: impl Fn(Encoding, Transform<'_>) -> bool,
) -> Result<Negotiated<'a>> {
    check_acceptable(accept, offer)?;
    negotiate_encoding(accept, offer, allows)
}

/// The first step: whether any of the media types is known at all.
pub fn check_acceptable(accept: &str, offer: OfferedEncodings) -> Result<()> {
    if is_acceptable(accept, |media| offer.find(media).is_some() || offer.is_stream(media)) {
        return Ok(());
    }
    Err(Status::no_representation(&offer.all_names()))
}

/// [`check_acceptable`] for text, such as logs, beside the encodings of objects.
pub fn check_acceptable_text(accept: &str, offer: OfferedEncodings) -> Result<()> {
    if is_acceptable(accept, |media| media == PLAIN || offer.find(media).is_some()) {
        return Ok(());
    }
    Err(Status::no_representation(&format!("{PLAIN}, {}", offer.names())))
}

fn is_acceptable(accept: &str, is_known: impl Fn(&str) -> bool) -> bool {
    // The most common values first.
    matches!(accept, "" | JSON)
        || accept.split(',').any(|item| {
            let media = trimmed(item.split(';').next().unwrap_or_default());
            media == "*/*" || is_known(media)
        })
}

/// [`negotiate`] without the first step.
pub fn negotiate_encoding<'a>(
    accept: &'a str,
    offer: OfferedEncodings,
    allows: impl Fn(Encoding, Transform<'_>) -> bool,
) -> Result<Negotiated<'a>> {
    if matches!(accept, "" | JSON) {
        return Ok(Negotiated::DEFAULT);
    }
    let is_available = |encoding, transform: Option<Transform<'_>>| {
        transform.map_or_else(|| offer.has_full_objects(encoding), |transform| allows(encoding, transform))
    };
    first(accept, offer, is_available).ok_or_else(|| Status::not_acceptable(&offer.names()))
}

/// Negotiates a transformation; other media types that the client accepts are ignored.
pub fn negotiate_transform<'a>(
    accept: &'a str,
    offer: OfferedEncodings,
    allows: impl Fn(Encoding, Transform<'_>) -> bool,
) -> Option<Negotiated<'a>> {
    first(accept, offer, |encoding, transform| transform.is_some_and(|transform| allows(encoding, transform)))
}

/// The first acceptable combination.
fn first<'a>(
    accept: &'a str,
    offer: OfferedEncodings,
    is_available: impl Fn(Encoding, Option<Transform<'_>>) -> bool,
) -> Option<Negotiated<'a>> {
    let all = clauses(accept);
    let pairs = all.iter().flat_map(|clause| offer.encodings.iter().map(move |encoding| (clause, *encoding)));
    let is_accepted = |(clause, encoding): &(&Clause<'a>, Encoding)| clause.accepts(encoding.media_type());
    pairs.filter(is_accepted).find_map(|(clause, encoding)| {
        let value = |name| parameter(clause.parameters, name);
        let streams = match value("stream") {
            None | Some("") => true,
            Some(stream) => stream == "watch" && encoding.stream_type().is_some(),
        };
        let transform = match (value("as"), value("g"), value("v")) {
            (None, None, None) => None,
            (kind, group, version) => Some(Transform {
                kind: kind.unwrap_or_default(),
                group: group.unwrap_or_default(),
                version: version.unwrap_or_default(),
            }),
        };
        let pretty = value("pretty") == Some("1");
        (streams && is_available(encoding, transform)).then_some(Negotiated { encoding, transform, pretty })
    })
}

/// 406 for a watch in an encoding without streams.
pub fn no_stream(offer: OfferedEncodings) -> Box<Status> {
    Status::not_acceptable(&offer.stream_names())
}

/// The encoding of a request body.
pub fn body_encoding(content_type: &str, offer: OfferedEncodings) -> Result<Encoding> {
    if content_type.is_empty() {
        return Ok(Encoding::Json);
    }
    let (media, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    let (media, parameters) = (media.trim(), parameters.trim());
    let mut keys: Vec<String> = Vec::new();
    // Parameters are unique pairs; a type with anything else behind it is invalid, except for a final semicolon.
    let is_valid = parameters.is_empty()
        || parameters.strip_suffix(';').unwrap_or(parameters).split(';').take(MAX_CLAUSES).all(|pair| {
            pair.trim().split_once('=').is_some_and(|(key, value)| {
                let key = key.to_ascii_lowercase();
                let is_new = !key.is_empty() && !value.is_empty() && !keys.contains(&key);
                keys.push(key);
                is_new
            })
        });
    let encoding = offer.find(&media.to_ascii_lowercase()).filter(|_| is_valid);
    encoding.ok_or_else(|| Status::unsupported_body(&offer.names()))
}

/// The type of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// JSON Patch: a list of operations.
    Json,
    /// JSON merge patch.
    Merge,
    /// Strategic merge patch, which uses the schema.
    Strategic,
    /// Server-side apply.
    Apply,
}

/// The patch types of built-in resources.
const PATCHES: &str = "application/json-patch+json, application/merge-patch+json, \
     application/strategic-merge-patch+json, application/apply-patch+yaml";
/// The patch types of custom resources: strategic merge needs a built-in schema.
const CUSTOM_PATCHES: &str =
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

fn is_patch(item: &str) -> bool {
    let media = item.split(';').next().unwrap_or_default().trim();
    PATCHES.split(", ").any(|patch| patch == media)
}

/// The patch type and encoding of a media type. `length` is the Content-Length header, empty if there is none.
pub fn patch_encoding(
    content_type: &str,
    length: &str,
    offer: OfferedEncodings,
) -> Result<(PatchType, Encoding)> {
    // Up to the first parameter, including surrounding blanks.
    let media = content_type.split(';').next().unwrap_or_default();
    match media {
        JSON_PATCH => Ok((PatchType::Json, Encoding::Json)),
        MERGE_PATCH => Ok((PatchType::Merge, Encoding::Json)),
        STRATEGIC_PATCH if !offer.custom => Ok((PatchType::Strategic, Encoding::Json)),
        APPLY_PATCH => Ok((PatchType::Apply, Encoding::Yaml)),
        CBOR_APPLY_PATCH if offer.find(CBOR).is_some() => Ok((PatchType::Apply, Encoding::Cbor)),
        _ if offer.custom => Err(Status::unsupported_body(CUSTOM_PATCHES)),
        // A type that resembles a patch gets the list of patch types, others get a plain 415.
        _ if content_type.split(',').any(is_patch) => Err(Status::unsupported_body(PATCHES)),
        _ => Err(Status::unsupported_patch(length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoding(accept: &str) -> std::result::Result<Encoding, String> {
        negotiate(accept, OfferedEncodings::objects(false), |_, _| false)
            .map(|negotiated| negotiated.encoding)
            .map_err(|status| status.message)
    }

    const OFFER: OfferedEncodings = OfferedEncodings::JSON_ONLY;

    #[test]
    fn not_acceptable_lists_the_available_types() {
        let refused = |accept, offer| negotiate(accept, offer, |_, _| false).unwrap_err().message;
        assert_eq!(
            refused("text/html", OfferedEncodings::objects(false).watchable()),
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf, application/json;stream=watch, \
             application/vnd.kubernetes.protobuf;stream=watch"
        );
        assert!(
            refused(PROTOBUF, OfferedEncodings::JSON_ONLY).ends_with("representations: application/json")
        );
        assert!(
            refused("application/yaml;stream=watch", OfferedEncodings::objects(true))
                .ends_with(", application/cbor")
        );
        assert!(
            no_stream(OfferedEncodings::objects(true))
                .message
                .ends_with("protobuf;stream=watch, application/cbor-seq")
        );
        assert_eq!(
            refused(CBOR_SEQUENCE, OfferedEncodings::objects(true).watchable()),
            "only the following media types are accepted: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf, application/cbor"
        );
        assert!(refused(CBOR_SEQUENCE, OfferedEncodings::objects(true)).starts_with("406: Not Acceptable"));
    }

    #[test]
    fn encoding_is_chosen_by_quality_and_order() {
        assert_eq!(encoding(""), Ok(Encoding::Json));
        assert_eq!(encoding("text/html,application/json"), Ok(Encoding::Json));
        assert_eq!(encoding("text/html, */*;q=0.1"), Ok(Encoding::Json));
        assert_eq!(encoding("application/json;q=0.5,application/yaml"), Ok(Encoding::Yaml));
        assert_eq!(encoding("application/vnd.kubernetes.protobuf, application/json"), Ok(Encoding::Protobuf));
        assert_eq!(encoding("application/cbor, application/json"), Ok(Encoding::Json));
        let gated =
            negotiate("application/cbor, application/json", OfferedEncodings::objects(true), |_, _| false);
        assert_eq!(gated.unwrap().encoding, Encoding::Cbor);
    }

    #[test]
    fn specific_media_type_precedes_wildcard() {
        assert_eq!(encoding("*/*;q=0.5,application/yaml;q=0.5"), Ok(Encoding::Yaml));
        assert_eq!(encoding("*/*, application/yaml;q=0.1"), Ok(Encoding::Yaml), "even with a lower quality");
        assert_eq!(encoding("application/json;q=x,application/yaml;q=0.1"), Ok(Encoding::Yaml));
        assert_eq!(encoding("application/json;Q=0.1,application/yaml;q=0.2"), Ok(Encoding::Json));
        let accept = "*/*, application/json;as=Table;v=v1;g=meta.k8s.io";
        assert!(negotiate(accept, OFFER, |_, _| true).unwrap().transform.is_some());
    }

    #[test]
    fn transform_parameters_are_case_sensitive_and_unquoted() {
        let transform = |accept| {
            negotiate(accept, OFFER, |_, transform| transform.kind == "Table")
                .map(|negotiated| negotiated.transform)
        };
        assert_eq!(transform("application/json;as=").unwrap(), None);
        assert_eq!(transform("application/json;AS=Table;V=v1;G=meta.k8s.io").unwrap(), None);
        assert!(transform("application/json;as=\"Table\";v=v1;g=meta.k8s.io").is_err());
    }

    #[test]
    fn unknown_type_and_unknown_transform_have_different_messages() {
        assert!(encoding("text/html").unwrap_err().starts_with("406: Not Acceptable"));
        assert!(encoding("application/*").unwrap_err().starts_with("406: Not Acceptable"));
        let table = "application/json;as=Table;v=v9;g=meta.k8s.io";
        assert!(encoding(table).unwrap_err().starts_with("only the following media types are accepted"));
    }

    #[test]
    fn transform_is_parsed_from_parameters() {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io, application/json";
        let negotiated = negotiate(accept, OFFER, |_, transform| transform.kind == "Table").unwrap();
        assert_eq!(
            negotiated.transform,
            Some(Transform { kind: "Table", group: "meta.k8s.io", version: "v1" })
        );
        assert_eq!(negotiate(accept, OFFER, |_, _| false).unwrap().transform, None);
    }

    #[test]
    fn choose_follows_the_order_of_the_client() {
        let offered = ["application/json", "application/x+protobuf"];
        assert_eq!(choose("", &offered), Some(offered[0]));
        assert_eq!(choose("application/x+protobuf", &offered), Some(offered[1]));
        assert_eq!(choose("application/json;q=0.1, application/x+protobuf", &offered), Some(offered[1]));
        assert_eq!(choose("text/html, application/*;q=0.5", &offered), Some(offered[0]));
        assert_eq!(choose("text/html", &offered), None);
    }

    #[test]
    fn content_types_of_bodies_and_patches() {
        let encoding = |content_type| body_encoding(content_type, OfferedEncodings::objects(false));
        assert_eq!(encoding(PROTOBUF).unwrap(), Encoding::Protobuf);
        assert_eq!(encoding(CBOR).unwrap_err().code, 415);
        let patch =
            |cbor| patch_encoding("application/apply-patch+cbor", "2", OfferedEncodings::objects(cbor));
        assert_eq!((patch(true).unwrap().1, patch(false).unwrap_err().code), (Encoding::Cbor, 415));
        assert_eq!(encoding("application/json; charset=utf-8").unwrap(), Encoding::Json);
        assert_eq!(encoding("Application/JSON").unwrap(), Encoding::Json);
        assert_eq!(encoding("").unwrap(), Encoding::Json);
        assert_eq!(encoding(";charset=utf-8").unwrap_err().code, 415);
        for refused in ["application/json;x", "application/json;;", "application/json; a=b; A=c"] {
            assert_eq!(encoding(refused).unwrap_err().code, 415, "{refused}");
        }
        for accepted in
            ["application/json; charset=utf-8;", "application/json;", "application/json; a=b; c=d"]
        {
            assert!(encoding(accepted).is_ok(), "{accepted}");
        }
        let similar =
            patch_encoding("application/merge-patch+json ;q=1", "2", OfferedEncodings::objects(false))
                .unwrap_err();
        assert!(
            similar.message.ends_with("application/strategic-merge-patch+json, application/apply-patch+yaml")
        );
        let unknown = |length| {
            let refused =
                patch_encoding("application/json", length, OfferedEncodings::objects(false)).unwrap_err();
            (refused.code, refused.message.clone())
        };
        assert_eq!(unknown("2"), (415, "415: Unsupported Media Type".to_owned()));
        let bodiless = "415: Unsupported Media Type\n\nAvailable representations: ";
        assert_eq!(unknown(""), (415, bodiless.to_owned()));
        assert_eq!(unknown("0"), (406, "406: Not Acceptable\n\nAvailable representations: ".to_owned()));
        assert_eq!(encoding("text/plain").unwrap_err().code, 415);
    }
}
