//! The response body in an audit event.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use pilothouse_apimachinery::codec::transcode::{self, transcode};
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::schema::Registry;

use super::bodies::without_managed_fields;

/// How many times longer than Protobuf or CBOR the JSON of an object usually is at most.
const JSON_GROWTH: usize = 3;

/// A response body: as it was sent, and as JSON on one line. The audit backend makes the JSON, because for a long list that
/// takes longer than other requests should wait.
pub struct Response {
    encoding: Encoding,
    sent: Bytes,
    /// Whether managedFields are dropped.
    omits_managed_fields: bool,
    registry: Arc<Registry>,
    json: OnceLock<Option<Bytes>>,
}

impl Response {
    /// A body that was sent in an encoding; for YAML the JSON that it was made from.
    pub fn new(
        encoding: Encoding,
        sent: Bytes,
        omits_managed_fields: bool,
        registry: Arc<Registry>,
    ) -> Response {
        Response { encoding, sent, omits_managed_fields, registry, json: OnceLock::new() }
    }

    /// The approximate size, including the JSON that will be made.
    pub fn bytes(&self) -> usize {
        match self.encoding {
            Encoding::Json | Encoding::Yaml if !self.omits_managed_fields => self.sent.len(),
            Encoding::Json | Encoding::Yaml => 2 * self.sent.len(),
            Encoding::Protobuf | Encoding::Cbor => (1 + JSON_GROWTH) * self.sent.len(),
        }
    }

    /// The response as JSON on one line; `None` if it cannot be decoded.
    pub fn json(&self) -> Option<&Bytes> {
        self.json.get_or_init(|| self.encode_json()).as_ref()
    }

    fn encode_json(&self) -> Option<Bytes> {
        let from = match self.encoding {
            Encoding::Json | Encoding::Yaml => None,
            Encoding::Protobuf => Some(transcode::Encoding::Protobuf),
            Encoding::Cbor => Some(transcode::Encoding::Cbor),
        };
        let json = match from {
            None => self.sent.clone(),
            Some(from) => transcode(&self.registry, from, transcode::Encoding::Json, &self.sent).ok()?.into(),
        };
        let json = json.slice(..json.trim_ascii_end().len());
        match self.omits_managed_fields {
            true => Some(without_managed_fields(&json).map_or(json, Bytes::from)),
            false => Some(json),
        }
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response").field("encoding", &self.encoding).field("bytes", &self.bytes()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_in_any_encoding_is_audited_as_json() {
        let registry = Arc::new(Registry::builtin().unwrap());
        let text = br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","managedFields":[{"manager":"m"}]}}"#;
        let audited = |encoding, sent: &[u8], omits_managed_fields| {
            let response =
                Response::new(encoding, Bytes::copy_from_slice(sent), omits_managed_fields, registry.clone());
            let converted = response.json().filter(|_| encoding != Encoding::Json || omits_managed_fields);
            assert!(response.bytes() >= sent.len() + converted.map_or(0, Bytes::len), "both bodies count");
            response.json().map(|json| String::from_utf8(json.to_vec()).unwrap())
        };
        let line = [&text[..], b"\n"].concat();
        assert_eq!(audited(Encoding::Json, &line, false).unwrap().as_bytes(), text);
        assert!(!audited(Encoding::Json, &line, true).unwrap().contains("managedFields"));
        for (encoding, to) in
            [(Encoding::Protobuf, transcode::Encoding::Protobuf), (Encoding::Cbor, transcode::Encoding::Cbor)]
        {
            let sent = transcode(&registry, transcode::Encoding::Json, to, text).unwrap();
            let json = audited(encoding, &sent, true).unwrap();
            assert!(json.contains(r#""name":"a""#) && !json.contains("managedFields"), "{json}");
            assert_eq!(audited(encoding, b"nonsense", true), None);
        }
    }
}
