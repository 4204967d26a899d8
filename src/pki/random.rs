//! Randomness: unguessable identifiers (UIDs, audit IDs), the suffixes of generated names, and probabilities.
//!
//! The source is OpenSSL, as for keys, and not the generator of the `uuid` crate: that one asks the kernel for every UUID, or brings
//! a second generator with it.

use std::cell::RefCell;

use openssl::rand::rand_bytes;
use uuid::Builder;
use uuid::fmt::Hyphenated;

use crate::telemetry;

/// Bytes that are drawn at once: every request has an id, and a draw costs the same for sixteen bytes as for a thousand.
const BUFFER_BYTES: usize = 1 << 10;

/// Random bytes that are not handed out yet.
struct Buffer {
    bytes: [u8; BUFFER_BYTES],
    used: usize,
}

thread_local! {
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer { bytes: [0; BUFFER_BYTES], used: BUFFER_BYTES }) };
}

fn random<const N: usize>() -> [u8; N] {
    const { assert!(N <= BUFFER_BYTES) };
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.used + N > BUFFER_BYTES {
            fill(&mut buffer.bytes);
            buffer.used = 0;
        }
        let mut out = [0; N];
        out.copy_from_slice(&buffer.bytes[buffer.used..buffer.used + N]);
        // Erased, so that an id cannot be found in memory.
        buffer.bytes[buffer.used..buffer.used + N].fill(0);
        buffer.used += N;
        out
    })
}

fn fill(bytes: &mut [u8]) {
    if let Err(error) = rand_bytes(bytes) {
        // Without randomness two objects could share a uid. OpenSSL seeds itself from the kernel, so this means that the
        // process is broken beyond repair.
        telemetry::report_fatal(&format!("the random number generator failed: {error}"));
        std::process::abort();
    }
}

/// Random bytes, such as the id of a trace.
pub fn bytes<const N: usize>() -> [u8; N] {
    random()
}

/// A random UUID, version 4.
pub fn uuid() -> String {
    let uuid = Builder::from_random_bytes(random()).into_uuid();
    uuid.hyphenated().encode_lower(&mut [0; Hyphenated::LENGTH]).to_owned()
}

/// A random number below `bound`, 0 if the bound is.
pub fn below(bound: usize) -> usize {
    // The modulo favours small numbers a little: harmless for the suffix of a name or the spread of a timeout.
    usize::try_from(u64::from_ne_bytes(random()) % (bound.max(1) as u64)).unwrap_or(0)
}

/// A random number from zero up to one.
pub fn fraction() -> f64 {
    f64::from(u32::from_ne_bytes(random())) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_has_version_4_format() {
        let id = uuid();
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&id[14..15], "4");
        assert!(matches!(&id[19..20], "8" | "9" | "a" | "b"));
        assert_ne!(id, uuid());
    }

    #[test]
    fn uuids_are_unique_over_many_refills() {
        let ids: std::collections::HashSet<String> = (0..1_000).map(|_| uuid()).collect();
        assert_eq!(ids.len(), 1_000);
    }

    #[test]
    fn random_numbers_stay_within_bounds() {
        assert!((0..1_000).all(|_| below(27) < 27));
        assert_eq!(below(0), 0);
        assert!((0..1_000).any(|_| below(27) > 20));
        let fractions: Vec<f64> = (0..1_000).map(|_| fraction()).collect();
        assert!(fractions.iter().all(|fraction| (0.0..=1.0).contains(fraction)));
        assert!(
            fractions.iter().any(|fraction| *fraction < 0.5)
                && fractions.iter().any(|fraction| *fraction > 0.5)
        );
    }
}
