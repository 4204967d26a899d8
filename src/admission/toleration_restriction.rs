//! PodTolerationRestriction: default and allowed tolerations of a namespace, from its annotations or the operator's
//! configuration.

use std::sync::Arc;

use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::document::{self, FieldReader};
use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::field::FieldPath;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::qos_class;

use super::{Operation, Outcome, Plugin, Write, lookup, tolerations};

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const ALLOWED: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";

/// The default and allowed tolerations of namespaces without annotations.
#[derive(Debug, Default, PartialEq)]
pub struct Tolerations {
    defaults: Vec<Value>,
    allowed: Vec<Value>,
}

/// Reads the configuration.
pub fn read(document: Option<&Value>) -> std::result::Result<Tolerations, String> {
    let Some(document) = document else { return Ok(Tolerations::default()) };
    let versions = ["podtolerationrestriction.admission.k8s.io/v1alpha1"];
    document::check_kind(document, "Configuration", &versions)?;
    let (mut reader, root) = (FieldReader::default(), FieldPath::root());
    reader.check_fields(document, &root, &["apiVersion", "kind", "default", "whitelist"]);
    let mut list = |field: &str| {
        let items = reader.list(document, field, &root);
        for (index, item) in items.iter().enumerate() {
            let known_fields = ["key", "operator", "value", "effect", "tolerationSeconds"];
            reader.check_fields(item, &FieldPath::new(field).index(index), &known_fields);
        }
        items.to_vec()
    };
    let tolerations = Tolerations { defaults: list("default"), allowed: list("whitelist") };
    reader.result()?;
    Ok(tolerations)
}

/// Adds the tolerations of the namespace, and refuses those that it does not allow.
pub struct PodTolerationRestriction(pub Arc<Tolerations>);

impl Plugin for PodTolerationRestriction {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && write.is_of("", "pods")
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, pod: &'a mut Value) -> Outcome<'a> {
        Box::pin(async {
            let namespace = lookup::namespace(write).await?;
            let mut extra = Vec::new();
            if write.operation == Operation::Create {
                extra = annotated(&namespace, DEFAULTS)?.unwrap_or_else(|| self.0.defaults.clone());
            }
            tolerate(pod, extra, write.backend.objects.features);
            self.check(write, pod, &namespace)
        })
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, pod: &'a Value) -> Outcome<'a> {
        Box::pin(async {
            let namespace = lookup::namespace(write).await?;
            self.check(write, pod, &namespace)
        })
    }
}

impl PodTolerationRestriction {
    fn check(&self, write: &Write<'_>, pod: &Value, namespace: &Value) -> Result<()> {
        let namespace_list = annotated(namespace, ALLOWED)?;
        let (allowed, scope) = match &namespace_list {
            Some(namespace_list) => (namespace_list, "namespace"),
            None => (&self.0.allowed, "cluster"),
        };
        let requested = pod.get_path(&["spec", "tolerations"]).map(Value::items).unwrap_or_default();
        if allowed.is_empty() || tolerations::are_allowed(requested, allowed) {
            return Ok(());
        }
        let reason = format!(
            "pod tolerations (possibly merged with namespace default tolerations) conflict with its {scope} whitelist"
        );
        Err(write.forbidden(pod, &reason))
    }
}

/// The tolerations in an annotation; `None` without one. JSON is valid YAML.
fn annotated(namespace: &Value, annotation: &str) -> Result<Option<Vec<Value>>> {
    let text = meta::metadata(namespace).get_path(&["annotations", annotation]).and_then(Value::as_str);
    match text {
        None => Ok(None),
        Some("") => Ok(Some(Vec::new())),
        Some(text) => match yaml::read(text.as_bytes()) {
            Ok(Value::Array(list)) if list.iter().all(|item| item.fields().is_some()) => {
                Ok(Some(list.into_items()))
            }
            _ => Err(Status::bad_request(format!(
                "annotation {annotation} is not a valid list of tolerations"
            ))),
        },
    }
}

/// Adds tolerations. Pods that are not BestEffort also tolerate memory pressure.
fn tolerate(pod: &mut Value, mut extra: Vec<Value>, features: EnabledFeatures) {
    if qos_class(pod, features.has(Feature::PodLevelResources)) != "BestEffort" {
        let mut toleration = Value::object();
        for (field, text) in [("key", MEMORY_PRESSURE), ("operator", "Exists"), ("effect", "NoSchedule")] {
            toleration.set(field, text);
        }
        extra.push(toleration);
    }
    if !extra.is_empty() {
        let current = pod.get_path(&["spec", "tolerations"]).map(Value::items).unwrap_or_default();
        let merged = tolerations::merge(current, &extra);
        pod.entry("spec").set("tolerations", merged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        yaml::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn tolerations_are_read_from_annotation() {
        let namespace = |text: &str| {
            let mut namespace = Value::object();
            namespace.entry("metadata").entry("annotations").set(ALLOWED, text);
            namespace
        };
        assert_eq!(annotated(&Value::object(), ALLOWED).unwrap(), None);
        assert_eq!(annotated(&namespace(""), ALLOWED).unwrap(), Some(Vec::new()));
        let list = annotated(&namespace(r#"[{"key":"a","operator":"Exists"}]"#), ALLOWED).unwrap().unwrap();
        assert_eq!(list[0].str("key"), "a");
        assert_eq!(annotated(&namespace("a"), ALLOWED).unwrap_err().code, 400);
    }

    #[test]
    fn pods_with_requests_tolerate_memory_pressure() {
        let mut plain = value("spec: {containers: [{name: a}]}");
        tolerate(&mut plain, Vec::new(), EnabledFeatures::RELEASE);
        assert_eq!(plain.get_path(&["spec", "tolerations"]), None);
        let mut with_requests = value("spec: {containers: [{name: a, resources: {requests: {cpu: '1'}}}]}");
        tolerate(&mut with_requests, vec![value("{key: x, operator: Exists}")], EnabledFeatures::RELEASE);
        let all = with_requests.get_path(&["spec", "tolerations"]).unwrap().items();
        assert_eq!(all.iter().map(|item| item.str("key")).collect::<Vec<_>>(), ["x", MEMORY_PRESSURE]);
    }

    #[test]
    fn toleration_restriction_config_is_strict() {
        let head = "apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1\nkind: Configuration\n";
        let lists =
            read(Some(&value(&format!("{head}default: [{{key: a}}]\nwhitelist: [{{key: a}}, {{key: b}}]"))));
        let lists = lists.unwrap();
        assert_eq!((lists.defaults.len(), lists.allowed.len()), (1, 2));
        let error = read(Some(&value(&format!("{head}default: [{{kee: a}}]")))).unwrap_err();
        assert_eq!(error, "unknown field \"default[0].kee\"");
    }
}
