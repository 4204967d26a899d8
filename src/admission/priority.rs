//! Priority: sets the priority of pods from their PriorityClass or the global default.

use std::rc::Rc;

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;

use super::lookup::{Memo, PRIORITY_CLASSES};
use super::{Operation, Outcome, Plugin, Write, done};

const CLASSES: (&str, &str) = ("scheduling.k8s.io", "priorityclasses");

/// Sets pod priorities, and allows only one global default class.
#[derive(Default)]
pub struct Priority {
    default: Memo<Option<Class>>,
}

/// The values that a pod gets from its class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Class {
    name: String,
    value: i64,
    /// Empty if the class does not set it.
    preemption: String,
}

impl Class {
    fn from_object(class: &Value) -> Class {
        Class {
            name: meta::name(class).to_owned(),
            value: class.get("value").and_then(Value::as_int).unwrap_or_default(),
            preemption: class.str("preemptionPolicy").to_owned(),
        }
    }

    /// The values of a pod without any class.
    fn without_class() -> Class {
        Class { preemption: "PreemptLowerPriority".to_owned(), ..Class::default() }
    }
}

impl Plugin for Priority {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && (write.is_of("", "pods") || write.is_of(CLASSES.0, CLASSES.1))
    }

    fn mutate<'a>(&'a self, write: &'a Write<'a>, object: &'a mut Value) -> Outcome<'a> {
        match (write.is_of("", "pods"), write.old) {
            (false, _) => done(Ok(())),
            (true, Some(old)) => {
                keep_omitted_fields(object, old);
                done(Ok(()))
            }
            (true, None) => Box::pin(self.assign(write, object)),
        }
    }

    fn validate<'a>(&'a self, write: &'a Write<'a>, object: &'a Value) -> Outcome<'a> {
        let is_default = object.get("globalDefault").and_then(Value::as_bool) == Some(true);
        if write.is_of("", "pods") || !is_default {
            return done(Ok(()));
        }
        Box::pin(self.check_single_default(write, object))
    }
}

impl Priority {
    async fn default_class(&self, write: &Write<'_>) -> Result<Rc<Option<Class>>> {
        self.default.get(&PRIORITY_CLASSES, write, |classes| find_default(&classes)).await
    }

    async fn assign(&self, write: &Write<'_>, pod: &mut Value) -> Result<()> {
        let class_name =
            pod.get_path(&["spec", "priorityClassName"]).and_then(Value::as_str).unwrap_or_default();
        let class = if class_name.is_empty() {
            (*self.default_class(write).await?).clone().unwrap_or_else(Class::without_class)
        } else {
            let Some(class) = PRIORITY_CLASSES.get(write, class_name).await? else {
                let reason = format!("no PriorityClass with name {class_name} was found");
                return Err(write.forbidden(pod, &reason));
            };
            Class::from_object(&class)
        };
        apply_class(pod, &class).map_err(|reason| write.forbidden(pod, &reason))
    }

    async fn check_single_default(&self, write: &Write<'_>, class: &Value) -> Result<()> {
        match &*self.default_class(write).await? {
            Some(default) if write.operation == Operation::Create || default.name != meta::name(class) => {
                let name = &default.name;
                let reason =
                    format!("PriorityClass {name} is already marked as default. Only one default can exist");
                Err(write.forbidden(class, &reason))
            }
            _ => Ok(()),
        }
    }
}

/// The global default class. If a race created two, the one with the lower value.
fn find_default(classes: &[Value]) -> Option<Class> {
    let defaults =
        classes.iter().filter(|class| class.get("globalDefault").and_then(Value::as_bool) == Some(true));
    defaults.map(Class::from_object).min_by_key(|class| class.value)
}

/// Sets the values of a class on a new pod. Values that the pod sets itself must be the same.
fn apply_class(pod: &mut Value, class: &Class) -> std::result::Result<(), String> {
    let Class { name, value, preemption } = class;
    let spec = pod.entry("spec");
    if spec.str("priorityClassName").is_empty() && !name.is_empty() {
        spec.set("priorityClassName", name.as_str());
    }
    if let Some(current) = spec.get("priority").and_then(Value::as_int).filter(|current| current != value) {
        return Err(format!(
            "the integer value of priority ({current}) must not be provided in pod spec; priority admission controller \
             computed {value} from the given PriorityClass name"
        ));
    }
    spec.set("priority", *value);
    if preemption.is_empty() {
        return Ok(());
    }
    if let Some(current) = spec.get("preemptionPolicy").and_then(Value::as_str)
        && current != preemption
    {
        return Err(format!(
            "the string value of PreemptionPolicy ({current}) must not be provided in pod spec; priority admission \
             controller computed {preemption} from the given PriorityClass name"
        ));
    }
    spec.set("preemptionPolicy", preemption.as_str());
    Ok(())
}

/// An update that omits these fields keeps them.
fn keep_omitted_fields(pod: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        if let Some(value) = old.get_path(&["spec", field])
            && pod.get_path(&["spec", field]).is_none()
        {
            pod.entry("spec").set(field, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, value: i64, preemption: &str) -> Class {
        Class { name: name.to_owned(), value, preemption: preemption.to_owned() }
    }

    fn pod(fields: &[(&str, Value)]) -> Value {
        let mut pod = Value::object();
        for (field, value) in fields {
            pod.entry("spec").set(field, value.clone());
        }
        pod
    }

    #[test]
    fn priority_class_sets_pod_fields() {
        let mut plain = pod(&[]);
        assert_eq!(apply_class(&mut plain, &Class::without_class()), Ok(()));
        let lower = Value::from("PreemptLowerPriority");
        assert_eq!(plain, pod(&[("priority", Value::Int(0)), ("preemptionPolicy", lower)]));
        let mut default = pod(&[]);
        assert_eq!(apply_class(&mut default, &class("d", 7, "")), Ok(()));
        assert_eq!(default, pod(&[("priorityClassName", Value::from("d")), ("priority", Value::Int(7))]));
    }

    #[test]
    fn pod_priority_must_match_its_class() {
        let error = apply_class(&mut pod(&[("priority", Value::Int(1))]), &class("d", 7, "")).unwrap_err();
        assert!(
            error.starts_with("the integer value of priority (1) must not")
                && error.contains("computed 7 from")
        );
        assert_eq!(apply_class(&mut pod(&[("priority", Value::Int(7))]), &class("d", 7, "")), Ok(()));
        let error =
            apply_class(&mut pod(&[("preemptionPolicy", Value::from("Never"))]), &Class::without_class())
                .unwrap_err();
        let empty = apply_class(&mut pod(&[("preemptionPolicy", Value::from(""))]), &Class::without_class())
            .unwrap_err();
        assert!(empty.contains("PreemptionPolicy () must not be provided"), "{empty}");
        assert!(
            error.contains("PreemptionPolicy (Never)")
                && error.contains("computed PreemptLowerPriority from")
        );
    }

    #[test]
    fn default_priority_class_with_lowest_value_wins() {
        let value = |name: &str, number: i64, default: bool| {
            let mut class = Value::object();
            class.entry("metadata").set("name", name);
            class.set("value", number);
            class.set("globalDefault", default);
            class
        };
        let classes = [value("a", 9, true), value("b", 3, true), value("c", 1, false)];
        assert_eq!(find_default(&classes), Some(class("b", 3, "")));
        assert_eq!(find_default(&classes[2..]), None);
    }

    #[test]
    fn update_without_priority_keeps_it() {
        let old = pod(&[("priority", Value::Int(7)), ("preemptionPolicy", Value::from("Never"))]);
        let mut new = pod(&[]);
        keep_omitted_fields(&mut new, &old);
        assert_eq!(new, old);
        let mut changed = pod(&[("priority", Value::Int(8))]);
        keep_omitted_fields(&mut changed, &old);
        assert_eq!(changed.get_path(&["spec", "priority"]), Some(&Value::Int(8)));
    }
}
