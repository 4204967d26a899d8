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
    Custom(ReplicaPaths),
}

/// The replica paths of a custom resource.
#[derive(Clone, Debug)]
pub struct ReplicaPaths {
    spec_replicas: String,
    status_replicas: String,
    selector: Option<String>,
}

fn segments(path: &str) -> Vec<&str> {
    path.strip_prefix('.').unwrap_or(path).split('.').collect()
}

impl Scale {
    /// The scale of an object.
    pub fn show(&self, object: &Value) -> status::Result<Value> {
        match self {
            Scale::Standard => show(object).map_err(Status::bad_request),
            Scale::Custom(paths) => paths.show(object),
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
            Scale::Custom(paths) => {
                let target = segments(&paths.spec_replicas)
                    .into_iter()
                    .fold(object, |value, segment| value.entry(segment));
                *target = Value::Int(replicas(scale));
            }
        }
    }

    /// The path of the written field.
    pub fn field(&self) -> Vec<&str> {
        match self {
            Scale::Standard => vec!["spec", "replicas"],
            Scale::Custom(paths) => segments(&paths.spec_replicas),
        }
    }
}

impl ReplicaPaths {
    /// Parses the paths of a definition.
    pub fn read(scale: &Value) -> ReplicaPaths {
        let text = |field: &str| scale.str(field).to_owned();
        let selector = scale.get("labelSelectorPath").and_then(Value::as_str);
        ReplicaPaths {
            spec_replicas: text("specReplicasPath"),
            status_replicas: text("statusReplicasPath"),
            selector: selector.filter(|path| !path.is_empty()).map(str::to_owned),
        }
    }

    /// Refuses an object without replicas in its spec.
    pub fn require_spec_replicas(&self, object: &Value) -> status::Result<()> {
        if object.get_path(&segments(&self.spec_replicas)).is_some() {
            return Ok(());
        }
        Err(Status::internal(format!(
            "the spec replicas field {} does not exist",
            quoted(&self.spec_replicas)
        )))
    }

    fn show(&self, object: &Value) -> status::Result<Value> {
        let mut scale = new_scale(object);
        for (part, path) in [("spec", &self.spec_replicas), ("status", &self.status_replicas)] {
            let count = number(object, path).map_err(Status::bad_request)?.unwrap_or(0);
            set_replicas(&mut scale, part, count);
        }
        if let Some(path) = &self.selector
            && let Some(selector) = object.get_path(&segments(path))
        {
            let text =
                selector.as_str().ok_or_else(|| Status::bad_request(type_error(path, selector, "string")))?;
            scale.entry("status").set("selector", text);
        }
        Ok(scale)
    }

    /// Validates the replica fields of an object.
    pub fn check(&self, object: &Value, with_spec: bool, errors: &mut ErrorList) {
        let spec_replicas = Some(&self.spec_replicas).filter(|_| with_spec);
        for path in spec_replicas.into_iter().chain([&self.status_replicas]) {
            let field = FieldPath::new(path);
            match number(object, path) {
                Err(detail) => errors.push(FieldError::invalid(&field, "0", &detail)),
                Ok(Some(count)) if count < 0 => {
                    errors.push(FieldError::invalid(
                        &field,
                        &count.to_string(),
                        "should be a non-negative integer",
                    ));
                }
                Ok(Some(count)) if count > i64::from(i32::MAX) => {
                    let detail = format!("should be less than or equal to {}", i32::MAX);
                    errors.push(FieldError::invalid(&field, &count.to_string(), &detail));
                }
                Ok(_) => {}
            }
        }
        if let Some(path) = &self.selector
            && let Some(selector) = object.get_path(&segments(path)).filter(|value| value.as_str().is_none())
        {
            errors.push(FieldError::invalid(
                &FieldPath::new(path),
                &quoted(""),
                &type_error(path, selector, "string"),
            ));
        }
    }
}

/// The number at a path; an error if it is something else.
fn number(object: &Value, path: &str) -> Result<Option<i64>, String> {
    match object.get_path(&segments(path)) {
        None => Ok(None),
        Some(Value::Int(number)) => Ok(Some(*number)),
        Some(other) => Err(type_error(path, other, "int64")),
    }
}

fn type_error(path: &str, actual: &Value, expected: &str) -> String {
    let kind = actual.go_type();
    format!("{path} accessor error: {} is of the type {kind}, expected {expected}", printed(actual))
}

/// A scale with the object's identity.
fn new_scale(object: &Value) -> Value {
    let mut scale = Value::object();
    scale.set("kind", "Scale");
    scale.set("apiVersion", "autoscaling/v1");
    for field in IDENTITY {
        meta::copy(scale.entry("metadata"), meta::metadata(object), field);
    }
    scale
}

fn set_replicas(scale: &mut Value, part: &str, count: i64) {
    *scale.entry(part) = Value::object();
    if count != 0 {
        scale.entry(part).set("replicas", count);
    }
}

/// The scale of a built-in object.
fn show(object: &Value) -> Result<Value, String> {
    let mut scale = new_scale(object);
    for part in ["spec", "status"] {
        set_replicas(
            &mut scale,
            part,
            object.get_path(&[part, "replicas"]).and_then(Value::as_int).unwrap_or(0),
        );
    }
    let selector = selector(object).ok_or("the selector of the object cannot be compared with labels")?;
    if !selector.is_empty() {
        scale.entry("status").set("selector", selector);
    }
    Ok(scale)
}

/// The pod selector as text. `None` if it is invalid.
fn selector(object: &Value) -> Option<String> {
    let selector = object.get_path(&["spec", "selector"]);
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
        validate_name: meta::any_name,
        namespaced: true,
        requires_standard_finalizers: true,
    };
    meta::validate(scale, rules, errors);
    let replicas = replicas(scale);
    if replicas < 0 {
        let path = FieldPath::new("spec").child("replicas");
        errors.push(FieldError::invalid(&path, &replicas.to_string(), "must be greater than or equal to 0"));
    }
}

fn write(object: &mut Value, scale: &Value) {
    object.entry("spec").set("replicas", replicas(scale));
}

fn replicas(scale: &Value) -> i64 {
    scale.get_path(&["spec", "replicas"]).and_then(Value::as_int).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::*;

    #[test]
    fn scale_has_identity_replicas_and_selector_of_its_object() {
        let deployment = object(
            r#"{"kind":"Deployment","metadata":{"name":"d","namespace":"n","uid":"u","resourceVersion":"7",
                "creationTimestamp":"2001-01-01T00:00:00Z","generation":4,"labels":{"l":"v"}},
                "spec":{"replicas":3,"selector":{"matchExpressions":[
                    {"key":"app","operator":"In","values":["b","a"]}]}},"status":{"replicas":2}}"#,
        );
        let expected = object(
            r#"{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"d","namespace":"n","uid":"u",
                "resourceVersion":"7","creationTimestamp":"2001-01-01T00:00:00Z"},"spec":{"replicas":3},
                "status":{"replicas":2,"selector":"app in (a,b)"}}"#,
        );
        assert_eq!(show(&deployment), Ok(expected));
    }

    #[test]
    fn scale_selector_is_text() {
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
        for (json, expected) in table {
            assert_eq!(selector(&object(json)).as_deref(), expected, "{json}");
        }
    }

    #[test]
    fn zero_replicas_are_written_to_the_object_and_omitted_in_the_scale() {
        let mut set = object(r#"{"kind":"ReplicaSet","spec":{"replicas":2}}"#);
        write(&mut set, &object(r#"{"spec":{}}"#));
        assert_eq!(set.get_path(&["spec", "replicas"]), Some(&Value::Int(0)));
        assert_eq!(show(&set).unwrap().get("spec"), Some(&Value::object()));
    }
}
