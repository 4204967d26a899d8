//! certificatesigningrequest-signing-controller and -approving-controller: node certificate requests are approved if the
//! requester has the permission, and approved requests for the built-in signers are signed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::status::{IgnoreErrors as _, Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::signers::{CLIENT, KUBELET, SERVING};
use pilothouse_apimachinery::well_known::stores::SIGNING_REQUESTS;
use pilothouse_apimachinery::well_known::{NODE_PREFIX, NODES};
use pilothouse_types::clock::Clock;
use pilothouse_types::object::Key;

use crate::pki::signing::{Request, Subject};

use super::client::{Client, ObjectRef};
use super::per_object::PerObject;
use super::queue::Outcome;
use super::start::Authorities;

/// The review that tells whether a user has a permission.
const REVIEW: (&str, &str) = ("authorization.k8s.io/v1", "SubjectAccessReview");
/// The minimum lifetime of a certificate, whatever was requested.
const MIN_LIFETIME: Duration = Duration::from_secs(600);

fn conditions(request: &Value) -> &[Value] {
    request.get_path(&["status", "conditions"]).map(Value::items).unwrap_or_default()
}

fn has_condition(request: &Value, condition: &str) -> bool {
    conditions(request)
        .iter()
        .any(|existing| existing.str("type") == condition && existing.str("status") != "False")
}

fn usages(request: &Value) -> Vec<&str> {
    let usages = request.get_path(&["spec", "usages"]).map(Value::items).unwrap_or_default();
    usages.iter().filter_map(Value::as_str).collect()
}

fn parse_request(request: &Value) -> std::result::Result<Request, String> {
    let text = request.get_path(&["spec", "request"]).and_then(Value::as_str).unwrap_or_default();
    Request::from_pem(&STANDARD.decode(text).unwrap_or_default())
}

fn add_condition(request: &mut Value, fields: [(&str, &str); 4]) {
    let mut condition = Value::object();
    fields.into_iter().for_each(|(field, text)| condition.set(field, text));
    let mut all = conditions(request).to_vec();
    all.push(condition);
    request.entry("status").set("conditions", all);
}

/// Whether these are exactly the required usages, with or without key encipherment, which only some keys support.
fn check_usages(usages: &[&str], purpose: &str) -> std::result::Result<(), String> {
    let usages: BTreeSet<&str> = usages.iter().copied().collect();
    let required = BTreeSet::from(["digital signature", "key encipherment", purpose]);
    let without_encipherment = BTreeSet::from(["digital signature", purpose]);
    if usages == required || usages == without_encipherment {
        return Ok(());
    }
    let names: Vec<&str> = required.into_iter().collect();
    Err(format!("usages did not match [{}]", names.join(" ")))
}

/// Checks an approved request by the rules of its signer. An error is the reason of the rejection.
fn check(signer: &str, subject: &Subject, usages: &[&str]) -> std::result::Result<(), String> {
    let reject_if = |is_invalid: bool, reason: &str| if is_invalid { Err(reason.to_owned()) } else { Ok(()) };
    let is_in_nodes_group = subject.groups == [NODES];
    let has_node_name = subject.name.starts_with(NODE_PREFIX);
    match signer {
        SERVING => {
            reject_if(!is_in_nodes_group, "subject organization is not system:nodes")?;
            reject_if(subject.hosts + subject.addresses == 0, "DNS or IP subjectAltName is required")?;
            reject_if(subject.emails > 0, "Email subjectAltNames are not allowed")?;
            reject_if(subject.uris > 0, "URI subjectAltNames are not allowed")?;
            check_usages(usages, "server auth")?;
            reject_if(!has_node_name, "subject common name does not begin with system:node:")
        }
        KUBELET => {
            reject_if(!is_in_nodes_group, "subject organization is not system:nodes")?;
            reject_if(subject.hosts > 0, "DNS subjectAltNames are not allowed")?;
            reject_if(subject.emails > 0, "Email subjectAltNames are not allowed")?;
            reject_if(subject.addresses > 0, "IP subjectAltNames are not allowed")?;
            reject_if(subject.uris > 0, "URI subjectAltNames are not allowed")?;
            reject_if(!has_node_name, "subject common name does not begin with system:node:")?;
            check_usages(usages, "client auth")
        }
        CLIENT => {
            let known = ["digital signature", "key encipherment", "client auth"];
            if let Some(other) = usages.iter().find(|usage| !known.contains(usage)) {
                return Err(format!("invalid usage for client certificate: {other}"));
            }
            let is_missing = !usages.contains(&"client auth");
            reject_if(is_missing, "missing required usage for client certificate: client auth")
        }
        _ => Ok(()),
    }
}

/// Signs approved requests.
pub struct CertificateSigner {
    /// Reads and writes objects.
    pub client: Client,
    /// The source of time.
    pub clock: Clock,
    /// The signing CAs. When they change, the controller is restarted.
    pub authorities: Arc<Authorities>,
    /// The maximum lifetime of certificates.
    pub max_lifetime: Duration,
}

impl CertificateSigner {
    fn lifetime(&self, request: &Value) -> Duration {
        let requested = request.get_path(&["spec", "expirationSeconds"]).and_then(Value::as_int);
        let requested = requested.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        requested.map_or(self.max_lifetime, |requested| {
            if requested > self.max_lifetime { self.max_lifetime } else { requested.max(MIN_LIFETIME) }
        })
    }
}

impl PerObject for CertificateSigner {
    const WATCHED_TYPES: &'static [&'static str] = &[SIGNING_REQUESTS];

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(SIGNING_REQUESTS)?;
        let target = ObjectRef::new(&resource, key);
        let Some(request) = self.client.read_cached(target).await? else { return Ok(Outcome::Done) };
        let signer = request.get_path(&["spec", "signerName"]).and_then(Value::as_str).unwrap_or_default();
        let is_issued = request.get_path(&["status", "certificate"]).is_some();
        let Some(authority) = self.authorities.signers.get(signer) else { return Ok(Outcome::Done) };
        if is_issued
            || !has_condition(&request, "Approved")
            || has_condition(&request, "Denied")
            || has_condition(&request, "Failed")
        {
            return Ok(Outcome::Done);
        }
        let csr = match parse_request(&request) {
            Ok(csr) => csr,
            Err(error) => return Ok(Outcome::Retry(error)),
        };
        let usages = usages(&request);
        let result = match check(signer, &csr.subject, &usages) {
            Err(error) => {
                let now = self.client.now();
                let failed = [
                    ("type", "Failed"),
                    ("status", "True"),
                    ("reason", "SignerValidationFailure"),
                    ("message", error.as_str()),
                ];
                self.client
                    .edit_if_unchanged(target, "status", &request, |request| {
                        if has_condition(request, "Failed") {
                            return Ok(false);
                        }
                        add_condition(request, failed);
                        if let Some(Value::Array(all)) =
                            request.get_mut("status").and_then(|status| status.get_mut("conditions"))
                            && let Some(last) = all.last_mut()
                        {
                            last.set("lastUpdateTime", now.as_str());
                        }
                        Ok(true)
                    })
                    .await
            }
            Ok(()) => {
                let pem = authority.sign(&csr, &usages, self.lifetime(&request), self.clock.now());
                let pem = match pem {
                    Ok(pem) => STANDARD.encode(pem),
                    Err(error) => return Ok(Outcome::Retry(error)),
                };
                self.client
                    .edit_if_unchanged(target, "status", &request, |request| {
                        request.entry("status").set("certificate", pem.as_str());
                        Ok(true)
                    })
                    .await
            }
        };
        result.ignore_not_found()?;
        Ok(Outcome::Done)
    }
}

/// Approves node certificate requests.
pub struct CertificateApprover {
    /// Reads and writes objects, and reviews the requester's permissions.
    pub client: Client,
}

/// The review of whether the requester has a permission.
fn access_review(spec: &Value, permission: &str) -> Value {
    let mut review = Value::object();
    review.set("apiVersion", REVIEW.0);
    review.set("kind", REVIEW.1);
    let question = review.entry("spec");
    for (field, source) in [("user", "username"), ("uid", "uid"), ("groups", "groups"), ("extra", "extra")] {
        if let Some(value) = spec.get(source) {
            question.set(field, value.clone());
        }
    }
    let attributes = question.entry("resourceAttributes");
    for (field, text) in [
        ("group", "certificates.k8s.io"),
        ("version", "*"),
        ("resource", "certificatesigningrequests"),
        ("subresource", permission),
        ("verb", "create"),
    ] {
        attributes.set(field, text);
    }
    review
}

impl CertificateApprover {
    async fn has_permission(&self, spec: &Value, permission: &str) -> Result<bool> {
        let known = self.client.resource_index();
        let resource = known.review(REVIEW.0, REVIEW.1).ok_or_else(Status::no_such_resource)?;
        let review = self.client.review(resource, &access_review(spec, permission)).await?;
        Ok(review.get_path(&["status", "allowed"]).and_then(Value::as_bool) == Some(true))
    }
}

impl PerObject for CertificateApprover {
    const WATCHED_TYPES: &'static [&'static str] = &[SIGNING_REQUESTS];

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(SIGNING_REQUESTS)?;
        let target = ObjectRef::new(&resource, key);
        let Some(request) = self.client.read_cached(target).await? else { return Ok(Outcome::Done) };
        let spec = request.get("spec").unwrap_or(&Value::Null);
        let is_issued = request.get_path(&["status", "certificate"]).is_some();
        if is_issued
            || has_condition(&request, "Approved")
            || has_condition(&request, "Denied")
            || spec.str("signerName") != KUBELET
        {
            return Ok(Outcome::Done);
        }
        let csr = match parse_request(&request) {
            Ok(csr) if check(KUBELET, &csr.subject, &usages(&request)).is_ok() => csr,
            Ok(_) => return Ok(Outcome::Done),
            Err(error) => return Ok(Outcome::Retry(error)),
        };
        let is_own_certificate = spec.str("username") == csr.subject.name;
        let permissions = [
            ("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."),
            ("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."),
        ];
        for (permission, message) in permissions.into_iter().skip(usize::from(!is_own_certificate)) {
            if !self.has_permission(spec, permission).await? {
                continue;
            }
            let approved =
                [("type", "Approved"), ("status", "True"), ("reason", "AutoApproved"), ("message", message)];
            let result = self.client.edit_if_unchanged(target, "approval", &request, |request| {
                let is_undecided = !has_condition(request, "Approved") && !has_condition(request, "Denied");
                if is_undecided {
                    add_condition(request, approved);
                }
                Ok(is_undecided)
            });
            result.await.ignore_not_found()?;
            return Ok(Outcome::Done);
        }
        // The permission may be granted later; until then an administrator decides.
        Ok(Outcome::Retry("the requester is not allowed to get a node certificate".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::well_known::signers::LEGACY;

    use super::*;

    #[test]
    fn csr_check_applies_the_rules_of_each_signer() {
        let node = Subject {
            name: "system:node:n".to_owned(),
            groups: vec!["system:nodes".to_owned()],
            ..Subject::default()
        };
        let (client, server) = (["digital signature", "client auth"], ["digital signature", "server auth"]);
        assert_eq!(check(KUBELET, &node, &client), Ok(()));
        assert_eq!(
            check(KUBELET, &node, &server).unwrap_err(),
            "usages did not match [client auth digital signature key encipherment]"
        );
        let node_with_host = Subject { hosts: 1, ..node.clone() };
        assert_eq!(
            check(KUBELET, &node_with_host, &client).unwrap_err(),
            "DNS subjectAltNames are not allowed"
        );
        assert_eq!(check(SERVING, &node_with_host, &server), Ok(()));
        assert_eq!(check(SERVING, &node, &server).unwrap_err(), "DNS or IP subjectAltName is required");
        let user = Subject { name: "jane".to_owned(), ..Subject::default() };
        assert_eq!(check(CLIENT, &user, &client), Ok(()));
        assert_eq!(
            check(CLIENT, &user, &server).unwrap_err(),
            "invalid usage for client certificate: server auth"
        );
        assert_eq!(check(KUBELET, &user, &client).unwrap_err(), "subject organization is not system:nodes");
        assert_eq!(check(LEGACY, &user, &["any"]), Ok(()));
    }
}
