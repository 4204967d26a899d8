//! The group `apps`.

use super::core::template;
use super::{items_mut, set_if_absent};
use crate::api::value::Value;

pub(super) fn deployment(deployment: &mut Value) {
    let Some(spec) = deployment.get_mut("spec") else { return };
    let strategy = spec.entry("strategy");
    if strategy.str("type") == "RollingUpdate" {
        let rolling = strategy.entry("rollingUpdate");
        set_if_absent(rolling, "maxUnavailable", "25%");
        set_if_absent(rolling, "maxSurge", "25%");
    }
    template(Some(spec));
}

pub(super) fn daemon_set(set: &mut Value) {
    let Some(spec) = set.get_mut("spec") else { return };
    let strategy = spec.entry("updateStrategy");
    if strategy.str("type") == "RollingUpdate" {
        let rolling = strategy.entry("rollingUpdate");
        set_if_absent(rolling, "maxUnavailable", 1);
        set_if_absent(rolling, "maxSurge", 0);
    }
    template(Some(spec));
}

pub(super) fn replica_set(set: &mut Value) {
    template(set.get_mut("spec"));
}

/// A client that names the strategy and says nothing of its details means nothing by that.
pub(super) fn stateful_set_rollout(set: &mut Value) {
    let strategy = set.entry("spec").entry("updateStrategy");
    if strategy.str("type").is_empty() {
        set_if_absent(strategy.entry("rollingUpdate"), "partition", 0);
    }
}

pub(super) fn stateful_set(set: &mut Value) {
    let Some(spec) = set.get_mut("spec") else { return };
    let retention = spec.entry("persistentVolumeClaimRetentionPolicy");
    set_if_absent(retention, "whenDeleted", "Retain");
    set_if_absent(retention, "whenScaled", "Retain");
    for claim in items_mut(spec, "volumeClaimTemplates") {
        claim.set("kind", "PersistentVolumeClaim");
        claim.set("apiVersion", "v1");
    }
    template(Some(spec));
}

#[cfg(test)]
mod tests {
    use super::super::tests::defaulted;
    use super::*;

    #[test]
    fn rollouts_are_gentle_unless_told_otherwise() {
        let value = defaulted(
            "apps",
            "v1",
            "Deployment",
            r#"{"spec":{"template":{"spec":{"containers":[{"image":"a:1"}]}}}}"#,
        );
        let rolling = value.at(&["spec", "strategy", "rollingUpdate"]).unwrap();
        assert_eq!((rolling.str("maxSurge"), rolling.str("maxUnavailable")), ("25%", "25%"));
        let pod = value.at(&["spec", "template", "spec"]).unwrap();
        assert_eq!(pod.get("securityContext"), Some(&Value::object()));
        assert_eq!(pod.get("enableServiceLinks"), None);
        assert_eq!(pod.get("containers").unwrap().items()[0].str("imagePullPolicy"), "IfNotPresent");
        let value = defaulted("apps", "v1", "Deployment", r#"{"spec":{"strategy":{"type":"Recreate"}}}"#);
        assert_eq!(value.at(&["spec", "strategy", "rollingUpdate"]), None);
        let value = defaulted("apps", "v1", "DaemonSet", r#"{"spec":{}}"#);
        assert_eq!(value.at(&["spec", "updateStrategy", "rollingUpdate", "maxSurge"]), Some(&Value::Int(0)));
        let value = defaulted("apps", "v1", "StatefulSet", r#"{"spec":{"volumeClaimTemplates":[{}]}}"#);
        assert_eq!(value.at(&["spec", "updateStrategy", "rollingUpdate", "partition"]), Some(&Value::Int(0)));
        let named =
            defaulted("apps", "v1", "StatefulSet", r#"{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}"#);
        assert_eq!(named.at(&["spec", "updateStrategy", "rollingUpdate"]), None);
        let claim = &value.at(&["spec", "volumeClaimTemplates"]).unwrap().items()[0];
        assert_eq!(claim.str("kind"), "PersistentVolumeClaim");
        let value = defaulted("apps", "v1", "ReplicaSet", r#"{"spec":{"template":{"spec":{}}}}"#);
        assert_eq!(value.at(&["spec", "template", "spec", "securityContext"]), Some(&Value::object()));
    }
}
