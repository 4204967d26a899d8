//! PodTolerationRestriction: default and allowed tolerations of a namespace, from its annotations or the operator's
//! configuration.

use std::sync::Arc;

use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::quality;

use super::plugin_document::Document;
use super::{Operation, Outcome, Plugin, Write, lookup, tolerations};

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const ALLOWED: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";

/// The tolerations for namespaces without annotations.
#[derive(Debug, Default, PartialEq)]
pub struct Lists {
    defaults: Vec<Value>,
    allowed: Vec<Value>,
}

/// Reads the configuration.
pub fn read(document: Option<&Value>) -> std::result::Result<Lists, String> {
    let Some(document) = document else { return Ok(Lists::default()) };
    let versions = ["podtolerationrestriction.admission.k8s.io/v1alpha1"];
    let document = Document::of(document, &versions, "Configuration")?;
    document.has_only("", &["apiVersion", "kind", "default", "whitelist"])?;
    let list = |field: &str| {
        let items = document.list(&[field])?;
        for (index, item) in items.iter().enumerate() {
            let known = ["key", "operator", "value", "effect", "tolerationSeconds"];
            let wrong = |why: String| format!("{field}[{index}]: {why}");
            Document::untyped(item).has_only("", &known).map_err(wrong)?;
        }
        Ok::<_, String>(items.to_vec())
    };
    Ok(Lists { defaults: list("default")?, allowed: list("whitelist")? })
}

/// Adds the tolerations of the namespace, and refuses those that it does not allow.
pub struct PodTolerationRestriction(pub Arc<Lists>);

impl Plugin for PodTolerationRestriction {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && write.is_of("", "pods")
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, pod: &'a mut Value) -> Outcome<'a> {
        Box::pin(async {
            let namespace = lookup::namespace(write).await?;
            let mut extra = Vec::new();
            if write.operation == Operation::Create {
                extra = said(&namespace, DEFAULTS)?.unwrap_or_else(|| self.0.defaults.clone());
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
        let own = said(namespace, ALLOWED)?;
        let (allowed, whose) = match &own {
            Some(own) => (own, "namespace"),
            None => (&self.0.allowed, "cluster"),
        };
        let asked = pod.at(&["spec", "tolerations"]).map(Value::items).unwrap_or_default();
        if allowed.is_empty() || tolerations::all_within(asked, allowed) {
            return Ok(());
        }
        let why = format!(
            "pod tolerations (possibly merged with namespace default tolerations) conflict with its {whose} whitelist"
        );
        Err(write.forbidden(pod, &why))
    }
}

/// The tolerations in an annotation; `None` without one. JSON is valid YAML.
fn said(namespace: &Value, annotation: &str) -> Result<Option<Vec<Value>>> {
    let text = meta::of(namespace).at(&["annotations", annotation]).and_then(Value::as_str);
    match text {
        None => Ok(None),
        Some("") => Ok(Some(Vec::new())),
        Some(text) => match yaml::read(text.as_bytes()) {
            Ok(Value::Array(list)) if list.iter().all(|one| one.fields().is_some()) => {
                Ok(Some(list.into_items()))
            }
            _ => Err(Status::bad_request(format!("the annotation {annotation} is no list of tolerations"))),
        },
    }
}

/// Adds tolerations. Pods that are not BestEffort also tolerate memory pressure.
fn tolerate(pod: &mut Value, mut extra: Vec<Value>, features: EnabledFeatures) {
    if quality(pod, features.has(Feature::PodLevelResources)) != "BestEffort" {
        let mut toleration = Value::object();
        for (field, text) in [("key", MEMORY_PRESSURE), ("operator", "Exists"), ("effect", "NoSchedule")] {
            toleration.set(field, text);
        }
        extra.push(toleration);
    }
    if !extra.is_empty() {
        let own = pod.at(&["spec", "tolerations"]).map(Value::items).unwrap_or_default();
        let merged = tolerations::merge(own, &extra);
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
    fn annotations_say_which() {
        let namespace = |text: &str| {
            let mut namespace = Value::object();
            namespace.entry("metadata").entry("annotations").set(ALLOWED, text);
            namespace
        };
        assert_eq!(said(&Value::object(), ALLOWED).unwrap(), None);
        assert_eq!(said(&namespace(""), ALLOWED).unwrap(), Some(Vec::new()));
        let list = said(&namespace(r#"[{"key":"a","operator":"Exists"}]"#), ALLOWED).unwrap().unwrap();
        assert_eq!(list[0].str("key"), "a");
        assert_eq!(said(&namespace("a"), ALLOWED).unwrap_err().code, 400);
    }

    #[test]
    fn promised_memory_is_tolerated_to_be_short() {
        let mut plain = value("spec: {containers: [{name: a}]}");
        tolerate(&mut plain, Vec::new(), EnabledFeatures::RELEASE);
        assert_eq!(plain.at(&["spec", "tolerations"]), None);
        let mut asking = value("spec: {containers: [{name: a, resources: {requests: {cpu: '1'}}}]}");
        tolerate(&mut asking, vec![value("{key: x, operator: Exists}")], EnabledFeatures::RELEASE);
        let all = asking.at(&["spec", "tolerations"]).unwrap().items();
        assert_eq!(all.iter().map(|one| one.str("key")).collect::<Vec<_>>(), ["x", MEMORY_PRESSURE]);
    }

    #[test]
    fn documents_are_read() {
        let head = "apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1\nkind: Configuration\n";
        let lists =
            read(Some(&value(&format!("{head}default: [{{key: a}}]\nwhitelist: [{{key: a}}, {{key: b}}]"))));
        let lists = lists.unwrap();
        assert_eq!((lists.defaults.len(), lists.allowed.len()), (1, 2));
        let wrong = read(Some(&value(&format!("{head}default: [{{kee: a}}]")))).unwrap_err();
        assert_eq!(wrong, "default[0]: unknown field \"kee\"");
    }
}
