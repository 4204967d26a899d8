//! The Available condition of an APIService.

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::value::Value;

use super::Service;

/// The type of the condition.
const AVAILABLE: &str = "Available";

/// Status, reason and message of the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailableCondition {
    /// `True`, `False`, or `Unknown` if the check was not possible.
    pub status: &'static str,
    /// The reason, in CamelCase.
    pub reason: &'static str,
    /// The human-readable explanation.
    pub message: String,
}

impl AvailableCondition {
    fn unavailable(reason: &'static str, message: String) -> AvailableCondition {
        AvailableCondition { status: "False", reason, message }
    }

    /// This server serves the group version itself.
    pub fn local() -> AvailableCondition {
        let message = "Local APIServices are always available".to_owned();
        AvailableCondition { status: "True", reason: "Local", message }
    }

    /// The extension server answers.
    pub fn passed() -> AvailableCondition {
        AvailableCondition { status: "True", reason: "Passed", message: "all checks passed".to_owned() }
    }

    /// The extension server failed the discovery check.
    pub fn failed(message: String) -> AvailableCondition {
        AvailableCondition::unavailable("FailedDiscoveryCheck", message)
    }

    /// The Service or its endpoints could not be read.
    pub fn unknown(service: &Service, reason: &'static str, error: &str) -> AvailableCondition {
        let Service { namespace, name, .. } = service;
        let message = format!("service/{name} in {} cannot be checked due to: {error}", quoted(namespace));
        AvailableCondition { status: "Unknown", reason, message }
    }

    /// The Service does not exist.
    pub fn no_service(service: &Service) -> AvailableCondition {
        let Service { namespace, name, .. } = service;
        AvailableCondition::unavailable(
            "ServiceNotFound",
            format!("service/{name} in {} is not present", quoted(namespace)),
        )
    }
}

/// The name of the service port that an APIService refers to; `None` if services of this type have no endpoints to check.
pub fn port_name(service: &Service, object: &Value) -> Result<Option<String>, AvailableCondition> {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    if spec.str("type") != "ClusterIP" {
        return Ok(None);
    }
    let ports = spec.get("ports").map(Value::items).unwrap_or_default();
    let number = i64::from(service.port);
    let service_port = ports.iter().find(|port| port.get("port").and_then(Value::as_int) == Some(number));
    let Service { namespace, name, port, .. } = service;
    let missing = || {
        let message = format!("service/{name} in {} is not listening on port {port}", quoted(namespace));
        AvailableCondition::unavailable("ServicePortError", message)
    };
    service_port.map(|port| Some(port.str("name").to_owned())).ok_or_else(missing)
}

/// Checks that a service port has ready endpoints. `endpoints` is the Endpoints object, if it exists.
pub fn check_endpoints(
    service: &Service,
    port: &str,
    endpoints: Option<&Value>,
) -> Result<(), AvailableCondition> {
    let Service { namespace, name, .. } = service;
    let Some(endpoints) = endpoints else {
        let message = format!("cannot find endpoints for service/{name} in {}", quoted(namespace));
        return Err(AvailableCondition::unavailable("EndpointsNotFound", message));
    };
    let list = |value: &Value, field: &str| value.get(field).map(Value::items).unwrap_or_default().to_vec();
    let is_ready = |subset: &Value| {
        !list(subset, "addresses").is_empty()
            && list(subset, "ports").iter().any(|port_entry| port_entry.str("name") == port)
    };
    if list(endpoints, "subsets").iter().any(is_ready) {
        return Ok(());
    }
    let message = format!(
        "endpoints for service/{name} in {} have no addresses with port name {}",
        quoted(namespace),
        quoted(port)
    );
    Err(AvailableCondition::unavailable("MissingEndpoints", message))
}

fn condition(object: &Value) -> Option<&Value> {
    let conditions = object.get_path(&["status", "conditions"]).map(Value::items).unwrap_or_default();
    conditions.iter().find(|condition| condition.str("type") == AVAILABLE)
}

/// Whether the Available condition of an APIService is true.
pub fn is_available(object: &Value) -> bool {
    condition(object).is_some_and(|condition| condition.str("status") == "True")
}

/// Sets the Available condition of an APIService. Returns whether that changed the status.
pub fn set_condition(object: &mut Value, new_condition: &AvailableCondition, now: &str) -> bool {
    let current = condition(object);
    let is_unchanged = |condition: &Value| {
        let AvailableCondition { status, reason, message } = new_condition;
        condition.str("status") == *status
            && condition.str("reason") == *reason
            && condition.str("message") == message.as_str()
    };
    if current.is_some_and(is_unchanged) {
        return false;
    }
    let same_status = current.filter(|condition| condition.str("status") == new_condition.status);
    let since = same_status.map_or(now, |condition| condition.str("lastTransitionTime")).to_owned();
    let mut entry = Value::object();
    entry.set("type", AVAILABLE);
    entry.set("status", new_condition.status);
    entry.set("lastTransitionTime", since);
    entry.set("reason", new_condition.reason);
    entry.set("message", new_condition.message.as_str());
    let status = object.entry("status");
    let mut conditions = status.get("conditions").map(Value::items).unwrap_or_default().to_vec();
    match conditions.iter_mut().find(|condition| condition.str("type") == AVAILABLE) {
        Some(condition) => *condition = entry,
        None => conditions.push(entry),
    }
    status.set("conditions", conditions);
    true
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;
    use crate::aggregation::ApiService;

    fn value(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    fn service() -> Service {
        let object = value(r#"{"spec":{"service":{"namespace":"n","name":"s","port":8443}}}"#);
        ApiService::read(&object).service.unwrap()
    }

    #[test]
    fn api_service_port_must_be_a_port_of_the_service() {
        let checked = |spec: &str| port_name(&service(), &value(&format!(r#"{{"spec":{spec}}}"#)));
        assert_eq!(checked(r#"{"type":"ExternalName"}"#), Ok(None));
        assert_eq!(checked(r#"{"type":"NodePort"}"#), Ok(None));
        let ports = r#"{"type":"ClusterIP","ports":[{"port":1},{"name":"a","port":8443}]}"#;
        assert_eq!(checked(ports), Ok(Some("a".to_owned())));
        let condition = checked(r#"{"type":"ClusterIP","ports":[{"port":1}]}"#).unwrap_err();
        assert_eq!(condition.reason, "ServicePortError");
        assert_eq!(condition.message, "service/s in \"n\" is not listening on port 8443");
    }

    #[test]
    fn service_without_ready_endpoints_is_unavailable() {
        let checked = |text: Option<&str>| {
            let endpoints = text.map(value);
            check_endpoints(&service(), "a", endpoints.as_ref())
                .map_err(|condition| (condition.reason, condition.message))
        };
        assert_eq!(
            checked(None),
            Err(("EndpointsNotFound", "cannot find endpoints for service/s in \"n\"".to_owned()))
        );
        let missing = "endpoints for service/s in \"n\" have no addresses with port name \"a\"";
        for subsets in [
            r"{}",
            r#"{"subsets":[{"ports":[{"name":"a","port":1}]}]}"#,
            r#"{"subsets":[{"addresses":[{"ip":"1.1.1.1"}],"ports":[{"name":"b","port":1}]}]}"#,
        ] {
            assert_eq!(checked(Some(subsets)), Err(("MissingEndpoints", missing.to_owned())), "{subsets}");
        }
        let good = r#"{"subsets":[{"addresses":[{"ip":"1.1.1.1"}],"ports":[{"name":"a","port":1}]}]}"#;
        assert_eq!(checked(Some(good)), Ok(()));
    }

    #[test]
    fn available_condition_keeps_transition_time_until_status_changes() {
        let mut object = value(r#"{"status":{"conditions":[{"type":"Other","status":"True"}]}}"#);
        assert!(set_condition(&mut object, &AvailableCondition::no_service(&service()), "t1"));
        assert!(!is_available(&object));
        assert!(set_condition(&mut object, &AvailableCondition::failed("why".to_owned()), "t2"));
        let field = |object: &Value, name: &str| condition(object).unwrap().str(name).to_owned();
        assert_eq!(
            (field(&object, "reason").as_str(), field(&object, "lastTransitionTime").as_str()),
            ("FailedDiscoveryCheck", "t1")
        );
        assert!(
            !set_condition(&mut object, &AvailableCondition::failed("why".to_owned()), "t3"),
            "the condition is unchanged"
        );
        assert!(set_condition(&mut object, &AvailableCondition::passed(), "t4") && is_available(&object));
        assert_eq!(field(&object, "lastTransitionTime"), "t4");
        assert_eq!(object.get_path(&["status", "conditions"]).unwrap().items().len(), 2);
        let unknown = AvailableCondition::unknown(&service(), "ServiceAccessError", "x");
        assert_eq!(unknown.message, "service/s in \"n\" cannot be checked due to: x");
    }
}
