//! Verifies signatures with one key.
//!
//! Making OpenSSL's context for an RSA key costs a good part of the verification itself, so contexts are reused.

use openssl::error::ErrorStack;
use openssl::pkey::{PKeyRef, Public};
use openssl::pkey_ctx::PkeyCtx;
use pilothouse_types::lock::Lock;

use super::Algorithm;
use crate::limits::CHECKS_KEPT;

/// Contexts of one key that are not in use.
#[derive(Default)]
pub(super) struct VerifyContexts(Lock<Vec<(Algorithm, PkeyCtx<Public>)>>);

impl VerifyContexts {
    /// Verifies a signature of `key`, which must always be the same.
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
        // Only a context that reported no error is known to be in its original state.
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
