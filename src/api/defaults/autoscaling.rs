//! The group `autoscaling`.

use super::set_if_absent;
use crate::api::value::Value;

/// The share of its processor time that a pod is to use, in percent.
const CPU_PERCENT: i64 = 80;
/// The seconds over which a change is measured.
const PERIOD_SECONDS: i64 = 15;

pub(super) fn autoscaler(autoscaler: &mut Value) {
    let spec = autoscaler.entry("spec");
    if spec.get("metrics").is_none_or(|metrics| metrics.items().is_empty()) {
        let mut metric = Value::object();
        metric.set("type", "Resource");
        let resource = metric.entry("resource");
        resource.set("name", "cpu");
        let target = resource.entry("target");
        target.set("type", "Utilization");
        target.set("averageUtilization", CPU_PERCENT);
        spec.set("metrics", vec![metric]);
    }
    if let Some(behavior) = spec.get_mut("behavior").filter(|behavior| !behavior.is_null()) {
        let up = behavior.entry("scaleUp");
        set_if_absent(up, "stabilizationWindowSeconds", 0);
        rules(up, &[("Pods", 4), ("Percent", 100)]);
        rules(behavior.entry("scaleDown"), &[("Percent", 100)]);
    }
}

fn rules(rules: &mut Value, policies: &[(&str, i64)]) {
    set_if_absent(rules, "selectPolicy", "Max");
    let policies: Vec<Value> = policies
        .iter()
        .map(|(kind, value)| {
            let mut policy = Value::object();
            policy.set("type", *kind);
            policy.set("value", *value);
            policy.set("periodSeconds", PERIOD_SECONDS);
            policy
        })
        .collect();
    set_if_absent(rules, "policies", policies);
}

#[cfg(test)]
mod tests {
    use super::super::tests::defaulted;
    use super::*;

    #[test]
    fn processor_time_is_watched_by_default() {
        let value = defaulted("autoscaling", "v2", "HorizontalPodAutoscaler", r#"{"spec":{"behavior":{}}}"#);
        let metric = &value.at(&["spec", "metrics"]).unwrap().items()[0];
        assert_eq!(metric.at(&["resource", "target", "averageUtilization"]), Some(&Value::Int(CPU_PERCENT)));
        let up = value.at(&["spec", "behavior", "scaleUp"]).unwrap();
        assert_eq!((up.str("selectPolicy"), up.get("policies").unwrap().items().len()), ("Max", 2));
        assert_eq!(value.at(&["spec", "behavior", "scaleDown", "stabilizationWindowSeconds"]), None);
        let value = defaulted("autoscaling", "v2", "HorizontalPodAutoscaler", r#"{"spec":{}}"#);
        assert_eq!(value.at(&["spec", "behavior"]), None);
    }
}
