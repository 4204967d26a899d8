//! Which encoding a body has and which one an answer gets.
//!
//! The reference chooses in two steps whose refusals read differently: a coarse one by media type alone, then a fine one
//! that knows parameters and transformations. Both are here, in that order.

use super::status::{Result, Status};
use super::words::{JSON, PROTOBUF, YAML};

/// An encoding of objects on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
}

impl Encoding {
    /// The media type of this encoding.
    pub fn media_type(self) -> &'static str {
        match self {
            Encoding::Json => JSON,
            Encoding::Yaml => YAML,
        }
    }

    /// Whether watches can be sent in this encoding.
    pub fn streams(self) -> bool {
        self == Encoding::Json
    }
}

/// The encodings that messages offer to clients, in the order of preference.
const OFFERED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

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

/// One item of an Accept header.
struct Clause<'a> {
    media: &'a str,
    parameters: &'a str,
    quality: f32,
}

fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut all: Vec<Clause<'_>> = accept
        .split(',')
        .map(|item| {
            let (media, parameters) = item.split_once(';').unwrap_or((item, ""));
            let quality = parameter(parameters, "q").and_then(|q| q.parse().ok()).unwrap_or(1.0);
            Clause { media: media.trim(), parameters, quality }
        })
        .collect();
    // Stable: among equals the order of the client counts.
    all.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    all
}

fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    parameters
        .split(';')
        .filter_map(|parameter| parameter.split_once('='))
        .find(|(key, _)| key.trim().eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim().trim_matches('"'))
}

/// The first of the `offered` media types that a client takes, by the client's order; anything if it does not say.
pub fn choose<'a>(accept: &str, offered: &[&'a str]) -> Option<&'a str> {
    let accept = if accept.is_empty() { "*/*" } else { accept };
    clauses(accept).iter().find_map(|clause| {
        let (kind, subtype) = clause.media.split_once('/')?;
        let takes = |known: &str| {
            let (known_kind, known_subtype) = known.split_once('/').unwrap_or((known, ""));
            (kind == "*" || kind == known_kind) && (subtype == "*" || subtype == known_subtype)
        };
        offered.iter().copied().find(|known| takes(known))
    })
}

/// Agrees on the encoding of an answer. `allows` says which transformations this endpoint knows.
pub fn negotiate<'a>(accept: &'a str, allows: impl Fn(Transform<'_>) -> bool) -> Result<Agreed<'a>> {
    // What nearly everybody says, first.
    if matches!(accept, "" | JSON) {
        return Ok(Agreed { encoding: Encoding::Json, transform: None, pretty: false });
    }
    let clauses = clauses(accept);
    if !clauses.iter().any(|clause| matches!(clause.media, "*/*" | JSON | YAML | PROTOBUF)) {
        return Err(Status::no_representation(OFFERED));
    }
    for clause in &clauses {
        let encoding = match clause.media {
            JSON | "*/*" | "application/*" => Encoding::Json,
            YAML => Encoding::Yaml,
            _ => continue,
        };
        let stream = parameter(clause.parameters, "stream").unwrap_or_default();
        if !matches!(stream, "" | "watch") {
            continue;
        }
        let part = |name| parameter(clause.parameters, name);
        let transform = match (part("as"), part("g"), part("v")) {
            (None, None, None) => None,
            (kind, group, version) => Some(Transform {
                kind: kind.unwrap_or_default(),
                group: group.unwrap_or_default(),
                version: version.unwrap_or_default(),
            }),
        };
        if transform.is_none_or(&allows) {
            let pretty = part("pretty") == Some("1");
            return Ok(Agreed { encoding, transform, pretty });
        }
    }
    Err(Status::not_acceptable(OFFERED))
}

/// The encoding of a request body.
pub fn of_body(content_type: &str) -> Result<Encoding> {
    if content_type.is_empty() {
        return Ok(Encoding::Json);
    }
    let media = content_type.split(';').next().unwrap_or_default().trim();
    match media.to_ascii_lowercase().as_str() {
        JSON => Ok(Encoding::Json),
        YAML => Ok(Encoding::Yaml),
        _ => Err(Status::unsupported_body(OFFERED)),
    }
}

/// Whether this is the media type of a patch.
pub fn of_patch(content_type: &str) -> Result<()> {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    match media {
        "application/json-patch+json"
        | "application/merge-patch+json"
        | "application/strategic-merge-patch+json"
        | "application/apply-patch+yaml" => Ok(()),
        _ => Err(Status::unsupported_patch()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoding(accept: &str) -> std::result::Result<Encoding, String> {
        negotiate(accept, |_| false).map(|agreed| agreed.encoding).map_err(|status| status.message)
    }

    #[test]
    fn quality_and_order_decide() {
        assert_eq!(encoding(""), Ok(Encoding::Json));
        assert_eq!(encoding("text/html,application/json"), Ok(Encoding::Json));
        assert_eq!(encoding("text/html, */*;q=0.1"), Ok(Encoding::Json));
        assert_eq!(encoding("application/json;q=0.5,application/yaml"), Ok(Encoding::Yaml));
        assert_eq!(encoding("application/vnd.kubernetes.protobuf, application/json"), Ok(Encoding::Json));
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
        let agreed = negotiate(accept, |asked| asked.kind == "Table").unwrap();
        assert_eq!(agreed.transform, Some(Transform { kind: "Table", group: "meta.k8s.io", version: "v1" }));
        assert_eq!(negotiate(accept, |_| false).unwrap().transform, None);
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
        assert_eq!(of_body("application/json; charset=utf-8").unwrap(), Encoding::Json);
        assert_eq!(of_body("Application/JSON").unwrap(), Encoding::Json);
        assert_eq!(of_body("").unwrap(), Encoding::Json);
        assert_eq!(of_body(";charset=utf-8").unwrap_err().code, 415);
        assert_eq!(of_body("text/plain").unwrap_err().code, 415);
    }
}
