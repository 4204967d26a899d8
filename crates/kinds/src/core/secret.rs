//! Secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilothouse_apimachinery::codec::syntax;
use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::{FieldError, FieldPath};
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::meta::{self, IMMUTABLE};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::ACCOUNT_NAME;

use super::config_map::{MAX_BYTES, decoded_length, validate_immutable};
use super::key_pair;
use crate::{DefaultingRules, KindRules, PreparationRules, ValidationRules, WarningRules, WriteContext};

/// The rules of a Secret.
pub const RULES: KindRules = KindRules {
    defaulting: DefaultingRules { default: default_secret, ..DefaultingRules::DEFAULT },
    preparation: PreparationRules { prepare_update: prepare_secret_update, ..PreparationRules::DEFAULT },
    validation: ValidationRules {
        validate: validate_secret,
        validate_update: validate_secret_update,
        ..ValidationRules::DEFAULT
    },
    warnings: WarningRules { warn: warn_secret, ..WarningRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// stringData is merged into data.
fn default_secret(secret: &mut Value) {
    let Some(plain) = secret.remove("stringData") else { return };
    for (key, text) in plain.fields().into_iter().flatten() {
        let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
        secret.entry("data").set(key, encoded);
    }
}

/// An update without a type keeps it.
fn prepare_secret_update(new: &mut Value, old: &Value, _: &WriteContext<'_>) {
    if new.str("type").is_empty() {
        meta::copy(new, old, "type");
    }
}

/// Checks a Secret.
fn validate_secret(secret: &Value, errors: &mut ErrorList) {
    let data = FieldValue::top_level(secret, "data");
    let mut bytes = 0;
    for (key, entry) in data.entries() {
        meta::add_invalid(errors, &entry.path, key, names::config_key(key));
        bytes += decoded_length(entry.text());
    }
    if bytes > MAX_BYTES {
        errors.push(FieldError::too_long(&data.path, MAX_BYTES));
    }
    let has = |key: &str| data.value.fields().is_some_and(|fields| fields.contains_key(key));
    let mut require = |key: &str| errors.push(FieldError::required(&data.path.key(key), ""));
    match secret.str("type") {
        "kubernetes.io/service-account-token" => {
            let account = meta::metadata(secret)
                .get("annotations")
                .map_or("", |annotations| annotations.str(ACCOUNT_NAME));
            if account.is_empty() {
                let path = FieldPath::new("metadata").child("annotations").key(ACCOUNT_NAME);
                errors.push(FieldError::required(&path, ""));
            }
        }
        "kubernetes.io/dockercfg" => docker_config(&data, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => docker_config(&data, ".dockerconfigjson", errors),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            require("username");
            require("password");
        }
        "kubernetes.io/ssh-auth" if data.child("ssh-privatekey").is_empty() => require("ssh-privatekey"),
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"].into_iter().filter(|key| !has(key)) {
                require(key);
            }
        }
        _ => {}
    }
}

fn docker_config(data: &FieldValue<'_>, key: &str, errors: &mut ErrorList) {
    let path = data.path.key(key);
    let Some(text) = data.value.get(key).and_then(Value::as_str) else {
        errors.push(FieldError::required(&path, ""));
        return;
    };
    let bytes = STANDARD.decode(text).unwrap_or_default();
    if let Some(detail) = not_an_object(&bytes) {
        errors.push(FieldError::invalid(&path, "\"<secret contents redacted>\"", &detail));
    }
}

/// The reference's error for bytes that are no JSON object.
fn not_an_object(bytes: &[u8]) -> Option<String> {
    if let Err(detail) = syntax::check(bytes) {
        return Some(detail);
    }
    let kind = match bytes.trim_ascii_start().first() {
        Some(b'{' | b'n') => return None,
        Some(b'[') => "array",
        Some(b'"') => "string",
        Some(b't' | b'f') => "bool",
        _ => "number",
    };
    Some(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"))
}

/// Warns about an unusable TLS certificate and key.
fn warn_secret(secret: &Value, _old: Option<&Value>, warnings: &mut WarningList) {
    if secret.str("type") != "kubernetes.io/tls" {
        return;
    }
    let text = |key: &str| {
        let encoded = secret.get_path(&["data", key]).and_then(Value::as_str).unwrap_or_default();
        String::from_utf8_lossy(&STANDARD.decode(encoded).unwrap_or_default()).into_owned()
    };
    warnings.extend(key_pair::mismatch(&text("tls.crt"), &text("tls.key")));
}

/// Validates an updated Secret.
fn validate_secret_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    if new.str("type") != old.str("type") {
        FieldValue::top_level(new, "type").invalid_text(errors, IMMUTABLE);
    }
    validate_immutable(new, old, &["data"], errors);
    validate_secret(new, errors);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_change_refused, each_refused, error_messages, object};

    use super::super::super::testing::filled;
    use super::*;

    #[test]
    fn secret_validation_requires_the_keys_of_its_type() {
        let table: [(&str, &[&str]); 7] = [
            (r#"{"type":"Opaque"}"#, &[]),
            (
                r#"{"type":"kubernetes.io/tls"}"#,
                &["data[tls.crt]: Required value", "data[tls.key]: Required value"],
            ),
            (r#"{"type":"kubernetes.io/ssh-auth"}"#, &["data[ssh-privatekey]: Required value"]),
            (
                r#"{"type":"kubernetes.io/basic-auth"}"#,
                &["data[username]: Required value", "data[password]: Required value"],
            ),
            (r#"{"type":"kubernetes.io/dockercfg"}"#, &["data[.dockercfg]: Required value"]),
            (
                r#"{"type":"kubernetes.io/service-account-token"}"#,
                &["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
            ),
            (r#"{"type":"kubernetes.io/dockerconfigjson","data":{".dockerconfigjson":"e30="}}"#, &[]),
        ];
        for (secret, expected) in table {
            let mut errors = ErrorList::new();
            validate_secret(&object(secret), &mut errors);
            assert_eq!(error_messages(&errors), expected, "{secret}");
        }
        each_refused(
            &object(r#"{"type":"kubernetes.io/dockercfg","data":{".dockercfg":"e30="}}"#),
            validate_secret,
            &[
                ("data", r#"{".dockercfg":"eA=="}"#, "<secret contents redacted>\": invalid character 'x'"),
                ("data", r#"{".dockercfg":"bm8="}"#, "invalid character 'o' in literal null (expecting 'u')"),
                (
                    "data",
                    r#"{".dockercfg":"e3g="}"#,
                    "invalid character 'x' looking for beginning of object key",
                ),
                (
                    "data",
                    r#"{".dockercfg":"W10="}"#,
                    "json: cannot unmarshal array into Go value of type map",
                ),
                (
                    "data",
                    r#"{".dockercfg":"NQ=="}"#,
                    "json: cannot unmarshal number into Go value of type map",
                ),
                ("data", r#"{".dockercfg":""}"#, "unexpected end of JSON input"),
                ("data.k k", r#""""#, "data[k k]: Invalid value: \"k k\""),
            ],
        );
        each_change_refused(
            &object(r#"{"type":"a/b","immutable":true}"#),
            validate_secret_update,
            &[
                ("type", r#""x/y""#, "type: Invalid value: \"x/y\": field is immutable"),
                ("data", r#"{"a":"AA=="}"#, "data: Forbidden: field is immutable when `immutable` is set"),
            ],
        );
    }

    #[test]
    fn tls_secret_with_bad_pem_gets_a_warning() {
        let mut warnings = WarningList::new();
        warn_secret(&object(r#"{"type":"Opaque"}"#), None, &mut warnings);
        assert_eq!(warnings, WarningList::new());
        let tls = object(r#"{"type":"kubernetes.io/tls","data":{"tls.crt":"eA==","tls.key":"eA=="}}"#);
        warn_secret(&tls, None, &mut warnings);
        assert_eq!(warnings, ["tls: failed to find any PEM data in certificate input"]);
    }

    #[test]
    fn string_data_is_merged_into_data() {
        let json = r#"{"stringData":{"a":"x","b":"y"},"data":{"a":"AA=="}}"#;
        let secret = filled(("", "v1"), "Secret", json);
        assert_eq!(secret, object(r#"{"type":"Opaque","data":{"a":"eA==","b":"eQ=="}}"#));
    }
}
