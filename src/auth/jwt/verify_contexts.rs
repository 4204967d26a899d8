//! Verifies signatures with one key.
//!
//! Making OpenSSL's context for an RSA key costs a good part of the verification itself, so contexts are reused.

use openssl::error::ErrorStack;
use openssl::pkey::{PKeyRef, Public};
use openssl::pkey_ctx::PkeyCtx;
use pilothouse_types::lock::Lock;

use super::Algorithm;
use crate::limits::SIGNATURE_CONTEXTS;

/// Idle contexts of one key.
#[derive(Default)]
pub(super) struct VerifyContexts(Lock<Vec<(Algorithm, PkeyCtx<Public>)>>);

impl VerifyContexts {
    /// Verifies a signature of `key`, which must always be the same.
    pub(super) fn verify(
        &self,
        algorithm: Algorithm,
        key: &PKeyRef<Public>,
        text: &[u8],
        signature: &[u8],
    ) -> bool {
        self.try_verify(algorithm, key, &algorithm.compute_digest(text), signature).unwrap_or(false)
    }

    fn try_verify(
        &self,
        algorithm: Algorithm,
        key: &PKeyRef<Public>,
        digest: &[u8],
        signature: &[u8],
    ) -> Result<bool, ErrorStack> {
        let cached = self.take(algorithm);
        let Some(mut context) =
            cached.map_or_else(|| algorithm.rsa_context(key), |cached| Ok(Some(cached)))?
        else {
            return algorithm.verify_ecdsa(key, digest, signature);
        };
        let is_valid = context.verify(digest, signature)?;
        // Only a context that reported no error is known to be in its original state.
        if is_valid {
            self.put_back(algorithm, context);
        }
        Ok(is_valid)
    }

    fn take(&self, algorithm: Algorithm) -> Option<PkeyCtx<Public>> {
        let mut idle = self.0.lock();
        let index = idle.iter().position(|(other, _)| *other == algorithm)?;
        Some(idle.swap_remove(index).1)
    }

    fn put_back(&self, algorithm: Algorithm, context: PkeyCtx<Public>) {
        let mut idle = self.0.lock();
        if idle.len() < SIGNATURE_CONTEXTS {
            idle.push((algorithm, context));
        }
    }
}
