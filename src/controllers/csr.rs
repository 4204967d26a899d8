//! certificatesigningrequest-signing-controller and -approving-controller: node certificate requests are approved if the
//! requester has the right, and approved requests for the built-in signers are signed.

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

use super::client::{At, Client};
use super::per_object::PerObject;
use super::queue::Outcome;
use super::start::Authorities;

/// The kind that asks for somebody's rights.
const REVIEW: (&str, &str) = ("authorization.k8s.io/v1", "SubjectAccessReview");
/// The minimum lifetime of a certificate, whatever was requested.
const SHORTEST: Duration = Duration::from_secs(600);

fn conditions(request: &Value) -> &[Value] {
    request.at(&["status", "conditions"]).map(Value::items).unwrap_or_default()
}

fn has(request: &Value, condition: &str) -> bool {
    conditions(request).iter().any(|one| one.str("type") == condition && one.str("status") != "False")
}

fn usages(request: &Value) -> Vec<&str> {
    let usages = request.at(&["spec", "usages"]).map(Value::items).unwrap_or_default();
    usages.iter().filter_map(Value::as_str).collect()
}

fn parsed(request: &Value) -> std::result::Result<Request, String> {
    let text = request.at(&["spec", "request"]).and_then(Value::as_str).unwrap_or_default();
    Request::read(&STANDARD.decode(text).unwrap_or_default())
}

fn add_condition(request: &mut Value, fields: [(&str, &str); 4]) {
    let mut condition = Value::object();
    fields.into_iter().for_each(|(field, text)| condition.set(field, text));
    let mut all = conditions(request).to_vec();
    all.push(condition);
    request.entry("status").set("conditions", all);
}

/// Whether these are exactly the required usages, with or without key encipherment, which only some keys support.
fn same_usages(given: &[&str], purpose: &str) -> std::result::Result<(), String> {
    let given: BTreeSet<&str> = given.iter().copied().collect();
    let wanted = BTreeSet::from(["digital signature", "key encipherment", purpose]);
    let without = BTreeSet::from(["digital signature", purpose]);
    if given == wanted || given == without {
        return Ok(());
    }
    let names: Vec<&str> = wanted.into_iter().collect();
    Err(format!("usages did not match [{}]", names.join(" ")))
}

/// What a signer rejects in an approved request.
fn check(signer: &str, subject: &Subject, usages: &[&str]) -> std::result::Result<(), String> {
    let refuse = |wrong: bool, why: &str| if wrong { Err(why.to_owned()) } else { Ok(()) };
    let of_nodes = subject.groups == [NODES];
    let of_node = subject.name.starts_with(NODE_PREFIX);
    match signer {
        SERVING => {
            refuse(!of_nodes, "subject organization is not system:nodes")?;
            refuse(subject.hosts + subject.addresses == 0, "DNS or IP subjectAltName is required")?;
            refuse(subject.mailboxes > 0, "Email subjectAltNames are not allowed")?;
            refuse(subject.uris > 0, "URI subjectAltNames are not allowed")?;
            same_usages(usages, "server auth")?;
            refuse(!of_node, "subject common name does not begin with system:node:")
        }
        KUBELET => {
            refuse(!of_nodes, "subject organization is not system:nodes")?;
            refuse(subject.hosts > 0, "DNS subjectAltNames are not allowed")?;
            refuse(subject.mailboxes > 0, "Email subjectAltNames are not allowed")?;
            refuse(subject.addresses > 0, "IP subjectAltNames are not allowed")?;
            refuse(subject.uris > 0, "URI subjectAltNames are not allowed")?;
            refuse(!of_node, "subject common name does not begin with system:node:")?;
            same_usages(usages, "client auth")
        }
        CLIENT => {
            let known = ["digital signature", "key encipherment", "client auth"];
            if let Some(other) = usages.iter().find(|usage| !known.contains(usage)) {
                return Err(format!("invalid usage for client certificate: {other}"));
            }
            let missing = !usages.contains(&"client auth");
            refuse(missing, "missing required usage for client certificate: client auth")
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
    /// The signing CAs. When they change, the loop is restarted.
    pub authorities: Arc<Authorities>,
    /// The maximum lifetime of certificates.
    pub longest: Duration,
}

impl CertificateSigner {
    fn life(&self, request: &Value) -> Duration {
        let asked = request.at(&["spec", "expirationSeconds"]).and_then(Value::as_int);
        let asked = asked.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        asked.map_or(
            self.longest,
            |asked| if asked > self.longest { self.longest } else { asked.max(SHORTEST) },
        )
    }
}

impl PerObject for CertificateSigner {
    const STORES: &'static [&'static str] = &[SIGNING_REQUESTS];

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(SIGNING_REQUESTS)?;
        let at = At::of(&resource, key);
        let Some(request) = self.client.read_cached(at).await? else { return Ok(Outcome::Done) };
        let signer = request.at(&["spec", "signerName"]).and_then(Value::as_str).unwrap_or_default();
        let issued = request.at(&["status", "certificate"]).is_some();
        let Some(authority) = self.authorities.signers.of(signer) else { return Ok(Outcome::Done) };
        if issued || !has(&request, "Approved") || has(&request, "Denied") || has(&request, "Failed") {
            return Ok(Outcome::Done);
        }
        let asked = match parsed(&request) {
            Ok(asked) => asked,
            Err(why) => return Ok(Outcome::Again(why)),
        };
        let usages = usages(&request);
        let written = match check(signer, &asked.subject, &usages) {
            Err(why) => {
                let now = self.client.now();
                let failed = [
                    ("type", "Failed"),
                    ("status", "True"),
                    ("reason", "SignerValidationFailure"),
                    ("message", why.as_str()),
                ];
                self.client
                    .edit_as_read(at, "status", &request, |request| {
                        if has(request, "Failed") {
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
                let pem = authority.sign(&asked, &usages, self.life(&request), self.clock.now());
                let pem = match pem {
                    Ok(pem) => STANDARD.encode(pem),
                    Err(why) => return Ok(Outcome::Again(why)),
                };
                self.client
                    .edit_as_read(at, "status", &request, |request| {
                        request.entry("status").set("certificate", pem.as_str());
                        Ok(true)
                    })
                    .await
            }
        };
        written.ignore_not_found()?;
        Ok(Outcome::Done)
    }
}

/// Approves node certificate requests.
pub struct CertificateApprover {
    /// Reads and writes objects, and asks for the requester's rights.
    pub client: Client,
}

/// The question whether the requester has a right.
fn access_review(spec: &Value, right: &str) -> Value {
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
        ("subresource", right),
        ("verb", "create"),
    ] {
        attributes.set(field, text);
    }
    review
}

impl CertificateApprover {
    async fn may(&self, spec: &Value, right: &str) -> Result<bool> {
        let known = self.client.known();
        let resource = known.review(REVIEW.0, REVIEW.1).ok_or_else(Status::no_such_resource)?;
        let answer = self.client.review(resource, &access_review(spec, right)).await?;
        Ok(answer.at(&["status", "allowed"]).and_then(Value::as_bool) == Some(true))
    }
}

impl PerObject for CertificateApprover {
    const STORES: &'static [&'static str] = &[SIGNING_REQUESTS];

    async fn sync(&self, key: &Key) -> Result<Outcome> {
        let resource = self.client.resource(SIGNING_REQUESTS)?;
        let at = At::of(&resource, key);
        let Some(request) = self.client.read_cached(at).await? else { return Ok(Outcome::Done) };
        let spec = request.get("spec").unwrap_or(&Value::Null);
        let issued = request.at(&["status", "certificate"]).is_some();
        if issued || has(&request, "Approved") || has(&request, "Denied") || spec.str("signerName") != KUBELET
        {
            return Ok(Outcome::Done);
        }
        let asked = match parsed(&request) {
            Ok(asked) if check(KUBELET, &asked.subject, &usages(&request)).is_ok() => asked,
            Ok(_) => return Ok(Outcome::Done),
            Err(why) => return Ok(Outcome::Again(why)),
        };
        let own = spec.str("username") == asked.subject.name;
        let ways = [
            ("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."),
            ("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."),
        ];
        for (right, message) in ways.into_iter().skip(usize::from(!own)) {
            if !self.may(spec, right).await? {
                continue;
            }
            let approved =
                [("type", "Approved"), ("status", "True"), ("reason", "AutoApproved"), ("message", message)];
            let written = self.client.edit_as_read(at, "approval", &request, |request| {
                let open = !has(request, "Approved") && !has(request, "Denied");
                if open {
                    add_condition(request, approved);
                }
                Ok(open)
            });
            written.await.ignore_not_found()?;
            return Ok(Outcome::Done);
        }
        // The right may be granted later; until then an administrator decides.
        Ok(Outcome::Again("the requester may not have the certificate of a node".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::well_known::signers::LEGACY;

    use super::*;

    #[test]
    fn each_signer_has_its_rules() {
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
        let hosted = Subject { hosts: 1, ..node.clone() };
        assert_eq!(check(KUBELET, &hosted, &client).unwrap_err(), "DNS subjectAltNames are not allowed");
        assert_eq!(check(SERVING, &hosted, &server), Ok(()));
        assert_eq!(check(SERVING, &node, &server).unwrap_err(), "DNS or IP subjectAltName is required");
        let person = Subject { name: "jane".to_owned(), ..Subject::default() };
        assert_eq!(check(CLIENT, &person, &client), Ok(()));
        assert_eq!(
            check(CLIENT, &person, &server).unwrap_err(),
            "invalid usage for client certificate: server auth"
        );
        assert_eq!(check(KUBELET, &person, &client).unwrap_err(), "subject organization is not system:nodes");
        assert_eq!(check(LEGACY, &person, &["any"]), Ok(()));
    }
}
