//! Subresources that are read and written like objects: status, scale, approval and others.
//!
//! Most subresources have the shape of the whole object, of which a write changes one part. Some have another kind: then the
//! subresource is computed from the object and written back into it. Verbs only need [`SubresourceStrategy::show`], [`SubresourceStrategy::write`] and
//! [`SubresourceStrategy::settle`].

pub mod binding;
mod conditions;
pub mod eviction;
mod scale;
pub mod token_request;

use std::borrow::Cow;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::status;
use pilothouse_apimachinery::value::Value;
use pilothouse_kinds::{self as kinds, Kind, SubresourceRules, WriteContext, pod_change};
use scale::Scale;

pub use scale::ReplicaPaths;

/// How a subresource is read and written.
#[derive(Debug)]
pub struct SubresourceStrategy {
    /// The view, if it has another kind than the object.
    view: Option<Scale>,
    settle: fn(Kind, &mut Value, &Value, &WriteContext<'_>) -> Result<WarningList, ErrorList>,
}

static OBJECT: SubresourceStrategy = SubresourceStrategy { view: None, settle: kinds::before_update };
static STATUS: SubresourceStrategy = SubresourceStrategy { view: None, settle: kinds::before_status_update };
static FINALIZE: SubresourceStrategy = SubresourceStrategy { view: None, settle: kinds::before_finalize };
static APPROVAL: SubresourceStrategy = SubresourceStrategy {
    view: None,
    settle: |_, new, old, context| kinds::before_approval(new, old, context),
};
static EPHEMERAL_CONTAINERS: SubresourceStrategy = SubresourceStrategy {
    view: None,
    settle: |kind, new, old, context| {
        let (prepare, validate) = (pod_change::prepare_ephemeral, pod_change::validate_ephemeral);
        kinds::before_subresource_update(kind, new, old, context, SubresourceRules { prepare, validate })
    },
};
static RESIZE: SubresourceStrategy = SubresourceStrategy {
    view: None,
    settle: |kind, new, old, context| {
        let (prepare, validate) = (pod_change::prepare_resize, pod_change::validate_resize);
        kinds::before_subresource_update(kind, new, old, context, SubresourceRules { prepare, validate })
    },
};
static SCALE: SubresourceStrategy =
    SubresourceStrategy { view: Some(Scale::Standard), settle: kinds::before_update };

/// The subresource of this name; the empty name is the object itself. `None` for one that cannot be read and written like an
/// object.
pub fn strategy(subresource: &str) -> Option<&'static SubresourceStrategy> {
    Some(match subresource {
        "" => &OBJECT,
        "approval" => &APPROVAL,
        "ephemeralcontainers" => &EPHEMERAL_CONTAINERS,
        "finalize" => &FINALIZE,
        "resize" => &RESIZE,
        "scale" => &SCALE,
        "status" => &STATUS,
        _ => return None,
    })
}

/// Whether a subresource can be shown as a Table. The reference has no table for others, nor for the status of APIServices and
/// CustomResourceDefinitions.
pub fn has_table(group: &str, subresource: &str) -> bool {
    match subresource {
        "" | "scale" => true,
        "status" => !matches!(group, "apiextensions.k8s.io" | "apiregistration.k8s.io"),
        _ => false,
    }
}

impl SubresourceStrategy {
    /// Whether it has another kind than the object.
    pub fn is_view(&self) -> bool {
        self.view.is_some()
    }

    /// The scale subresource of a custom resource.
    pub fn scale(paths: ReplicaPaths) -> SubresourceStrategy {
        SubresourceStrategy { view: Some(Scale::Custom(paths)), settle: kinds::before_update }
    }

    /// The paths of a custom resource's replicas.
    pub fn replica_paths(&self) -> Option<&ReplicaPaths> {
        match &self.view {
            Some(Scale::Custom(paths)) => Some(paths),
            _ => None,
        }
    }

    /// The field that a view shares with the object.
    pub fn shared_field(&self) -> Option<Vec<&str>> {
        self.view.as_ref().map(Scale::field)
    }

    /// The subresource of an object, or the reason that it has none.
    pub fn show<'a>(&self, object: &'a Value) -> status::Result<Cow<'a, Value>> {
        match &self.view {
            Some(view) => view.show(object).map(Cow::Owned),
            None => Ok(Cow::Borrowed(object)),
        }
    }

    /// The subresource for a read: missing replicas are an error.
    pub fn read<'a>(&self, object: &'a Value) -> status::Result<Cow<'a, Value>> {
        if let Some(Scale::Custom(paths)) = &self.view {
            paths.require_spec_replicas(object)?;
        }
        self.show(object)
    }

    /// The object with `body` as its subresource. Errors are about the body.
    pub fn write(&self, object: &Value, body: Value) -> Result<Value, ErrorList> {
        let Some(view) = &self.view else { return Ok(body) };
        let mut errors = ErrorList::new();
        view.validate(&body, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut new = object.clone();
        view.write(&mut new, &body);
        Ok(new)
    }

    /// Restores fields that a write of the subresource cannot change, and validates the object.
    pub fn settle(
        &self,
        kind: Kind,
        new: &mut Value,
        old: &Value,
        context: &WriteContext<'_>,
    ) -> Result<WarningList, ErrorList> {
        (self.settle)(kind, new, old, context)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pilothouse_apimachinery::testing::{error_messages, object};
    use pilothouse_kinds::testing::context;

    use super::*;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;

    const NOW: WriteContext<'_> = context("2024-01-01T00:00:00Z");

    #[test]
    fn status_of_api_services_and_definitions_has_no_table() {
        assert!(has_table("apps", "status") && has_table("apiextensions.k8s.io", ""));
        assert!(!has_table("apiextensions.k8s.io", "status") && !has_table("apps", "finalize"));
    }

    #[test]
    fn status_subresource_is_the_whole_object() {
        let status = strategy("status").unwrap();
        let stored = object(r#"{"status":{"a":1}}"#);
        assert_eq!(*status.show(&stored).unwrap(), stored);
        let body = object(r#"{"status":{"a":2}}"#);
        assert_eq!(status.write(&stored, body.clone()).unwrap(), body);
        assert!(!status.is_view());
    }

    #[test]
    fn scale_is_written_back_into_the_object() {
        let scale_strategy = strategy("scale").unwrap();
        let stored = object(
            r#"{"kind":"Deployment","metadata":{"name":"d","namespace":"n","labels":{"a":"b"}},
                "spec":{"replicas":1,"paused":true}}"#,
        );
        let mut scale = scale_strategy.show(&stored).unwrap().into_owned();
        assert_eq!(scale_strategy.write(&stored, scale.clone()).unwrap(), stored);
        scale.entry("spec").set("replicas", 7);
        let new = scale_strategy.write(&stored, scale.clone()).unwrap();
        assert_eq!(new.get_path(&["spec", "replicas"]), Some(&Value::Int(7)));
        assert_eq!(new.get_path(&["spec", "paused"]), Some(&Value::Bool(true)));
        scale.entry("spec").set("replicas", -7);
        let errors = scale_strategy.write(&stored, scale).unwrap_err();
        assert_eq!(
            error_messages(&errors),
            ["spec.replicas: Invalid value: -7: must be greater than or equal to 0"]
        );
    }

    #[test]
    fn all_subresources_except_actions_and_connections_have_a_strategy() {
        let everything = RuntimeConfig::parse("api/all=true").unwrap();
        let catalog = Builtin::load().unwrap().serve(&everything).unwrap();
        let names = catalog.resources().flat_map(|resource| resource.subresources.iter());
        let others: BTreeSet<String> =
            names.filter(|sub| strategy(&sub.name).is_none()).map(|sub| sub.name.to_string()).collect();
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        assert_eq!(others, ["attach", "binding", "eviction", "exec", "log", "portforward", "proxy", "token"]);
    }

    #[test]
    fn ephemeral_containers_increase_the_generation() {
        let kind = Kind { rules: kinds::rules("", "Pod"), namespaced: true, has_status: true };
        let old = object(
            r#"{"kind":"Pod","metadata":{"name":"p","namespace":"n","uid":"u","resourceVersion":"1","generation":1},
                "spec":{"containers":[{"name":"c","image":"i","imagePullPolicy":"Always",
                    "terminationMessagePolicy":"File"}],"restartPolicy":"Always","dnsPolicy":"ClusterFirst"},
                "status":{"phase":"Running"}}"#,
        );
        let mut new = old.clone();
        new.remove("status");
        new.entry("spec").set("hostname", "dropped");
        new.entry("spec").set(
            "ephemeralContainers",
            object(
                r#"[{"name":"e","image":"i","imagePullPolicy":"Always","terminationMessagePolicy":"File"}]"#,
            ),
        );
        let settled = strategy("ephemeralcontainers").unwrap().settle(kind, &mut new, &old, &NOW);
        assert_eq!(settled.map_err(|errors| error_messages(&errors)), Ok(WarningList::new()));
        assert_eq!(new.get_path(&["metadata", "generation"]), Some(&Value::Int(2)));
        assert_eq!(new.get_path(&["spec", "hostname"]), None);
        assert_eq!(new.get("status"), old.get("status"));
    }
}
