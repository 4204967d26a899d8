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
            if says(claim, STORAGE_CLASS, "storageClassName") {
                return Ok(());
            }
            let found = self.0.get(&STORAGE_CLASSES, write, |all| newest(&all, &DEFAULT_STORAGE_CLASS)).await;
            name(claim, "storageClassName", found)
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
            if says(ingress, INGRESS_CLASS, "ingressClassName") {
                return Ok(());
            }
            let found = self.0.get(&INGRESS_CLASSES, write, |all| newest(&all, &DEFAULT_INGRESS)).await;
            name(ingress, "ingressClassName", found)
        })
    }
}

/// Whether the object names a class. An empty name counts: it asks for no class.
fn says(object: &Value, annotation: &str, field: &str) -> bool {
    object.at(&["metadata", "annotations", annotation]).is_some() || object.at(&["spec", field]).is_some()
}

fn name(object: &mut Value, field: &str, class: Result<std::rc::Rc<Option<String>>>) -> Result<()> {
    if let Some(class) = &*class? {
        object.entry("spec").set(field, class.as_str());
    }
    Ok(())
}

/// The newest default class; of those with the same age the first by name.
fn newest(classes: &[Value], annotations: &[&str]) -> Option<String> {
    let is_default = |class: &&Value| {
        let said = meta::of(class).get("annotations").unwrap_or(&Value::Null);
        annotations.iter().any(|annotation| said.str(annotation) == "true")
    };
    // Timestamps sort as text.
    let age = |class: &&Value| meta::of(class).str("creationTimestamp").to_owned();
    let best = classes
        .iter()
        .filter(is_default)
        .min_by(|one, other| age(other).cmp(&age(one)).then_with(|| meta::name(one).cmp(meta::name(other))));
    best.map(|class| meta::name(class).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, time: &str, annotation: &str, says: &str) -> Value {
        let mut class = Value::object();
        let meta = class.entry("metadata");
        meta.set("name", name);
        meta.set("creationTimestamp", time);
        meta.entry("annotations").set(annotation, says);
        class
    }

    #[test]
    fn the_newest_default_wins_then_the_name() {
        let [current, old] = DEFAULT_STORAGE_CLASS;
        let classes = [
            class("c", "2024-01-01T00:00:00Z", current, "true"),
            class("b", "2024-01-02T00:00:00Z", current, "true"),
            class("a", "2024-01-02T00:00:00Z", old, "true"),
            class("z", "2024-01-03T00:00:00Z", current, "false"),
        ];
        assert_eq!(newest(&classes, &DEFAULT_STORAGE_CLASS).as_deref(), Some("a"));
        assert_eq!(newest(&classes[..1], &DEFAULT_STORAGE_CLASS).as_deref(), Some("c"));
        assert_eq!(newest(&classes[3..], &DEFAULT_STORAGE_CLASS), None);
        assert_eq!(newest(&classes, &DEFAULT_INGRESS), None);
    }

    #[test]
    fn an_empty_class_is_an_answer_too() {
        let mut claim = Value::object();
        assert!(!says(&claim, STORAGE_CLASS, "storageClassName"));
        claim.entry("spec").set("storageClassName", "");
        assert!(says(&claim, STORAGE_CLASS, "storageClassName"));
        let old = class("c", "", INGRESS_CLASS, "");
        assert!(says(&old, INGRESS_CLASS, "ingressClassName"));
    }
}
