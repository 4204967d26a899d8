//! Finds the CA that clients must trust for the serving certificate. It must really verify it: otherwise clients cannot connect,
//! and a certificate that is not a CA verifies nothing once it is replaced.

use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Public};
use openssl::stack::Stack;
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::verify::{X509VerifyFlags, X509VerifyParam};
use openssl::x509::{X509, X509NameRef, X509PurposeId, X509Ref, X509StoreContext, X509VerifyResult};

use crate::pki::signatures;

/// The certificate that verifies the first one of a chain: the best of the chain's own and those in `candidates`. `None` if there
/// is none.
pub(super) fn find_anchor<'a>(
    chain: &'a [X509],
    candidates: &'a [X509],
) -> Result<Option<&'a X509>, ErrorStack> {
    let Some((leaf, rest)) = chain.split_first() else { return Ok(None) };
    if is_self_signed(leaf) {
        return Ok(Some(leaf));
    }
    // The root first. An intermediate works as well, if the chain has no root.
    let (roots, intermediates): (Vec<&X509>, Vec<&X509>) =
        rest.iter().rev().partition(|certificate| is_self_signed(certificate));
    for anchor in roots.into_iter().chain(candidates).chain(intermediates) {
        if verifies(anchor, leaf, rest)? {
            return Ok(Some(anchor));
        }
    }
    Ok(None)
}

fn is_self_signed(certificate: &X509Ref) -> bool {
    let is_signed_by = |key: PKey<Public>| signatures::certificate_is_signed_by(certificate, &key);
    certificate.issued(certificate) == X509VerifyResult::OK
        && certificate.public_key().is_ok_and(is_signed_by)
}

/// Whether a client that trusts only `anchor` would accept `leaf` with `rest`. Validity periods are ignored: an expired
/// certificate still has the same CA.
fn verifies(anchor: &X509, leaf: &X509, rest: &[X509]) -> Result<bool, ErrorStack> {
    let mut store = X509StoreBuilder::new()?;
    store.add_cert(anchor.clone())?;
    let mut parameters = X509VerifyParam::new()?;
    parameters.set_flags(X509VerifyFlags::PARTIAL_CHAIN | X509VerifyFlags::NO_CHECK_TIME)?;
    parameters.set_purpose(X509PurposeId::SSL_SERVER)?;
    store.set_param(&parameters)?;
    let mut chain = Stack::new()?;
    for certificate in rest {
        chain.push(certificate.clone())?;
    }
    X509StoreContext::new()?.init(&store.build(), leaf, &chain, signatures::is_chain_valid)
}

/// Whether a certificate looks like one issued here, for `name` and by a CA named `issuer`, current or replaced. Replacing it loses
/// nothing: certificates of others have other issuers.
pub(super) fn was_issued_here(certificate: &X509Ref, name: &str, issuer: &str) -> bool {
    let is_only_common_name = |subject: &X509NameRef, name: &str| {
        let mut entries = subject.entries();
        let has_name = entries.next().is_some_and(|entry| {
            entry.object().nid() == Nid::COMMONNAME && entry.data().as_slice() == name.as_bytes()
        });
        has_name && entries.next().is_none()
    };
    let curve = certificate.public_key().and_then(|key| key.ec_key()).map(|key| key.group().curve_name());
    is_only_common_name(certificate.subject_name(), name)
        && is_only_common_name(certificate.issuer_name(), issuer)
        && matches!(curve, Ok(Some(Nid::X9_62_PRIME256V1)))
}
