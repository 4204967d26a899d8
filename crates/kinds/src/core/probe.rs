//! Probes and lifecycle hooks.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::features::Feature;
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::names;

use crate::allowed::core_v1;

/// Checks a liveness or startup probe: successThreshold must be 1.
pub fn validate_liveness(probe: &FieldValue<'_>, grace: Option<i64>, errors: &mut ErrorList) {
    if !probe.is_set() {
        return;
    }
    validate(probe, grace, errors);
    if !matches!(probe.read("successThreshold").as_int(), None | Some(1)) {
        probe.child("successThreshold").invalid(errors, "must be 1");
    }
}

/// Checks a readiness probe.
pub fn validate_readiness(probe: &FieldValue<'_>, grace: Option<i64>, errors: &mut ErrorList) {
    if !probe.is_set() {
        return;
    }
    validate(probe, grace, errors);
    let period = probe.child("terminationGracePeriodSeconds");
    if period.is_set() {
        period.invalid(errors, "must not be set for readinessProbes");
    }
}

fn validate(probe: &FieldValue<'_>, grace: Option<i64>, errors: &mut ErrorList) {
    validate_handler(probe, grace, errors);
    let numbers =
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];
    for number in numbers.iter().filter_map(|field| probe.opt(field)) {
        number.not_negative(errors);
    }
    if let Some(period) = probe.opt("terminationGracePeriodSeconds").filter(|period| period.number() <= 0) {
        period.invalid(errors, "must be greater than 0");
    }
}

/// Checks the lifecycle hooks of a container.
pub fn validate_lifecycle(hooks: &FieldValue<'_>, grace: Option<i64>, errors: &mut ErrorList) {
    for hook in ["postStart", "preStop"].iter().filter_map(|hook| hooks.opt(hook)) {
        validate_handler(&hook, grace, errors);
    }
}

/// Checks a handler: exactly one action, and its fields.
fn validate_handler(node: &FieldValue<'_>, grace: Option<i64>, errors: &mut ErrorList) {
    let mut has_handler = false;
    for kind in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(action) = node.opt(kind) else { continue };
        if has_handler {
            action.forbidden(errors, "may not specify more than 1 handler type");
            continue;
        }
        has_handler = true;
        match kind {
            "exec" => {
                action.child("command").need(errors);
            }
            "httpGet" => validate_http_get(&action, errors),
            "tcpSocket" => action.child("port").port_or_name(errors),
            "grpc" => action.child("port").port(errors),
            _ => validate_sleep(&action, grace, errors),
        }
    }
    if !has_handler {
        node.required(errors, "must specify a handler type");
    }
}

fn validate_http_get(action: &FieldValue<'_>, errors: &mut ErrorList) {
    action.need_text("path", errors);
    action.child("port").port_or_name(errors);
    if !matches!(action.str("scheme"), "HTTP" | "HTTPS") {
        action.child("scheme").one_of(errors, core_v1::HTTPGetAction::SCHEME);
    }
    let headers = action.child("httpHeaders");
    for header in headers.items() {
        let name = header.child("name").text();
        for detail in names::header_name(name) {
            errors.push(FieldError::invalid(&headers.path, &quoted(name), &detail));
        }
    }
}

fn validate_sleep(action: &FieldValue<'_>, grace: Option<i64>, errors: &mut ErrorList) {
    let seconds = action.child("seconds").number();
    let min = if errors.features().has(Feature::PodLifecycleSleepActionAllowZero) { 0 } else { 1 };
    if let Some(grace) = grace.filter(|grace| seconds < min || seconds > *grace) {
        let detail = if min == 0 {
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})")
        } else {
            format!(
                "must be greater than 0 and less than terminationGracePeriodSeconds ({grace}). Enable \
                 AllowPodLifecycleSleepActionZeroValue feature gate for zero sleep."
            )
        };
        errors.push(FieldError::invalid(&action.path, &seconds.to_string(), &detail));
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{each_refused, object};

    use super::*;

    #[test]
    fn probe_validation_refuses_each_violation() {
        let base = object(r#"{"p":{"httpGet":{"path":"/","port":80,"scheme":"HTTP"},"successThreshold":1}}"#);
        each_refused(
            &base,
            |object, errors| validate_liveness(&FieldValue::top_level(object, "p"), Some(30), errors),
            &[
                ("p.httpGet", "null", "p: Required value: must specify a handler type"),
                (
                    "p.exec",
                    r#"{"command":["x"]}"#,
                    "p.httpGet: Forbidden: may not specify more than 1 handler type",
                ),
                ("p.httpGet.path", "null", "p.httpGet.path: Required value"),
                (
                    "p.httpGet.port",
                    "0",
                    "p.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive",
                ),
                ("p.httpGet.scheme", r#""FTP""#, "supported values: \"HTTP\", \"HTTPS\""),
                (
                    "p.httpGet.httpHeaders",
                    r#"[{"name":"a b"}]"#,
                    "p.httpGet.httpHeaders: Invalid value: \"a b\"",
                ),
                ("p.periodSeconds", "-1", "p.periodSeconds: Invalid value: -1"),
                ("p.successThreshold", "2", "p.successThreshold: Invalid value: 2: must be 1"),
                ("p.terminationGracePeriodSeconds", "0", "must be greater than 0"),
            ],
        );
        let base = object(r#"{"p":{"exec":{"command":["x"]}},"l":{"preStop":{"sleep":{"seconds":5}}}}"#);
        each_refused(
            &base,
            |object, errors| validate_readiness(&FieldValue::top_level(object, "p"), None, errors),
            &[
                ("p.exec.command", "[]", "p.exec.command: Required value"),
                ("p.terminationGracePeriodSeconds", "1", "must not be set for readinessProbes"),
            ],
        );
        each_refused(
            &base,
            |object, errors| validate_lifecycle(&FieldValue::top_level(object, "l"), Some(30), errors),
            &[
                ("l.preStop.sleep.seconds", "31", "less than terminationGracePeriodSeconds (30)"),
                ("l.postStart", r#"{"x":1}"#, "l.postStart: Required value: must specify a handler type"),
            ],
        );
    }
}
