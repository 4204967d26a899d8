//! Identifiers that nobody can guess: uids, audit ids, and the numbers that generated names are drawn with.

use std::fmt::Write as _;

use openssl::rand::rand_bytes;

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if let Err(error) = rand_bytes(&mut bytes) {
        // Without randomness two objects could share a uid. OpenSSL seeds itself from the kernel, so this means that the
        // process is broken beyond repair.
        tracing::error!(%error, "the random number generator failed");
        std::process::abort();
    }
    bytes
}

/// A random UUID, version 4.
pub fn uuid() -> String {
    let mut bytes: [u8; 16] = random();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A random number below `bound`, 0 if the bound is.
pub fn below(bound: usize) -> usize {
    // The modulo favours small numbers a little: harmless for the suffix of a name or the spread of a timeout.
    usize::try_from(u64::from_ne_bytes(random()) % (bound.max(1) as u64)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_its_form() {
        let id = uuid();
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&id[14..15], "4");
        assert!(matches!(&id[19..20], "8" | "9" | "a" | "b"));
        assert_ne!(id, uuid());
    }

    #[test]
    fn a_bound_is_kept() {
        assert!((0..1_000).all(|_| below(27) < 27));
        assert_eq!(below(0), 0);
        assert!((0..1_000).any(|_| below(27) > 20));
    }
}
