//! ExtendedResourceToleration: nodes with rare devices are tainted with the device's name. A pod that requests the device
//! tolerates that taint.

use std::collections::BTreeSet;

use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::is_extended;

use super::{Operation, Outcome, Plugin, Write, done};

/// Adds tolerations for the extended resources that a pod requests.
pub struct ExtendedResourceToleration;

impl Plugin for ExtendedResourceToleration {
    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Delete && write.is_of("", "pods")
    }

    fn mutate<'a>(&'a self, _: &'a Write<'a>, pod: &'a mut Value) -> Outcome<'a> {
        tolerate(pod);
        done(Ok(()))
    }
}

fn tolerate(pod: &mut Value) {
    let spec = pod.entry("spec");
    let lists = ["containers", "initContainers"];
    let containers = lists.iter().flat_map(|list| spec.get(list).map(Value::items).unwrap_or_default());
    let requests =
        containers.filter_map(|container| container.get_path(&["resources", "requests"])?.fields());
    let devices: BTreeSet<String> =
        requests.flat_map(|requests| requests.keys()).filter(|name| is_extended(name)).cloned().collect();
    if devices.is_empty() {
        return;
    }
    let mut tolerations = spec.get("tolerations").map(Value::items).unwrap_or_default().to_vec();
    for name in devices {
        let is_same = |toleration: &Value| {
            toleration.str("key") == name
                && toleration.str("operator") == "Exists"
                && toleration.str("effect") == "NoSchedule"
                && toleration.str("value").is_empty()
        };
        let mut toleration = Value::object();
        for (field, text) in [("key", name.as_str()), ("operator", "Exists"), ("effect", "NoSchedule")] {
            toleration.set(field, text);
        }
        match tolerations.iter_mut().find(|toleration| is_same(toleration)) {
            // A toleration with a time limit becomes unlimited.
            Some(existing) => *existing = toleration,
            None => tolerations.push(toleration),
        }
    }
    spec.set("tolerations", tolerations);
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::codec::yaml;

    use super::*;

    #[test]
    fn extended_resources_are_tolerated_once() {
        let mut pod = yaml::read(
            b"spec: {containers: [{resources: {requests: {cpu: 1, example.com/b: 1, example.com/a: 1}}}], \
              initContainers: [{resources: {requests: {example.com/a: 2, kubernetes.io/x: 1}}}], \
              tolerations: [{key: example.com/a, operator: Equal, value: v}]}",
        )
        .unwrap();
        tolerate(&mut pod);
        let keys = |pod: &Value| -> Vec<String> {
            let all = pod.get_path(&["spec", "tolerations"]).unwrap().items();
            all.iter()
                .map(|toleration| format!("{}:{}", toleration.str("key"), toleration.str("operator")))
                .collect()
        };
        let expected = ["example.com/a:Equal", "example.com/a:Exists", "example.com/b:Exists"];
        assert_eq!(keys(&pod), expected);
        tolerate(&mut pod);
        assert_eq!(keys(&pod), expected);
    }
}
