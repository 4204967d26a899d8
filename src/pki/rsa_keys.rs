//! RSA keys, for clients that cannot read others: the libraries of Java take every key of a kubeconfig for one of these.
//!
//! OpenSSL needs half a second for such a key, most of it for properties of the primes that were once thought useful, so a first start
//! would take ten times as long. Its search for a random prime is enough (FIPS 186-5 allows random primes of this size), and two threads
//! make one each.

use std::thread;

use openssl::bn::{BigNum, BigNumContext, BigNumRef};
use openssl::error::ErrorStack;
use openssl::pkey::Private;
use openssl::rsa::{Rsa, RsaPrivateKeyBuilder};

/// Bits of a key.
const KEY_BITS: i32 = 2_048;
/// The public exponent of all keys.
const EXPONENT: u32 = 65_537;
/// The factors differ in one of their first bits, as many as these: else the product would tell them.
const FIRST_BITS: i32 = 100;

/// Generates a key.
pub(super) fn generate() -> Result<Rsa<Private>, ErrorStack> {
    loop {
        let (first, second) = thread::scope(|scope| {
            let other = scope.spawn(random_prime);
            (random_prime(), other.join())
        });
        // A thread that has panicked has made nothing.
        let Ok(second) = second else { continue };
        let (first, second) = (first?, second?);
        let (larger, smaller) = if first > second { (first, second) } else { (second, first) };
        if let Some(key) = from_primes(larger, smaller)? {
            return Ok(key);
        }
    }
}

/// A prime with half the bits of a key, the first two of them set.
fn random_prime() -> Result<BigNum, ErrorStack> {
    let mut prime = secret()?;
    prime.generate_prime(KEY_BITS / 2, false, None, None)?;
    Ok(prime)
}

/// The key with these factors; `None` if they are not fit for one.
fn from_primes(p: BigNum, q: BigNum) -> Result<Option<Rsa<Private>>, ErrorStack> {
    let (one, e) = (BigNum::from_u32(1)?, BigNum::from_u32(EXPONENT)?);
    let mut context = BigNumContext::new_secure()?;
    let (mut difference, mut p1, mut q1) = (secret()?, secret()?, secret()?);
    difference.checked_sub(&p, &q)?;
    p1.checked_sub(&p, &one)?;
    q1.checked_sub(&q, &one)?;
    let (mut n, mut gcd, mut product, mut period) = (BigNum::new()?, secret()?, secret()?, secret()?);
    n.checked_mul(&p, &q, &mut context)?;
    gcd.gcd(&p1, &q1, &mut context)?;
    product.checked_mul(&p1, &q1, &mut context)?;
    period.checked_div(&product, &gcd, &mut context)?;
    gcd.gcd(&e, &period, &mut context)?;
    if n.num_bits() != KEY_BITS || difference.num_bits() <= KEY_BITS / 2 - FIRST_BITS || gcd != one {
        return Ok(None);
    }
    let d = inverse(&e, &period, &mut context)?;
    if d.num_bits() <= KEY_BITS / 2 {
        return Ok(None);
    }
    let (mut d_p, mut d_q) = (secret()?, secret()?);
    d_p.checked_rem(&d, &p1, &mut context)?;
    d_q.checked_rem(&d, &q1, &mut context)?;
    let q_inverse = inverse(&q, &p, &mut context)?;
    let key = RsaPrivateKeyBuilder::new(n, e, d)?.set_factors(p, q)?.set_crt_params(d_p, d_q, q_inverse)?;
    Ok(Some(key.build()))
}

/// A number that is wiped when it is dropped, and whose value does not decide how long work with it takes.
fn secret() -> Result<BigNum, ErrorStack> {
    let mut number = BigNum::new_secure()?;
    number.set_const_time();
    Ok(number)
}

fn inverse(
    number: &BigNumRef,
    modulus: &BigNumRef,
    context: &mut BigNumContext,
) -> Result<BigNum, ErrorStack> {
    let mut inverse = secret()?;
    inverse.mod_inverse(number, modulus, context)?;
    Ok(inverse)
}

#[cfg(test)]
mod tests {
    use openssl::hash::MessageDigest;
    use openssl::pkey::PKey;
    use openssl::sign::{Signer, Verifier};

    use super::*;

    #[test]
    fn keys_are_consistent_and_sign() {
        let (first, second) = (generate().unwrap(), generate().unwrap());
        for key in [&first, &second] {
            assert!(key.check_key().unwrap(), "OpenSSL finds it consistent, and its factors prime");
            assert_eq!((key.size() * 8, key.e()), (2_048, &*BigNum::from_u32(EXPONENT).unwrap()));
        }
        assert!(first.n() != second.n());
        let private = PKey::from_rsa(first).unwrap();
        let public = PKey::public_key_from_pem(&private.public_key_to_pem().unwrap()).unwrap();
        let mut signer = Signer::new(MessageDigest::sha256(), &private).unwrap();
        let signature = signer.sign_oneshot_to_vec(b"text").unwrap();
        let mut verifier = Verifier::new(MessageDigest::sha256(), &public).unwrap();
        assert!(verifier.verify_oneshot(&signature, b"text").unwrap());
    }

    #[test]
    fn unfit_factors_are_refused() {
        let prime = random_prime().unwrap();
        let same = prime.to_owned().unwrap();
        assert!(from_primes(prime, same).unwrap().is_none(), "the product of equal factors tells them");
        let mut small = BigNum::new().unwrap();
        small.generate_prime(KEY_BITS / 4, false, None, None).unwrap();
        assert!(from_primes(random_prime().unwrap(), small).unwrap().is_none());
    }
}
