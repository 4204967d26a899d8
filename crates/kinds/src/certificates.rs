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

use super::{
    KindRules, MetaRevalidation, MetadataRules, PreparationRules, ResetFields, StatusRules, UpdateRules,
    ValidationRules, WriteContext, pem,
};
use crate::allowed::certificates_v1;

/// The rules of a CertificateSigningRequest.
pub const CERTIFICATE_SIGNING_REQUEST: KindRules = KindRules {
    metadata: MetadataRules { name: names::path_segment, ..MetadataRules::DEFAULT },
    preparation: PreparationRules { prepare_create, prepare_update },
    validation: ValidationRules { validate, validate_update, ..ValidationRules::DEFAULT },
    status: StatusRules {
        metadata_revalidation: MetaRevalidation::WholeAndChange,
        prepare: prepare_status,
        validate: validate_status,
        ..StatusRules::DEFAULT
    },
    reset_fields: ResetFields {
        object: &[&["spec"], &["status"]],
        status: &[&["spec"], &["status", "conditions"]],
        subresources: &[("approval", &[&["spec"], &["status", "certificate"]])],
    },
    ..KindRules::DEFAULT
};

/// The rules of a ClusterTrustBundle.
pub const CLUSTER_TRUST_BUNDLE: KindRules = KindRules {
    metadata: MetadataRules { name: names::path_segment, ..MetadataRules::DEFAULT },
    update: UpdateRules::CONDITIONAL,
    validation: ValidationRules {
        validate: validate_bundle,
        validate_update: validate_bundle_update,
        ..ValidationRules::DEFAULT
    },
    ..KindRules::DEFAULT
};

/// The allowed usages of certificates.
const USAGES: &[&str] = certificates_v1::CertificateSigningRequestSpec::USAGES;
const MIN_VALIDITY: i64 = 600;

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
        let old_conditions: Vec<&Value> =
            conditions(old).filter(|condition| condition.str("type") == kind).collect();
        let count = conditions(new).filter(|condition| condition.str("type") == kind).count();
        if old_conditions.len() == count {
            let conditions = items_mut(new.entry("status"), "conditions").iter_mut();
            for (condition, old) in
                conditions.filter(|condition| condition.str("type") == kind).zip(old_conditions)
            {
                *condition = old.clone();
            }
        }
    }
    set_condition_times(new, old, context);
}

/// Prepares and validates an update of the subresource `approval`, the only one that sets Approved and Denied.
pub fn before_approval(
    new: &mut Value,
    old: &Value,
    context: &WriteContext<'_>,
) -> Result<WarningList, ErrorList> {
    prepare_approval(new, old, context);
    meta::copy(new.entry("metadata"), meta::metadata(old), "generation");
    meta::keep_system_fields(new, old);
    let mut errors = ErrorList::new();
    let rules = MetaRules {
        name: names::path_segment,
        validate_name: meta::any_name,
        namespaced: false,
        requires_standard_finalizers: true,
    };
    meta::validate(new, rules, &mut errors);
    meta::validate_update(new, old, true, &mut errors);
    validate_approval(new, old, &mut errors);
    if errors.is_empty() { Ok(WarningList::new()) } else { Err(errors) }
}

/// An update of the subresource `approval` changes only conditions.
fn prepare_approval(new: &mut Value, old: &Value, context: &WriteContext<'_>) {
    set_condition_times(new, old, context);
    let conditions = new.get_path(&["status", "conditions"]).cloned().unwrap_or_default();
    meta::copy(new, old, "spec");
    meta::copy(new, old, "status");
    new.entry("status").set("conditions", conditions);
}

fn conditions(request: &Value) -> impl Iterator<Item = &Value> {
    request.get_path(&["status", "conditions"]).map(Value::items).unwrap_or_default().iter()
}

/// Sets missing condition times: from the old condition with the same type and status, else the current time.
fn set_condition_times(new: &mut Value, old: &Value, context: &WriteContext<'_>) {
    let mut old_conditions: BTreeMap<[&str; 2], &Value> = BTreeMap::new();
    for condition in conditions(old) {
        // The first such condition counts.
        old_conditions.entry(["type", "status"].map(|key| condition.str(key))).or_insert(condition);
    }
    for condition in items_mut(new.entry("status"), "conditions") {
        pilothouse_apimachinery::field_value::fill(condition, "lastUpdateTime", context.now);
        if condition.get("lastTransitionTime").is_none() {
            let old_condition = old_conditions.get(&["type", "status"].map(|key| condition.str(key)));
            let time =
                old_condition.and_then(|old_condition| old_condition.get("lastTransitionTime")).cloned();
            condition.set("lastTransitionTime", time.unwrap_or_else(|| Value::from(context.now)));
        }
    }
}

/// Checks a request.
fn validate(request: &Value, errors: &mut ErrorList) {
    validate_whole(request, None, errors);
}

fn validate_whole(request: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(request, "spec");
    if let Err(detail) = parse_request(request) {
        let csr = spec.child("request");
        let rendered = if csr.is_set() { "[]byte{}" } else { "[]byte(nil)" };
        errors.push(FieldError::invalid(&csr.path, rendered, &detail));
    }
    usages(
        &spec.child("usages"),
        old.map(|old| FieldValue::top_level(old, "spec").child("usages")).as_ref(),
        errors,
    );
    let signer = spec.child("signerName");
    let was_legacy =
        old.is_some_and(|old| FieldValue::top_level(old, "spec").child("signerName").text() == LEGACY);
    if signer.text() == LEGACY && !was_legacy {
        signer.invalid(errors, "the legacy signerName is not allowed via this API version");
    } else {
        validate_signer_name(&signer, errors);
    }
    let seconds = spec.child("expirationSeconds");
    if seconds.int().is_some_and(|seconds| seconds < MIN_VALIDITY) {
        seconds.invalid(errors, "may not specify a duration less than 600 seconds (10 minutes)");
    }
    validate_conditions(request, old, errors);
    let certificate =
        |object: &Value| object.get_path(&["status", "certificate"]).cloned().unwrap_or_default();
    let is_tolerated = old.is_some_and(|old| {
        certificate(old) == certificate(request) || check_certificate(&certificate(old)).is_err()
    });
    if let Some(detail) = check_certificate(&certificate(request)).err().filter(|_| !is_tolerated) {
        let path = FieldPath::new("status").child("certificate");
        errors.push(FieldError::invalid(&path, &quoted("<certificate data>"), &detail));
    }
}

/// Parses the PKCS #10 request of an object. Its signature is not verified.
pub fn parse_request(object: &Value) -> Result<pem::Request, String> {
    const NO_BLOCK: &str = "PEM block type must be CERTIFICATE REQUEST";
    let text =
        decode_base64(object.get_path(&["spec", "request"]).and_then(Value::as_str).unwrap_or_default());
    let block =
        pem::decode(&text).map(|(block, _)| block).filter(|block| block.kind == "CERTIFICATE REQUEST");
    let block = block.ok_or_else(|| NO_BLOCK.to_owned())?;
    pem::parse_request(&block.bytes).ok_or_else(|| pem::asn1_error(&block.bytes).to_owned())
}

fn decode_base64(encoded: &str) -> String {
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
    let has_duplicates = |list: &FieldValue<'_>| {
        list.items().map(|usage| usage.text()).collect::<BTreeSet<_>>().len() < list.len()
    };
    if old.is_some_and(has_duplicates) {
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
pub(super) fn validate_signer_name(signer: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_DOMAIN_LENGTH: usize = 253;
    const MAX_LENGTH: usize = 571;
    if !signer.need(errors) {
        return;
    }
    let Some((domain, path)) = signer.text().split_once('/').filter(|(_, path)| !path.contains('/')) else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        signer.invalid(errors, detail);
        return;
    };
    if domain.len() > MAX_DOMAIN_LENGTH {
        errors.push(FieldError::too_long(&signer.path, MAX_DOMAIN_LENGTH));
    }
    signer_part(signer, domain, names::dns_label, errors);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(&signer.path, &quoted(domain), detail));
    }
    signer_part(signer, path, names::dns_subdomain, errors);
    if signer.text().len() > MAX_LENGTH {
        errors.push(FieldError::too_long(&signer.path, MAX_LENGTH));
    }
}

/// Reports the first invalid label of a part only.
fn signer_part(signer: &FieldValue<'_>, part: &str, check: names::Check, errors: &mut ErrorList) {
    let Some(label) = part.split('.').find(|label| !check(label).is_empty()) else { return };
    for detail in check(label) {
        let detail = format!("validating label {}: {detail}", quoted(label));
        errors.push(FieldError::invalid(&signer.path, &quoted(part), &detail));
    }
}

fn validate_conditions(request: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    const EXCLUSIVE: &str = "Approved and Denied conditions are mutually exclusive";
    let kinds = |object: &Value| {
        conditions(object).map(|condition| condition.str("type").to_owned()).collect::<Vec<_>>()
    };
    let old_kinds = old.map(kinds).unwrap_or_default();
    let known: BTreeSet<&str> = old_kinds.iter().map(String::as_str).collect();
    let was_present = |kind: &str| known.contains(kind);
    let had_duplicates = known.len() < old_kinds.len();
    let mut seen = BTreeSet::new();
    for condition in FieldValue::top_level(request, "status").child("conditions").items() {
        let (kind, status) = (condition.child("type"), condition.child("status"));
        if kind.is_empty() && !was_present("") {
            kind.required(errors, "");
        }
        let must_be_true = matches!(kind.text(), "Approved" | "Denied" | "Failed");
        status.need_one_of(errors, if must_be_true { &["True"] } else { &["False", "True", "Unknown"] });
        let other = match kind.text() {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !other.is_empty() && seen.contains(other) && !(was_present("Approved") && was_present("Denied")) {
            kind.invalid(errors, EXCLUSIVE);
        }
        if !seen.insert(kind.text()) && !had_duplicates {
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
    let text = decode_base64(encoded);
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
        if pem::parse_certificate(&block.bytes).is_none() {
            return Err("x509: malformed certificate".to_owned());
        }
        blocks += 1;
        rest = after;
    }
    if blocks == 0 { Err("must contain at least one CERTIFICATE PEM block".to_owned()) } else { Ok(()) }
}

/// Validates an updated CertificateSigningRequest.
fn validate_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_change(new, old, UpdatedResource::Object, errors);
}

/// Validates a status update.
fn validate_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_change(new, old, UpdatedResource::Status, errors);
}

/// Validates an update of the subresource `approval`.
fn validate_approval(new: &Value, old: &Value, errors: &mut ErrorList) {
    validate_change(new, old, UpdatedResource::Approval, errors);
}

/// The resource or subresource that is updated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UpdatedResource {
    Object,
    Status,
    Approval,
}

fn validate_change(new: &Value, old: &Value, resource: UpdatedResource, errors: &mut ErrorList) {
    validate_whole(new, Some(old), errors);
    let path = FieldPath::new("status").child("conditions");
    let conditions_of = |object: &Value, kind: &str| -> Vec<Value> {
        conditions(object).filter(|condition| condition.str("type") == kind).cloned().collect()
    };
    for kind in ["Approved", "Denied", "Failed"] {
        if conditions_of(new, kind).len() < conditions_of(old, kind).len() {
            let detail = format!("updates may not remove a condition of type {}", quoted(kind));
            errors.push(FieldError::forbidden(&path, &detail));
        }
    }
    for kind in ["Approved", "Denied"].into_iter().filter(|_| resource != UpdatedResource::Approval) {
        let (new_conditions, old_conditions) = (conditions_of(new, kind), conditions_of(old, kind));
        if new_conditions.len() > old_conditions.len() {
            let detail = format!("updates may not add a condition of type {}", quoted(kind));
            errors.push(FieldError::forbidden(&path, &detail));
        } else if new_conditions.len() == old_conditions.len()
            && !same(Some(&Value::Array(new_conditions.into())), Some(&Value::Array(old_conditions.into())))
        {
            let detail = format!("updates may not modify a condition of type {}", quoted(kind));
            errors.push(FieldError::forbidden(&path, &detail));
        }
    }
    let certificate = |object| FieldValue::top_level(object, "status").child("certificate");
    if certificate(new).text() != certificate(old).text() {
        if resource != UpdatedResource::Status {
            certificate(new).forbidden(errors, "updates may not set certificate content");
        } else if !certificate(old).is_empty() {
            certificate(new).forbidden(errors, "updates may not modify existing certificate content");
        }
    }
}

/// Checks a ClusterTrustBundle.
fn validate_bundle(bundle: &Value, errors: &mut ErrorList) {
    validate_bundle_names(bundle, errors);
    trust_anchors(&FieldValue::top_level(bundle, "spec").child("trustBundle"), errors);
}

/// Checks an updated ClusterTrustBundle: signerName is immutable, and an unchanged bundle is not parsed again.
fn validate_bundle_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let field = |object, field| FieldValue::top_level(object, "spec").child(field);
    validate_bundle_names(new, errors);
    if field(new, "trustBundle").text() != field(old, "trustBundle").text() {
        trust_anchors(&field(new, "trustBundle"), errors);
    }
    if field(new, "signerName").text() != field(old, "signerName").text() {
        field(new, "signerName").invalid_text(errors, meta::IMMUTABLE);
    }
}

/// The errors of the name of a ClusterTrustBundle, which depends on its signer, if any.
pub(super) fn bundle_name_errors(name: &str, signer: &str) -> Vec<String> {
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

fn validate_bundle_names(bundle: &Value, errors: &mut ErrorList) {
    let (name, signer) = (meta::name(bundle), FieldValue::top_level(bundle, "spec").child("signerName"));
    let details = bundle_name_errors(name, signer.text());
    meta::add_invalid(errors, &FieldPath::new("metadata").child("name"), name, details);
    if !signer.is_empty() {
        validate_signer_name(&signer, errors);
    }
}

fn trust_anchors(bundle: &FieldValue<'_>, errors: &mut ErrorList) {
    const MAX_LENGTH: usize = 1 << 20;
    if bundle.text().len() > MAX_LENGTH {
        errors.push(FieldError::too_long(&bundle.path, MAX_LENGTH));
        return;
    }
    let error_count = errors.len();
    let mut invalid = |detail: String| {
        errors.push(FieldError::invalid(&bundle.path, &quoted("<value omitted>"), &detail));
    };
    let (mut rest, mut index) = (bundle.text(), 0usize);
    let mut indexes: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    while let Some((block, after)) = pem::decode(rest) {
        if block.kind != "CERTIFICATE" {
            invalid(format!("entry {index} has bad block type: {}", block.kind));
        } else if block.has_headers {
            invalid(format!("entry {index} has PEM block headers"));
        } else {
            match pem::parse_certificate(&block.bytes) {
                None => invalid(format!("entry {index} does not parse as X.509")),
                Some(certificate) if !certificate.is_authority => {
                    invalid(format!("entry {index} does not have the CA bit set"));
                }
                Some(_) => indexes.entry(block.bytes).or_default().push(index.to_string()),
            }
        }
        rest = after;
        index += 1;
    }
    if errors.len() > error_count {
        return;
    }
    let mut invalid = |detail: String| {
        errors.push(FieldError::invalid(&bundle.path, &quoted("<value omitted>"), &detail));
    };
    if indexes.is_empty() {
        invalid("at least one trust anchor must be provided".to_owned());
    }
    for indexes in indexes.values().filter(|indexes| indexes.len() > 1) {
        invalid(format!("duplicate trust anchor (indices [{}])", indexes.join(" ")));
    }
}

#[cfg(test)]
mod tests;
