//! ResourceLists: parsed from an object, and the total of a pod.

use std::collections::BTreeMap;

use super::quantity::Quantity;
use super::value::Value;

/// Quantities by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Whether this resource can be set for a whole pod.
pub fn is_pod_level_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Parses the quantities of a map.
pub fn read(map: Option<&Value>) -> ResourceList {
    let entries = map.and_then(Value::fields).into_iter().flatten();
    entries
        .filter_map(|(name, amount)| {
            let amount = match amount {
                Value::Int(number) => Quantity::parse(&number.to_string()),
                other => Quantity::parse(other.as_str()?),
            };
            Some((name.clone(), amount.ok()?))
        })
        .collect()
}

/// The total `requests` or `limits` of a pod, from its containers and the pod itself.
pub fn total(pod: &Value, field: &str) -> ResourceList {
    let mut all = total_by(pod, |container, _| read(container.get_path(&["resources", field])));
    let pod_level = read(pod.get_path(&["spec", "resources", field]));
    all.extend(pod_level.into_iter().filter(|(name, _)| is_pod_level_resource(name)));
    all
}

/// The total that the containers of a pod need, where `need` returns that of each; its second argument: whether the
/// container runs as long as the pod. Containers run together. Init containers run before them, one after the other, except for
/// sidecars (restartPolicy Always), which keep running.
pub fn total_by(pod: &Value, need: impl Fn(&Value, bool) -> ResourceList) -> ResourceList {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let list = |name: &str| spec.get(name).map(Value::items).unwrap_or_default();
    let mut all = ResourceList::new();
    for container in list("containers") {
        add(&mut all, &need(container, true));
    }
    // Only the resources of the container itself are visited: visiting all those that accumulate would be quadratic in the size
    // of the request.
    let (mut sidecars, mut peak) = (ResourceList::new(), ResourceList::new());
    for container in list("initContainers") {
        let is_sidecar = container.str("restartPolicy") == "Always";
        let own = need(container, is_sidecar);
        let add_sidecars = |(name, amount): (&String, &Quantity)| {
            let sum = sidecars.get(name).map_or_else(|| amount.clone(), |running| amount.plus(running));
            (name.clone(), sum)
        };
        let with_sidecars: ResourceList = own.iter().map(add_sidecars).collect();
        raise(&mut peak, &with_sidecars);
        if is_sidecar {
            add(&mut all, &own);
            sidecars.extend(with_sidecars);
        }
    }
    raise(&mut all, &peak);
    all
}

/// Adds quantities by name.
pub fn add(total: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        let sum = total.get(name).map_or_else(|| amount.clone(), |current| current.plus(amount));
        total.insert(name.clone(), sum);
    }
}

/// Raises each quantity to at least that of `minimum`.
pub fn raise(total: &mut ResourceList, minimum: &ResourceList) {
    for (name, amount) in minimum {
        if total.get(name).is_none_or(|current| amount > current) {
            total.insert(name.clone(), amount.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn printed(pod: &str) -> Vec<String> {
        total(&object(pod), "requests").iter().map(|(name, amount)| format!("{name}={amount}")).collect()
    }

    #[test]
    fn total_of_pod_includes_peak_of_init_containers() {
        let container =
            |cpu: &str, rest: &str| format!(r#"{{"resources":{{"requests":{{"cpu":"{cpu}"}}}}{rest}}}"#);
        let always = r#","restartPolicy":"Always""#;
        let pod = |main: &[String], init: &[String], rest: &str| {
            printed(&format!(
                r#"{{"spec":{{"containers":[{}],"initContainers":[{}]{rest}}}}}"#,
                main.join(","),
                init.join(",")
            ))
        };
        let two = [container("1", ""), container("500m", "")];
        assert_eq!(pod(&two, &[], ""), ["cpu=1500m"]);
        assert_eq!(pod(&two, &[container("1", "")], ""), ["cpu=1500m"]);
        assert_eq!(pod(&two, &[container("2", "")], ""), ["cpu=2"]);
        assert_eq!(pod(&two, &[container("1", always)], ""), ["cpu=2500m"]);
        assert_eq!(pod(&two, &[container("1", always), container("2", "")], ""), ["cpu=3"]);
        assert_eq!(pod(&two, &[], r#","resources":{"requests":{"cpu":"9","x.y/z":"1"}}"#), ["cpu=9"]);
    }
}
