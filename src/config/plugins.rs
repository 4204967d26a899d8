//! The admission plug-ins of the reference: names, order and defaults.

use std::collections::BTreeSet;

use crate::api::admission_plugins::PluginName;

use self::DefaultState::{Off, On};
use self::Effect::{Absent, Idle, Works};

/// One plug-in.
#[derive(Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Its name.
    pub name: PluginName,
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

const fn plugin(name: PluginName, usually: DefaultState, effect: Effect) -> Plugin {
    Plugin { name, usually, effect }
}

/// Unimplemented plug-ins that are refused: ignoring them would admit images that the operator wants to refuse.
const MISSED: [PluginName; 1] = [PluginName::ImagePolicyWebhook];

/// All plug-ins, in the order in which they run.
pub const PLUGINS: [Plugin; 36] = [
    plugin(PluginName::AlwaysAdmit, Off, Idle),
    plugin(PluginName::NamespaceAutoProvision, Off, Works),
    plugin(PluginName::NamespaceLifecycle, On, Works),
    plugin(PluginName::NamespaceExists, Off, Works),
    plugin(PluginName::LimitPodHardAntiAffinityTopology, Off, Works),
    plugin(PluginName::LimitRanger, On, Works),
    plugin(PluginName::ServiceAccount, On, Works),
    plugin(PluginName::NodeRestriction, Off, Works),
    plugin(PluginName::TaintNodesByCondition, On, Works),
    plugin(PluginName::AlwaysPullImages, Off, Works),
    plugin(PluginName::ImagePolicyWebhook, Off, Absent),
    plugin(PluginName::PodSecurity, On, Works),
    plugin(PluginName::PodNodeSelector, Off, Works),
    plugin(PluginName::Priority, On, Works),
    plugin(PluginName::DefaultTolerationSeconds, On, Works),
    plugin(PluginName::PodTolerationRestriction, Off, Works),
    plugin(PluginName::EventRateLimit, Off, Works),
    plugin(PluginName::ExtendedResourceToleration, Off, Works),
    plugin(PluginName::DefaultStorageClass, On, Works),
    plugin(PluginName::StorageObjectInUseProtection, On, Works),
    plugin(PluginName::OwnerReferencesPermissionEnforcement, Off, Works),
    plugin(PluginName::PersistentVolumeClaimResize, On, Works),
    plugin(PluginName::RuntimeClass, On, Works),
    plugin(PluginName::CertificateApproval, On, Works),
    plugin(PluginName::CertificateSigning, On, Works),
    plugin(PluginName::ClusterTrustBundleAttest, On, Works),
    plugin(PluginName::CertificateSubjectRestriction, On, Works),
    plugin(PluginName::DefaultIngressClass, On, Works),
    plugin(PluginName::DenyServiceExternalIPs, Off, Works),
    plugin(PluginName::PodTopologyLabels, On, Works),
    plugin(PluginName::MutatingAdmissionPolicy, On, Works),
    plugin(PluginName::MutatingAdmissionWebhook, On, Works),
    plugin(PluginName::ValidatingAdmissionPolicy, On, Works),
    plugin(PluginName::ValidatingAdmissionWebhook, On, Works),
    plugin(PluginName::ResourceQuota, On, Works),
    plugin(PluginName::AlwaysDeny, Off, Works),
];

/// Checks the names of both flags. Errors are the reference's, except for unimplemented plug-ins.
pub fn validate(enable: &[String], disable: &[String]) -> Result<(), String> {
    for (flag, names) in [("enable", enable), ("disable", disable)] {
        if let Some(name) =
            names.iter().find(|name| !PLUGINS.iter().any(|plugin| plugin.name.as_str() == **name))
        {
            return Err(format!("{flag}-admission-plugins plugin {name:?} is unknown"));
        }
    }
    if let Some(name) = enable.iter().find(|name| MISSED.iter().any(|missed| missed.as_str() == **name)) {
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
pub fn enabled(enable: &[String], disable: &[String]) -> Vec<PluginName> {
    let on = |plugin: &&Plugin| {
        let named = |names: &[String]| names.iter().any(|name| name == plugin.name.as_str());
        named(enable) || (plugin.usually == On && !named(disable))
    };
    PLUGINS.iter().filter(on).map(|plugin| plugin.name).collect()
}

/// Remarks for the operator about plug-ins that were enabled by name.
pub fn remarks(enable: &[String]) -> impl Iterator<Item = String> {
    let absent = PLUGINS.iter().filter(|plugin| plugin.effect == Absent);
    absent
        .filter(|plugin| enable.iter().any(|name| name == plugin.name.as_str()))
        .map(|plugin| format!("--enable-admission-plugins: {} has no effect here", plugin.name.as_str()))
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
        assert_eq!(usual.first(), Some(&PluginName::NamespaceLifecycle));
        assert!(usual.contains(&PluginName::Priority) && !usual.contains(&PluginName::AlwaysPullImages));
        let changed =
            enabled(&names(&["AlwaysDeny", "AlwaysPullImages"]), &names(&["Priority", "NodeRestriction"]));
        assert!(changed.contains(&PluginName::AlwaysPullImages) && !changed.contains(&PluginName::Priority));
        assert_eq!(changed.last(), Some(&PluginName::AlwaysDeny));
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
