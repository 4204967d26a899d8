//! Resource quantities: of a map in an object, and the total of a pod.

use std::collections::BTreeMap;

use super::quantity::Quantity;
use super::value::Value;

/// Quantities by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Whether this resource can be set for a whole pod.
pub fn is_for_whole_pods(name: &str) -> bool {
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
    let mut all = together(pod, |container, _| read(container.at(&["resources", field])));
    let whole = read(pod.at(&["spec", "resources", field]));
    all.extend(whole.into_iter().filter(|(name, _)| is_for_whole_pods(name)));
    all
}

/// The total that the containers of a pod need, where `of` gives the needs of each; its second argument tells whether the
/// container runs as long as the pod. Containers run together. Init containers run before them, one after the other, except for
/// sidecars (restartPolicy Always), which keep running.
pub fn together(pod: &Value, of: impl Fn(&Value, bool) -> ResourceList) -> ResourceList {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let list = |name: &str| spec.get(name).map(Value::items).unwrap_or_default();
    let mut all = ResourceList::new();
    for container in list("containers") {
        add(&mut all, &of(container, true));
    }
    // Only the resources of the container itself are visited: visiting all those that accumulate would be quadratic in the size
    // of the request.
    let (mut staying, mut peak) = (ResourceList::new(), ResourceList::new());
    for container in list("initContainers") {
        let stays = container.str("restartPolicy") == "Always";
        let own = of(container, stays);
        let beside = |(name, amount): (&String, &Quantity)| {
            let sum = staying.get(name).map_or_else(|| amount.clone(), |known| amount.plus(known));
            (name.clone(), sum)
        };
        let together: ResourceList = own.iter().map(beside).collect();
        raise(&mut peak, &together);
        if stays {
            add(&mut all, &own);
            staying.extend(together);
        }
    }
    raise(&mut all, &peak);
    all
}

/// Adds quantities by name.
pub fn add(to: &mut ResourceList, more: &ResourceList) {
    for (name, amount) in more {
        let sum = to.get(name).map_or_else(|| amount.clone(), |known| known.plus(amount));
        to.insert(name.clone(), sum);
    }
}

/// Raises each quantity to at least that of `least`.
pub fn raise(to: &mut ResourceList, least: &ResourceList) {
    for (name, amount) in least {
        if to.get(name).is_none_or(|known| amount > known) {
            to.insert(name.clone(), amount.clone());
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
    fn init_containers_need_their_peak() {
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
