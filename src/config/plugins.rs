//! The admission plug-ins of the reference: names, order and defaults.

use std::collections::BTreeSet;

use self::DefaultState::{Off, On};
use self::Effect::{Absent, Idle, Works};

/// One plug-in.
#[derive(Debug, PartialEq, Eq)]
pub struct Plugin {
    /// The name on the command line.
    pub name: &'static str,
    /// What it is when nothing is said.
    pub usually: DefaultState,
    /// What it does when it is on.
    pub effect: Effect,
}

/// Whether a plug-in works when nothing is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultState {
    /// It does.
    On,
    /// It does if somebody names it.
    Off,
}

/// What a plug-in does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What it does in the reference.
    Works,
    /// Nothing, as in the reference.
    Idle,
    /// Nothing, because it is not here. The name is taken, so that start scripts work, and named in the log.
    Absent,
}

const fn plugin(name: &'static str, usually: DefaultState, effect: Effect) -> Plugin {
    Plugin { name, usually, effect }
}

/// Unimplemented plug-ins that are refused: ignoring them would admit images that the operator wants to refuse.
const MISSED: [&str; 1] = ["ImagePolicyWebhook"];

/// All plug-ins, in the order in which they run.
pub const PLUGINS: [Plugin; 36] = [
    plugin("AlwaysAdmit", Off, Idle),
    plugin("NamespaceAutoProvision", Off, Works),
    plugin("NamespaceLifecycle", On, Works),
    plugin("NamespaceExists", Off, Works),
    plugin("LimitPodHardAntiAffinityTopology", Off, Works),
    plugin("LimitRanger", On, Works),
    plugin("ServiceAccount", On, Works),
    plugin("NodeRestriction", Off, Works),
    plugin("TaintNodesByCondition", On, Works),
    plugin("AlwaysPullImages", Off, Works),
    plugin("ImagePolicyWebhook", Off, Absent),
    plugin("PodSecurity", On, Works),
    plugin("PodNodeSelector", Off, Works),
    plugin("Priority", On, Works),
    plugin("DefaultTolerationSeconds", On, Works),
    plugin("PodTolerationRestriction", Off, Works),
    plugin("EventRateLimit", Off, Works),
    plugin("ExtendedResourceToleration", Off, Works),
    plugin("DefaultStorageClass", On, Works),
    plugin("StorageObjectInUseProtection", On, Works),
    plugin("OwnerReferencesPermissionEnforcement", Off, Works),
    plugin("PersistentVolumeClaimResize", On, Works),
    plugin("RuntimeClass", On, Works),
    plugin("CertificateApproval", On, Works),
    plugin("CertificateSigning", On, Works),
    plugin("ClusterTrustBundleAttest", On, Works),
    plugin("CertificateSubjectRestriction", On, Works),
    plugin("DefaultIngressClass", On, Works),
    plugin("DenyServiceExternalIPs", Off, Works),
    plugin("PodTopologyLabels", On, Works),
    plugin("MutatingAdmissionPolicy", On, Works),
    plugin("MutatingAdmissionWebhook", On, Works),
    plugin("ValidatingAdmissionPolicy", On, Works),
    plugin("ValidatingAdmissionWebhook", On, Works),
    plugin("ResourceQuota", On, Works),
    plugin("AlwaysDeny", Off, Works),
];

/// Checks the names of both flags. Errors are the reference's, except for unimplemented plug-ins.
pub fn validate(enable: &[String], disable: &[String]) -> Result<(), String> {
    for (flag, names) in [("enable", enable), ("disable", disable)] {
        if let Some(name) = names.iter().find(|name| !PLUGINS.iter().any(|plugin| plugin.name == **name)) {
            return Err(format!("{flag}-admission-plugins plugin {name:?} is unknown"));
        }
    }
    if let Some(name) = enable.iter().find(|name| MISSED.contains(&name.as_str())) {
        return Err(format!("enable-admission-plugins plugin {name:?} is not supported by this server"));
    }
    let both: BTreeSet<&str> =
        enable.iter().filter(|name| disable.contains(name)).map(String::as_str).collect();
    if both.is_empty() {
        return Ok(());
    }
    let both: Vec<&str> = both.into_iter().collect();
    Err(format!("[{}] in enable-admission-plugins and disable-admission-plugins overlapped", both.join(" ")))
}

/// The enabled plug-ins, in order.
pub fn enabled(enable: &[String], disable: &[String]) -> Vec<&'static str> {
    let on = |plugin: &&Plugin| {
        let named = |names: &[String]| names.iter().any(|name| name == plugin.name);
        named(enable) || (plugin.usually == On && !named(disable))
    };
    PLUGINS.iter().filter(on).map(|plugin| plugin.name).collect()
}

/// Remarks for the operator about plug-ins that were enabled by name.
pub fn remarks(enable: &[String]) -> impl Iterator<Item = String> {
    let absent = PLUGINS.iter().filter(|plugin| plugin.effect == Absent);
    absent
        .filter(|plugin| enable.iter().any(|name| name == plugin.name))
        .map(|plugin| format!("--enable-admission-plugins: {} has no effect here", plugin.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn flags_add_and_take_away_and_the_order_stays() {
        let usual = enabled(&[], &[]);
        assert_eq!(usual.len(), 22);
        assert_eq!(usual.first(), Some(&"NamespaceLifecycle"));
        assert!(usual.contains(&"Priority") && !usual.contains(&"AlwaysPullImages"));
        let changed =
            enabled(&names(&["AlwaysDeny", "AlwaysPullImages"]), &names(&["Priority", "NodeRestriction"]));
        assert!(changed.contains(&"AlwaysPullImages") && !changed.contains(&"Priority"));
        assert_eq!(changed.last(), Some(&"AlwaysDeny"));
    }

    #[test]
    fn unknown_and_contradicting_names_are_refused() {
        assert_eq!(validate(&names(&["Priority"]), &names(&["ServiceAccount"])), Ok(()));
        let wrong =
            |enable: &[&str], disable: &[&str]| validate(&names(enable), &names(disable)).unwrap_err();
        assert_eq!(wrong(&["Nope"], &[]), r#"enable-admission-plugins plugin "Nope" is unknown"#);
        assert_eq!(wrong(&[], &["Nope"]), r#"disable-admission-plugins plugin "Nope" is unknown"#);
        let missed =
            r#"enable-admission-plugins plugin "ImagePolicyWebhook" is not supported by this server"#;
        assert_eq!(wrong(&["ImagePolicyWebhook"], &[]), missed);
        assert_eq!(
            wrong(&["Priority", "LimitRanger"], &["LimitRanger", "Priority"]),
            "[LimitRanger Priority] in enable-admission-plugins and disable-admission-plugins overlapped"
        );
    }

    #[test]
    fn a_plugin_that_does_nothing_is_named() {
        let enable = ["AlwaysAdmit", "ValidatingAdmissionPolicy", "ImagePolicyWebhook"];
        let said: Vec<String> = remarks(&names(&enable)).collect();
        assert_eq!(said, ["--enable-admission-plugins: ImagePolicyWebhook has no effect here"]);
    }
}
