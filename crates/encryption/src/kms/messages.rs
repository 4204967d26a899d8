//! The messages of the KMS plugin API, and what is stored of them. The numbers of the fields are the reference's.

/// Version 2 of the API.
pub mod v2 {
    use std::collections::BTreeMap;

    use prost::Message;

    /// The paths of the methods.
    pub mod methods {
        /// Whether the plugin works, and the key it uses.
        pub const STATUS: &str = "/v2.KeyManagementService/Status";
        /// Encrypts a data key.
        pub const ENCRYPT: &str = "/v2.KeyManagementService/Encrypt";
        /// Decrypts a data key.
        pub const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";
    }

    /// Asks for the state of the plugin.
    #[derive(Clone, PartialEq, Message)]
    pub struct StatusRequest {}

    /// The state of the plugin.
    #[derive(Clone, PartialEq, Message)]
    pub struct StatusResponse {
        /// `v2` or `v2beta1`.
        #[prost(string, tag = "1")]
        pub version: String,
        /// `ok`, or what is wrong.
        #[prost(string, tag = "2")]
        pub healthz: String,
        /// The key that the plugin encrypts with now.
        #[prost(string, tag = "3")]
        pub key_id: String,
    }

    /// A data key to be encrypted.
    #[derive(Clone, PartialEq, Message)]
    #[prost(skip_debug)]
    pub struct EncryptRequest {
        /// The data key.
        #[prost(bytes = "vec", tag = "1")]
        pub plaintext: Vec<u8>,
        /// The id of this request, for logs.
        #[prost(string, tag = "2")]
        pub uid: String,
    }

    /// The encrypted data key.
    #[derive(Clone, PartialEq, Message)]
    pub struct EncryptResponse {
        /// The data key, encrypted.
        #[prost(bytes = "vec", tag = "1")]
        pub ciphertext: Vec<u8>,
        /// The key of the service with which it was encrypted.
        #[prost(string, tag = "2")]
        pub key_id: String,
        /// Data of the plugin that is stored with each object, not encrypted.
        #[prost(btree_map = "string, bytes", tag = "3")]
        pub annotations: BTreeMap<String, Vec<u8>>,
    }

    /// A data key to be decrypted.
    #[derive(Clone, PartialEq, Message)]
    pub struct DecryptRequest {
        /// The encrypted data key.
        #[prost(bytes = "vec", tag = "1")]
        pub ciphertext: Vec<u8>,
        /// The id of this request, for logs.
        #[prost(string, tag = "2")]
        pub uid: String,
        /// The key of the service with which it was encrypted.
        #[prost(string, tag = "3")]
        pub key_id: String,
        /// What the plugin said when it was encrypted.
        #[prost(btree_map = "string, bytes", tag = "4")]
        pub annotations: BTreeMap<String, Vec<u8>>,
    }

    /// The decrypted data key.
    #[derive(Clone, PartialEq, Message)]
    #[prost(skip_debug)]
    pub struct DecryptResponse {
        /// The data key.
        #[prost(bytes = "vec", tag = "1")]
        pub plaintext: Vec<u8>,
    }

    /// What is stored of an object, after the prefix.
    #[derive(Clone, PartialEq, Message)]
    pub struct EncryptedObject {
        /// The object, encrypted.
        #[prost(bytes = "vec", tag = "1")]
        pub encrypted_data: Vec<u8>,
        /// The key of the service with which the data key was encrypted.
        #[prost(string, tag = "2")]
        pub key_id: String,
        /// The data key or the seed, encrypted.
        #[prost(bytes = "vec", tag = "3")]
        pub encrypted_dek_source: Vec<u8>,
        /// What the plugin said when it was encrypted.
        #[prost(btree_map = "string, bytes", tag = "4")]
        pub annotations: BTreeMap<String, Vec<u8>>,
        /// 0 for a data key, 1 for a seed.
        #[prost(int32, tag = "5")]
        pub encrypted_dek_source_type: i32,
    }

    /// The data key is the key of AES-GCM.
    pub const AES_GCM_KEY: i32 = 0;
    /// The data key is a seed; see [`crate::ciphers::ExtendedNonceGcm`].
    pub const HKDF_SHA256_XNONCE_AES_GCM_SEED: i32 = 1;
}

/// Version 1 of the API.
pub mod v1beta1 {
    use prost::Message;

    /// What requests call this version.
    pub const VERSION: &str = "v1beta1";

    /// The paths of the methods.
    pub mod methods {
        /// The version of the API.
        pub const VERSION: &str = "/v1beta1.KeyManagementService/Version";
        /// Encrypts a data key.
        pub const ENCRYPT: &str = "/v1beta1.KeyManagementService/Encrypt";
        /// Decrypts a data key.
        pub const DECRYPT: &str = "/v1beta1.KeyManagementService/Decrypt";
    }

    /// Asks for the version.
    #[derive(Clone, PartialEq, Message)]
    pub struct VersionRequest {
        /// The version of the caller.
        #[prost(string, tag = "1")]
        pub version: String,
    }

    /// The version.
    #[derive(Clone, PartialEq, Message)]
    pub struct VersionResponse {
        /// The version of the API.
        #[prost(string, tag = "1")]
        pub version: String,
        /// The name of the plugin.
        #[prost(string, tag = "2")]
        pub runtime_name: String,
        /// The version of the plugin.
        #[prost(string, tag = "3")]
        pub runtime_version: String,
    }

    /// A data key to be encrypted.
    #[derive(Clone, PartialEq, Message)]
    #[prost(skip_debug)]
    pub struct EncryptRequest {
        /// The version of the caller.
        #[prost(string, tag = "1")]
        pub version: String,
        /// The data key.
        #[prost(bytes = "vec", tag = "2")]
        pub plain: Vec<u8>,
    }

    /// The encrypted data key.
    #[derive(Clone, PartialEq, Message)]
    pub struct EncryptResponse {
        /// The data key, encrypted.
        #[prost(bytes = "vec", tag = "1")]
        pub cipher: Vec<u8>,
    }

    /// A data key to be decrypted.
    #[derive(Clone, PartialEq, Message)]
    pub struct DecryptRequest {
        /// The version of the caller.
        #[prost(string, tag = "1")]
        pub version: String,
        /// The encrypted data key.
        #[prost(bytes = "vec", tag = "2")]
        pub cipher: Vec<u8>,
    }

    /// The decrypted data key.
    #[derive(Clone, PartialEq, Message)]
    #[prost(skip_debug)]
    pub struct DecryptResponse {
        /// The data key.
        #[prost(bytes = "vec", tag = "1")]
        pub plain: Vec<u8>,
    }
}
