//! The encodings of values: `--storage-media-type`, and how a stored value is recognized.

use pilothouse_apimachinery::codec::{cbor, protobuf};
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::well_known::{JSON, PROTOBUF, YAML};

/// The encoding of new values of built-in types. Values in any other are read all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediaType {
    /// JSON, with a line break at its end.
    Json,
    /// YAML.
    Yaml,
    /// Protobuf in its envelope, the default.
    #[default]
    Protobuf,
}

impl MediaType {
    /// All of them.
    pub const ALL: [MediaType; 3] = [MediaType::Json, MediaType::Yaml, MediaType::Protobuf];

    /// Reads the value of `--storage-media-type`; an empty one means JSON. The error is the reference's.
    pub fn parse(flag: &str) -> Result<MediaType, String> {
        match flag {
            "" | JSON => Ok(MediaType::Json),
            YAML => Ok(MediaType::Yaml),
            PROTOBUF => Ok(MediaType::Protobuf),
            other => Err(format!(
                "--storage-media-type {other:?} invalid, allowed values: {JSON}, {PROTOBUF}, {YAML}"
            )),
        }
    }

    /// The encoding.
    pub fn encoding(self) -> Encoding {
        match self {
            MediaType::Json => Encoding::Json,
            MediaType::Yaml => Encoding::Yaml,
            MediaType::Protobuf => Encoding::Protobuf,
        }
    }
}

/// The encoding of a stored value, by its first bytes. Whatever has no other sign may be YAML.
pub fn recognize(value: &[u8]) -> Encoding {
    if value.starts_with(&protobuf::MAGIC) {
        Encoding::Protobuf
    } else if value.starts_with(&cbor::PREFIX) {
        Encoding::Cbor
    } else if value.trim_ascii_start().starts_with(b"{") {
        Encoding::Json
    } else {
        Encoding::Yaml
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_names_one_of_three_media_types() {
        for (flag, expected) in [
            ("application/vnd.kubernetes.protobuf", MediaType::Protobuf),
            ("application/json", MediaType::Json),
            ("application/yaml", MediaType::Yaml),
            ("", MediaType::Json),
        ] {
            assert_eq!(MediaType::parse(flag), Ok(expected));
        }
        assert_eq!(
            MediaType::parse("application/cbor").unwrap_err(),
            "--storage-media-type \"application/cbor\" invalid, allowed values: application/json, \
             application/vnd.kubernetes.protobuf, application/yaml"
        );
        assert_eq!(MediaType::default(), MediaType::Protobuf);
    }

    #[test]
    fn values_are_recognized_by_their_first_bytes() {
        for (value, encoding) in [
            (&b"k8s\0\n"[..], Encoding::Protobuf),
            (b"\xd9\xd9\xf7\xa0", Encoding::Cbor),
            (b" \n{", Encoding::Json),
            (b"kind: Pod", Encoding::Yaml),
            (b"", Encoding::Yaml),
        ] {
            assert_eq!(recognize(value), encoding);
        }
    }
}
