//! Counts the usage of a namespace from its objects. The quota controller passes each object to the tally of each quota; the
//! result is the quota's status.

use pilothouse_apimachinery::resource_list::{self, ResourceList};
use pilothouse_apimachinery::status::GroupResource;
use pilothouse_apimachinery::value::Value;

use super::usage::{UsageEvaluator, number};
use super::{Features, Scope};

/// The count for one quota.
#[derive(Clone, Debug)]
pub struct Tally {
    scopes: Vec<Scope>,
    used: ResourceList,
    features: Features,
}

impl Tally {
    /// Starts counting for a quota, in a cluster with these types. Resources that no type uses are not counted.
    pub fn new<'a>(
        spec: &Value,
        types: impl Iterator<Item = GroupResource<'a>>,
        features: Features,
    ) -> Tally {
        let evaluators: Vec<UsageEvaluator<'_>> =
            types.filter_map(|resource| UsageEvaluator::for_resource(resource, features)).collect();
        let hard = spec.get("hard").and_then(Value::fields).into_iter().flatten();
        let used = hard
            .map(|(name, _)| name)
            .filter(|name| evaluators.iter().any(|evaluator| evaluator.measures(name)))
            .map(|name| (name.clone(), number(0)))
            .collect();
        Tally { scopes: Scope::from_spec(spec), used, features }
    }

    /// Whether objects of a type matter. Others need not be read.
    pub fn counts(&self, resource: GroupResource<'_>) -> bool {
        let evaluator = UsageEvaluator::for_resource(resource, self.features);
        evaluator.is_some_and(|evaluator| self.used.keys().any(|name| evaluator.measures(name)))
    }

    /// Counts an object at a time, in seconds.
    pub fn add(&mut self, resource: GroupResource<'_>, object: &Value, now: i64) {
        let Some(evaluator) = UsageEvaluator::for_resource(resource, self.features) else { return };
        if self.scopes.iter().all(|scope| evaluator.is_in(object, scope)) {
            let mut usage = evaluator.usage(object, now);
            usage.retain(|name, _| self.used.contains_key(name));
            resource_list::add(&mut self.used, &usage);
        }
    }

    /// The total usage.
    pub fn into_usage(self) -> ResourceList {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::super::DEFAULT_FEATURES;
    use super::*;

    const TYPES: [(&str, &str); 4] =
        [("", "pods"), ("", "services"), ("", "secrets"), ("apps", "deployments")];

    fn types() -> impl Iterator<Item = GroupResource<'static>> {
        TYPES.into_iter().map(|(group, resource)| GroupResource { group, resource })
    }

    fn type_named(resource: &'static str) -> GroupResource<'static> {
        types().find(|group_resource| group_resource.resource == resource).unwrap()
    }

    fn usage_text(tally: Tally) -> String {
        tally
            .into_usage()
            .iter()
            .map(|(name, amount)| format!("{name}={amount}"))
            .collect::<Vec<_>>()
            .join(",")
    }

    #[test]
    fn tally_counts_usage_of_objects() {
        let spec = object(
            r#"{"hard":{"pods":"5","requests.cpu":"4","secrets":"1","count/deployments.apps":"3","count/strange.io":"9"}}"#,
        );
        let mut tally = Tally::new(&spec, types(), DEFAULT_FEATURES);
        assert!(
            tally.counts(type_named("pods"))
                && tally.counts(type_named("secrets"))
                && !tally.counts(type_named("services"))
        );
        let pod = |cpu: &str| {
            object(&format!(
                r#"{{"spec":{{"containers":[{{"resources":{{"requests":{{"cpu":"{cpu}","memory":"1Gi"}}}}}}]}}}}"#
            ))
        };
        tally.add(type_named("pods"), &pod("1500m"), 0);
        tally.add(type_named("pods"), &pod("500m"), 0);
        let mut finished = pod("9");
        finished.entry("status").set("phase", "Failed");
        tally.add(type_named("pods"), &finished, 0);
        tally.add(type_named("secrets"), &object("{}"), 0);
        tally.add(type_named("services"), &object("{}"), 0);
        assert_eq!(usage_text(tally), "count/deployments.apps=0,pods=2,requests.cpu=2,secrets=1");
    }

    #[test]
    fn tally_counts_only_objects_in_scope() {
        let spec = object(r#"{"hard":{"pods":"5","services":"5"},"scopes":["BestEffort"]}"#);
        let mut tally = Tally::new(&spec, types(), DEFAULT_FEATURES);
        tally.add(type_named("pods"), &object(r#"{"spec":{"containers":[{"name":"a"}]}}"#), 0);
        tally.add(
            type_named("pods"),
            &object(r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"1"}}}]}}"#),
            0,
        );
        // Services match no scope.
        tally.add(type_named("services"), &object("{}"), 0);
        assert_eq!(usage_text(tally), "pods=1,services=0");
    }
}
