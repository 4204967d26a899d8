//! The usage of an object by its kind, under the resource names of quotas.

use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::quantity::Quantity;
use pilothouse_apimachinery::resource_list::{self, ResourceList};
use pilothouse_apimachinery::status::GroupResource;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::annotations;

use super::scope::has_deadline;
use super::{Features, Quota, Scope, pods};

/// Between the name of a storage class and the counted resource.
const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
/// After the name of a device class.
const DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// The maximum number of devices of a claim: the worst case of a request for all.
const MAX_DEVICES: i64 = 32;

const CLAIMS: [&str; 2] = ["persistentvolumeclaims", "requests.storage"];
const SERVICES: [&str; 4] = ["count/services", "services", "services.nodeports", "services.loadbalancers"];
/// Types that have plain names from before generic counting.
const PLAIN: [&str; 4] = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];

/// Types that are not stored, and events.
const IGNORED: [(&str, &str); 10] = [
    ("", "bindings"),
    ("", "componentstatuses"),
    ("", "events"),
    ("events.k8s.io", "events"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
];

/// How the objects of one type are measured.
#[derive(Clone, Copy, Debug)]
pub struct UsageEvaluator<'a> {
    resource: GroupResource<'a>,
    measured: MeasuredType,
    features: Features,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MeasuredType {
    Pods,
    Services,
    Claims,
    Devices,
    Objects,
}

/// The kind of write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A create.
    Create,
    /// An update.
    Update,
}

impl<'a> UsageEvaluator<'a> {
    /// The evaluator of a type; `None` for types that quotas do not count.
    pub fn for_resource(resource: GroupResource<'a>, features: Features) -> Option<UsageEvaluator<'a>> {
        if IGNORED.contains(&(resource.group, resource.resource)) {
            return None;
        }
        let measured = match (resource.group, resource.resource) {
            ("", "pods") => MeasuredType::Pods,
            ("", "services") => MeasuredType::Services,
            ("", "persistentvolumeclaims") => MeasuredType::Claims,
            ("resource.k8s.io", "resourceclaims") if features.device_claims => MeasuredType::Devices,
            _ => MeasuredType::Objects,
        };
        Some(UsageEvaluator { resource, measured, features })
    }

    /// Whether such a write can add usage, as far as known without the objects.
    pub fn may_charge(&self, change: Change, subresource: &str) -> bool {
        match (self.measured, subresource, change) {
            (_, "", Change::Create)
            | (MeasuredType::Pods, "" | "resize", Change::Update)
            | (MeasuredType::Services | MeasuredType::Devices, "", Change::Update)
            | (MeasuredType::Claims, "" | "status", Change::Update) => true,
            (
                MeasuredType::Pods
                | MeasuredType::Services
                | MeasuredType::Claims
                | MeasuredType::Devices
                | MeasuredType::Objects,
                ..,
            ) => false,
        }
    }

    /// Whether this write can add usage: a pod update does so only by changing its scope.
    pub fn charges(&self, change: Change, subresource: &str, new: &Value, old: &Value) -> bool {
        let is_pod_update =
            self.measured == MeasuredType::Pods && subresource.is_empty() && change == Change::Update;
        self.may_charge(change, subresource) && (!is_pod_update || has_deadline(new) != has_deadline(old))
    }

    /// Whether objects of this type use this quota resource.
    pub fn measures(&self, name: &str) -> bool {
        match self.measured {
            MeasuredType::Pods => pods::use_resource(name),
            MeasuredType::Services => SERVICES.contains(&name),
            MeasuredType::Claims => {
                let is_class_resource = |suffix: &&str| {
                    name.strip_suffix(*suffix).is_some_and(|name| name.ends_with(STORAGE_CLASS))
                };
                self.is_object_count(name) || CLAIMS.contains(&name) || CLAIMS.iter().any(is_class_resource)
            }
            MeasuredType::Devices => self.is_object_count(name) || name.ends_with(DEVICE_CLASS),
            MeasuredType::Objects => {
                self.is_object_count(name)
                    || (self.resource.group.is_empty()
                        && self.resource.resource == name
                        && PLAIN.contains(&name))
            }
        }
    }

    fn is_object_count(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix("count/") else { return false };
        match name.strip_prefix(self.resource.resource) {
            Some("") => self.resource.group.is_empty(),
            Some(group) => {
                group.strip_prefix('.') == Some(self.resource.group) && !self.resource.group.is_empty()
            }
            None => false,
        }
    }

    fn object_count_name(&self) -> String {
        match self.resource.group {
            "" => format!("count/{}", self.resource.resource),
            group => format!("count/{}.{group}", self.resource.resource),
        }
    }

    /// Whether an object matches a scope. Types without scopes match none.
    pub fn is_in(&self, object: &Value, scope: &Scope) -> bool {
        match self.measured {
            MeasuredType::Pods => scope.matches_pod(object),
            MeasuredType::Claims => self.features.attributes_classes && scope.matches_claim(object),
            MeasuredType::Services | MeasuredType::Devices | MeasuredType::Objects => false,
        }
    }

    /// Whether objects of this type must be covered by a quota of their scope, if so configured.
    pub fn needs_cover(&self) -> bool {
        self.measured == MeasuredType::Pods
            || (self.measured == MeasuredType::Claims && self.features.attributes_classes)
    }

    /// Whether a quota covers an object.
    pub fn matches(&self, quota: &Quota, object: &Value) -> bool {
        quota.hard.keys().any(|name| self.measures(name))
            && quota.scopes.iter().all(|scope| self.is_in(object, scope))
    }

    /// The error for an object that does not specify a resource that a quota requires.
    pub fn unspecified<'n>(&self, object: &Value, names: impl Iterator<Item = &'n str>) -> Option<String> {
        if self.measured == MeasuredType::Pods {
            pods::must_specify(object, names, self.features)
        } else {
            None
        }
    }

    /// The usage of an object at a time, in seconds.
    pub fn usage(&self, object: &Value, now: i64) -> ResourceList {
        match self.measured {
            MeasuredType::Pods => pods::usage(object, self.features, now),
            MeasuredType::Services => service(object),
            MeasuredType::Claims => self.claim(object),
            MeasuredType::Devices => self.devices(object),
            MeasuredType::Objects => {
                let mut used = ResourceList::from([(self.object_count_name(), one())]);
                if self.measures(self.resource.resource) {
                    used.insert(self.resource.resource.to_owned(), one());
                }
                used
            }
        }
    }

    fn claim(&self, claim: &Value) -> ResourceList {
        let mut used = ResourceList::from([(self.object_count_name(), one())]);
        let annotated_class = meta::metadata(claim)
            .get("annotations")
            .and_then(|annotations| annotations.get(annotations::STORAGE_CLASS));
        let class = annotated_class.or_else(|| claim.get_path(&["spec", "storageClassName"]));
        let class = class.and_then(Value::as_str).filter(|class| !class.is_empty());
        let size = self.claim_size(claim);
        for (name, amount) in [(CLAIMS[0], Some(one())), (CLAIMS[1], size)] {
            let Some(amount) = amount else { continue };
            if let Some(class) = class {
                used.insert(format!("{class}{STORAGE_CLASS}{name}"), amount.clone());
            }
            used.insert(name.to_owned(), amount);
        }
        used
    }

    /// The charged size of a claim, in whole bytes.
    fn claim_size(&self, claim: &Value) -> Option<Quantity> {
        let storage = |path: &[&str]| resource_list::read(claim.get_path(path)).remove("storage");
        let requested = storage(&["spec", "resources", "requests"])?.ceil();
        let allocated = storage(&["status", "allocatedResources"]).filter(|_| self.features.failed_expansion);
        Some(allocated.filter(|allocated| *allocated > requested).map_or(requested, Quantity::ceil))
    }

    fn devices(&self, claim: &Value) -> ResourceList {
        let mut used = ResourceList::from([(self.object_count_name(), one())]);
        let requests = claim.get_path(&["spec", "devices", "requests"]).map(Value::items).unwrap_or_default();
        for request in requests {
            // For alternatives the worst case per class counts.
            let mut worst = ResourceList::new();
            let alternatives = request.get("firstAvailable").map(Value::items).unwrap_or_default();
            let exact = request.get("exactly").unwrap_or(request);
            for alternative in
                if alternatives.is_empty() { std::slice::from_ref(exact) } else { alternatives }
            {
                let count = match alternative.str("allocationMode") {
                    "ExactCount" => alternative.get("count").and_then(Value::as_int).unwrap_or_default(),
                    "All" => MAX_DEVICES,
                    _ => 0,
                };
                let name = format!("{}{DEVICE_CLASS}", alternative.str("deviceClassName"));
                resource_list::raise(&mut worst, &ResourceList::from([(name, number(count))]));
            }
            resource_list::add(&mut used, &worst);
        }
        used
    }
}

fn service(service: &Value) -> ResourceList {
    let spec = service.get("spec").unwrap_or(&Value::Null);
    let ports = spec.get("ports").map(Value::items).unwrap_or_default();
    let has_node_port =
        |port: &&Value| port.get("nodePort").and_then(Value::as_int).is_some_and(|port| port != 0);
    let (balancers, node_ports) = match spec.str("type") {
        "NodePort" => (0, ports.len()),
        // Without allocated node ports, those that the client chose still count.
        "LoadBalancer"
            if spec.get("allocateLoadBalancerNodePorts").and_then(Value::as_bool) == Some(false) =>
        {
            (1, ports.iter().filter(has_node_port).count())
        }
        "LoadBalancer" => (1, ports.len()),
        _ => (0, 0),
    };
    let node_ports = i64::try_from(node_ports).unwrap_or(i64::MAX);
    SERVICES
        .map(str::to_owned)
        .into_iter()
        .zip([one(), one(), number(node_ports), number(balancers)])
        .collect()
}

/// The quantity 1.
pub fn one() -> Quantity {
    number(1)
}

/// A count as a quantity.
pub fn number(count: i64) -> Quantity {
    Quantity::from(count)
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::object;

    use super::super::DEFAULT_FEATURES;
    use super::*;

    fn evaluator<'a>(group: &'a str, resource: &'a str, features: Features) -> UsageEvaluator<'a> {
        UsageEvaluator::for_resource(GroupResource { group, resource }, features).unwrap()
    }

    fn usage_text(evaluator: &UsageEvaluator<'_>, text: &str) -> String {
        let used = evaluator.usage(&object(text), 0);
        assert!(used.keys().all(|name| evaluator.measures(name)), "{used:?}");
        used.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn objects_are_counted_by_type_and_some_by_plain_name() {
        for (group, resource, expected) in [
            ("", "configmaps", "configmaps=1,count/configmaps=1"),
            ("", "secrets", "count/secrets=1,secrets=1"),
            ("", "endpoints", "count/endpoints=1"),
            ("apps", "deployments", "count/deployments.apps=1"),
            // Only the core group has plain names.
            ("example.com", "secrets", "count/secrets.example.com=1"),
            ("resource.k8s.io", "resourceclaims", "count/resourceclaims.resource.k8s.io=1"),
        ] {
            assert_eq!(usage_text(&evaluator(group, resource, DEFAULT_FEATURES), "{}"), expected);
        }
        let deployments = evaluator("apps", "deployments", DEFAULT_FEATURES);
        for other in
            ["count/deployments", "count/deployments.app", "deployments", "count/deploymentsapps", "pods"]
        {
            assert!(!deployments.measures(other), "{other}");
        }
        for (group, resource) in [("", "events"), ("events.k8s.io", "events"), ("", "bindings")] {
            assert!(
                UsageEvaluator::for_resource(GroupResource { group, resource }, DEFAULT_FEATURES).is_none(),
                "{resource}"
            );
        }
    }

    #[test]
    fn services_are_charged_for_node_ports_and_load_balancers() {
        let counted = |ports: u32, balancers: u32| {
            format!(
                "count/services=1,services=1,services.loadbalancers={balancers},services.nodeports={ports}"
            )
        };
        let two = r#""ports":[{"port":1,"nodePort":30000},{"port":2}]"#;
        for (spec, expected) in [
            (two.to_owned(), counted(0, 0)),
            (format!(r#""type":"ClusterIP",{two}"#), counted(0, 0)),
            (format!(r#""type":"NodePort",{two}"#), counted(2, 0)),
            (format!(r#""type":"LoadBalancer",{two}"#), counted(2, 1)),
            (format!(r#""type":"LoadBalancer","allocateLoadBalancerNodePorts":true,{two}"#), counted(2, 1)),
            (format!(r#""type":"LoadBalancer","allocateLoadBalancerNodePorts":false,{two}"#), counted(1, 1)),
        ] {
            assert_eq!(
                usage_text(
                    &evaluator("", "services", DEFAULT_FEATURES),
                    &format!(r#"{{"spec":{{{spec}}}}}"#)
                ),
                expected,
                "{spec}"
            );
        }
    }

    #[test]
    fn claims_are_charged_for_size_also_by_storage_class() {
        let claims = evaluator("", "persistentvolumeclaims", DEFAULT_FEATURES);
        let count = "count/persistentvolumeclaims=1";
        for (claim, expected) in [
            ("{}".to_owned(), format!("{count},persistentvolumeclaims=1")),
            (
                r#"{"spec":{"resources":{"requests":{"storage":"1500m"}}}}"#.to_owned(),
                format!("{count},persistentvolumeclaims=1,requests.storage=2"),
            ),
            (
                r#"{"spec":{"storageClassName":"gold","resources":{"requests":{"storage":"1Gi"}}},
                    "status":{"allocatedResources":{"storage":"2Gi"}}}"#
                    .to_owned(),
                format!(
                    "{count},gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,\
                     gold.storageclass.storage.k8s.io/requests.storage=2Gi,persistentvolumeclaims=1,requests.storage=2Gi"
                ),
            ),
            (
                r#"{"metadata":{"annotations":{"volume.beta.kubernetes.io/storage-class":"tin"}},
                    "spec":{"storageClassName":"gold"}}"#
                    .to_owned(),
                format!(
                    "{count},persistentvolumeclaims=1,tin.storageclass.storage.k8s.io/persistentvolumeclaims=1"
                ),
            ),
        ] {
            assert_eq!(usage_text(&claims, &claim), expected, "{claim}");
        }
        let without_gate = Features { failed_expansion: false, ..DEFAULT_FEATURES };
        let grown = r#"{"spec":{"resources":{"requests":{"storage":"1Gi"}}},"status":{"allocatedResources":{"storage":"2Gi"}}}"#;
        assert!(
            usage_text(&evaluator("", "persistentvolumeclaims", without_gate), grown)
                .ends_with("requests.storage=1Gi")
        );
        assert!(!claims.measures("gold.storageclass.storage.k8s.io/limits.storage"));
    }

    #[test]
    fn device_claims_are_charged_for_the_worst_case_by_class() {
        let features = Features { device_claims: true, ..DEFAULT_FEATURES };
        let devices = evaluator("resource.k8s.io", "resourceclaims", features);
        let claim = r#"{"spec":{"devices":{"requests":[
            {"deviceClassName":"gpu","allocationMode":"ExactCount","count":2},
            {"exactly":{"deviceClassName":"gpu","allocationMode":"ExactCount","count":1}},
            {"deviceClassName":"nic","allocationMode":"All"},
            {"firstAvailable":[{"deviceClassName":"tpu","allocationMode":"ExactCount","count":3},
                {"deviceClassName":"tpu","allocationMode":"ExactCount","count":5},
                {"deviceClassName":"gpu","allocationMode":"ExactCount","count":1}]}]}}}"#;
        assert_eq!(
            usage_text(&devices, claim),
            "count/resourceclaims.resource.k8s.io=1,gpu.deviceclass.resource.k8s.io/devices=4,\
             nic.deviceclass.resource.k8s.io/devices=32,tpu.deviceclass.resource.k8s.io/devices=5"
        );
    }

    #[test]
    fn only_some_updates_can_charge() {
        let all = [
            ("", "pods", "", true, true),
            ("", "pods", "resize", false, true),
            ("", "pods", "status", false, false),
            ("", "pods", "binding", false, false),
            ("", "services", "", true, true),
            ("", "services", "status", false, false),
            ("", "persistentvolumeclaims", "", true, true),
            ("", "persistentvolumeclaims", "status", false, true),
            ("", "configmaps", "", true, false),
            ("apps", "deployments", "scale", false, false),
            ("", "serviceaccounts", "token", false, false),
        ];
        for (group, resource, sub, create, update) in all {
            let evaluator = evaluator(group, resource, DEFAULT_FEATURES);
            assert_eq!(evaluator.may_charge(Change::Create, sub), create, "{resource}/{sub}");
            assert_eq!(evaluator.may_charge(Change::Update, sub), update, "{resource}/{sub}");
        }
        let (plain, ending) = (object("{}"), object(r#"{"spec":{"activeDeadlineSeconds":5}}"#));
        let pods = evaluator("", "pods", DEFAULT_FEATURES);
        assert!(pods.charges(Change::Update, "", &ending, &plain));
        assert!(!pods.charges(Change::Update, "", &ending, &ending));
        assert!(pods.charges(Change::Update, "resize", &plain, &plain));
    }
}
