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
    /// A word in CamelCase.
    pub reason: &'static str,
    /// The explanation for people.
    pub message: String,
}

impl AvailableCondition {
    fn no(reason: &'static str, message: String) -> AvailableCondition {
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
    pub fn failed(why: String) -> AvailableCondition {
        AvailableCondition::no("FailedDiscoveryCheck", why)
    }

    /// The Service or its endpoints could not be read.
    pub fn unknown(service: &Service, reason: &'static str, why: &str) -> AvailableCondition {
        let Service { namespace, name, .. } = service;
        let message = format!("service/{name} in {} cannot be checked due to: {why}", quoted(namespace));
        AvailableCondition { status: "Unknown", reason, message }
    }

    /// The Service does not exist.
    pub fn no_service(service: &Service) -> AvailableCondition {
        let Service { namespace, name, .. } = service;
        AvailableCondition::no(
            "ServiceNotFound",
            format!("service/{name} in {} is not present", quoted(namespace)),
        )
    }
}

/// The name of the port that a registration means, if the service is one that has endpoints. `None`: it has none to be looked at.
pub fn port_name(service: &Service, object: &Value) -> Result<Option<String>, AvailableCondition> {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    if spec.str("type") != "ClusterIP" {
        return Ok(None);
    }
    let ports = spec.get("ports").map(Value::items).unwrap_or_default();
    let wanted = i64::from(service.port);
    let found = ports.iter().find(|port| port.get("port").and_then(Value::as_int) == Some(wanted));
    let Service { namespace, name, port, .. } = service;
    let missing = || {
        let message = format!("service/{name} in {} is not listening on port {port}", quoted(namespace));
        AvailableCondition::no("ServicePortError", message)
    };
    found.map(|port| Some(port.str("name").to_owned())).ok_or_else(missing)
}

/// Whether somebody stands behind the port of a service. `endpoints`: what there is of them.
pub fn check_endpoints(
    service: &Service,
    port: &str,
    endpoints: Option<&Value>,
) -> Result<(), AvailableCondition> {
    let Service { namespace, name, .. } = service;
    let Some(endpoints) = endpoints else {
        let message = format!("cannot find endpoints for service/{name} in {}", quoted(namespace));
        return Err(AvailableCondition::no("EndpointsNotFound", message));
    };
    let list = |value: &Value, field: &str| value.get(field).map(Value::items).unwrap_or_default().to_vec();
    let is_there = |subset: &Value| {
        !list(subset, "addresses").is_empty()
            && list(subset, "ports").iter().any(|one| one.str("name") == port)
    };
    if list(endpoints, "subsets").iter().any(is_there) {
        return Ok(());
    }
    let message = format!(
        "endpoints for service/{name} in {} have no addresses with port name {}",
        quoted(namespace),
        quoted(port)
    );
    Err(AvailableCondition::no("MissingEndpoints", message))
}

fn condition(object: &Value) -> Option<&Value> {
    let conditions = object.at(&["status", "conditions"]).map(Value::items).unwrap_or_default();
    conditions.iter().find(|condition| condition.str("type") == AVAILABLE)
}

/// Whether the Available condition of an APIService is true.
pub fn is_available(object: &Value) -> bool {
    condition(object).is_some_and(|condition| condition.str("status") == "True")
}

/// Writes a verdict into the status of an APIService. Returns whether that changed the status.
pub fn tell(object: &mut Value, verdict: &AvailableCondition, now: &str) -> bool {
    let known = condition(object);
    let says = |condition: &Value| {
        let AvailableCondition { status, reason, message } = verdict;
        condition.str("status") == *status
            && condition.str("reason") == *reason
            && condition.str("message") == message.as_str()
    };
    if known.is_some_and(says) {
        return false;
    }
    let same = known.filter(|condition| condition.str("status") == verdict.status);
    let since = same.map_or(now, |condition| condition.str("lastTransitionTime")).to_owned();
    let mut new = Value::object();
    new.set("type", AVAILABLE);
    new.set("status", verdict.status);
    new.set("lastTransitionTime", since);
    new.set("reason", verdict.reason);
    new.set("message", verdict.message.as_str());
    let status = object.entry("status");
    let mut all = status.get("conditions").map(Value::items).unwrap_or_default().to_vec();
    match all.iter_mut().find(|condition| condition.str("type") == AVAILABLE) {
        Some(condition) => *condition = new,
        None => all.push(new),
    }
    status.set("conditions", all);
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
    fn a_port_must_be_one_of_the_service() {
        let of = |spec: &str| port_name(&service(), &value(&format!(r#"{{"spec":{spec}}}"#)));
        assert_eq!(of(r#"{"type":"ExternalName"}"#), Ok(None));
        assert_eq!(of(r#"{"type":"NodePort"}"#), Ok(None));
        let ports = r#"{"type":"ClusterIP","ports":[{"port":1},{"name":"a","port":8443}]}"#;
        assert_eq!(of(ports), Ok(Some("a".to_owned())));
        let wrong = of(r#"{"type":"ClusterIP","ports":[{"port":1}]}"#).unwrap_err();
        assert_eq!(wrong.reason, "ServicePortError");
        assert_eq!(wrong.message, "service/s in \"n\" is not listening on port 8443");
    }

    #[test]
    fn somebody_must_stand_behind_it() {
        let of = |text: Option<&str>| {
            let endpoints = text.map(value);
            check_endpoints(&service(), "a", endpoints.as_ref())
                .map_err(|verdict| (verdict.reason, verdict.message))
        };
        assert_eq!(
            of(None),
            Err(("EndpointsNotFound", "cannot find endpoints for service/s in \"n\"".to_owned()))
        );
        let missing = "endpoints for service/s in \"n\" have no addresses with port name \"a\"";
        for subsets in [
            r"{}",
            r#"{"subsets":[{"ports":[{"name":"a","port":1}]}]}"#,
            r#"{"subsets":[{"addresses":[{"ip":"1.1.1.1"}],"ports":[{"name":"b","port":1}]}]}"#,
        ] {
            assert_eq!(of(Some(subsets)), Err(("MissingEndpoints", missing.to_owned())), "{subsets}");
        }
        let good = r#"{"subsets":[{"addresses":[{"ip":"1.1.1.1"}],"ports":[{"name":"a","port":1}]}]}"#;
        assert_eq!(of(Some(good)), Ok(()));
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_turns() {
        let mut object = value(r#"{"status":{"conditions":[{"type":"Other","status":"True"}]}}"#);
        assert!(tell(&mut object, &AvailableCondition::no_service(&service()), "t1"));
        assert!(!is_available(&object));
        assert!(tell(&mut object, &AvailableCondition::failed("why".to_owned()), "t2"));
        let at = |object: &Value, field: &str| condition(object).unwrap().str(field).to_owned();
        assert_eq!(
            (at(&object, "reason").as_str(), at(&object, "lastTransitionTime").as_str()),
            ("FailedDiscoveryCheck", "t1")
        );
        assert!(!tell(&mut object, &AvailableCondition::failed("why".to_owned()), "t3"), "nothing new");
        assert!(tell(&mut object, &AvailableCondition::passed(), "t4") && is_available(&object));
        assert_eq!(at(&object, "lastTransitionTime"), "t4");
        assert_eq!(object.at(&["status", "conditions"]).unwrap().items().len(), 2);
        let unknown = AvailableCondition::unknown(&service(), "ServiceAccessError", "x");
        assert_eq!(unknown.message, "service/s in \"n\" cannot be checked due to: x");
    }
}
