//! Conversion webhooks of custom resources: configuration, ConversionReview requests and responses. `registry/conversion.rs` calls
//! the webhook.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_admission::webhooks::webhook::client_config;
use pilothouse_admission::webhooks::{ClientConfig, ReviewVersion};
use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::json;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::API_EXTENSIONS_GROUP;

const KIND: &str = "ConversionReview";

/// The conversion webhook of one definition.
#[derive(Debug)]
pub struct Conversion {
    /// The name of the definition.
    pub definition: String,
    /// The address of the webhook.
    pub client_config: ClientConfig,
    /// The CA bundle as PEM; empty for the CAs of the system.
    pub authority_pem: Vec<u8>,
    /// The version of ConversionReview; `None` if it supports none of ours.
    pub version: Option<ReviewVersion>,
}

/// The type of failure, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The call failed.
    Call,
    /// The response is malformed, or reports a failure.
    Malformed,
    /// The number of objects differs.
    Partial,
    /// An object is invalid.
    Invalid,
}

impl FailureKind {
    /// The label in metrics.
    pub fn word(self) -> &'static str {
        match self {
            FailureKind::Call => "conversion_webhook_call_failure",
            FailureKind::Malformed => "conversion_webhook_malformed_response_failure",
            FailureKind::Partial => "conversion_webhook_partial_response_failure",
            FailureKind::Invalid => "conversion_webhook_invalid_converted_object_failure",
        }
    }
}

/// The reason that objects could not be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionError {
    /// The message for clients.
    pub message: String,
    /// The type of failure.
    pub failure: FailureKind,
}

impl Conversion {
    /// The conversion of a definition; `None` if its versions differ only in `apiVersion`.
    pub fn read(definition: &Value) -> Option<Conversion> {
        let conversion = definition.get_path(&["spec", "conversion"])?;
        let webhook = conversion.get("webhook").filter(|_| conversion.str("strategy") == "Webhook")?;
        let client = webhook.get("clientConfig").unwrap_or(&Value::Null);
        let versions = webhook.get("conversionReviewVersions").map(Value::items).unwrap_or_default();
        let version = versions.iter().find_map(|version| match version.as_str() {
            Some("v1") => Some(ReviewVersion::V1),
            Some("v1beta1") => Some(ReviewVersion::V1beta1),
            _ => None,
        });
        Some(Conversion {
            definition: meta::name(definition).to_owned(),
            client_config: client_config(client),
            authority_pem: STANDARD.decode(client.str("caBundle")).unwrap_or_default(),
            version,
        })
    }
}

/// One request to the webhook.
#[derive(Debug)]
pub struct ConversionReview<'a> {
    /// The version of ConversionReview.
    pub version: ReviewVersion,
    /// The UID of the request, which the response repeats.
    pub uid: &'a str,
    /// The requested version.
    pub desired_version: &'a GroupVersion,
    /// The objects to be converted.
    pub objects: &'a [Value],
}

impl ConversionReview<'_> {
    /// The body of the request.
    pub fn encode(&self) -> Vec<u8> {
        let mut request = Value::object();
        request.set("uid", self.uid);
        request.set("desiredAPIVersion", self.desired_version.to_string());
        request.set("objects", self.objects.to_vec());
        let mut review = Value::object();
        review.set("kind", KIND);
        review.set("apiVersion", format!("{API_EXTENSIONS_GROUP}/{}", self.version.word()));
        review.set("request", request);
        json::to_json(&review)
    }

    /// The converted objects of a response.
    pub fn decode_response(&self, body: &[u8]) -> Result<Vec<Value>, ConversionError> {
        let originals = self.objects;
        let source_kind = originals.first().map(kind_text).unwrap_or_default();
        let error = |failure: FailureKind, reason: String| ConversionError {
            message: format!("conversion webhook for {source_kind} {reason}"),
            failure,
        };
        let failed = |failure: FailureKind, reason: String| error(failure, format!("failed: {reason}"));
        let review = json::read(body).map_err(|e| failed(FailureKind::Call, e.to_string()))?;
        let objects =
            self.response_objects(&review).map_err(|reason| failed(FailureKind::Malformed, reason))?;
        if objects.len() != originals.len() {
            let reason = format!("returned {} objects, expected {}", objects.len(), originals.len());
            return Err(error(FailureKind::Partial, reason));
        }
        let object_name = |index: usize| match originals.len() {
            1 => "invalid object".to_owned(),
            _ => format!("invalid converted object at index {index}"),
        };
        let mut converted_objects = Vec::with_capacity(originals.len());
        for (index, (original, object)) in originals.iter().zip(objects).enumerate() {
            let converted = check_object(original, object, self.desired_version).map_err(|invalid| {
                let reason = match invalid {
                    InvalidObject::TypeMeta(reason) if originals.len() == 1 => {
                        format!("returned invalid object at index 0: {reason}")
                    }
                    InvalidObject::TypeMeta(reason) | InvalidObject::Object(reason) => {
                        format!("returned {}: {reason}", object_name(index))
                    }
                    InvalidObject::Metadata(reason) if originals.len() == 1 => {
                        format!("returned invalid metadata: {reason}")
                    }
                    InvalidObject::Metadata(reason) => {
                        format!("returned invalid metadata in object at index {index}: {reason}")
                    }
                };
                error(FailureKind::Invalid, reason)
            })?;
            converted_objects.push(converted);
        }
        Ok(converted_objects)
    }

    /// The objects of a valid response.
    fn response_objects<'v>(&self, review: &'v Value) -> Result<&'v [Value], String> {
        let uid = self.uid;
        if self.version == ReviewVersion::V1 {
            let expected = format!("{API_EXTENSIONS_GROUP}/v1, Kind={KIND}");
            let actual = kind_text(review);
            if actual != expected {
                return Err(format!("expected webhook response of {expected}, got {actual}"));
            }
        }
        let response = review.get("response").filter(|response| !response.is_null());
        let response = response.ok_or("no response provided")?;
        if self.version == ReviewVersion::V1 && response.str("uid") != uid {
            return Err(format!("expected response.uid={uid:?}, got {:?}", response.str("uid")));
        }
        let result = response.get("result").unwrap_or(&Value::Null);
        if result.str("status") != "Success" {
            return Err(match result.str("message") {
                "" => format!("response.result.status was '{}', not 'Success'", result.str("status")),
                message => message.to_owned(),
            });
        }
        Ok(response.get("convertedObjects").map(Value::items).unwrap_or_default())
    }
}

/// A kind as messages print it.
pub fn kind_text(object: &Value) -> String {
    let (group, version) = object.str("apiVersion").split_once('/').unwrap_or(("", object.str("apiVersion")));
    format!("{group}/{version}, Kind={}", object.str("kind"))
}

/// The invalid part of a converted object, which decides the wording of the error.
enum InvalidObject {
    /// Its `kind` or `apiVersion`.
    TypeMeta(String),
    /// Its name, namespace or UID.
    Object(String),
    /// Its labels, annotations or metadata as a whole.
    Metadata(String),
}

/// A converted object with its original metadata: only labels and annotations may change.
fn check_object(original: &Value, object: &Value, desired: &GroupVersion) -> Result<Value, InvalidObject> {
    if object.fields().is_none() || object.str("kind").is_empty() {
        return Err(InvalidObject::TypeMeta("Object 'Kind' is missing".to_owned()));
    }
    let received = object.str("apiVersion");
    if received != desired.to_string() {
        return Err(InvalidObject::TypeMeta(format!(
            "invalid groupVersion (expected {desired}, received {received})"
        )));
    }
    let (kind, received) = (original.str("kind"), object.str("kind"));
    if kind != received {
        return Err(InvalidObject::TypeMeta(format!("invalid kind (expected {kind}, received {received})")));
    }
    for (field, word) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (expected, actual) = (meta::metadata(original).str(field), meta::metadata(object).str(field));
        if expected != actual {
            return Err(InvalidObject::Object(format!("must have the same {word}: {expected} != {actual}")));
        }
    }
    let invalid_metadata = |message: &str| InvalidObject::Metadata(message.to_owned());
    let new_metadata =
        object.get("metadata").ok_or_else(|| invalid_metadata("missing metadata in converted object"))?;
    if new_metadata.fields().is_none() {
        return Err(invalid_metadata("invalid metadata in converted object"));
    }
    let mut metadata = meta::metadata(original).clone();
    for field in ["labels", "annotations"] {
        let Some(pairs) = new_metadata.get(field).filter(|pairs| !pairs.is_null()) else {
            metadata.remove(field);
            continue;
        };
        let Some(fields) = pairs.fields() else {
            return Err(InvalidObject::Metadata(format!("invalid metadata.{field} in converted object")));
        };
        if let Some((key, _)) = fields.iter().find(|(_, value)| value.as_str().is_none()) {
            let message = format!("metadata.{field}[{key}] must be a string in converted object");
            return Err(InvalidObject::Metadata(message));
        }
        if metadata.get(field) != Some(pairs) {
            let mut errors = ErrorList::new();
            let path = FieldPath::new("metadata").child(field);
            match field {
                "labels" => meta::validate_labels(Some(pairs), &path, &mut errors),
                _ => meta::validate_annotations(Some(pairs), &path, &mut errors),
            }
            if let Some(error) = errors.first() {
                return Err(InvalidObject::Metadata(error.to_string()));
            }
        }
        metadata.set(field, pairs.clone());
    }
    let mut converted = object.clone();
    converted.set("metadata", metadata);
    Ok(converted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    fn originals() -> Vec<Value> {
        vec![value(
            r#"{"apiVersion":"g.io/v1","kind":"W","metadata":{"name":"a","uid":"1","labels":{"l":"1"},"generation":3},"s":1}"#,
        )]
    }

    fn convert(response: &str) -> Result<Vec<Value>, ConversionError> {
        let body = format!(
            r#"{{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","response":{response}}}"#
        );
        decode_response(ReviewVersion::V1, body.as_bytes())
    }

    fn decode_response(version: ReviewVersion, body: &[u8]) -> Result<Vec<Value>, ConversionError> {
        let desired_version = &GroupVersion::new("g.io", "v2");
        ConversionReview { version, uid: "u", desired_version, objects: &originals() }.decode_response(body)
    }

    fn object(text: &str) -> String {
        format!(r#"{{"uid":"u","result":{{"status":"Success"}},"convertedObjects":[{text}]}}"#)
    }

    #[test]
    fn converted_object_may_change_only_labels_and_annotations() {
        let converted = convert(&object(
            r#"{"apiVersion":"g.io/v2","kind":"W","metadata":{"name":"a","uid":"1","annotations":{"x":"y"},"generation":9},"t":2}"#,
        ));
        assert_eq!(
            converted.unwrap(),
            [value(
                r#"{"apiVersion":"g.io/v2","kind":"W","metadata":{"name":"a","uid":"1","annotations":{"x":"y"},"generation":3},"t":2}"#
            )]
        );
    }

    #[test]
    fn invalid_conversion_responses_are_refused() {
        let prefix = "conversion webhook for g.io/v1, Kind=W";
        for (response, expected, failure) in [
            ("null".to_owned(), format!("{prefix} failed: no response provided"), FailureKind::Malformed),
            (
                r#"{"uid":"x"}"#.to_owned(),
                format!("{prefix} failed: expected response.uid=\"u\", got \"x\""),
                FailureKind::Malformed,
            ),
            (
                r#"{"uid":"u","result":{"status":"Failed"}}"#.to_owned(),
                format!("{prefix} failed: response.result.status was 'Failed', not 'Success'"),
                FailureKind::Malformed,
            ),
            (
                r#"{"uid":"u","result":{"status":"Failed","message":"no"}}"#.to_owned(),
                format!("{prefix} failed: no"),
                FailureKind::Malformed,
            ),
            (object(""), format!("{prefix} returned 0 objects, expected 1"), FailureKind::Partial),
            (
                object(r#"{"apiVersion":"g.io/v3","kind":"W","metadata":{}}"#),
                format!(
                    "{prefix} returned invalid object at index 0: invalid groupVersion (expected g.io/v2, received g.io/v3)"
                ),
                FailureKind::Invalid,
            ),
            (
                object(r#"{"apiVersion":"g.io/v2","kind":"X","metadata":{}}"#),
                format!("{prefix} returned invalid object at index 0: invalid kind (expected W, received X)"),
                FailureKind::Invalid,
            ),
            (
                object(r#"{"apiVersion":"g.io/v2","kind":"W","metadata":{"name":"b","uid":"1"}}"#),
                format!("{prefix} returned invalid object: must have the same name: a != b"),
                FailureKind::Invalid,
            ),
            (
                object(
                    r#"{"apiVersion":"g.io/v2","kind":"W","metadata":{"name":"a","uid":"1","labels":{"l":1}}}"#,
                ),
                format!(
                    "{prefix} returned invalid metadata: metadata.labels[l] must be a string in converted object"
                ),
                FailureKind::Invalid,
            ),
        ] {
            let error = convert(&response).unwrap_err();
            assert_eq!((error.message.as_str(), error.failure), (expected.as_str(), failure), "{response}");
        }
        let body = br#"{"response":{"result":{"status":"Success"},"convertedObjects":[]}}"#;
        let error = decode_response(ReviewVersion::V1, body);
        assert!(
            error
                .unwrap_err()
                .message
                .contains("expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview")
        );
        assert_eq!(
            decode_response(ReviewVersion::V1beta1, body).unwrap_err().failure,
            FailureKind::Partial,
            "v1beta1 responses need no kind and UID"
        );
    }

    #[test]
    fn conversion_is_read_from_definition() {
        let read = |spec: &str| {
            Conversion::read(&value(&format!(
                r#"{{"metadata":{{"name":"d"}},"spec":{{"conversion":{spec}}}}}"#
            )))
        };
        assert!(read(r#"{"strategy":"None"}"#).is_none());
        let conversion = read(
            r#"{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v9","v1beta1","v1"],
                "clientConfig":{"url":"https://h/x","caBundle":"YWJj"}}}"#,
        )
        .unwrap();
        assert_eq!((conversion.definition.as_str(), conversion.version), ("d", Some(ReviewVersion::V1beta1)));
        assert_eq!(
            (conversion.client_config, conversion.authority_pem),
            (ClientConfig::Url("https://h/x".into()), b"abc".to_vec())
        );
    }
}
