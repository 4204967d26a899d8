//! Checks of signatures by one key.
//!
//! What OpenSSL checks an RSA signature with costs a fair part of the check itself to make, and can be used again: so it is kept.

use openssl::error::ErrorStack;
use openssl::pkey::{PKeyRef, Public};
use openssl::pkey_ctx::PkeyCtx;
use pilothouse_actors::lock::Lock;

use super::Algorithm;
use crate::limits::CHECKS_KEPT;

/// What checks with one key and is not in use.
#[derive(Default)]
pub(super) struct Checks(Lock<Vec<(Algorithm, PkeyCtx<Public>)>>);

impl Checks {
    /// Whether `key`, always the same one, signed the text.
    pub(super) fn verifies(
        &self,
        algorithm: Algorithm,
        key: &PKeyRef<Public>,
        text: &[u8],
        signature: &[u8],
    ) -> bool {
        self.checked(algorithm, key, &algorithm.digest_of(text), signature).unwrap_or(false)
    }

    fn checked(
        &self,
        algorithm: Algorithm,
        key: &PKeyRef<Public>,
        digest: &[u8],
        signature: &[u8],
    ) -> Result<bool, ErrorStack> {
        let kept = self.take(algorithm);
        let Some(mut context) = kept.map_or_else(|| algorithm.rsa_context(key), |kept| Ok(Some(kept)))?
        else {
            return algorithm.verifies_on_curve(key, digest, signature);
        };
        let good = context.verify(digest, signature)?;
        // Only what has found nothing to complain of is surely as it was.
        if good {
            self.give_back(algorithm, context);
        }
        Ok(good)
    }

    fn take(&self, algorithm: Algorithm) -> Option<PkeyCtx<Public>> {
        let mut free = self.0.lock();
        let place = free.iter().position(|(of, _)| *of == algorithm)?;
        Some(free.swap_remove(place).1)
    }

    fn give_back(&self, algorithm: Algorithm, context: PkeyCtx<Public>) {
        let mut free = self.0.lock();
        if free.len() < CHECKS_KEPT {
            free.push((algorithm, context));
        }
    }
}
