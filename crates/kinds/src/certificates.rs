//! CertificateSigningRequests and ClusterTrustBundles.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, items_mut, same};
use pilothouse_apimachinery::meta::MetaRules;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::signers::LEGACY;
use pilothouse_apimachinery::{meta, names};

use super::{GUARDED, KindRules, MetaRevalidation, PLAIN, WriteContext, pem};
use crate::allowed::certificates_v1;

/// The rules of a CertificateSigningRequest.
pub const CERTIFICATE_SIGNING_REQUEST: KindRules = KindRules {
    name: names::path_segment,
    prepare_create,
    prepare_update,
    prepare_status,
    validate,
    validate_update,
    validate_status,
    status_meta_revalidation: MetaRevalidation::WholeAndChange,
    ..PLAIN
};

/// The rules of a ClusterTrustBundle.
pub const CLUSTER_TRUST_BUNDLE: KindRules = KindRules {
    name: names::path_segment,
    validate: validate_bundle,
    validate_update: validate_bundle_update,
    ..GUARDED
};

/// The allowed usages of certificates.
const USAGES: &[&str] = certificates_v1::CertificateSigningRequestSpec::USAGES;
const SHORTEST_VALIDITY: i64 = 600;

/// The user fields are those of the authenticated user, whatever the client sent.
fn prepare_create(request: &mut Value, context: &WriteContext<'_>) {
    let user = context.user;
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

/// The spec is immutable.
fn prepare_update(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    meta::copy(new, old, "spec");
}

/// A status update keeps the approval conditions, and sets the times of conditions.
fn prepare_status(new: &mut Value, old: &Value, context: &WriteContext<'_>) {
    for kind in ["Approved", "Denied"] {
        let before: Vec<&Value> = conditions(old).filter(|condition| condition.str("type") == kind).collect();
        let count = conditions(new).filter(|condition| condition.str("type") == kind).count();
        if before.len() == count {
            let places = items_mut(new.entry("status"), "conditions").iter_mut();
            for (place, was) in places.filter(|place| place.str("type") == kind).zip(before) {
                *place = was.clone();
            }
        }
    }
    stamp(new, old, context);
}

/// Prepares and validates an update of the subresource `approval`, the only one that sets Approved and Denied.
pub fn before_approval(
    new: &mut Value,
    old: &Value,
    context: &WriteContext<'_>,
) -> Result<WarningList, ErrorList> {
    prepare_approval(new, old, context);
    meta::copy(new.entry("metadata"), meta::of(old), "generation");
    meta::keep_system_fields(new, old);
    let mut errors = ErrorList::new();
    let rules = MetaRules {
        name: names::path_segment,
        own_name: meta::any_name,
        namespaced: false,
        known_finalizers: true,
    };
    meta::validate(new, rules, &mut errors);
    meta::validate_update(new, old, true, &mut errors);
    validate_approval(new, old, &mut errors);
    if errors.is_empty() { Ok(WarningList::new()) } else { Err(errors) }
}

/// An update of the subresource `approval` changes only conditions.
fn prepare_approval(new: &mut Value, old: &Value, context: &WriteContext<'_>) {
    stamp(new, old, context);
    let all = new.at(&["status", "conditions"]).cloned().unwrap_or_default();
    meta::copy(new, old, "spec");
    meta::copy(new, old, "status");
    new.entry("status").set("conditions", all);
}

fn conditions(request: &Value) -> impl Iterator<Item = &Value> {
    request.at(&["status", "conditions"]).map(Value::items).unwrap_or_default().iter()
}

/// Conditions without times get those of the old condition with the same type and status, or now.
fn stamp(new: &mut Value, old: &Value, context: &WriteContext<'_>) {
    let mut since: BTreeMap<[&str; 2], &Value> = BTreeMap::new();
    for was in conditions(old) {
        // The first such condition counts.
        since.entry(["type", "status"].map(|key| was.str(key))).or_insert(was);
    }
    for condition in items_mut(new.entry("status"), "conditions") {
        pilothouse_apimachinery::field_value::fill(condition, "lastUpdateTime", context.now);
        if condition.get("lastTransitionTime").is_none() {
            let was = since.get(&["type", "status"].map(|key| condition.str(key)));
            let time = was.and_then(|was| was.get("lastTransitionTime")).cloned();
            condition.set("lastTransitionTime", time.unwrap_or_else(|| Value::from(context.now)));
        }
    }
}

/// Checks a request.
fn validate(request: &Value, errors: &mut ErrorList) {
    validate_whole(request, None, errors);
}

fn validate_whole(request: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let spec = FieldValue::of(request, "spec");
    if let Err(wrong) = parse_request(request) {
        let carried = spec.child("request");
        let shown = if carried.is_set() { "[]byte{}" } else { "[]byte(nil)" };
        errors.push(FieldError::invalid(&carried.path, shown, &wrong));
    }
    usages(
        &spec.child("usages"),
        old.map(|old| FieldValue::of(old, "spec").child("usages")).as_ref(),
        errors,
    );
    let signer = spec.child("signerName");
    let was_legacy = old.is_some_and(|old| FieldValue::of(old, "spec").child("signerName").text() == LEGACY);
    if signer.text() == LEGACY && !was_legacy {
        signer.invalid(errors, "the legacy signerName is not allowed via this API version");
    } else {
        signer_name(&signer, errors);
    }
    let seconds = spec.child("expirationSeconds");
    if seconds.int().is_some_and(|seconds| seconds < SHORTEST_VALIDITY) {
        seconds.invalid(errors, "may not specify a duration less than 600 seconds (10 minutes)");
    }
    validate_conditions(request, old, errors);
    let certificate = |object: &Value| object.at(&["status", "certificate"]).cloned().unwrap_or_default();
    let tolerated = old.is_some_and(|old| {
        certificate(old) == certificate(request) || check_certificate(&certificate(old)).is_err()
    });
    if let Some(wrong) = check_certificate(&certificate(request)).err().filter(|_| !tolerated) {
        let path = FieldPath::new("status").child("certificate");
        errors.push(FieldError::invalid(&path, &quoted("<certificate data>"), &wrong));
    }
}

/// Parses the PKCS #10 request of an object. Its signature is not verified.
pub fn parse_request(object: &Value) -> Result<pem::Request, String> {
    const NO_BLOCK: &str = "PEM block type must be CERTIFICATE REQUEST";
    let text = plain(object.at(&["spec", "request"]).and_then(Value::as_str).unwrap_or_default());
    let block =
        pem::decode(&text).map(|(block, _)| block).filter(|block| block.kind == "CERTIFICATE REQUEST");
    let block = block.ok_or_else(|| NO_BLOCK.to_owned())?;
    pem::request(&block.bytes).ok_or_else(|| pem::what_is_wrong(&block.bytes).to_owned())
}

fn plain(encoded: &str) -> String {
    String::from_utf8_lossy(&STANDARD.decode(encoded).unwrap_or_default()).into_owned()
}

fn usages(usages: &FieldValue<'_>, old: Option<&FieldValue<'_>>, errors: &mut ErrorList) {
    usages.need(errors);
    let unknown = |usage: &FieldValue<'_>| !USAGES.contains(&usage.text());
    if !old.is_some_and(|old| old.items().any(|usage| unknown(&usage))) {
        for usage in usages.items() {
            usage.one_of(errors, USAGES);
        }
    }
    let twice = |list: &FieldValue<'_>| {
        list.items().map(|usage| usage.text()).collect::<BTreeSet<_>>().len() < list.len()
    };
    if old.is_some_and(twice) {
        return;
    }
    let mut seen = BTreeSet::new();
    for usage in usages.items() {
        if !seen.insert(usage.text()) {
            usage.duplicate(errors);
        }
    }
}

/// Checks the name of a signer: a domain and a path.
pub(super) fn signer_name(signer: &FieldValue<'_>, errors: &mut ErrorList) {
    const LONGEST_DOMAIN: usize = 253;
    const LONGEST: usize = 571;
    if !signer.need(errors) {
        return;
    }
    let Some((domain, path)) = signer.text().split_once('/').filter(|(_, path)| !path.contains('/')) else {
        let wrong = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        signer.invalid(errors, wrong);
        return;
    };
    if domain.len() > LONGEST_DOMAIN {
        errors.push(FieldError::too_long(&signer.path, LONGEST_DOMAIN));
    }
    signer_part(signer, domain, names::dns_label, errors);
    if !domain.contains('.') {
        let wrong = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(&signer.path, &quoted(domain), wrong));
    }
    signer_part(signer, path, names::dns_subdomain, errors);
    if signer.text().len() > LONGEST {
        errors.push(FieldError::too_long(&signer.path, LONGEST));
    }
}

/// Reports the first invalid label of a part only.
fn signer_part(signer: &FieldValue<'_>, part: &str, check: names::Check, errors: &mut ErrorList) {
    let Some(label) = part.split('.').find(|label| !check(label).is_empty()) else { return };
    for wrong in check(label) {
        let why = format!("validating label {}: {wrong}", quoted(label));
        errors.push(FieldError::invalid(&signer.path, &quoted(part), &why));
    }
}

fn validate_conditions(request: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    const EXCLUSIVE: &str = "Approved and Denied conditions are mutually exclusive";
    let kinds = |object: &Value| conditions(object).map(|one| one.str("type").to_owned()).collect::<Vec<_>>();
    let before = old.map(kinds).unwrap_or_default();
    let known: BTreeSet<&str> = before.iter().map(String::as_str).collect();
    let had = |kind: &str| known.contains(kind);
    let had_twice = known.len() < before.len();
    let mut seen = BTreeSet::new();
    for condition in FieldValue::of(request, "status").child("conditions").items() {
        let (kind, status) = (condition.child("type"), condition.child("status"));
        if kind.is_empty() && !had("") {
            kind.required(errors, "");
        }
        let once_true = matches!(kind.text(), "Approved" | "Denied" | "Failed");
        status.need_one_of(errors, if once_true { &["True"] } else { &["False", "True", "Unknown"] });
        let other = match kind.text() {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !other.is_empty() && seen.contains(other) && !(had("Approved") && had("Denied")) {
            kind.invalid(errors, EXCLUSIVE);
        }
        if !seen.insert(kind.text()) && !had_twice {
            errors.push(FieldError::duplicate(&kind.path, &quoted(kind.text())));
        }
    }
}

/// Checks the issued certificate.
fn check_certificate(encoded: &Value) -> Result<(), String> {
    let encoded = encoded.as_str().unwrap_or_default();
    if encoded.is_empty() {
        return Ok(());
    }
    let text = plain(encoded);
    let (mut rest, mut blocks) = (text.as_str(), 0);
    while let Some((block, after)) = pem::decode(rest) {
        if block.kind != "CERTIFICATE" {
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {}", quoted(&block.kind)));
        }
        if block.has_headers {
            return Err("no PEM block headers are permitted".to_owned());
        }
        if block.bytes.is_empty() {
            return Err("found CERTIFICATE PEM block containing 0 certificates".to_owned());
        }
        if pem::certificate(&block.bytes).is_none() {
            return Err("x509: malformed certificate".to_owned());
        }
        blocks += 1;
        rest = after;
    }
    if blocks == 0 { Err("must contain at least one CERTIFICATE PEM block".to_owned()) } else { Ok(()) }
}

/// Checks a changed request.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_change(new, old, Part::Main, errors);
}

/// Checks a change of the status.
fn validate_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_change(new, old, Part::Status, errors);
}

/// Checks a change of the sub-resource `approval`.
fn validate_approval(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_change(new, old, Part::Approval, errors);
}

/// The resource or subresource that is updated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Main,
    Status,
    Approval,
}

fn validate_change(new: &Value, old: &Value, part: Part, errors: &mut ErrorList) {
    validate_whole(new, Some(old), errors);
    let path = FieldPath::new("status").child("conditions");
    let of = |object: &Value, kind: &str| -> Vec<Value> {
        conditions(object).filter(|one| one.str("type") == kind).cloned().collect()
    };
    for kind in ["Approved", "Denied", "Failed"] {
        if of(new, kind).len() < of(old, kind).len() {
            let wrong = format!("updates may not remove a condition of type {}", quoted(kind));
            errors.push(FieldError::forbidden(&path, &wrong));
        }
    }
    for kind in ["Approved", "Denied"].into_iter().filter(|_| part != Part::Approval) {
        let (now, was) = (of(new, kind), of(old, kind));
        if now.len() > was.len() {
            let wrong = format!("updates may not add a condition of type {}", quoted(kind));
            errors.push(FieldError::forbidden(&path, &wrong));
        } else if now.len() == was.len()
            && !same(Some(&Value::Array(now.into())), Some(&Value::Array(was.into())))
        {
            let wrong = format!("updates may not modify a condition of type {}", quoted(kind));
            errors.push(FieldError::forbidden(&path, &wrong));
        }
    }
    let certificate = |object| FieldValue::of(object, "status").child("certificate");
    if certificate(new).text() != certificate(old).text() {
        if part != Part::Status {
            certificate(new).forbidden(errors, "updates may not set certificate content");
        } else if !certificate(old).is_empty() {
            certificate(new).forbidden(errors, "updates may not modify existing certificate content");
        }
    }
}

/// Checks a ClusterTrustBundle.
fn validate_bundle(bundle: &Value, errors: &mut ErrorList) {
    bundle_frame(bundle, errors);
    trust_anchors(&FieldValue::of(bundle, "spec").child("trustBundle"), errors);
}

/// Checks an updated ClusterTrustBundle: signerName is immutable, and an unchanged bundle is not parsed again.
fn validate_bundle_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let at = |object, field| FieldValue::of(object, "spec").child(field);
    bundle_frame(new, errors);
    if at(new, "trustBundle").text() != at(old, "trustBundle").text() {
        trust_anchors(&at(new, "trustBundle"), errors);
    }
    if at(new, "signerName").text() != at(old, "signerName").text() {
        at(new, "signerName").invalid_text(errors, meta::IMMUTABLE);
    }
}

/// The errors of the name of a ClusterTrustBundle, which depends on its signer, if any.
pub(super) fn bundle_name(name: &str, signer: &str) -> Vec<String> {
    let prefix = format!("{}:", signer.replace('/', ":"));
    match (signer.is_empty(), name.strip_prefix(&prefix)) {
        (true, _) if name.contains(':') => {
            vec!["ClusterTrustBundle without signer name must not have \":\" in its name".to_owned()]
        }
        (true, _) => names::dns_subdomain(name),
        (false, Some(rest)) => names::dns_subdomain(rest),
        (false, None) => {
            vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")]
        }
    }
}

fn bundle_frame(bundle: &Value, errors: &mut ErrorList) {
    let (name, signer) = (meta::name(bundle), FieldValue::of(bundle, "spec").child("signerName"));
    let wrong = bundle_name(name, signer.text());
    meta::texts(errors, &FieldPath::new("metadata").child("name"), name, wrong);
    if !signer.is_empty() {
        signer_name(&signer, errors);
    }
}

fn trust_anchors(bundle: &FieldValue<'_>, errors: &mut ErrorList) {
    const LARGEST: usize = 1 << 20;
    if bundle.text().len() > LARGEST {
        errors.push(FieldError::too_long(&bundle.path, LARGEST));
        return;
    }
    let before = errors.len();
    let mut wrong = |why: String| {
        errors.push(FieldError::invalid(&bundle.path, &quoted("<value omitted>"), &why));
    };
    let (mut rest, mut index) = (bundle.text(), 0usize);
    let mut places: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    while let Some((block, after)) = pem::decode(rest) {
        if block.kind != "CERTIFICATE" {
            wrong(format!("entry {index} has bad block type: {}", block.kind));
        } else if block.has_headers {
            wrong(format!("entry {index} has PEM block headers"));
        } else {
            match pem::certificate(&block.bytes) {
                None => wrong(format!("entry {index} does not parse as X.509")),
                Some(found) if !found.is_authority => {
                    wrong(format!("entry {index} does not have the CA bit set"));
                }
                Some(_) => places.entry(block.bytes).or_default().push(index.to_string()),
            }
        }
        rest = after;
        index += 1;
    }
    if errors.len() > before {
        return;
    }
    let mut wrong = |why: String| {
        errors.push(FieldError::invalid(&bundle.path, &quoted("<value omitted>"), &why));
    };
    if places.is_empty() {
        wrong("at least one trust anchor must be provided".to_owned());
    }
    for indexes in places.values().filter(|indexes| indexes.len() > 1) {
        wrong(format!("duplicate trust anchor (indices [{}])", indexes.join(" ")));
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::features::EnabledFeatures;
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

    use super::super::UserInfo;
    use super::*;

    const NOW: &str = "2024-01-01T00:00:00Z";

    fn base() -> Value {
        let mut request =
            object(r#"{"spec":{"username":"root","uid":"0","usages":["client auth"],"signerName":"a.b/c"}}"#);
        request.entry("spec").set("request", STANDARD.encode(pem::samples::REQUEST));
        request
    }

    #[test]
    fn a_request_says_who_made_it() {
        let user = UserInfo { name: "u".into(), groups: vec!["g".into()], ..UserInfo::default() };
        let mut request = base();
        prepare_create(
            &mut request,
            &WriteContext { now: "", user: &user, features: EnabledFeatures::RELEASE },
        );
        assert_eq!(request.at(&["spec", "username"]), Some(&Value::from("u")));
        assert_eq!(request.at(&["spec", "uid"]), None);
        assert_eq!(request.at(&["spec", "groups"]), Some(&Value::from(vec!["g"])));
        assert_eq!(parse_request(&request).unwrap().organizations, ["dev"]);
    }

    #[test]
    fn each_rule_of_a_request_refuses() {
        let broken =
            STANDARD.encode("-----BEGIN CERTIFICATE REQUEST-----\nAA==\n-----END CERTIFICATE REQUEST-----\n");
        let broken = format!("\"{broken}\"");
        each_refused(
            &base(),
            validate,
            &[
                ("spec.request", "null", "spec.request: Invalid value: []byte(nil): PEM block"),
                ("spec.request", r#""AA==""#, "PEM block type must be CERTIFICATE REQUEST"),
                (
                    "spec.request",
                    &broken,
                    "spec.request: Invalid value: []byte{}: asn1: syntax error: truncated tag or length",
                ),
                ("spec.usages", "[]", "spec.usages: Required value"),
                (
                    "spec.usages",
                    r#"["x"]"#,
                    "spec.usages[0]: Unsupported value: \"x\": supported values: \"any\", \"cert sign\"",
                ),
                ("spec.usages", r#"["any","any"]"#, "spec.usages[1]: Duplicate value: \"any\""),
                ("spec.signerName", "null", "spec.signerName: Required value"),
                ("spec.signerName", r#""x""#, "must be a fully qualified domain and path of the form"),
                (
                    "spec.signerName",
                    r#""a/b""#,
                    "spec.signerName: Invalid value: \"a\": should be a domain with at least two segments",
                ),
                (
                    "spec.signerName",
                    r#""a.B/c""#,
                    "spec.signerName: Invalid value: \"a.B\": validating label \"B\": a lowercase RFC 1123 label",
                ),
                (
                    "spec.signerName",
                    r#""a.b/C""#,
                    "spec.signerName: Invalid value: \"C\": validating label \"C\"",
                ),
                (
                    "spec.signerName",
                    r#""kubernetes.io/legacy-unknown""#,
                    "the legacy signerName is not allowed via this API version",
                ),
                (
                    "spec.expirationSeconds",
                    "5",
                    "may not specify a duration less than 600 seconds (10 minutes)",
                ),
                (
                    "status.conditions",
                    r#"[{"type":"Approved","status":"False"}]"#,
                    "status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\"",
                ),
                ("status.conditions", r#"[{"status":"True"}]"#, "status.conditions[0].type: Required value"),
                ("status.conditions", r#"[{"type":"X"}]"#, "status.conditions[0].status: Required value"),
                (
                    "status.conditions",
                    r#"[{"type":"Approved","status":"True"},{"type":"Denied","status":"True"}]"#,
                    "Approved and Denied conditions are mutually exclusive",
                ),
                (
                    "status.conditions",
                    r#"[{"type":"X","status":"True"},{"type":"X","status":"True"}]"#,
                    "status.conditions[1].type: Duplicate value: \"X\"",
                ),
                (
                    "status.certificate",
                    r#""AA==""#,
                    "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block",
                ),
            ],
        );
    }

    #[test]
    fn each_part_changes_through_its_own_resource() {
        let approved = r#"[{"type":"Approved","status":"True"}]"#;
        let certificate = format!("\"{}\"", STANDARD.encode(pem::samples::LEAF));
        each_change_refused(
            &base(),
            validate_status,
            &[(
                "status.conditions",
                approved,
                "status.conditions: Forbidden: updates may not add a condition of type \"Approved\"",
            )],
        );
        each_change_refused(
            &base(),
            validate_approval,
            &[(
                "status.certificate",
                &certificate,
                "status.certificate: Forbidden: updates may not set certificate content",
            )],
        );
        let mut done = base();
        done.entry("status").set("conditions", object(approved));
        done.entry("status").set("certificate", STANDARD.encode(pem::samples::LEAF));
        let other = format!("\"{}\"", STANDARD.encode(pem::samples::AUTHORITY));
        each_change_refused(
            &done,
            validate_status,
            &[
                ("status.certificate", &other, "updates may not modify existing certificate content"),
                ("status.conditions", "[]", "updates may not remove a condition of type \"Approved\""),
                (
                    "status.conditions.0.message",
                    r#""m""#,
                    "updates may not modify a condition of type \"Approved\"",
                ),
            ],
        );
        let user = UserInfo::default();
        let mut new = base();
        new.entry("status").set("conditions", object(approved));
        prepare_approval(
            &mut new,
            &base(),
            &WriteContext { now: NOW, user: &user, features: EnabledFeatures::RELEASE },
        );
        let condition = &new.at(&["status", "conditions"]).unwrap().items()[0];
        assert_eq!((condition.str("lastUpdateTime"), condition.str("lastTransitionTime")), (NOW, NOW));
        let named = |mut request: Value| {
            for (field, value) in [("name", "a"), ("uid", "u"), ("resourceVersion", "1")] {
                request.entry("metadata").set(field, value);
            }
            request
        };
        let (old, mut yes) = (named(base()), named(new.clone()));
        let context = WriteContext { now: NOW, user: &user, features: EnabledFeatures::RELEASE };
        assert!(before_approval(&mut yes, &old, &context).is_ok());
        yes.entry("status").set("conditions", Value::array());
        let approved = named(new.clone());
        assert!(before_approval(&mut yes, &approved, &context).is_err(), "an approval cannot be taken back");
        let mut again = new.clone();
        again
            .entry("status")
            .set("conditions", object(r#"[{"type":"Approved","status":"True","message":"m"}]"#));
        prepare_status(
            &mut again,
            &new,
            &WriteContext { now: "later", user: &user, features: EnabledFeatures::RELEASE },
        );
        assert_eq!(again.at(&["status", "conditions"]), new.at(&["status", "conditions"]));
    }

    #[test]
    fn each_rule_of_a_bundle_refuses() {
        let mut base = object(r#"{"metadata":{"name":"a.b:c:x"},"spec":{"signerName":"a.b/c"}}"#);
        base.entry("spec").set("trustBundle", pem::samples::AUTHORITY);
        let quote = |text: &str| serde_json::to_string(text).unwrap();
        let (leaf, twice, request) = (
            quote(pem::samples::LEAF),
            quote(&format!("{0}{0}", pem::samples::AUTHORITY)),
            quote(pem::samples::REQUEST),
        );
        each_refused(
            &base,
            validate_bundle,
            &[
                (
                    "metadata.name",
                    r#""x""#,
                    "ClusterTrustBundle for signerName a.b/c must be named with prefix a.b:c:",
                ),
                (
                    "spec.signerName",
                    "null",
                    "ClusterTrustBundle without signer name must not have \":\" in its name",
                ),
                (
                    "spec.trustBundle",
                    "null",
                    "spec.trustBundle: Invalid value: \"<value omitted>\": at least one trust anchor must be provided",
                ),
                ("spec.trustBundle", &leaf, "entry 0 does not have the CA bit set"),
                ("spec.trustBundle", &request, "entry 0 has bad block type: CERTIFICATE REQUEST"),
                ("spec.trustBundle", &twice, "duplicate trust anchor (indices [0 1])"),
            ],
        );
        let mut changed = base.clone();
        changed.entry("spec").set("signerName", "a.b/d");
        changed.entry("metadata").set("name", "a.b:d:x");
        let mut errors = ErrorList::new();
        validate_bundle_update(&changed, &base, &mut errors);
        assert_eq!(errors.len(), 1);
    }
}
