//! APIServices and CustomResourceDefinitions: the life-cycle part. The schemas of definitions are checked elsewhere.

use super::check::{Node, fill, present_mut};
use super::{Errors, Occasion};
use crate::api::field::{FieldError, Path, quoted};
use crate::api::value::Value;
use crate::api::{meta, names};

/// The defaults of an APIService.
pub fn default_service(service: &mut Value) {
    if let Some(reference) = service.get_mut("spec").and_then(|spec| present_mut(spec, "service")) {
        fill(reference, "port", 443);
    }
}

/// What this server serves itself is available at once.
pub fn prepare_service(service: &mut Value, occasion: &Occasion<'_>) {
    if service.at(&["spec", "service"]).is_some() {
        return;
    }
    let mut condition = Value::object();
    condition.set("type", "Available");
    condition.set("status", "True");
    condition.set("reason", "Local");
    condition.set("message", "Local APIServices are always available");
    condition.set("lastTransitionTime", occasion.now);
    service.entry("status").set("conditions", vec![condition]);
}

/// Checks an APIService.
pub fn validate_service(object: &Value, errors: &mut Errors) {
    let spec = Node::of(object, "spec");
    let (group, version) = (spec.child("group"), spec.child("version"));
    let wanted = format!("{}.{}", version.text(), group.text());
    if meta::name(object) != wanted && names::path_segment(meta::name(object), false).is_empty() {
        let wrong = format!("must be `spec.version+\".\"+spec.group`: {}", quoted(&wanted));
        let path = Path::new("metadata").child("name");
        errors.push(FieldError::invalid(&path, &quoted(meta::name(object)), &wrong));
    }
    if group.is_empty() && version.text() != "v1" {
        group.required(errors, "only v1 may have an empty group and it better be legacy kube");
    }
    group.syntax_if_set(errors, names::dns_subdomain);
    version.syntax(errors, names::dns_1035_label);
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1_000)] {
        let priority = spec.child(field);
        if !(1..=most).contains(&priority.number()) {
            let wrong = format!("must be positive and less than {most}");
            errors.push(FieldError::invalid(&priority.path, &priority.number().to_string(), &wrong));
        }
    }
    let (service, bundle, insecure) =
        (spec.child("service"), spec.child("caBundle"), spec.child("insecureSkipTLSVerify"));
    if service.is_set() {
        service.child("namespace").need(errors);
        service.child("name").need(errors);
        if insecure.is_true() && !bundle.is_empty() {
            insecure.invalid(errors, "may not be true if caBundle is present");
        }
        return;
    }
    if !bundle.is_empty() {
        bundle.invalid(errors, "local APIServices may not have a caBundle");
    }
    if insecure.is_true() {
        insecure.invalid(errors, "local APIServices may not have insecureSkipTLSVerify");
    }
}

/// Checks a changed APIService.
pub fn validate_service_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate_service(new, errors);
}

/// The defaults of a definition: names that follow from others.
pub fn default_definition(definition: &mut Value) {
    let spec = definition.entry("spec");
    let kind = spec.at(&["names", "kind"]).and_then(Value::as_str).unwrap_or_default().to_owned();
    let names = spec.entry("names");
    super::check::fill_text(names, "singular", &kind.to_lowercase());
    super::check::fill_text(names, "listKind", &format!("{kind}List"));
    let conversion = spec.entry("conversion");
    super::check::fill_text(conversion, "strategy", "None");
}

/// The version that objects are stored in is written down.
pub fn prepare_definition(definition: &mut Value, _: &Occasion<'_>) {
    remember_stored(definition);
}

/// The same when it changes.
pub fn prepare_definition_update(new: &mut Value, _old: &Value, _: &Occasion<'_>) {
    remember_stored(new);
}

fn remember_stored(definition: &mut Value) {
    let versions = definition.at(&["spec", "versions"]).map(Value::items).unwrap_or_default();
    let stored =
        versions.iter().find(|version| version.get("storage").and_then(Value::as_bool) == Some(true));
    let Some(name) = stored.map(|version| Value::from(version.str("name"))) else { return };
    let list = definition.entry("status").entry("storedVersions");
    let mut all = list.items().to_vec();
    if !all.contains(&name) {
        all.push(name);
    }
    *list = Value::Array(all);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOBODY, each_refused, object};
    use super::*;

    #[test]
    fn each_rule_of_an_api_service_refuses() {
        let base = object(
            r#"{"metadata":{"name":"v1.g.example"},"spec":{"group":"g.example","version":"v1","groupPriorityMinimum":1,
                "versionPriority":1,"service":{"namespace":"n","name":"s"},"insecureSkipTLSVerify":true}}"#,
        );
        each_refused(
            &base,
            validate_service,
            &[
                (
                    "metadata.name",
                    r#""x""#,
                    "metadata.name: Invalid value: \"x\": must be `spec.version+\".\"+spec.group`: \"v1.g.example\"",
                ),
                ("spec.groupPriorityMinimum", "0", "must be positive and less than 20000"),
                ("spec.versionPriority", "1001", "must be positive and less than 1000"),
                ("spec.service.name", "null", "spec.service.name: Required value"),
                ("spec.caBundle", r#""AA==""#, "may not be true if caBundle is present"),
                ("spec.service", "null", "local APIServices may not have insecureSkipTLSVerify"),
            ],
        );
        let mut local = object(r#"{"spec":{}}"#);
        prepare_service(&mut local, &Occasion { now: "t", user: &NOBODY });
        assert_eq!(local.at(&["status", "conditions"]).unwrap().items()[0].str("reason"), "Local");
    }

    #[test]
    fn a_definition_remembers_what_it_stored() {
        let mut definition = object(
            r#"{"spec":{"names":{"kind":"Kite"},"versions":[{"name":"v1","storage":true}]},"status":{"storedVersions":["v0"]}}"#,
        );
        default_definition(&mut definition);
        prepare_definition(&mut definition, &Occasion { now: "t", user: &NOBODY });
        assert_eq!(definition.at(&["status", "storedVersions"]), Some(&object(r#"["v0","v1"]"#)));
        assert_eq!(
            definition.at(&["spec", "names"]),
            Some(&object(r#"{"kind":"Kite","singular":"kite","listKind":"KiteList"}"#))
        );
        assert_eq!(definition.at(&["spec", "conversion", "strategy"]), Some(&Value::from("None")));
    }
}
