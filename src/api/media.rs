//! Which encoding a body has and which one an answer gets.
//!
//! The reference chooses in two steps whose refusals read differently: a coarse one by media type alone, then a fine one
//! that knows parameters and transformations. Both are here, in that order.

use super::status::{Result, Status};
use super::words::{CBOR, CBOR_SEQUENCE, JSON, PROTOBUF, YAML};
use crate::api::words::{APPLY_PATCH, CBOR_APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH};

/// An encoding of objects on the wire.
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

    /// The media type of a watch in this encoding; `None` where watches cannot be sent in it.
    pub fn stream_type(self) -> Option<&'static str> {
        match self {
            Encoding::Json => Some(JSON),
            Encoding::Yaml => None,
            Encoding::Protobuf => Some("application/vnd.kubernetes.protobuf;stream=watch"),
            Encoding::Cbor => Some(CBOR_SEQUENCE),
        }
    }

    /// The parameters of a media type that ask for a watch in this encoding, as messages spell them.
    fn offered_stream(self) -> Option<&'static str> {
        match self {
            Encoding::Json => Some("application/json;stream=watch"),
            other => other.stream_type(),
        }
    }
}

/// The encodings that an endpoint has to offer, in the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    encodings: &'static [Encoding],
    streams: bool,
    /// Whether the objects are of a custom kind, which has no Protobuf form of its own.
    custom: bool,
}

impl Offer {
    /// What a document that is no API object is offered in.
    pub const JSON_ONLY: Offer = Offer { encodings: &[Encoding::Json], streams: false, custom: false };

    /// What objects are offered in; CBOR only where its gate is open.
    pub fn objects(cbor: bool) -> Offer {
        const ALL: [Encoding; 4] = [Encoding::Json, Encoding::Yaml, Encoding::Protobuf, Encoding::Cbor];
        Offer { encodings: if cbor { &ALL } else { ALL.split_at(3).0 }, streams: false, custom: false }
    }

    /// The same for objects of a custom kind.
    pub fn custom(self) -> Offer {
        Offer { custom: true, ..self }
    }

    /// Whether objects as they are can be had in an encoding.
    fn has_whole(self, encoding: Encoding) -> bool {
        !(self.custom && encoding == Encoding::Protobuf)
    }

    /// The same at an endpoint that can be watched: its refusals name the streams too.
    pub fn watchable(self) -> Offer {
        Offer { streams: true, ..self }
    }

    /// The media types, as messages list them.
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

    /// Whether this is the name of a stream alone. Nothing can be had under it, but it is none of a stranger.
    fn is_stream(self, media: &str) -> bool {
        self.streams && media == CBOR_SEQUENCE && self.find(CBOR).is_some()
    }
}

/// What a client may ask an answer to be turned into: `as=KIND;g=GROUP;v=VERSION`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transform<'a> {
    /// The kind.
    pub kind: &'a str,
    /// Its group.
    pub group: &'a str,
    /// Its version.
    pub version: &'a str,
}

/// What was agreed upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed<'a> {
    /// The encoding of the answer.
    pub encoding: Encoding,
    /// What the answer must be turned into.
    pub transform: Option<Transform<'a>>,
    /// Whether a person will read it.
    pub pretty: bool,
}

impl Agreed<'_> {
    /// What a client gets that says nothing, or nothing that is known.
    pub const DEFAULT: Agreed<'static> = Agreed { encoding: Encoding::Json, transform: None, pretty: false };
}

/// One item of an Accept header.
struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    parameters: &'a str,
    quality: f64,
}

impl Clause<'_> {
    /// What is no type with one subtype counts for nothing; a lone asterisk means all.
    fn read(item: &str) -> Option<Clause<'_>> {
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

    /// Whether it comes before another: a better one, or one that says more. Both count by themselves, so this is no
    /// order, and the way of sorting decides with it.
    fn precedes(&self, other: &Clause<'_>) -> bool {
        self.quality > other.quality
            || (self.kind != "*" && other.kind == "*")
            || (self.subtype != "*" && other.subtype == "*")
    }

    fn takes(&self, media: &str) -> bool {
        let (kind, subtype) = media.split_once('/').unwrap_or((media, ""));
        let exactly = self.kind == kind && self.subtype == subtype;
        exactly || (self.subtype == "*" && (self.kind == "*" || self.kind == kind))
    }
}

/// More items than anybody sends; what follows is not looked at.
const CLAUSES: usize = 64;

fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut all: Vec<Clause<'_>> = accept.split(',').filter_map(Clause::read).take(CLAUSES).collect();
    // By insertion, as the reference sorts the few there are: each moves up past those that it precedes.
    for from in 1..all.len() {
        let place = (0..from).rev().take_while(|at| precedes(&all, from, *at)).last();
        if let Some(place) = place {
            all.get_mut(place..=from).unwrap_or_default().rotate_right(1);
        }
    }
    all
}

fn precedes(all: &[Clause<'_>], one: usize, other: usize) -> bool {
    all.get(one).zip(all.get(other)).is_some_and(|(one, other)| one.precedes(other))
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(' ')
}

/// The last value that a parameter is given, as it stands. One without a value, or with a second sign of equality, is none.
fn raw_parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = parameters.split(';').filter_map(|pair| pair.split_once('='));
    pairs
        .rfind(|(key, value)| trimmed(key) == name && !value.is_empty() && !value.contains('='))
        .map(|(_, value)| value)
}

fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    raw_parameter(parameters, name).map(trimmed)
}

/// The first of the `offered` media types that a client takes, by the client's order; anything if it does not say.
pub fn choose<'a>(accept: &str, offered: &[&'a str]) -> Option<&'a str> {
    let accept = if accept.is_empty() { "*/*" } else { accept };
    clauses(accept).iter().find_map(|clause| offered.iter().copied().find(|known| clause.takes(known)))
}

/// Agrees on the encoding of an answer. `allows` says which transformations this endpoint knows in which encoding.
pub fn negotiate<'a>(
    accept: &'a str,
    offer: Offer,
    allows: impl Fn(Encoding, Transform<'_>) -> bool,
) -> Result<Agreed<'a>> {
    routed(accept, offer)?;
    agree(accept, offer, allows)
}

/// Whether one of the media types is known here at all, whatever is wanted of it: the first look at a request.
pub fn routed(accept: &str, offer: Offer) -> Result<()> {
    // What nearly everybody says, first.
    let known = matches!(accept, "" | JSON)
        || accept.split(',').any(|item| {
            let media = trimmed(item.split(';').next().unwrap_or_default());
            media == "*/*" || offer.find(media).is_some() || offer.is_stream(media)
        });
    if known { Ok(()) } else { Err(Status::no_representation(&offer.all_names())) }
}

/// The same as [`negotiate`] for those who are asked without that first look.
pub fn agree<'a>(
    accept: &'a str,
    offer: Offer,
    allows: impl Fn(Encoding, Transform<'_>) -> bool,
) -> Result<Agreed<'a>> {
    if matches!(accept, "" | JSON) {
        return Ok(Agreed::DEFAULT);
    }
    let fits = |encoding, asked: Option<Transform<'_>>| {
        asked.map_or_else(|| offer.has_whole(encoding), |asked| allows(encoding, asked))
    };
    first(accept, offer, fits).ok_or_else(|| Status::not_acceptable(&offer.names()))
}

/// What is agreed upon with clients that want a transformation, whatever else they would take.
pub fn transformed<'a>(
    accept: &'a str,
    offer: Offer,
    allows: impl Fn(Encoding, Transform<'_>) -> bool,
) -> Option<Agreed<'a>> {
    first(accept, offer, |encoding, asked| asked.is_some_and(|asked| allows(encoding, asked)))
}

/// The first that fits of what a client takes.
fn first<'a>(
    accept: &'a str,
    offer: Offer,
    fits: impl Fn(Encoding, Option<Transform<'_>>) -> bool,
) -> Option<Agreed<'a>> {
    let all = clauses(accept);
    let pairs = all.iter().flat_map(|clause| offer.encodings.iter().map(move |encoding| (clause, *encoding)));
    let takes = |(clause, encoding): &(&Clause<'a>, Encoding)| clause.takes(encoding.media_type());
    pairs.filter(takes).find_map(|(clause, encoding)| {
        let part = |name| parameter(clause.parameters, name);
        let streams = match part("stream") {
            None | Some("") => true,
            Some(stream) => stream == "watch" && encoding.stream_type().is_some(),
        };
        let transform = match (part("as"), part("g"), part("v")) {
            (None, None, None) => None,
            (kind, group, version) => Some(Transform {
                kind: kind.unwrap_or_default(),
                group: group.unwrap_or_default(),
                version: version.unwrap_or_default(),
            }),
        };
        let pretty = part("pretty") == Some("1");
        (streams && fits(encoding, transform)).then_some(Agreed { encoding, transform, pretty })
    })
}

/// 406 for a watch in an encoding that cannot be streamed.
pub fn no_stream(offer: Offer) -> Box<Status> {
    Status::not_acceptable(&offer.stream_names())
}

/// The encoding of a request body.
pub fn of_body(content_type: &str, offer: Offer) -> Result<Encoding> {
    if content_type.is_empty() {
        return Ok(Encoding::Json);
    }
    let (media, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    let (media, parameters) = (media.trim(), parameters.trim());
    let mut known: Vec<String> = Vec::new();
    // Parameters are pairs that stand once each; a type with anything else behind it is none, but for a last semicolon.
    let sound = parameters.is_empty()
        || parameters.strip_suffix(';').unwrap_or(parameters).split(';').take(CLAUSES).all(|pair| {
            pair.trim().split_once('=').is_some_and(|(key, value)| {
                let key = key.to_ascii_lowercase();
                let new = !key.is_empty() && !value.is_empty() && !known.contains(&key);
                known.push(key);
                new
            })
        });
    let found = offer.find(&media.to_ascii_lowercase()).filter(|_| sound);
    found.ok_or_else(|| Status::unsupported_body(&offer.names()))
}

/// The language of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// A list of operations.
    Json,
    /// An object that is merged into what is there.
    Merge,
    /// An object that is merged as the schema says.
    Strategic,
    /// What some fields shall be, and whose they are.
    Apply,
}

/// What objects can be patched with.
const PATCHES: &str = "application/json-patch+json, application/merge-patch+json, \
     application/strategic-merge-patch+json, application/apply-patch+yaml";
/// What objects of custom kinds can be patched with: nothing says how the others would merge their lists.
const CUSTOM_PATCHES: &str =
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

fn is_patch(one: &str) -> bool {
    let media = one.split(';').next().unwrap_or_default().trim();
    PATCHES.split(", ").any(|patch| patch == media)
}

/// The language and the encoding of a patch, if this is the media type of one.
pub fn of_patch(content_type: &str, offer: Offer) -> Result<(PatchType, Encoding)> {
    // Up to the first parameter, with whatever stands before that.
    let media = content_type.split(';').next().unwrap_or_default();
    match media {
        JSON_PATCH => Ok((PatchType::Json, Encoding::Json)),
        MERGE_PATCH => Ok((PatchType::Merge, Encoding::Json)),
        STRATEGIC_PATCH if !offer.custom => Ok((PatchType::Strategic, Encoding::Json)),
        APPLY_PATCH => Ok((PatchType::Apply, Encoding::Yaml)),
        CBOR_APPLY_PATCH if offer.find(CBOR).is_some() => Ok((PatchType::Apply, Encoding::Cbor)),
        _ if offer.custom => Err(Status::unsupported_body(CUSTOM_PATCHES)),
        // Whoever comes close to a patch is told of the patches, others are turned away at the door.
        _ if content_type.split(',').any(is_patch) => Err(Status::unsupported_body(PATCHES)),
        _ => Err(Status::unsupported_patch()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoding(accept: &str) -> std::result::Result<Encoding, String> {
        negotiate(accept, Offer::objects(false), |_, _| false)
            .map(|agreed| agreed.encoding)
            .map_err(|status| status.message)
    }

    const OFFER: Offer = Offer::JSON_ONLY;

    #[test]
    fn refusals_name_what_there_is() {
        let refused = |accept, offer| negotiate(accept, offer, |_, _| false).unwrap_err().message;
        assert_eq!(
            refused("text/html", Offer::objects(false).watchable()),
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf, application/json;stream=watch, \
             application/vnd.kubernetes.protobuf;stream=watch"
        );
        assert!(refused(PROTOBUF, Offer::JSON_ONLY).ends_with("representations: application/json"));
        assert!(
            refused("application/yaml;stream=watch", Offer::objects(true)).ends_with(", application/cbor")
        );
        assert!(
            no_stream(Offer::objects(true)).message.ends_with("protobuf;stream=watch, application/cbor-seq")
        );
        assert_eq!(
            refused(CBOR_SEQUENCE, Offer::objects(true).watchable()),
            "only the following media types are accepted: application/json, application/yaml, \
             application/vnd.kubernetes.protobuf, application/cbor"
        );
        assert!(refused(CBOR_SEQUENCE, Offer::objects(true)).starts_with("406: Not Acceptable"));
    }

    #[test]
    fn quality_and_order_decide() {
        assert_eq!(encoding(""), Ok(Encoding::Json));
        assert_eq!(encoding("text/html,application/json"), Ok(Encoding::Json));
        assert_eq!(encoding("text/html, */*;q=0.1"), Ok(Encoding::Json));
        assert_eq!(encoding("application/json;q=0.5,application/yaml"), Ok(Encoding::Yaml));
        assert_eq!(encoding("application/vnd.kubernetes.protobuf, application/json"), Ok(Encoding::Protobuf));
        assert_eq!(encoding("application/cbor, application/json"), Ok(Encoding::Json));
        let gated = negotiate("application/cbor, application/json", Offer::objects(true), |_, _| false);
        assert_eq!(gated.unwrap().encoding, Encoding::Cbor);
    }

    #[test]
    fn what_says_more_comes_before_what_takes_all() {
        assert_eq!(encoding("*/*;q=0.5,application/yaml;q=0.5"), Ok(Encoding::Yaml));
        assert_eq!(encoding("*/*, application/yaml;q=0.1"), Ok(Encoding::Yaml), "even if it is wanted less");
        assert_eq!(encoding("application/json;q=x,application/yaml;q=0.1"), Ok(Encoding::Yaml));
        assert_eq!(encoding("application/json;Q=0.1,application/yaml;q=0.2"), Ok(Encoding::Json));
        let accept = "*/*, application/json;as=Table;v=v1;g=meta.k8s.io";
        assert!(negotiate(accept, OFFER, |_, _| true).unwrap().transform.is_some());
    }

    #[test]
    fn parameters_count_as_they_are_written() {
        let transform = |accept| {
            negotiate(accept, OFFER, |_, asked| asked.kind == "Table").map(|agreed| agreed.transform)
        };
        assert_eq!(transform("application/json;as=").unwrap(), None);
        assert_eq!(transform("application/json;AS=Table;V=v1;G=meta.k8s.io").unwrap(), None);
        assert!(transform("application/json;as=\"Table\";v=v1;g=meta.k8s.io").is_err());
    }

    #[test]
    fn the_two_refusals_read_differently() {
        assert!(encoding("text/html").unwrap_err().starts_with("406: Not Acceptable"));
        assert!(encoding("application/*").unwrap_err().starts_with("406: Not Acceptable"));
        let table = "application/json;as=Table;v=v9;g=meta.k8s.io";
        assert!(encoding(table).unwrap_err().starts_with("only the following media types are accepted"));
    }

    #[test]
    fn a_transformation_is_named_by_its_parameters() {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io, application/json";
        let agreed = negotiate(accept, OFFER, |_, asked| asked.kind == "Table").unwrap();
        assert_eq!(agreed.transform, Some(Transform { kind: "Table", group: "meta.k8s.io", version: "v1" }));
        assert_eq!(negotiate(accept, OFFER, |_, _| false).unwrap().transform, None);
    }

    #[test]
    fn the_client_chooses_among_what_is_offered() {
        let offered = ["application/json", "application/x+protobuf"];
        assert_eq!(choose("", &offered), Some(offered[0]));
        assert_eq!(choose("application/x+protobuf", &offered), Some(offered[1]));
        assert_eq!(choose("application/json;q=0.1, application/x+protobuf", &offered), Some(offered[1]));
        assert_eq!(choose("text/html, application/*;q=0.5", &offered), Some(offered[0]));
        assert_eq!(choose("text/html", &offered), None);
    }

    #[test]
    fn bodies() {
        let of = |content_type| of_body(content_type, Offer::objects(false));
        assert_eq!(of(PROTOBUF).unwrap(), Encoding::Protobuf);
        assert_eq!(of(CBOR).unwrap_err().code, 415);
        let patch = |cbor| of_patch("application/apply-patch+cbor", Offer::objects(cbor));
        assert_eq!((patch(true).unwrap().1, patch(false).unwrap_err().code), (Encoding::Cbor, 415));
        assert_eq!(of("application/json; charset=utf-8").unwrap(), Encoding::Json);
        assert_eq!(of("Application/JSON").unwrap(), Encoding::Json);
        assert_eq!(of("").unwrap(), Encoding::Json);
        assert_eq!(of(";charset=utf-8").unwrap_err().code, 415);
        for refused in ["application/json;x", "application/json;;", "application/json; a=b; A=c"] {
            assert_eq!(of(refused).unwrap_err().code, 415, "{refused}");
        }
        for taken in ["application/json; charset=utf-8;", "application/json;", "application/json; a=b; c=d"] {
            assert!(of(taken).is_ok(), "{taken}");
        }
        let close = of_patch("application/merge-patch+json ;q=1", Offer::objects(false)).unwrap_err();
        assert!(
            close.message.ends_with("application/strategic-merge-patch+json, application/apply-patch+yaml")
        );
        let far = of_patch("application/json", Offer::objects(false)).unwrap_err();
        assert_eq!(far.message, "415: Unsupported Media Type");
        assert_eq!(of("text/plain").unwrap_err().code, 415);
    }
}
