//! DefaultStorageClass and DefaultIngressClass.

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations::{DEFAULT_STORAGE_CLASS, INGRESS_CLASS, STORAGE_CLASS};

use super::lookup::{INGRESS_CLASSES, Memo, STORAGE_CLASSES};
use super::{Operation, Outcome, Plugin, Write};

/// Annotations that make an ingress class the default.
const DEFAULT_INGRESS: [&str; 1] = ["ingressclass.kubernetes.io/is-default-class"];

/// Gives new claims the default storage class.
#[derive(Default)]
pub struct DefaultStorageClass(Memo<Option<String>>);

impl Plugin for DefaultStorageClass {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create && write.is_of("", "persistentvolumeclaims")
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, claim: &'a mut Value) -> Outcome<'a> {
        Box::pin(async {
            if names_class(claim, STORAGE_CLASS, "storageClassName") {
                return Ok(());
            }
            let class =
                self.0.get(&STORAGE_CLASSES, write, |all| newest_default(&all, &DEFAULT_STORAGE_CLASS)).await;
            set_class(claim, "storageClassName", class)
        })
    }
}

/// Gives new ingresses the default ingress class.
#[derive(Default)]
pub struct DefaultIngressClass(Memo<Option<String>>);

impl Plugin for DefaultIngressClass {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create && write.is_of("networking.k8s.io", "ingresses")
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, ingress: &'a mut Value) -> Outcome<'a> {
        Box::pin(async {
            if names_class(ingress, INGRESS_CLASS, "ingressClassName") {
                return Ok(());
            }
            let class =
                self.0.get(&INGRESS_CLASSES, write, |all| newest_default(&all, &DEFAULT_INGRESS)).await;
            set_class(ingress, "ingressClassName", class)
        })
    }
}

/// Whether the object names a class. An empty name counts: it asks for no class.
fn names_class(object: &Value, annotation: &str, field: &str) -> bool {
    object.get_path(&["metadata", "annotations", annotation]).is_some()
        || object.get_path(&["spec", field]).is_some()
}

fn set_class(object: &mut Value, field: &str, class: Result<std::rc::Rc<Option<String>>>) -> Result<()> {
    if let Some(class) = &*class? {
        object.entry("spec").set(field, class.as_str());
    }
    Ok(())
}

/// The newest default class; of those with the same age the first by name.
fn newest_default(classes: &[Value], annotations: &[&str]) -> Option<String> {
    let is_default = |class: &&Value| {
        let values = meta::metadata(class).get("annotations").unwrap_or(&Value::Null);
        annotations.iter().any(|annotation| values.str(annotation) == "true")
    };
    // Timestamps sort as text.
    let age = |class: &&Value| meta::metadata(class).str("creationTimestamp").to_owned();
    let best = classes
        .iter()
        .filter(is_default)
        .min_by(|a, b| age(b).cmp(&age(a)).then_with(|| meta::name(a).cmp(meta::name(b))));
    best.map(|class| meta::name(class).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, time: &str, annotation: &str, value: &str) -> Value {
        let mut class = Value::object();
        let meta = class.entry("metadata");
        meta.set("name", name);
        meta.set("creationTimestamp", time);
        meta.entry("annotations").set(annotation, value);
        class
    }

    #[test]
    fn newest_default_class_wins_then_first_name() {
        let [current, old] = DEFAULT_STORAGE_CLASS;
        let classes = [
            class("c", "2024-01-01T00:00:00Z", current, "true"),
            class("b", "2024-01-02T00:00:00Z", current, "true"),
            class("a", "2024-01-02T00:00:00Z", old, "true"),
            class("z", "2024-01-03T00:00:00Z", current, "false"),
        ];
        assert_eq!(newest_default(&classes, &DEFAULT_STORAGE_CLASS).as_deref(), Some("a"));
        assert_eq!(newest_default(&classes[..1], &DEFAULT_STORAGE_CLASS).as_deref(), Some("c"));
        assert_eq!(newest_default(&classes[3..], &DEFAULT_STORAGE_CLASS), None);
        assert_eq!(newest_default(&classes, &DEFAULT_INGRESS), None);
    }

    #[test]
    fn empty_class_name_prevents_default() {
        let mut claim = Value::object();
        assert!(!names_class(&claim, STORAGE_CLASS, "storageClassName"));
        claim.entry("spec").set("storageClassName", "");
        assert!(names_class(&claim, STORAGE_CLASS, "storageClassName"));
        let old = class("c", "", INGRESS_CLASS, "");
        assert!(names_class(&old, INGRESS_CLASS, "ingressClassName"));
    }
}
