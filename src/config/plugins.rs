//! The admission plug-ins of the reference server: which there are, in which order they work, and which are on.

use std::collections::BTreeSet;

/// One plug-in.
#[derive(Debug, PartialEq, Eq)]
pub struct Plugin {
    /// What the command line calls it.
    pub name: &'static str,
    /// Whether it is on when nothing is said.
    pub default: bool,
    /// Whether it does something here. A name without effect is taken, so that start scripts work, and named in the log.
    pub present: bool,
}

const fn plugin(name: &'static str, default: bool, present: bool) -> Plugin {
    Plugin { name, default, present }
}

/// Those that are not here and that nobody should believe in: whoever names them wants images to be refused.
const MISSED: [&str; 1] = ["ImagePolicyWebhook"];

/// All of them, in the order in which they see a write.
pub const PLUGINS: [Plugin; 36] = [
    plugin("AlwaysAdmit", false, true),
    plugin("NamespaceAutoProvision", false, true),
    plugin("NamespaceLifecycle", true, true),
    plugin("NamespaceExists", false, true),
    plugin("LimitPodHardAntiAffinityTopology", false, true),
    plugin("LimitRanger", true, true),
    plugin("ServiceAccount", true, true),
    plugin("NodeRestriction", false, true),
    plugin("TaintNodesByCondition", true, true),
    plugin("AlwaysPullImages", false, true),
    plugin("ImagePolicyWebhook", false, false),
    plugin("PodSecurity", true, true),
    plugin("PodNodeSelector", false, true),
    plugin("Priority", true, true),
    plugin("DefaultTolerationSeconds", true, true),
    plugin("PodTolerationRestriction", false, true),
    plugin("EventRateLimit", false, true),
    plugin("ExtendedResourceToleration", false, true),
    plugin("DefaultStorageClass", true, true),
    plugin("StorageObjectInUseProtection", true, true),
    plugin("OwnerReferencesPermissionEnforcement", false, true),
    plugin("PersistentVolumeClaimResize", true, true),
    plugin("RuntimeClass", true, true),
    plugin("CertificateApproval", true, true),
    plugin("CertificateSigning", true, true),
    plugin("ClusterTrustBundleAttest", true, true),
    plugin("CertificateSubjectRestriction", true, true),
    plugin("DefaultIngressClass", true, true),
    plugin("DenyServiceExternalIPs", false, true),
    plugin("PodTopologyLabels", true, true),
    plugin("MutatingAdmissionPolicy", true, true),
    plugin("MutatingAdmissionWebhook", true, true),
    plugin("ValidatingAdmissionPolicy", true, true),
    plugin("ValidatingAdmissionWebhook", true, true),
    plugin("ResourceQuota", true, true),
    plugin("AlwaysDeny", false, true),
];

/// Checks the names of both flags. The errors are the reference's, but for what is not here.
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

/// The plug-ins that are on, in order.
pub fn enabled(enable: &[String], disable: &[String]) -> Vec<&'static str> {
    let on = |plugin: &&Plugin| {
        let named = |names: &[String]| names.iter().any(|name| name == plugin.name);
        named(enable) || (plugin.default && !named(disable))
    };
    PLUGINS.iter().filter(on).map(|plugin| plugin.name).collect()
}

/// What the operator should know of plug-ins that were asked for by name.
pub fn remarks(enable: &[String]) -> impl Iterator<Item = String> {
    let absent = PLUGINS.iter().filter(|plugin| !plugin.present);
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
        let said: Vec<String> = remarks(&names(&["Priority", "ImagePolicyWebhook"])).collect();
        assert_eq!(said, ["--enable-admission-plugins: ImagePolicyWebhook has no effect here"]);
    }
}
