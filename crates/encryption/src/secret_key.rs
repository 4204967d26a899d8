//! Key material.

use std::fmt;

use zeroize::Zeroizing;

/// The bytes of a key or of a seed. They are erased when it is dropped, and debug output does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey(Zeroizing<Vec<u8>>);

impl SecretKey {
    /// Takes the bytes of a key.
    pub fn new(bytes: Vec<u8>) -> SecretKey {
        SecretKey(Zeroizing::new(bytes))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[REDACTED]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_of_a_key_has_no_bytes_of_it() {
        let key = SecretKey::new(vec![42; 3]);
        assert_eq!(format!("{key:?}"), "[REDACTED]");
        assert_eq!((key.bytes(), key.len(), key.is_empty()), (&[42, 42, 42][..], 3, false));
    }
}
