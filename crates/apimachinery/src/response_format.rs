//! The format of the objects in a response: the encoding, and full object, metadata or table.

pub mod partial_metadata;

use super::field::{FieldError, FieldPath, quoted};
use super::media::{self, Encoding, Negotiated, OfferedEncodings, Transform};
use super::status::{Result, Status};
use super::verb::Verb;
use super::well_known::META_GROUP;

/// The format of the objects in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseFormat {
    /// The encoding.
    pub encoding: Encoding,
    /// Full object, metadata or table.
    pub shape: Representation,
}

/// The scope of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseScope {
    /// One object.
    One,
    /// A list of objects.
    List,
    /// Watch events.
    Events,
}

/// The representation of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Representation {
    /// The full object.
    Whole,
    /// PartialObjectMetadata.
    Metadata(MetaVersion),
    /// A row of a Table.
    Table(MetaVersion, IncludeObject),
}

/// A version of meta.k8s.io, the group of Table and PartialObjectMetadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVersion {
    /// `meta.k8s.io/v1`
    V1,
    /// `meta.k8s.io/v1beta1`
    V1beta1,
}

impl MetaVersion {
    fn parse(version: &str) -> Option<MetaVersion> {
        match version {
            "v1" => Some(MetaVersion::V1),
            "v1beta1" => Some(MetaVersion::V1beta1),
            _ => None,
        }
    }

    /// The version alone.
    pub fn version(self) -> &'static str {
        match self {
            MetaVersion::V1 => "v1",
            MetaVersion::V1beta1 => "v1beta1",
        }
    }

    /// The apiVersion.
    pub fn api_version(self) -> &'static str {
        match self {
            MetaVersion::V1 => "meta.k8s.io/v1",
            MetaVersion::V1beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// The `object` of a table row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeObject {
    /// The metadata of the object.
    Metadata,
    /// Nothing.
    None,
    /// The whole object.
    Object,
}

/// The query parameter for the `object` of table rows.
pub const INCLUDE_OBJECT: &str = "includeObject";

impl ResponseFormat {
    /// Full objects in JSON.
    pub const PLAIN: ResponseFormat =
        ResponseFormat { encoding: Encoding::Json, shape: Representation::Whole };

    /// Whether the requested transformation is supported in this encoding.
    pub fn allows(encoding: Encoding, transform: Transform<'_>) -> bool {
        let is_known = transform.group == META_GROUP && MetaVersion::parse(transform.version).is_some();
        is_known
            && match transform.kind {
                // Table has no Protobuf message.
                "Table" => matches!(encoding, Encoding::Json | Encoding::Yaml),
                "PartialObjectMetadata" | "PartialObjectMetadataList" => true,
                _ => false,
            }
    }

    /// The negotiated form for this scope. `include` is the query parameter for table rows, `name` is the kind in error messages,
    /// such as `core.Pod`.
    pub fn from_negotiated(
        negotiated: &Negotiated<'_>,
        scope: ResponseScope,
        include: &str,
        name: impl Fn() -> String,
    ) -> Result<ResponseFormat> {
        let encoding = negotiated.encoding;
        let Some(transform) = negotiated.transform else {
            return Ok(ResponseFormat { encoding, shape: Representation::Whole });
        };
        let version = MetaVersion::parse(transform.version).unwrap_or(MetaVersion::V1);
        let shape = match (transform.kind, scope) {
            ("Table", _) => Representation::Table(version, IncludeObject::parse(include)?),
            ("PartialObjectMetadata", ResponseScope::List) => {
                let name = name();
                return Err(Status::transform_not_acceptable(format!(
                    "you requested PartialObjectMetadata, but the requested object is a list (*{name}List)"
                )));
            }
            ("PartialObjectMetadataList", ResponseScope::One | ResponseScope::Events) => {
                let name = name();
                return Err(Status::transform_not_acceptable(format!(
                    "you requested PartialObjectMetadataList, but the requested object is not a list (*{name})"
                )));
            }
            _ => Representation::Metadata(version),
        };
        Ok(ResponseFormat { encoding, shape })
    }

    /// A small number that identifies the format, the key of cached bytes. YAML is made from JSON, so both share one.
    pub fn number(self) -> u32 {
        let encoding = match self.encoding {
            Encoding::Json | Encoding::Yaml => 0,
            Encoding::Protobuf => 1,
            Encoding::Cbor => 2,
        };
        let shape = match self.shape {
            Representation::Whole => 0,
            Representation::Metadata(version) => 1 + version as u32,
            Representation::Table(version, include) => 3 + 2 * (include as u32) + version as u32,
        };
        encoding * ResponseFormat::SHAPES + shape
    }

    const SHAPES: u32 = 9;
    /// The number of a cached value that no client sees: the selectable fields of a custom object.
    pub const FIELDS: u32 = 3 * ResponseFormat::SHAPES;
    /// Greater than the number of any form.
    pub const NUMBERS: u32 = ResponseFormat::FIELDS + 1;
}

impl IncludeObject {
    fn parse(text: &str) -> Result<IncludeObject> {
        match text {
            "" | "Metadata" => Ok(IncludeObject::Metadata),
            "None" => Ok(IncludeObject::None),
            "Object" => Ok(IncludeObject::Object),
            other => {
                let detail = "must be 'Metadata', 'Object', 'None', or empty";
                let error = FieldError::invalid(&FieldPath::new(INCLUDE_OBJECT), &quoted(other), detail);
                Err(Status::bad_request(format!("Unable to convert to Table as requested: {error}")))
            }
        }
    }
}

/// Whether the client accepts any media type of the verb at all.
pub fn check_acceptable(accept: &str, offer: OfferedEncodings, verb: Verb) -> Result<()> {
    media::check_acceptable(accept, offered(offer, verb))
}

fn offered(offer: OfferedEncodings, verb: Verb) -> OfferedEncodings {
    match verb {
        Verb::List | Verb::Watch => offer.watchable(),
        _ => offer,
    }
}

/// Negotiates encoding and transformation. `rows`: whether a Table is possible.
pub fn negotiate_encoding<'a>(
    accept: &'a str,
    offer: OfferedEncodings,
    verb: Verb,
    rows: bool,
) -> Result<Negotiated<'a>> {
    let offer = offered(offer, verb);
    let allows = |encoding, transform: Transform<'_>| {
        ResponseFormat::allows(encoding, transform) && (transform.kind != "Table" || rows)
    };
    let negotiated = media::negotiate_encoding(accept, offer, allows)?;
    if verb == Verb::Watch && negotiated.encoding.stream_type().is_none() {
        return Err(media::no_stream(offer));
    }
    Ok(negotiated)
}

/// Handles an unsupported format. The request still runs: if it fails, the client gets that error; if it succeeds, the client
/// gets the error of the format instead of the object, which is stored or deleted by then, as in the reference. Only a watch of
/// table rows is refused at once.
pub fn defer_unsupported(
    format: Result<ResponseFormat>,
    verb: Verb,
    encoding: Encoding,
) -> Result<(ResponseFormat, Option<Box<Status>>)> {
    match format {
        Ok(format) => Ok((format, None)),
        // A format that events cannot have matters only once there is an event.
        Err(status) if verb == Verb::Watch && !status.is_not_acceptable() => Err(status),
        Err(status) => Ok((ResponseFormat { encoding, shape: Representation::Whole }, Some(status))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(kind: &'static str) -> Negotiated<'static> {
        let transform = Transform { kind, group: META_GROUP, version: "v1" };
        Negotiated { transform: Some(transform), ..Negotiated::DEFAULT }
    }

    #[test]
    fn partial_metadata_of_wrong_scope_is_not_acceptable() {
        let form = |kind, scope| {
            ResponseFormat::from_negotiated(&negotiated(kind), scope, "", || "core.Pod".to_owned())
                .map(|form| form.shape)
        };
        assert_eq!(
            form("PartialObjectMetadata", ResponseScope::One).unwrap(),
            Representation::Metadata(MetaVersion::V1)
        );
        assert_eq!(
            form("PartialObjectMetadata", ResponseScope::Events).unwrap(),
            Representation::Metadata(MetaVersion::V1)
        );
        assert_eq!(
            form("PartialObjectMetadataList", ResponseScope::List).unwrap(),
            Representation::Metadata(MetaVersion::V1)
        );
        let refused = form("PartialObjectMetadata", ResponseScope::List).unwrap_err();
        assert!(refused.code == 406 && refused.message.ends_with("is a list (*core.PodList)"));
        assert_eq!(form("PartialObjectMetadataList", ResponseScope::One).unwrap_err().code, 406);
        assert_eq!(form("PartialObjectMetadataList", ResponseScope::Events).unwrap_err().code, 406);
        assert_eq!(
            form("Table", ResponseScope::List).unwrap(),
            Representation::Table(MetaVersion::V1, IncludeObject::Metadata)
        );
    }

    #[test]
    fn table_rows_include_the_object_of_the_query() {
        let include = |text| {
            ResponseFormat::from_negotiated(&negotiated("Table"), ResponseScope::List, text, String::new)
                .map(|form| form.shape)
        };
        assert_eq!(include("None").unwrap(), Representation::Table(MetaVersion::V1, IncludeObject::None));
        assert_eq!(
            include("x").unwrap_err().message,
            "Unable to convert to Table as requested: includeObject: Invalid value: \"x\": must be 'Metadata', 'Object', \
             'None', or empty"
        );
    }

    #[test]
    fn each_format_has_a_distinct_number() {
        let versions = [MetaVersion::V1, MetaVersion::V1beta1];
        let includes = [IncludeObject::Metadata, IncludeObject::None, IncludeObject::Object];
        let mut shapes = vec![Representation::Whole];
        shapes.extend(versions.map(Representation::Metadata));
        shapes.extend(
            versions
                .iter()
                .flat_map(|version| includes.map(|include| Representation::Table(*version, include))),
        );
        let encodings = [Encoding::Json, Encoding::Protobuf, Encoding::Cbor];
        let mut numbers: Vec<u32> = encodings
            .iter()
            .flat_map(|encoding| {
                shapes.iter().map(|shape| ResponseFormat { encoding: *encoding, shape: *shape }.number())
            })
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), encodings.len() * shapes.len());
        assert!(numbers.iter().all(|number| *number < ResponseFormat::FIELDS));
    }

    #[test]
    fn unsupported_format_refuses_only_a_watch_at_once() {
        let unsupported = |code| Status { code, ..*Status::bad_request("unsupported format") };
        for (verb, code, is_deferred) in [
            (Verb::Get, 406, true),
            (Verb::List, 400, true),
            (Verb::Watch, 406, true),
            (Verb::Watch, 400, false),
            (Verb::Create, 406, true),
            (Verb::DeleteCollection, 400, true),
        ] {
            let outcome = defer_unsupported(Err(Box::new(unsupported(code))), verb, Encoding::Json);
            assert_eq!(outcome.is_ok_and(|(_, error)| error.is_some()), is_deferred, "{verb:?} {code}");
        }
    }
}
