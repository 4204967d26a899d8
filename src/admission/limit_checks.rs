//! Checks pods and claims against LimitRanges, in the reference's words.

use pilothouse_apimachinery::limits::FIELD_ERRORS;
use pilothouse_apimachinery::quantity::Quantity;
use pilothouse_apimachinery::resource_list::{self, ResourceList};
use pilothouse_apimachinery::value::Value;

/// One limit of a range, parsed once for all containers.
struct Limit<'a> {
    kind: &'a str,
    min: ResourceList,
    max: ResourceList,
    ratio: ResourceList,
}

impl<'a> Limit<'a> {
    fn new(limit: &'a Value) -> Limit<'a> {
        let amounts = |field: &str| resource_list::read(limit.get(field));
        Limit {
            kind: limit.str("type"),
            min: amounts("min"),
            max: amounts("max"),
            ratio: amounts("maxLimitRequestRatio"),
        }
    }
}

/// Checks a pod against one range. Stops after enough errors. Valid entries cost nothing extra, because the pod itself lists
/// them: the work is bounded by the size of the request.
pub fn check_pod(pod: &Value, range: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    for limit in limits(range).iter().map(Limit::new) {
        match limit.kind {
            "Container" => {
                let lists =
                    ["containers", "initContainers"].iter().filter_map(|list| pod.get_path(&["spec", list]));
                for container in lists.flat_map(Value::items) {
                    if errors.len() >= FIELD_ERRORS {
                        break;
                    }
                    let amounts =
                        |field: &str| resource_list::read(container.get_path(&["resources", field]));
                    check(&limit, &amounts("requests"), &amounts("limits"), &mut errors);
                }
            }
            "Pod" => {
                let total = |field: &str| resource_list::total(pod, field);
                check(&limit, &total("requests"), &total("limits"), &mut errors);
            }
            _ => {}
        }
    }
    errors
}

/// Checks a claim against one range. Only requests count for claims, limits have no meaning.
pub fn check_claim(claim: &Value, range: &Value) -> Vec<String> {
    let requests = resource_list::read(claim.get_path(&["spec", "resources", "requests"]));
    let mut errors = Vec::new();
    for limit in limits(range).iter().filter(|limit| limit.str("type") == "PersistentVolumeClaim") {
        let kind = limit.str("type");
        for (name, min) in resource_list::read(limit.get("min")) {
            errors.extend(minimum(kind, &name, &min, requests.get(&name), None));
        }
        for (name, max) in resource_list::read(limit.get("max")) {
            let prefix = format!("maximum {name} usage per {kind} is {max}");
            match requests.get(&name) {
                None => errors.push(format!("{prefix}.  No request is specified")),
                Some(request) if *request > max => errors.push(format!("{prefix}, but request is {request}")),
                Some(_) => {}
            }
        }
    }
    errors
}

fn limits(range: &Value) -> &[Value] {
    range.get_path(&["spec", "limits"]).map(Value::items).unwrap_or_default()
}

fn check(limit: &Limit<'_>, requests: &ResourceList, limits: &ResourceList, errors: &mut Vec<String>) {
    for (name, min) in &limit.min {
        errors.extend(minimum(limit.kind, name, min, requests.get(name), limits.get(name)));
    }
    for (name, max) in &limit.max {
        errors.extend(maximum(limit.kind, name, max, requests.get(name), limits.get(name)));
    }
    for (name, max) in &limit.ratio {
        errors.extend(ratio(limit.kind, name, max, requests.get(name), limits.get(name)));
    }
}

fn minimum(
    kind: &str,
    name: &str,
    min: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<String> {
    let prefix = format!("minimum {name} usage per {kind} is {min}");
    match (request, limit) {
        (None, _) => Some(format!("{prefix}.  No request is specified")),
        (Some(request), _) if request < min => Some(format!("{prefix}, but request is {request}")),
        (_, Some(limit)) if limit < min => Some(format!("{prefix}, but limit is {limit}")),
        _ => None,
    }
}

fn maximum(
    kind: &str,
    name: &str,
    max: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<String> {
    let prefix = format!("maximum {name} usage per {kind} is {max}");
    match (limit, request) {
        (None, _) => Some(format!("{prefix}.  No limit is specified")),
        (Some(limit), _) if limit > max => Some(format!("{prefix}, but limit is {limit}")),
        (_, Some(request)) if request > max => Some(format!("{prefix}, but request is {request}")),
        _ => None,
    }
}

fn ratio(
    kind: &str,
    name: &str,
    max: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<String> {
    let prefix = format!("{name} max limit to request ratio per {kind} is {max}");
    let Some(request) = request.map(Quantity::thousandths).filter(|request| *request != 0) else {
        return Some(format!("{prefix}, but no request is specified or request is 0"));
    };
    let Some(limit) = limit.map(Quantity::thousandths).filter(|limit| *limit != 0) else {
        return Some(format!("{prefix}, but no limit is specified or limit is 0"));
    };
    let actual = limit as f64 / request as f64;
    (actual * 1_000.0 > max.thousandths() as f64)
        .then(|| format!("{prefix}, but provided ratio is {actual:.6}"))
}

#[cfg(test)]
pub mod testing {
    use pilothouse_apimachinery::testing::object;
    use pilothouse_apimachinery::value::Value;

    /// A LimitRange with one limit.
    pub fn range(limit: &str) -> Value {
        object(&format!(r#"{{"spec":{{"limits":[{limit}]}}}}"#))
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::testing::range;
    use super::*;

    fn check_container(resources: &str, limit: &str) -> Vec<String> {
        let container = format!(r#"{{"spec":{{"containers":[{{"name":"c","resources":{resources}}}]}}}}"#);
        check_pod(&object(&container), &range(limit))
    }

    #[test]
    fn container_limits_match_reference_messages() {
        let table = [
            (
                r#"{}"#,
                r#""min":{"cpu":"1"}"#,
                "minimum cpu usage per Container is 1.  No request is specified",
            ),
            (
                r#"{"requests":{"cpu":"500m"}}"#,
                r#""min":{"cpu":"1"}"#,
                "minimum cpu usage per Container is 1, but request is 500m",
            ),
            (
                r#"{"requests":{"cpu":"1"},"limits":{"cpu":"500m"}}"#,
                r#""min":{"cpu":"1"}"#,
                "minimum cpu usage per Container is 1, but limit is 500m",
            ),
            (r#"{}"#, r#""max":{"cpu":"1"}"#, "maximum cpu usage per Container is 1.  No limit is specified"),
            (
                r#"{"limits":{"cpu":"2"}}"#,
                r#""max":{"cpu":"1"}"#,
                "maximum cpu usage per Container is 1, but limit is 2",
            ),
            (
                r#"{"limits":{"cpu":"1"},"requests":{"cpu":"2"}}"#,
                r#""max":{"cpu":"1"}"#,
                "maximum cpu usage per Container is 1, but request is 2",
            ),
            (
                r#"{"limits":{"cpu":"1"}}"#,
                r#""maxLimitRequestRatio":{"cpu":"2"}"#,
                "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
            ),
            (
                r#"{"requests":{"cpu":"1"}}"#,
                r#""maxLimitRequestRatio":{"cpu":"2"}"#,
                "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0",
            ),
            (
                r#"{"requests":{"cpu":"400m"},"limits":{"cpu":"1"}}"#,
                r#""maxLimitRequestRatio":{"cpu":"2"}"#,
                "cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000",
            ),
        ];
        for (resources, limit, expected) in table {
            assert_eq!(check_container(resources, &format!(r#"{{"type":"Container",{limit}}}"#)), [expected]);
        }
        let good = r#"{"requests":{"cpu":"1"},"limits":{"cpu":"2"}}"#;
        let limit = r#"{"type":"Container","min":{"cpu":"1000m"},"max":{"cpu":"2"},"maxLimitRequestRatio":{"cpu":"2"}}"#;
        assert_eq!(check_container(good, limit), [""; 0]);
        // A ratio of exactly three is allowed, though 0.9 / 0.3 exceeds 3 in floating point.
        let thrice = r#"{"requests":{"cpu":"300m"},"limits":{"cpu":"900m"}}"#;
        let limit = r#"{"type":"Container","maxLimitRequestRatio":{"cpu":"3"}}"#;
        assert_eq!(check_container(thrice, limit), [""; 0]);
    }

    #[test]
    fn pod_limit_sums_containers() {
        let containers = r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"800m"}}},
            {"resources":{"limits":{"cpu":"700m"}}}]}}"#;
        let limit = range(r#"{"type":"Pod","max":{"cpu":"1"}}"#);
        assert_eq!(
            check_pod(&object(containers), &limit),
            ["maximum cpu usage per Pod is 1, but limit is 1500m"]
        );
    }

    #[test]
    fn claim_limits_use_requests() {
        let new_claim =
            |size: &str| object(&format!(r#"{{"spec":{{"resources":{{"requests":{{{size}}}}}}}}}"#));
        let limit =
            range(r#"{"type":"PersistentVolumeClaim","min":{"storage":"1Gi"},"max":{"storage":"2Gi"}}"#);
        let table = [
            (
                r#""storage":"3Gi""#,
                vec!["maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"],
            ),
            (
                r#""storage":"1Mi""#,
                vec!["minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"],
            ),
            (r#""storage":"1Gi""#, vec![]),
            (
                "",
                vec![
                    "minimum storage usage per PersistentVolumeClaim is 1Gi.  No request is specified",
                    "maximum storage usage per PersistentVolumeClaim is 2Gi.  No request is specified",
                ],
            ),
        ];
        for (size, expected) in table {
            assert_eq!(check_claim(&new_claim(size), &limit), expected, "{size}");
        }
    }
}
