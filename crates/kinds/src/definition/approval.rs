//! The approval annotation of definitions in protected community groups.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::APPROVED;

/// The state of the annotation that protected groups need: 0 missing, 1 invalid, 2 approved, 3 explicitly unapproved.
fn approval_state(definition: &Value) -> u8 {
    let text = meta::metadata(definition)
        .get_path(&["annotations", APPROVED])
        .and_then(Value::as_str)
        .unwrap_or_default();
    let is_url = text.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty()
            && !rest.is_empty()
            && !rest.starts_with('/')
            && !text.contains(char::is_whitespace)
    });
    match text {
        "" => 0,
        _ if text.starts_with("unapproved") => 3,
        _ if is_url => 2,
        _ => 1,
    }
}

/// Validates the annotation if its state has changed.
pub(super) fn validate_approval(definition: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let group = FieldValue::top_level(definition, "spec").child("group").text();
    let is_protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')));
    let state = approval_state(definition);
    if !is_protected || old.is_some_and(|old| approval_state(old) == state) {
        return;
    }
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let path = FieldPath::new("metadata").child("annotations").key(APPROVED);
    match state {
        0 => {
            let detail = format!("protected groups must have approval annotation \"{APPROVED}\", {SEE}");
            errors.push(FieldError::required(&path, &detail));
        }
        1 => {
            let text =
                meta::metadata(definition).get_path(&["annotations", APPROVED]).and_then(Value::as_str);
            let detail = format!(
                "protected groups must have approval annotation \"{APPROVED}\" with either a URL or a reason \
                 starting with \"unapproved\", {SEE}"
            );
            errors.push(FieldError::invalid(&path, &quoted(text.unwrap_or_default()), &detail));
        }
        _ => {}
    }
}
