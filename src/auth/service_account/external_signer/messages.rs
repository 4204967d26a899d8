//! The messages of the signer API, version `v1alpha1`. The numbers of the fields are the reference's.

use prost::Message;

/// The paths of the methods.
pub mod methods {
    /// Signs the claims of a token.
    pub const SIGN: &str = "/v1alpha1.ExternalJWTSigner/Sign";
    /// The keys that verify tokens.
    pub const FETCH_KEYS: &str = "/v1alpha1.ExternalJWTSigner/FetchKeys";
    /// What the signer can do.
    pub const METADATA: &str = "/v1alpha1.ExternalJWTSigner/Metadata";
}

/// A token to be signed.
#[derive(Clone, PartialEq, Message)]
pub struct SignRequest {
    /// The claims: JSON in base64url.
    #[prost(string, tag = "1")]
    pub claims: String,
}

/// The other two parts of the token, as they appear in it.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct SignResponse {
    /// The header: JSON in base64url.
    #[prost(string, tag = "1")]
    pub header: String,
    /// The signature in base64url.
    #[prost(string, tag = "2")]
    pub signature: String,
}

/// Asks for the keys.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct FetchKeysRequest {}

/// All keys that verify tokens.
#[derive(Clone, PartialEq, Message)]
pub struct FetchKeysResponse {
    /// The keys. They replace those of the last response.
    #[prost(message, repeated, tag = "1")]
    pub keys: Vec<Key>,
    /// When the signer itself got the keys.
    #[prost(message, optional, tag = "2")]
    pub data_timestamp: Option<DataTimestamp>,
    /// After how many seconds they should be fetched again.
    #[prost(int64, tag = "3")]
    pub refresh_hint_seconds: i64,
}

/// A key that verifies tokens.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Key {
    /// The key ID in token headers.
    #[prost(string, tag = "1")]
    pub key_id: String,
    /// The public key: a SubjectPublicKeyInfo in DER.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    /// Whether the key only verifies older tokens and is not published.
    #[prost(bool, tag = "3")]
    pub exclude_from_oidc_discovery: bool,
}

/// A time: `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DataTimestamp {
    /// Seconds since the epoch.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds after them.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// Asks what the signer can do.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MetadataRequest {}

/// What the signer can do.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MetadataResponse {
    /// The longest lifetime of a token.
    #[prost(int64, tag = "1")]
    pub max_token_expiration_seconds: i64,
}
