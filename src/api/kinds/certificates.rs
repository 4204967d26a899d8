//! CertificateSigningRequests: who asks, and for what.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::check::Node;
use super::{Errors, Occasion};
use crate::api::field::FieldError;
use crate::api::value::Value;
use crate::api::{meta, names};

const SHORTEST_VALIDITY: i64 = 600;

/// A request says who made it, not who its maker says.
pub fn prepare_create(request: &mut Value, occasion: &Occasion<'_>) {
    let user = occasion.user;
    let spec = request.entry("spec");
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    for (field, text) in [("username", &user.name), ("uid", &user.uid)] {
        if !text.is_empty() {
            spec.set(field, text.as_str());
        }
    }
    if !user.groups.is_empty() {
        spec.set("groups", user.groups.clone());
    }
    for (key, values) in &user.extra {
        spec.entry("extra").set(key, values.clone());
    }
}

/// What was asked for stays.
pub fn prepare_update(new: &mut Value, old: &Value, _: &Occasion<'_>) {
    meta::copy(new, old, "spec");
}

/// Checks a request.
pub fn validate(request: &Value, errors: &mut Errors) {
    let spec = Node::of(request, "spec");
    if !is_pem_request(spec.child("request").text()) {
        let wrong = "PEM block type must be CERTIFICATE REQUEST";
        errors.push(FieldError::invalid(&spec.child("request").path, "[]byte{}", wrong));
    }
    let usages = spec.child("usages");
    if usages.is_empty() {
        usages.required(errors, "");
    }
    let signer = spec.child("signerName");
    if signer.need(errors) {
        signer_name(&signer, errors);
    }
    let seconds = spec.child("expirationSeconds");
    if seconds.int().is_some_and(|seconds| seconds < SHORTEST_VALIDITY) {
        seconds.invalid(errors, "may not specify a duration less than 600 seconds (10 minutes)");
    }
}

/// Whether the bytes, which objects carry in base64, hold a request between its markers.
fn is_pem_request(encoded: &str) -> bool {
    let bytes = STANDARD.decode(encoded).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let begin = text.find("-----BEGIN ");
    let wanted = text.find("-----BEGIN CERTIFICATE REQUEST-----");
    wanted.is_some() && begin == wanted && text.contains("-----END CERTIFICATE REQUEST-----")
}

fn signer_name(signer: &Node<'_>, errors: &mut Errors) {
    let Some((domain, path)) = signer.text().split_once('/').filter(|(_, path)| !path.contains('/')) else {
        let wrong = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        signer.invalid(errors, wrong);
        return;
    };
    if domain.split('.').count() < 2 {
        signer.invalid(errors, "should be a domain with at least two segments separated by dots");
    }
    for wrong in names::dns_subdomain(domain) {
        let wrong = format!("validating domain {}: {wrong}", crate::api::field::quoted(domain));
        errors.push(FieldError::invalid(&signer.path, &signer.shown(), &wrong));
    }
    for wrong in path.split('.').flat_map(names::dns_label) {
        signer.invalid(errors, &format!("validating label {}: {wrong}", crate::api::field::quoted(path)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Writer;
    use super::super::testing::{each_refused, object};
    use super::*;

    #[test]
    fn a_request_says_who_made_it() {
        let user = Writer { name: "u".into(), groups: vec!["g".into()], ..Writer::default() };
        let mut request =
            object(r#"{"spec":{"username":"root","uid":"0","usages":["client auth"],"signerName":"a.b/c"}}"#);
        let pem = "-----BEGIN CERTIFICATE REQUEST-----\nAA==\n-----END CERTIFICATE REQUEST-----\n";
        request.entry("spec").set("request", STANDARD.encode(pem));
        prepare_create(&mut request, &Occasion { now: "", user: &user });
        assert_eq!(request.at(&["spec", "username"]), Some(&Value::from("u")));
        assert_eq!(request.at(&["spec", "uid"]), None);
        assert_eq!(request.at(&["spec", "groups"]), Some(&Value::from(vec!["g"])));
        each_refused(
            &request,
            validate,
            &[
                ("spec.request", r#""LS0t""#, "PEM block type must be CERTIFICATE REQUEST"),
                ("spec.usages", "[]", "spec.usages: Required value"),
                ("spec.signerName", "null", "spec.signerName: Required value"),
                ("spec.signerName", r#""x""#, "must be a fully qualified domain and path"),
                ("spec.signerName", r#""a/b""#, "at least two segments"),
                (
                    "spec.expirationSeconds",
                    "5",
                    "may not specify a duration less than 600 seconds (10 minutes)",
                ),
            ],
        );
    }
}
