//! The response body in an audit event.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use pilothouse_apimachinery::codec::transcode::{self, transcode};
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::schema::Registry;

use super::bodies::without_managed_fields;

/// How much longer than Protobuf or CBOR the JSON of an object usually is at most.
const JSON_TIMES: usize = 3;

/// A response body: as it was sent, and as JSON on one line. The JSON is made by the audit backend, because a long list takes
/// longer than other requests should wait.
pub struct Response {
    encoding: Encoding,
    sent: Bytes,
    /// Whether managedFields are dropped.
    drops_owners: bool,
    registry: Arc<Registry>,
    json: OnceLock<Option<Bytes>>,
}

impl Response {
    /// A body that was sent in an encoding; for YAML the JSON that it was made from.
    pub fn new(encoding: Encoding, sent: Bytes, drops_owners: bool, registry: Arc<Registry>) -> Response {
        Response { encoding, sent, drops_owners, registry, json: OnceLock::new() }
    }

    /// The approximate size, including the JSON that will be made.
    pub fn bytes(&self) -> usize {
        match self.encoding {
            Encoding::Json | Encoding::Yaml if !self.drops_owners => self.sent.len(),
            Encoding::Json | Encoding::Yaml => 2 * self.sent.len(),
            Encoding::Protobuf | Encoding::Cbor => (1 + JSON_TIMES) * self.sent.len(),
        }
    }

    /// The response as JSON on one line; `None` if it cannot be decoded.
    pub fn json(&self) -> Option<&Bytes> {
        self.json.get_or_init(|| self.written()).as_ref()
    }

    fn written(&self) -> Option<Bytes> {
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
        match self.drops_owners {
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
    fn whatever_was_sent_is_written_down_in_json() {
        let registry = Arc::new(Registry::builtin().unwrap());
        let text = br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","managedFields":[{"manager":"m"}]}}"#;
        let of = |encoding, sent: &[u8], drops_owners| {
            let response =
                Response::new(encoding, Bytes::copy_from_slice(sent), drops_owners, registry.clone());
            let made = response.json().filter(|_| encoding != Encoding::Json || drops_owners);
            assert!(response.bytes() >= sent.len() + made.map_or(0, Bytes::len), "both are held");
            response.json().map(|json| String::from_utf8(json.to_vec()).unwrap())
        };
        let line = [&text[..], b"\n"].concat();
        assert_eq!(of(Encoding::Json, &line, false).unwrap().as_bytes(), text);
        assert!(!of(Encoding::Json, &line, true).unwrap().contains("managedFields"));
        for (encoding, to) in
            [(Encoding::Protobuf, transcode::Encoding::Protobuf), (Encoding::Cbor, transcode::Encoding::Cbor)]
        {
            let sent = transcode(&registry, transcode::Encoding::Json, to, text).unwrap();
            let json = of(encoding, &sent, true).unwrap();
            assert!(json.contains(r#""name":"a""#) && !json.contains("managedFields"), "{json}");
            assert_eq!(of(encoding, b"nonsense", true), None);
        }
    }
}
