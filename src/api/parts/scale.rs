//! How many there are of something: the one kind through which everything that has replicas can be made larger.

use crate::api::field::{FieldError, Path};
use crate::api::kinds::Errors;
use crate::api::meta::{self, MetaRules};
use crate::api::names;
use crate::api::print;
use crate::api::value::Value;

/// What a scale says of the object it belongs to.
const IDENTITY: [&str; 5] = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];

/// The scale of an object that has replicas.
pub fn show(object: &Value) -> Result<Value, String> {
    let mut scale = Value::object();
    scale.set("kind", "Scale");
    scale.set("apiVersion", "autoscaling/v1");
    for field in IDENTITY {
        meta::copy(scale.entry("metadata"), meta::of(object), field);
    }
    for part in ["spec", "status"] {
        let count = object.at(&[part, "replicas"]).and_then(Value::as_int).unwrap_or(0);
        *scale.entry(part) = Value::object();
        if count != 0 {
            scale.entry(part).set("replicas", count);
        }
    }
    let selector = selector(object).ok_or("the selector of the object cannot be compared with labels")?;
    if !selector.is_empty() {
        scale.entry("status").set("selector", selector);
    }
    Ok(scale)
}

/// What selects the pods, as text. `None` for a selector that selects nothing because it is wrong.
fn selector(object: &Value) -> Option<String> {
    let selector = object.at(&["spec", "selector"]);
    if object.str("kind") != "ReplicationController" {
        return print::requirements(selector);
    }
    // The oldest of these kinds has a plain set of labels.
    let mut labels = Value::object();
    labels.set("matchLabels", selector.cloned().unwrap_or_default());
    print::requirements(Some(&labels))
}

/// Checks a scale that a client wants.
pub fn validate(scale: &Value, errors: &mut Errors) {
    let rules = MetaRules { name: names::subdomain_name, namespaced: true, known_finalizers: true };
    meta::validate(scale, rules, errors);
    let replicas = wanted(scale);
    if replicas < 0 {
        let path = Path::new("spec").child("replicas");
        errors.push(FieldError::invalid(&path, &replicas.to_string(), "must be greater than or equal to 0"));
    }
}

/// Gives the object as many replicas as the scale says.
pub fn write(object: &mut Value, scale: &Value) {
    object.entry("spec").set("replicas", wanted(scale));
}

fn wanted(scale: &Value) -> i64 {
    scale.at(&["spec", "replicas"]).and_then(Value::as_int).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::testing::object;

    #[test]
    fn a_scale_says_who_it_belongs_to_and_what_it_counts() {
        let deployment = object(
            r#"{"kind":"Deployment","metadata":{"name":"d","namespace":"n","uid":"u","resourceVersion":"7",
                "creationTimestamp":"2001-01-01T00:00:00Z","generation":4,"labels":{"l":"v"}},
                "spec":{"replicas":3,"selector":{"matchExpressions":[
                    {"key":"app","operator":"In","values":["b","a"]}]}},"status":{"replicas":2}}"#,
        );
        let wanted = object(
            r#"{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"d","namespace":"n","uid":"u",
                "resourceVersion":"7","creationTimestamp":"2001-01-01T00:00:00Z"},"spec":{"replicas":3},
                "status":{"replicas":2,"selector":"app in (a,b)"}}"#,
        );
        assert_eq!(show(&deployment), Ok(wanted));
    }

    #[test]
    fn selectors_of_all_kinds_become_text() {
        let table = [
            (r#"{"kind":"ReplicaSet","spec":{"selector":{"matchLabels":{"a":"b"}}}}"#, Some("a=b")),
            (r#"{"kind":"ReplicationController","spec":{"selector":{"a":"b","c":"d"}}}"#, Some("a=b,c=d")),
            (r#"{"kind":"ReplicationController","spec":{}}"#, Some("")),
            (r#"{"kind":"Deployment","spec":{"selector":{}}}"#, Some("")),
            (
                r#"{"kind":"Deployment","spec":{"selector":{"matchExpressions":[{"key":"a","operator":"?"}]}}}"#,
                None,
            ),
        ];
        for (json, wanted) in table {
            assert_eq!(selector(&object(json)).as_deref(), wanted, "{json}");
        }
    }

    #[test]
    fn no_replicas_are_said_aloud_in_the_object_alone() {
        let mut set = object(r#"{"kind":"ReplicaSet","spec":{"replicas":2}}"#);
        write(&mut set, &object(r#"{"spec":{}}"#));
        assert_eq!(set.at(&["spec", "replicas"]), Some(&Value::Int(0)));
        assert_eq!(show(&set).unwrap().get("spec"), Some(&Value::object()));
    }
}
