//! Conversion webhooks of custom resources: configuration, ConversionReview requests and responses. `backend/conversion.rs` makes
//! the calls.

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

const GROUP: &str = "apiextensions.k8s.io";
const KIND: &str = "ConversionReview";

/// The conversion webhook of one definition.
#[derive(Debug)]
pub struct Conversion {
    /// The name of the definition.
    pub definition: String,
    /// The address of the webhook.
    pub way: ClientConfig,
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

/// Why objects could not be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionError {
    /// The message for clients.
    pub why: String,
    /// The type of failure.
    pub failure: FailureKind,
}

impl Conversion {
    /// The conversion of a definition; `None` if its versions differ only in `apiVersion`.
    pub fn read(definition: &Value) -> Option<Conversion> {
        let said = definition.at(&["spec", "conversion"])?;
        let webhook = said.get("webhook").filter(|_| said.str("strategy") == "Webhook")?;
        let client = webhook.get("clientConfig").unwrap_or(&Value::Null);
        let versions = webhook.get("conversionReviewVersions").map(Value::items).unwrap_or_default();
        let version = versions.iter().find_map(|version| match version.as_str() {
            Some("v1") => Some(ReviewVersion::V1),
            Some("v1beta1") => Some(ReviewVersion::V1beta1),
            _ => None,
        });
        Some(Conversion {
            definition: meta::name(definition).to_owned(),
            way: client_config(client),
            authority_pem: STANDARD.decode(client.str("caBundle")).unwrap_or_default(),
            version,
        })
    }
}

/// The ConversionReview request.
pub fn question(version: ReviewVersion, uid: &str, wanted: &str, objects: &[Value]) -> Vec<u8> {
    let mut request = Value::object();
    request.set("uid", uid);
    request.set("desiredAPIVersion", wanted);
    request.set("objects", objects.to_vec());
    let mut review = Value::object();
    review.set("kind", KIND);
    review.set("apiVersion", format!("{GROUP}/{}", version.word()));
    review.set("request", request);
    json::to_json(&review)
}

/// A kind as messages print it.
pub fn called(object: &Value) -> String {
    let (group, version) = object.str("apiVersion").split_once('/').unwrap_or(("", object.str("apiVersion")));
    format!("{group}/{version}, Kind={}", object.str("kind"))
}

/// The converted objects of a response.
pub fn converted(
    body: &[u8],
    (version, uid): (ReviewVersion, &str),
    wanted: &GroupVersion,
    sent: &[Value],
) -> Result<Vec<Value>, ConversionError> {
    let of = sent.first().map(called).unwrap_or_default();
    let wrong = |failure: FailureKind, why: String| ConversionError {
        why: format!("conversion webhook for {of} {why}"),
        failure,
    };
    let failed = |failure: FailureKind, why: String| wrong(failure, format!("failed: {why}"));
    let review = json::read(body).map_err(|error| failed(FailureKind::Call, error.to_string()))?;
    let objects = answered(&review, version, uid).map_err(|why| failed(FailureKind::Malformed, why))?;
    if objects.len() != sent.len() {
        let why = format!("returned {} objects, expected {}", objects.len(), sent.len());
        return Err(wrong(FailureKind::Partial, why));
    }
    let place = |index: usize| match sent.len() {
        1 => "invalid object".to_owned(),
        _ => format!("invalid converted object at index {index}"),
    };
    let mut all = Vec::with_capacity(sent.len());
    for (index, (original, object)) in sent.iter().zip(objects).enumerate() {
        let made = checked(original, object, wanted).map_err(|unfit| {
            let why = match unfit {
                Unfit::Head(why) if sent.len() == 1 => format!("returned invalid object at index 0: {why}"),
                Unfit::Head(why) | Unfit::Object(why) => format!("returned {}: {why}", place(index)),
                Unfit::Metadata(why) if sent.len() == 1 => format!("returned invalid metadata: {why}"),
                Unfit::Metadata(why) => {
                    format!("returned invalid metadata in object at index {index}: {why}")
                }
            };
            wrong(FailureKind::Invalid, why)
        })?;
        all.push(made);
    }
    Ok(all)
}

/// The objects of a valid response.
fn answered<'a>(review: &'a Value, version: ReviewVersion, uid: &str) -> Result<&'a [Value], String> {
    if version == ReviewVersion::V1 {
        let wanted = format!("{GROUP}/v1, Kind={KIND}");
        let found = called(review);
        if found != wanted {
            return Err(format!("expected webhook response of {wanted}, got {found}"));
        }
    }
    let response = review.get("response").filter(|response| !response.is_null());
    let response = response.ok_or("no response provided")?;
    if version == ReviewVersion::V1 && response.str("uid") != uid {
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

/// What is wrong with a converted object.
enum Unfit {
    Head(String),
    Object(String),
    Metadata(String),
}

/// A converted object with its original metadata: only labels and annotations may change.
fn checked(original: &Value, object: &Value, wanted: &GroupVersion) -> Result<Value, Unfit> {
    if object.fields().is_none() || object.str("kind").is_empty() {
        return Err(Unfit::Head("Object 'Kind' is missing".to_owned()));
    }
    let received = object.str("apiVersion");
    if received != wanted.to_string() {
        return Err(Unfit::Head(format!("invalid groupVersion (expected {wanted}, received {received})")));
    }
    let (kind, same) = (original.str("kind"), object.str("kind"));
    if kind != same {
        return Err(Unfit::Head(format!("invalid kind (expected {kind}, received {same})")));
    }
    for (field, word) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (wanted, found) = (meta::of(original).str(field), meta::of(object).str(field));
        if wanted != found {
            return Err(Unfit::Object(format!("must have the same {word}: {wanted} != {found}")));
        }
    }
    let unfit = |why: &str| Unfit::Metadata(why.to_owned());
    let given = object.get("metadata").ok_or_else(|| unfit("missing metadata in converted object"))?;
    if given.fields().is_none() {
        return Err(unfit("invalid metadata in converted object"));
    }
    let mut metadata = meta::of(original).clone();
    for field in ["labels", "annotations"] {
        let Some(pairs) = given.get(field).filter(|pairs| !pairs.is_null()) else {
            metadata.remove(field);
            continue;
        };
        let Some(all) = pairs.fields() else {
            return Err(Unfit::Metadata(format!("invalid metadata.{field} in converted object")));
        };
        if let Some((key, _)) = all.iter().find(|(_, value)| value.as_str().is_none()) {
            let why = format!("metadata.{field}[{key}] must be a string in converted object");
            return Err(Unfit::Metadata(why));
        }
        if metadata.get(field) != Some(pairs) {
            let mut errors = ErrorList::new();
            let path = FieldPath::new("metadata").child(field);
            match field {
                "labels" => meta::validate_labels(Some(pairs), &path, &mut errors),
                _ => meta::validate_annotations(Some(pairs), &path, &mut errors),
            }
            if let Some(error) = errors.first() {
                return Err(Unfit::Metadata(error.to_string()));
            }
        }
        metadata.set(field, pairs.clone());
    }
    let mut made = object.clone();
    made.set("metadata", metadata);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    fn sent() -> Vec<Value> {
        vec![value(
            r#"{"apiVersion":"g.io/v1","kind":"W","metadata":{"name":"a","uid":"1","labels":{"l":"1"},"generation":3},"s":1}"#,
        )]
    }

    fn said(response: &str) -> Result<Vec<Value>, ConversionError> {
        let body = format!(
            r#"{{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","response":{response}}}"#
        );
        converted(body.as_bytes(), (ReviewVersion::V1, "u"), &GroupVersion::new("g.io", "v2"), &sent())
    }

    fn object(text: &str) -> String {
        format!(r#"{{"uid":"u","result":{{"status":"Success"}},"convertedObjects":[{text}]}}"#)
    }

    #[test]
    fn labels_and_annotations_are_all_that_changes_of_the_metadata() {
        let made = said(&object(
            r#"{"apiVersion":"g.io/v2","kind":"W","metadata":{"name":"a","uid":"1","annotations":{"x":"y"},"generation":9},"t":2}"#,
        ));
        assert_eq!(
            made.unwrap(),
            [value(
                r#"{"apiVersion":"g.io/v2","kind":"W","metadata":{"name":"a","uid":"1","annotations":{"x":"y"},"generation":3},"t":2}"#
            )]
        );
    }

    #[test]
    fn what_is_wrong_is_said_in_the_words_that_clients_know() {
        let of = "conversion webhook for g.io/v1, Kind=W";
        for (response, wanted, failure) in [
            ("null".to_owned(), format!("{of} failed: no response provided"), FailureKind::Malformed),
            (
                r#"{"uid":"x"}"#.to_owned(),
                format!("{of} failed: expected response.uid=\"u\", got \"x\""),
                FailureKind::Malformed,
            ),
            (
                r#"{"uid":"u","result":{"status":"Failed"}}"#.to_owned(),
                format!("{of} failed: response.result.status was 'Failed', not 'Success'"),
                FailureKind::Malformed,
            ),
            (
                r#"{"uid":"u","result":{"status":"Failed","message":"no"}}"#.to_owned(),
                format!("{of} failed: no"),
                FailureKind::Malformed,
            ),
            (object(""), format!("{of} returned 0 objects, expected 1"), FailureKind::Partial),
            (
                object(r#"{"apiVersion":"g.io/v3","kind":"W","metadata":{}}"#),
                format!(
                    "{of} returned invalid object at index 0: invalid groupVersion (expected g.io/v2, received g.io/v3)"
                ),
                FailureKind::Invalid,
            ),
            (
                object(r#"{"apiVersion":"g.io/v2","kind":"X","metadata":{}}"#),
                format!("{of} returned invalid object at index 0: invalid kind (expected W, received X)"),
                FailureKind::Invalid,
            ),
            (
                object(r#"{"apiVersion":"g.io/v2","kind":"W","metadata":{"name":"b","uid":"1"}}"#),
                format!("{of} returned invalid object: must have the same name: a != b"),
                FailureKind::Invalid,
            ),
            (
                object(
                    r#"{"apiVersion":"g.io/v2","kind":"W","metadata":{"name":"a","uid":"1","labels":{"l":1}}}"#,
                ),
                format!(
                    "{of} returned invalid metadata: metadata.labels[l] must be a string in converted object"
                ),
                FailureKind::Invalid,
            ),
        ] {
            let wrong = said(&response).unwrap_err();
            assert_eq!((wrong.why.as_str(), wrong.failure), (wanted.as_str(), failure), "{response}");
        }
        let body = br#"{"response":{"result":{"status":"Success"},"convertedObjects":[]}}"#;
        let wrong = converted(body, (ReviewVersion::V1, "u"), &GroupVersion::new("g.io", "v2"), &sent());
        assert!(
            wrong
                .unwrap_err()
                .why
                .contains("expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview")
        );
        assert_eq!(
            converted(body, (ReviewVersion::V1beta1, "u"), &GroupVersion::new("g.io", "v2"), &sent())
                .unwrap_err()
                .failure,
            FailureKind::Partial,
            "the older version is believed more"
        );
    }

    #[test]
    fn a_definition_says_who_converts() {
        let read = |conversion: &str| {
            Conversion::read(&value(&format!(
                r#"{{"metadata":{{"name":"d"}},"spec":{{"conversion":{conversion}}}}}"#
            )))
        };
        assert!(read(r#"{"strategy":"None"}"#).is_none());
        let found = read(
            r#"{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v9","v1beta1","v1"],
                "clientConfig":{"url":"https://h/x","caBundle":"YWJj"}}}"#,
        )
        .unwrap();
        assert_eq!((found.definition.as_str(), found.version), ("d", Some(ReviewVersion::V1beta1)));
        assert_eq!(
            (found.way, found.authority_pem),
            (ClientConfig::Url("https://h/x".into()), b"abc".to_vec())
        );
    }
}
