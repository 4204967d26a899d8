//! Amounts of resources: what a map of an object says, and what a pod asks for as a whole.

use std::collections::BTreeMap;

use super::schema::quantity::Quantity;
use super::value::Value;

/// Amounts of resources by their names.
pub type Amounts = BTreeMap<String, Quantity>;

/// Whether pods can ask for this resource as a whole, whatever their containers say.
pub fn is_for_whole_pods(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// The amounts in a map of an object.
pub fn read(map: Option<&Value>) -> Amounts {
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

/// The `requests` or `limits` of a pod by what its containers and the pod itself ask for.
pub fn total(pod: &Value, field: &str) -> Amounts {
    let mut all = together(pod, |container, _| read(container.at(&["resources", field])));
    let whole = read(pod.at(&["spec", "resources", field]));
    all.extend(whole.into_iter().filter(|(name, _)| is_for_whole_pods(name)));
    all
}

/// What the containers of a pod need together, where `of` says what each of them needs; its second argument tells
/// whether the container runs as long as the pod. Containers run together; init containers run before them and one after
/// the other, except those that always restart, which stay beside all that come later.
pub fn together(pod: &Value, of: impl Fn(&Value, bool) -> Amounts) -> Amounts {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let list = |name: &str| spec.get(name).map(Value::items).unwrap_or_default();
    let mut all = Amounts::new();
    for container in list("containers") {
        add(&mut all, &of(container, true));
    }
    // Only what a container names itself is touched: walking all that stays for each of them would take the square of
    // what a client can send.
    let (mut staying, mut peak) = (Amounts::new(), Amounts::new());
    for container in list("initContainers") {
        let stays = container.str("restartPolicy") == "Always";
        let own = of(container, stays);
        let beside = |(name, amount): (&String, &Quantity)| {
            let sum = staying.get(name).map_or_else(|| amount.clone(), |known| amount.plus(known));
            (name.clone(), sum)
        };
        let together: Amounts = own.iter().map(beside).collect();
        raise(&mut peak, &together);
        if stays {
            add(&mut all, &own);
            staying.extend(together);
        }
    }
    raise(&mut all, &peak);
    all
}

/// Adds each amount to that of the same name.
pub fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.get(name).map_or_else(|| amount.clone(), |known| known.plus(amount));
        to.insert(name.clone(), sum);
    }
}

/// Makes each amount at least that of `least`.
pub fn raise(to: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        if to.get(name).is_none_or(|known| amount > known) {
            to.insert(name.clone(), amount.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::testing::object;
    use super::*;

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
