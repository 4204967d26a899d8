//! The Scale kind, through which all resources with replicas are scaled.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::meta::{self, MetaRules};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::patch::printed;
use pilothouse_apimachinery::status::{self, Status};
use pilothouse_apimachinery::value::Value;

/// The metadata that a scale copies from its object.
const IDENTITY: [&str; 5] = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];

/// The location of the replica fields.
#[derive(Clone, Debug)]
pub enum Scale {
    /// The fields of built-in kinds.
    Standard,
    /// The paths in a definition.
    At(ReplicaPaths),
}

/// The replica paths of a custom resource.
#[derive(Clone, Debug)]
pub struct ReplicaPaths {
    wanted: String,
    found: String,
    selector: Option<String>,
}

fn steps(path: &str) -> Vec<&str> {
    path.strip_prefix('.').unwrap_or(path).split('.').collect()
}

impl Scale {
    /// The scale of an object.
    pub fn show(&self, object: &Value) -> status::Result<Value> {
        match self {
            Scale::Standard => show(object).map_err(Status::bad_request),
            Scale::At(paths) => paths.show(object),
        }
    }

    /// Validates a scale. Custom resources are validated as whole objects.
    pub fn validate(&self, scale: &Value, errors: &mut ErrorList) {
        if let Scale::Standard = self {
            validate(scale, errors);
        }
    }

    /// Writes the replicas of a scale into the object.
    pub fn write(&self, object: &mut Value, scale: &Value) {
        match self {
            Scale::Standard => write(object, scale),
            Scale::At(paths) => {
                let place = steps(&paths.wanted).into_iter().fold(object, |value, step| value.entry(step));
                *place = Value::Int(wanted(scale));
            }
        }
    }

    /// The path of the written field.
    pub fn field(&self) -> Vec<&str> {
        match self {
            Scale::Standard => vec!["spec", "replicas"],
            Scale::At(paths) => steps(&paths.wanted),
        }
    }
}

impl ReplicaPaths {
    /// Parses the paths of a definition.
    pub fn read(said: &Value) -> ReplicaPaths {
        let text = |field: &str| said.str(field).to_owned();
        let selector = said.get("labelSelectorPath").and_then(Value::as_str);
        ReplicaPaths {
            wanted: text("specReplicasPath"),
            found: text("statusReplicasPath"),
            selector: selector.filter(|path| !path.is_empty()).map(str::to_owned),
        }
    }

    /// Refuses an object without replicas in its spec.
    pub fn need(&self, object: &Value) -> status::Result<()> {
        if object.at(&steps(&self.wanted)).is_some() {
            return Ok(());
        }
        Err(Status::internal(format!("the spec replicas field {} does not exist", quoted(&self.wanted))))
    }

    fn show(&self, object: &Value) -> status::Result<Value> {
        let mut scale = begin(object);
        for (part, path) in [("spec", &self.wanted), ("status", &self.found)] {
            let count = number(object, path).map_err(Status::bad_request)?.unwrap_or(0);
            fill(&mut scale, part, count);
        }
        if let Some(path) = &self.selector
            && let Some(selector) = object.at(&steps(path))
        {
            let text = selector.as_str().ok_or_else(|| Status::bad_request(not(path, selector, "string")))?;
            scale.entry("status").set("selector", text);
        }
        Ok(scale)
    }

    /// Validates the replica fields of an object.
    pub fn check(&self, object: &Value, with_spec: bool, errors: &mut ErrorList) {
        let wanted = Some(&self.wanted).filter(|_| with_spec);
        for path in wanted.into_iter().chain([&self.found]) {
            let place = FieldPath::new(path);
            match number(object, path) {
                Err(why) => errors.push(FieldError::invalid(&place, "0", &why)),
                Ok(Some(count)) if count < 0 => {
                    errors.push(FieldError::invalid(
                        &place,
                        &count.to_string(),
                        "should be a non-negative integer",
                    ));
                }
                Ok(Some(count)) if count > i64::from(i32::MAX) => {
                    let why = format!("should be less than or equal to {}", i32::MAX);
                    errors.push(FieldError::invalid(&place, &count.to_string(), &why));
                }
                Ok(_) => {}
            }
        }
        if let Some(path) = &self.selector
            && let Some(selector) = object.at(&steps(path)).filter(|value| value.as_str().is_none())
        {
            errors.push(FieldError::invalid(
                &FieldPath::new(path),
                &quoted(""),
                &not(path, selector, "string"),
            ));
        }
    }
}

/// The number at a path; an error if it is something else.
fn number(object: &Value, path: &str) -> Result<Option<i64>, String> {
    match object.at(&steps(path)) {
        None => Ok(None),
        Some(Value::Int(number)) => Ok(Some(*number)),
        Some(other) => Err(not(path, other, "int64")),
    }
}

fn not(path: &str, found: &Value, wanted: &str) -> String {
    let kind = found.go_type();
    format!("{path} accessor error: {} is of the type {kind}, expected {wanted}", printed(found))
}

/// A scale with the object's identity.
fn begin(object: &Value) -> Value {
    let mut scale = Value::object();
    scale.set("kind", "Scale");
    scale.set("apiVersion", "autoscaling/v1");
    for field in IDENTITY {
        meta::copy(scale.entry("metadata"), meta::of(object), field);
    }
    scale
}

fn fill(scale: &mut Value, part: &str, count: i64) {
    *scale.entry(part) = Value::object();
    if count != 0 {
        scale.entry(part).set("replicas", count);
    }
}

/// The scale of a built-in object.
fn show(object: &Value) -> Result<Value, String> {
    let mut scale = begin(object);
    for part in ["spec", "status"] {
        fill(&mut scale, part, object.at(&[part, "replicas"]).and_then(Value::as_int).unwrap_or(0));
    }
    let selector = selector(object).ok_or("the selector of the object cannot be compared with labels")?;
    if !selector.is_empty() {
        scale.entry("status").set("selector", selector);
    }
    Ok(scale)
}

/// The pod selector as text. `None` if it is invalid.
fn selector(object: &Value) -> Option<String> {
    let selector = object.at(&["spec", "selector"]);
    if object.str("kind") != "ReplicationController" {
        return label_selector::to_text(selector);
    }
    // ReplicationControllers have a plain map of labels.
    let mut labels = Value::object();
    labels.set("matchLabels", selector.cloned().unwrap_or_default());
    label_selector::to_text(Some(&labels))
}

fn validate(scale: &Value, errors: &mut ErrorList) {
    let rules = MetaRules {
        name: names::subdomain_name,
        own_name: meta::any_name,
        namespaced: true,
        known_finalizers: true,
    };
    meta::validate(scale, rules, errors);
    let replicas = wanted(scale);
    if replicas < 0 {
        let path = FieldPath::new("spec").child("replicas");
        errors.push(FieldError::invalid(&path, &replicas.to_string(), "must be greater than or equal to 0"));
    }
}

fn write(object: &mut Value, scale: &Value) {
    object.entry("spec").set("replicas", wanted(scale));
}

fn wanted(scale: &Value) -> i64 {
    scale.at(&["spec", "replicas"]).and_then(Value::as_int).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

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
