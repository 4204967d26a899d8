//! Data keys and seeds, as they are used.

use std::sync::Arc;
use std::time::Duration;

use pilothouse_types::clock::Moment;
use prost::Message as _;
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};

use super::encrypted_object;
use crate::ciphers::{AesGcm, CipherError, ExtendedNonceGcm};
use crate::kms::key_cache::CacheKey;
use crate::kms::messages::v2::{
    AES_GCM_KEY, EncryptResponse, EncryptedObject, HKDF_SHA256_XNONCE_AES_GCM_SEED,
};
use crate::observer::key_id_hash;
use crate::secret_key::SecretKey;

/// How the field with the encrypted data begins: number 1, bytes with a length. The first number is written first.
const DATA_FIELD: u8 = (1 << 3) | 2;

/// A data key that values are decrypted with.
pub struct DataKey {
    cipher: DataCipher,
    /// The key of the plugin that protects it, as metrics and logs show it.
    pub key_id_hash: String,
}

enum DataCipher {
    Seed(ExtendedNonceGcm),
    Key(AesGcm),
}

impl DataKey {
    /// What the plugin has decrypted.
    pub fn new(key_id: &str, source_type: i32, secret: SecretKey) -> Result<DataKey, CipherError> {
        let cipher = match source_type {
            AES_GCM_KEY => DataCipher::Key(AesGcm::new(secret)?),
            _ => DataCipher::Seed(ExtendedNonceGcm::new(&secret)?),
        };
        Ok(DataKey { cipher, key_id_hash: key_id_hash(key_id) })
    }

    /// Decrypts a value.
    pub fn decrypt(&self, data: &[u8], context: &[u8]) -> Result<Vec<u8>, CipherError> {
        match &self.cipher {
            DataCipher::Seed(seed) => seed.decrypt(data, context),
            DataCipher::Key(key) => key.decrypt(data, context),
        }
    }
}

/// The seed for writing.
pub struct WriteSeed {
    /// Also used for reading what was written with it.
    pub data_key: Arc<DataKey>,
    /// The key of the plugin.
    pub key_id: String,
    /// The identity of the seed among all data keys.
    pub cache_key: CacheKey,
    /// Everything that follows the encrypted data in a stored object, encoded: it is the same for all of them.
    trailer: Arc<[u8]>,
    /// Until when it may be used for writing.
    expiry: Moment,
}

impl WriteSeed {
    /// A seed that the plugin has encrypted.
    pub fn new(response: EncryptResponse, seed: &SecretKey, expiry: Moment) -> Result<WriteSeed, String> {
        let object = EncryptedObject {
            encrypted_data: Vec::new(),
            key_id: response.key_id,
            encrypted_dek_source: response.ciphertext,
            annotations: response.annotations,
            encrypted_dek_source_type: HKDF_SHA256_XNONCE_AES_GCM_SEED,
        };
        encrypted_object::check_source(&object)?;
        let data_key = DataKey::new(&object.key_id, object.encrypted_dek_source_type, seed.clone());
        Ok(WriteSeed {
            data_key: Arc::new(data_key.map_err(|error| error.to_string())?),
            cache_key: encrypted_object::cache_key(&object),
            trailer: object.encode_to_vec().into(),
            key_id: object.key_id,
            expiry,
        })
    }

    /// The same seed, to be used until another time.
    pub fn with_expiry(&self, expiry: Moment) -> WriteSeed {
        WriteSeed {
            data_key: self.data_key.clone(),
            key_id: self.key_id.clone(),
            cache_key: self.cache_key,
            trailer: self.trailer.clone(),
            expiry,
        }
    }

    /// How long it must not be used any more; `None` if it may.
    pub fn expired_since(&self, now: Moment) -> Option<Duration> {
        (now > self.expiry).then(|| now.since(self.expiry))
    }

    /// Appends the stored object to `out`.
    pub fn encrypt(&self, plain: &[u8], context: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
        let DataCipher::Seed(cipher) = &self.data_key.cipher else {
            return Err(CipherError::KeyLength(0));
        };
        let length = ExtendedNonceGcm::encrypted_bytes(plain);
        out.reserve(1 + encoded_len_varint(length as u64) + length + self.trailer.len());
        out.push(DATA_FIELD);
        encode_varint(length as u64, out);
        cipher.encrypt(plain, context, out)?;
        out.extend_from_slice(&self.trailer);
        Ok(())
    }

    /// The encrypted data of a stored object, if it was written with this seed as [`WriteSeed::encrypt`] writes it. Most objects
    /// are, so nothing of them is decoded.
    pub fn encrypted_data<'a>(&self, object: &'a [u8]) -> Option<&'a [u8]> {
        let mut data = object.strip_suffix(&*self.trailer)?.strip_prefix(&[DATA_FIELD])?;
        let length = decode_varint(&mut data).ok()?;
        (length == data.len() as u64).then_some(data)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn seed() -> WriteSeed {
        let annotations = BTreeMap::from([("a.example.com".to_owned(), b"1".to_vec())]);
        let response = EncryptResponse { ciphertext: vec![7; 60], key_id: "key".to_owned(), annotations };
        WriteSeed::new(response, &SecretKey::new(vec![1; 32]), Moment::default()).unwrap()
    }

    #[test]
    fn written_object_is_the_encoded_message() {
        let (seed, mut out) = (seed(), Vec::new());
        seed.encrypt(b"plain", b"/registry/a", &mut out).unwrap();
        let object = encrypted_object::decode(&out).unwrap();
        assert_eq!(object.encode_to_vec(), out);
        assert_eq!(
            (object.key_id.as_str(), object.encrypted_dek_source.len(), object.encrypted_dek_source_type),
            ("key", 60, HKDF_SHA256_XNONCE_AES_GCM_SEED)
        );
        assert_eq!(seed.encrypted_data(&out), Some(object.encrypted_data.as_slice()));
        assert_eq!(seed.data_key.decrypt(&object.encrypted_data, b"/registry/a").unwrap(), b"plain");
    }

    #[test]
    fn stored_bytes_have_the_field_numbers_of_the_reference() {
        let annotations = BTreeMap::from([("a.example.com".to_owned(), b"1".to_vec())]);
        let response = EncryptResponse { ciphertext: vec![7; 3], key_id: "key".to_owned(), annotations };
        let seed = WriteSeed::new(response, &SecretKey::new(vec![1; 32]), Moment::default()).unwrap();
        let mut out = Vec::new();
        seed.encrypt(&[0; 100], b"", &mut out).unwrap();
        // Field 1 with 160 bytes: info, nonce, text, tag. Then 2: the key id, 3: the encrypted seed, 4: an annotation, 5: the type.
        assert_eq!(out[..3], [0x0a, 0xa0, 0x01]);
        let trailer = b"\x12\x03key\x1a\x03\x07\x07\x07\x22\x12\x0a\x0da.example.com\x12\x011\x28\x01";
        assert_eq!(out[3 + 160..], *trailer);
    }

    #[test]
    fn object_of_another_seed_or_form_is_not_taken_for_an_own_one() {
        let (seed, mut out) = (seed(), Vec::new());
        seed.encrypt(&[5; 300], b"", &mut out).unwrap();
        for length in 0..out.len() {
            assert_eq!(seed.encrypted_data(&out[..length]), None);
            let mut changed = out.clone();
            changed[length] ^= 1;
            let data = seed.encrypted_data(&changed);
            assert!(data.is_none_or(|data| seed.data_key.decrypt(data, b"").is_err()), "{length}");
        }
        let other = EncryptedObject { key_id: "other".to_owned(), ..encrypted_object::decode(&out).unwrap() };
        assert_eq!(seed.encrypted_data(&other.encode_to_vec()), None);
    }

    #[test]
    fn seed_is_used_until_its_expiry() {
        let expiry = Moment::default().plus(Duration::from_secs(10));
        let seed = seed().with_expiry(expiry);
        assert_eq!(seed.expired_since(expiry), None);
        let later = expiry.plus(Duration::from_secs(2));
        assert_eq!(seed.expired_since(later), Some(Duration::from_secs(2)));
    }
}
