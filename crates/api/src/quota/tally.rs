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
    pub fn begin<'a>(
        spec: &Value,
        types: impl Iterator<Item = GroupResource<'a>>,
        features: Features,
    ) -> Tally {
        let meters: Vec<UsageEvaluator<'_>> =
            types.filter_map(|of| UsageEvaluator::of(of, features)).collect();
        let hard = spec.get("hard").and_then(Value::fields).into_iter().flatten();
        let used = hard
            .map(|(name, _)| name)
            .filter(|name| meters.iter().any(|meter| meter.measures(name)))
            .map(|name| (name.clone(), number(0)))
            .collect();
        Tally { scopes: Scope::of_quota(spec), used, features }
    }

    /// Whether objects of a type matter. Others need not be read.
    pub fn counts(&self, of: GroupResource<'_>) -> bool {
        let meter = UsageEvaluator::of(of, self.features);
        meter.is_some_and(|meter| self.used.keys().any(|name| meter.measures(name)))
    }

    /// Counts an object at a time, in seconds.
    pub fn add(&mut self, of: GroupResource<'_>, object: &Value, now: i64) {
        let Some(meter) = UsageEvaluator::of(of, self.features) else { return };
        if self.scopes.iter().all(|scope| meter.is_in(object, scope)) {
            let mut usage = meter.usage(object, now);
            usage.retain(|name, _| self.used.contains_key(name));
            resource_list::add(&mut self.used, &usage);
        }
    }

    /// The total usage.
    pub fn end(self) -> ResourceList {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::super::USUAL;
    use super::*;

    const TYPES: [(&str, &str); 4] =
        [("", "pods"), ("", "services"), ("", "secrets"), ("apps", "deployments")];

    fn types() -> impl Iterator<Item = GroupResource<'static>> {
        TYPES.into_iter().map(|(group, resource)| GroupResource { group, resource })
    }

    fn of(resource: &'static str) -> GroupResource<'static> {
        types().find(|of| of.resource == resource).unwrap()
    }

    fn shown(tally: Tally) -> String {
        tally.end().iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn a_namespace_is_counted_from_its_objects() {
        let spec = object(
            r#"{"hard":{"pods":"5","requests.cpu":"4","secrets":"1","count/deployments.apps":"3","count/strange.io":"9"}}"#,
        );
        let mut tally = Tally::begin(&spec, types(), USUAL);
        assert!(tally.counts(of("pods")) && tally.counts(of("secrets")) && !tally.counts(of("services")));
        let pod = |cpu: &str| {
            object(&format!(
                r#"{{"spec":{{"containers":[{{"resources":{{"requests":{{"cpu":"{cpu}","memory":"1Gi"}}}}}}]}}}}"#
            ))
        };
        tally.add(of("pods"), &pod("1500m"), 0);
        tally.add(of("pods"), &pod("500m"), 0);
        let mut over = pod("9");
        over.entry("status").set("phase", "Failed");
        tally.add(of("pods"), &over, 0);
        tally.add(of("secrets"), &object("{}"), 0);
        tally.add(of("services"), &object("{}"), 0);
        assert_eq!(shown(tally), "count/deployments.apps=0,pods=2,requests.cpu=2,secrets=1");
    }

    #[test]
    fn only_what_is_in_scope_counts() {
        let spec = object(r#"{"hard":{"pods":"5","services":"5"},"scopes":["BestEffort"]}"#);
        let mut tally = Tally::begin(&spec, types(), USUAL);
        tally.add(of("pods"), &object(r#"{"spec":{"containers":[{"name":"a"}]}}"#), 0);
        tally.add(
            of("pods"),
            &object(r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"1"}}}]}}"#),
            0,
        );
        // Services match no scope.
        tally.add(of("services"), &object("{}"), 0);
        assert_eq!(shown(tally), "pods=1,services=0");
    }
}
