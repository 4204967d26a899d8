//! Why a value cannot be encoded or decoded.

use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::schema::GroupVersionKind;
use pilothouse_types::object::Key;

use crate::limits::QUOTED_BYTES;

/// A value that cannot be encoded or decoded. The message names the object; another attempt fails as well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}{reason}")]
pub struct ValueError {
    /// The resource and key, with a colon after it; empty for records.
    object: String,
    /// The reason.
    pub reason: ValueErrorReason,
}

/// Why a value cannot be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueErrorReason {
    /// It is no encoding of an object.
    #[error("the value is malformed: {0}")]
    Malformed(String),
    /// It is of another kind than its key says.
    #[error("the value is a {actual} and no {expected}")]
    OtherKind {
        /// The kind of the type.
        expected: String,
        /// The kind of the value, with its apiVersion.
        actual: String,
    },
    /// It is in a version of which nothing is known, or that cannot be converted.
    #[error(
        "the value is in version {version} of {kind}, which cannot be converted: store it again with a server that can read it"
    )]
    UnknownVersion {
        /// The version.
        version: String,
        /// The kind.
        kind: String,
    },
    /// It is larger than any object.
    #[error("the value of {bytes} bytes is too large to decode")]
    TooLarge {
        /// The size of the value.
        bytes: usize,
    },
    /// The stored object cannot be read.
    #[error("the stored object is corrupt")]
    CorruptDraft,
}

impl ValueError {
    pub(crate) fn new(reason: ValueErrorReason) -> ValueError {
        ValueError { object: String::new(), reason }
    }

    /// For a value that is no encoding of an object. The message may quote it.
    pub(crate) fn malformed(message: &str) -> ValueError {
        ValueError::new(ValueErrorReason::Malformed(cut(message)))
    }

    /// For a kind without a schema or conversion.
    pub(crate) fn unknown(kind: &GroupVersionKind) -> ValueError {
        let (version, kind) = (cut(&kind.api_version()), cut(&kind.kind));
        ValueError::new(ValueErrorReason::UnknownVersion { version, kind })
    }

    /// The error for this object.
    pub(crate) fn of_object(self, resource: &Resource, key: &Key) -> ValueError {
        ValueError { object: format!("{} {}: ", resource.name(), key.as_str()), ..self }
    }
}

/// The beginning of a text that comes from a value.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(QUOTED_BYTES).collect()
}
