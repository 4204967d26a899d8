//! The certificate plug-ins: rights to approve, sign and attest for a signer, and restricted subjects.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::nid::Nid;
use openssl::x509::X509Req;
use pilothouse_apimachinery::field_value::same;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::MASTERS;
use pilothouse_apimachinery::well_known::signers::CLIENT;
use pilothouse_types::authorization::Target;

use super::{Operation, Outcome, Plugin, Write, done};
use crate::registry::authorization;

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "certificatesigningrequests";

/// CertificateApproval: the approver needs the right to approve for the signer.
pub struct Approval;

impl Plugin for Approval {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Update && write.is_of_subresource(GROUP, REQUESTS, "approval")
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, request: &'a Value) -> Outcome<'a> {
        Box::pin(check_signer_right(write, request, "approve"))
    }
}

/// CertificateSigning: the writer of certificates and conditions needs the right to sign for the signer.
pub struct Signing;

impl Plugin for Signing {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Update && write.is_of_subresource(GROUP, REQUESTS, "status")
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, request: &'a Value) -> Outcome<'a> {
        let changed = |field: &str| {
            let old = write.old.and_then(|old| old.get_path(&["status", field]));
            !same(request.get_path(&["status", field]), old)
        };
        if changed("certificate") || changed("conditions") {
            return Box::pin(check_signer_right(write, request, "sign"));
        }
        done(Ok(()))
    }
}

/// Checks the signer of the stored request: a writer who changes signerName gains nothing.
async fn check_signer_right(write: &Write<'_>, request: &Value, verb: &str) -> Result<()> {
    let stored = write.old.and_then(|old| old.get_path(&["spec", "signerName"]));
    let signer = stored.and_then(Value::as_str).unwrap_or_default();
    if is_allowed(write, signer, verb).await? {
        return Ok(());
    }
    let reason = format!("user not permitted to {verb} requests with signerName {signer:?}");
    Err(write.forbidden(request, &reason))
}

/// Whether the user has a right for a signer, or for all signers of its domain.
async fn is_allowed(write: &Write<'_>, signer: &str, verb: &str) -> Result<bool> {
    let domain = signer.split('/').next().unwrap_or_default();
    for name in [signer.to_owned(), format!("{domain}/*")] {
        let target = Target::Resource {
            group: GROUP.to_owned(),
            version: "*".to_owned(),
            resource: "signers".to_owned(),
            subresource: String::new(),
            namespace: String::new(),
            name,
        };
        if authorization::is_allowed(&write.backend.access.authorizer, write.call.user(), verb, target)
            .await?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// ClusterTrustBundleAttest: the writer of a ClusterTrustBundle needs the right to attest for its signer.
pub struct Attest;

impl Plugin for Attest {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && write.is_of(GROUP, "clustertrustbundles")
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, bundle: &'a Value) -> Outcome<'a> {
        let signer = bundle.get_path(&["spec", "signerName"]).and_then(Value::as_str).unwrap_or_default();
        if signer.is_empty() || write.old.is_some_and(|old| only_gc_fields_changed(bundle, old)) {
            return done(Ok(()));
        }
        Box::pin(async move {
            if is_allowed(write, signer, "attest").await? {
                return Ok(());
            }
            let reason = format!("user not permitted to attest for signerName {signer:?}");
            Err(write.forbidden(bundle, &reason))
        })
    }
}

/// Whether only owner references, finalizers and managed fields differ: the garbage collector needs no rights for signers.
fn only_gc_fields_changed(new: &Value, old: &Value) -> bool {
    let mut new = new.clone();
    for field in ["ownerReferences", "finalizers", "managedFields"] {
        meta::copy(new.entry("metadata"), meta::metadata(old), field);
    }
    new == *old
}

/// CertificateSubjectRestriction: refuses requests for certificates in the group system:masters.
pub struct SubjectRestriction;

impl Plugin for SubjectRestriction {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create && write.is_of(GROUP, REQUESTS)
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, request: &'a Value) -> Outcome<'a> {
        done(check_subject(request).map_err(|reason| write.forbidden(request, &reason)))
    }
}

fn check_subject(request: &Value) -> std::result::Result<(), String> {
    let spec = request.get("spec").unwrap_or(&Value::Null);
    if spec.str("signerName") != CLIENT {
        return Ok(());
    }
    let parse_error = |reason: &dyn std::fmt::Display| format!("failed to parse CSR: {reason}");
    let pem = STANDARD.decode(spec.str("request")).map_err(|error| parse_error(&error))?;
    let parsed = X509Req::from_pem(&pem).map_err(|error| parse_error(&error))?;
    let groups = parsed.subject_name().entries_by_nid(Nid::ORGANIZATIONNAME);
    let mut groups = groups.filter_map(|group| group.data().to_string().ok());
    if groups.any(|group| group == MASTERS) {
        return Err(format!("use of {CLIENT} signer with {MASTERS} group is not allowed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use openssl::hash::MessageDigest;
    use openssl::pkey::PKey;
    use openssl::x509::{X509NameBuilder, X509ReqBuilder};

    use super::*;

    fn request(signer: &str, group: &str) -> Value {
        let key = PKey::generate_ed25519().unwrap();
        let mut name = X509NameBuilder::new().unwrap();
        name.append_entry_by_nid(Nid::ORGANIZATIONNAME, "devs").unwrap();
        name.append_entry_by_nid(Nid::ORGANIZATIONNAME, group).unwrap();
        let mut builder = X509ReqBuilder::new().unwrap();
        builder.set_subject_name(&name.build()).unwrap();
        builder.set_pubkey(&key).unwrap();
        builder.sign(&key, MessageDigest::null()).unwrap();
        let mut request = Value::object();
        request.entry("spec").set("signerName", signer);
        request.entry("spec").set("request", STANDARD.encode(builder.build().to_pem().unwrap()));
        request
    }

    #[test]
    fn trust_bundle_garbage_collection_needs_no_attest_right() {
        let mut old = Value::object();
        old.entry("spec").set("trustBundle", "a");
        old.entry("metadata").set("finalizers", vec!["f"]);
        let mut new = old.clone();
        new.entry("metadata").remove("finalizers");
        new.entry("metadata").set("managedFields", vec!["m"]);
        assert!(only_gc_fields_changed(&new, &old));
        new.entry("metadata").entry("labels").set("a", "b");
        assert!(!only_gc_fields_changed(&new, &old));
        let mut other = old.clone();
        other.entry("spec").set("trustBundle", "b");
        assert!(!only_gc_fields_changed(&other, &old));
    }

    #[test]
    fn certificate_for_system_masters_is_refused() {
        assert_eq!(check_subject(&request(CLIENT, "ops")), Ok(()));
        assert_eq!(check_subject(&request("example.com/s", MASTERS)), Ok(()));
        assert_eq!(
            check_subject(&request(CLIENT, MASTERS)).unwrap_err(),
            "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
        );
    }
}
