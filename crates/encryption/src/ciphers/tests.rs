//! Known answers come from other implementations: Python's `cryptography` and PyNaCl, and RFC 5869.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::secret_key::SecretKey;

const CONTEXT: &[u8] = b"/registry/secrets/default/a";
const PLAIN: &[u8] = br#"{"kind":"Secret"}"#;

fn bytes(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect()
}

/// Consecutive bytes.
fn range(first: u8, count: u8) -> Vec<u8> {
    (first..first + count).collect()
}

fn key(count: u8) -> SecretKey {
    SecretKey::new(range(0, count))
}

#[test]
fn aes_gcm_decrypts_known_answers() {
    for (length, digits) in [
        (16, "404142434445464748494a4b420b02a3032fdb8aaeea267c8c4209da315535ea7e75a4a3c89d55b33083fd52b4"),
        (24, "404142434445464748494a4b5d2e3713ff337a8fcf40e0df2f566748f5d77554b7c966a211b0ab2a533b541a1d"),
        (32, "404142434445464748494a4b999bc54a4858a539ef977255e90167790411ec71a0f9705c8b0d246b5746cf12aa"),
    ] {
        let cipher = AesGcm::new(key(length)).unwrap();
        assert_eq!(cipher.decrypt(&bytes(digits), CONTEXT), Ok(PLAIN.to_vec()), "{length}");
    }
    assert_eq!(AesGcm::new(key(31)).err(), Some(CipherError::KeyLength(31)));
}

#[test]
fn aes_gcm_encrypts_known_answer() {
    let expected =
        bytes("404142434445464748494a4b999bc54a4858a539ef977255e90167790411ec71a0f9705c8b0d246b5746cf12aa");
    let (nonce, key) = (range(0x40, 12), key(32));
    let mut out = nonce.clone();
    aes_gcm::seal(&aes_gcm::fetch(32).unwrap(), key.bytes(), &nonce, PLAIN, CONTEXT, &mut out).unwrap();
    assert_eq!(out, expected);
}

#[test]
fn aes_cbc_matches_known_answers() {
    for (length, digits) in [
        (
            16,
            "505152535455565758595a5b5c5d5e5f2c27184d6342292dcc8e54cf79efaee909a289334d43a220c6170c70112bf815",
        ),
        (
            24,
            "505152535455565758595a5b5c5d5e5fe2838fceee510f15de1603548337c001b873c809c1a137b3ca0bd745a4658454",
        ),
        (
            32,
            "505152535455565758595a5b5c5d5e5f422a9c0fedeffc6d7572fb6153804673f6328539cef8a386a6d832ccfa887cfb",
        ),
    ] {
        let cipher = AesCbc::new(key(length)).unwrap();
        assert_eq!(cipher.decrypt(&bytes(digits)), Ok(PLAIN.to_vec()), "{length}");
        let mut out = Vec::new();
        cipher.encrypt_with(&range(0x50, 16).try_into().unwrap(), PLAIN, &mut out).unwrap();
        assert_eq!(out, bytes(digits), "{length}");
    }
    assert_eq!(AesCbc::new(key(8)).err(), Some(CipherError::KeyLength(8)));
}

#[test]
fn aes_cbc_refuses_data_that_is_not_padded_blocks() {
    let cipher = AesCbc::new(key(32)).unwrap();
    assert_eq!(cipher.decrypt(&[0; 15]), Err(CipherError::TooShort));
    assert_eq!(cipher.decrypt(&[0; 16]), Err(CipherError::TooShort));
    assert_eq!(cipher.decrypt(&[0; 31]), Err(CipherError::NotBlocks));
    assert_eq!(cipher.decrypt(&[0; 32]), Err(CipherError::Padding));
}

#[test]
fn secretbox_matches_known_answer() {
    let digits = "808182838485868788898a8b8c8d8e8f90919293949596970760e4ccd07243a6ae31c0225bdaed835fb1dc298edd2b36fefbeb80d3f6\
                  aa3f40";
    let cipher = Secretbox::new(&key(32)).unwrap();
    assert_eq!(cipher.decrypt(&bytes(digits)), Ok(PLAIN.to_vec()));
    let mut out = Vec::new();
    cipher.encrypt_with(&range(0x80, 24).try_into().unwrap(), PLAIN, &mut out).unwrap();
    assert_eq!(out, bytes(digits));
    assert_eq!(Secretbox::new(&key(31)).err(), Some(CipherError::KeyLength(31)));
}

#[test]
fn extended_nonce_matches_known_answer() {
    let digits = "606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f404142434445464748494a4bb79b6d9ad92e868aa7fd\
                  af164ad5b771b09c639cb43a804b98e98ddb0c16c6a1ec";
    let cipher = ExtendedNonceGcm::new(&key(32)).unwrap();
    assert_eq!(cipher.decrypt(&bytes(digits), CONTEXT), Ok(PLAIN.to_vec()));
    let random = [range(0x60, 32), range(0x40, 12)].concat().try_into().unwrap();
    let mut out = Vec::new();
    cipher.encrypt_with(&random, PLAIN, CONTEXT, &mut out).unwrap();
    assert_eq!(out, bytes(digits));
    assert_eq!(out.len(), ExtendedNonceGcm::encrypted_bytes(PLAIN));
    assert_eq!(ExtendedNonceGcm::new(&key(31)).err(), Some(CipherError::SeedLength(31)));
}

#[test]
fn derived_keys_are_those_of_hkdf_expand() {
    // RFC 5869, test case 1: the first block of the output.
    let seed = bytes("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
    let cipher = ExtendedNonceGcm::new(&SecretKey::new(seed)).unwrap();
    let expected = bytes("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
    assert_eq!(cipher.derive(&range(0xf0, 10)).to_vec(), expected);
    // A seed that is longer than the block of the hash.
    let cipher = ExtendedNonceGcm::new(&key(100)).unwrap();
    let expected = bytes("9d124ad7eaa2c2507fafd1cf47cdcaf81728dbdd1f70efd45480a1aaea9c8b6a");
    assert_eq!(cipher.derive(&range(0x60, 32)).to_vec(), expected);
}

/// A cipher by the names of its tests.
enum Any {
    Gcm(AesGcm),
    Cbc(AesCbc),
    Secretbox(Secretbox),
    Extended(ExtendedNonceGcm),
}

impl Any {
    fn all() -> [Any; 4] {
        [
            Any::Gcm(AesGcm::new(key(32)).unwrap()),
            Any::Cbc(AesCbc::new(key(32)).unwrap()),
            Any::Secretbox(Secretbox::new(&key(32)).unwrap()),
            Any::Extended(ExtendedNonceGcm::new(&key(32)).unwrap()),
        ]
    }

    fn encrypt(&self, plain: &[u8], context: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Any::Gcm(cipher) => cipher.encrypt(plain, context, &mut out),
            Any::Cbc(cipher) => cipher.encrypt(plain, &mut out),
            Any::Secretbox(cipher) => cipher.encrypt(plain, &mut out),
            Any::Extended(cipher) => cipher.encrypt(plain, context, &mut out),
        }
        .unwrap();
        out
    }

    fn decrypt(&self, data: &[u8], context: &[u8]) -> Result<Vec<u8>, CipherError> {
        match self {
            Any::Gcm(cipher) => cipher.decrypt(data, context),
            Any::Cbc(cipher) => cipher.decrypt(data),
            Any::Secretbox(cipher) => cipher.decrypt(data),
            Any::Extended(cipher) => cipher.decrypt(data, context),
        }
    }

    fn is_authenticated(&self) -> bool {
        !matches!(self, Any::Cbc(_))
    }

    fn has_context(&self) -> bool {
        matches!(self, Any::Gcm(_) | Any::Extended(_))
    }
}

#[test]
fn same_value_is_never_encrypted_the_same_way() {
    for cipher in Any::all() {
        assert_ne!(cipher.encrypt(PLAIN, CONTEXT), cipher.encrypt(PLAIN, CONTEXT));
    }
}

proptest! {
    #[test]
    fn values_survive_the_round_trip(plain in vec(any::<u8>(), 0..2_000), context in vec(any::<u8>(), 0..100)) {
        for cipher in Any::all() {
            let data = cipher.encrypt(&plain, &context);
            prop_assert_eq!(cipher.decrypt(&data, &context), Ok(plain.clone()));
        }
    }

    #[test]
    fn any_changed_bit_is_noticed(plain in vec(any::<u8>(), 0..200), position in any::<usize>(), bit in 0..8_u8) {
        for cipher in Any::all().into_iter().filter(Any::is_authenticated) {
            let mut data = cipher.encrypt(&plain, CONTEXT);
            let position = position % data.len();
            data[position] ^= 1_u8 << bit;
            prop_assert_eq!(cipher.decrypt(&data, CONTEXT), Err(CipherError::NotAuthentic));
        }
    }

    #[test]
    fn another_context_is_noticed(plain in vec(any::<u8>(), 0..200), context in vec(any::<u8>(), 0..30), added in any::<u8>()) {
        for cipher in Any::all().into_iter().filter(Any::has_context) {
            let data = cipher.encrypt(&plain, &context);
            let other = [context.as_slice(), &[added]].concat();
            prop_assert_eq!(cipher.decrypt(&data, &other), Err(CipherError::NotAuthentic));
        }
    }

    #[test]
    fn truncated_data_is_refused(plain in vec(any::<u8>(), 0..100)) {
        for cipher in Any::all() {
            let data = cipher.encrypt(&plain, CONTEXT);
            for length in 0..data.len() {
                let result = cipher.decrypt(&data[..length], CONTEXT);
                prop_assert!(!cipher.is_authenticated() || result.is_err());
            }
        }
    }

    #[test]
    fn arbitrary_data_is_no_reason_to_panic(data in vec(any::<u8>(), 0..200)) {
        for cipher in Any::all() {
            let result = cipher.decrypt(&data, CONTEXT);
            prop_assert!(!cipher.is_authenticated() || result.is_err());
        }
    }
}
