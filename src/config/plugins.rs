//! The admission plug-ins of the reference: names, order and defaults.

use std::collections::BTreeSet;

use pilothouse_api::admission_plugins::PluginName;

use super::external_authenticators::listed;
use super::flag_groups::Api;

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

/// What the flags say about plug-ins.
pub struct PluginFlags {
    /// `--admission-control`, the deprecated flag: these and no others. An empty list switches all off.
    only: Option<Vec<String>>,
    /// `--enable-admission-plugins`: these besides the usual ones.
    enable: Option<Vec<String>>,
    /// `--disable-admission-plugins`: the usual ones without these.
    disable: Option<Vec<String>>,
}

/// The names that a flag was given; `None` if it was not.
fn given(words: &[String]) -> Option<Vec<String>> {
    (!words.is_empty()).then(|| listed(words))
}

fn is_named(names: Option<&Vec<String>>, plugin: PluginName) -> bool {
    names.is_some_and(|names| names.iter().any(|name| name == plugin.as_str()))
}

impl PluginFlags {
    /// The flags as they were given.
    pub fn new(flags: &Api) -> PluginFlags {
        PluginFlags {
            only: given(&flags.admission_control),
            enable: given(&flags.enable_admission_plugins),
            disable: given(&flags.disable_admission_plugins),
        }
    }

    /// Checks the names. Errors are the reference's, except for unimplemented plug-ins.
    pub fn validate(&self) -> Result<(), String> {
        if self.only.is_some() && (self.enable.is_some() || self.disable.is_some()) {
            return Err("admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually \
                        exclusive"
                .to_owned());
        }
        let lists = [
            ("admission-control", &self.only),
            ("enable-admission-plugins", &self.enable),
            ("disable-admission-plugins", &self.disable),
        ];
        for (flag, names) in lists {
            let is_known = |name: &String| PLUGINS.iter().any(|plugin| plugin.name.as_str() == *name);
            if let Some(name) = names.iter().flatten().find(|name| !is_known(name)) {
                return Err(format!("{flag} plugin {name:?} is unknown"));
            }
        }
        for (flag, names) in [("admission-control", &self.only), ("enable-admission-plugins", &self.enable)] {
            if let Some(missed) = MISSED.iter().find(|missed| is_named(names.as_ref(), **missed)) {
                return Err(format!("{flag} plugin {:?} is not supported by this server", missed.as_str()));
            }
        }
        let (enable, disable) = (self.enable.iter().flatten(), self.disable.iter().flatten());
        let disable: BTreeSet<&String> = disable.collect();
        let both: BTreeSet<&str> = enable.filter(|name| disable.contains(name)).map(String::as_str).collect();
        if both.is_empty() {
            return Ok(());
        }
        let both: Vec<&str> = both.into_iter().collect();
        let both = both.join(" ");
        Err(format!("[{both}] in enable-admission-plugins and disable-admission-plugins overlapped"))
    }

    /// The enabled plug-ins, in the order in which they run, whatever the order of the names.
    pub fn enabled(&self) -> Vec<PluginName> {
        let on = |plugin: &&Plugin| match &self.only {
            Some(only) => is_named(Some(only), plugin.name),
            None => {
                is_named(self.enable.as_ref(), plugin.name)
                    || (plugin.usually == On && !is_named(self.disable.as_ref(), plugin.name))
            }
        };
        PLUGINS.iter().filter(on).map(|plugin| plugin.name).collect()
    }

    /// Remarks for the operator.
    pub fn remarks(&self) -> impl Iterator<Item = String> {
        let deprecated = "Flag --admission-control has been deprecated, Use --enable-admission-plugins or \
                          --disable-admission-plugins instead. Will be removed in a future version.";
        let absent = PLUGINS.iter().filter(|plugin| plugin.effect == Absent);
        let absent = absent
            .filter(|plugin| is_named(self.enable.as_ref(), plugin.name))
            .map(|plugin| format!("--enable-admission-plugins: {} has no effect here", plugin.name.as_str()));
        self.only.iter().map(move |_| deprecated.to_owned()).chain(absent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn flags(line: &str) -> PluginFlags {
        let line = std::iter::once("pilothouse").chain(line.split_whitespace());
        PluginFlags::new(&Config::parse(line).unwrap().api)
    }

    fn names(plugins: &[PluginName]) -> Vec<&'static str> {
        plugins.iter().map(|plugin| plugin.as_str()).collect()
    }

    #[test]
    fn flags_add_and_take_away_and_the_order_stays() {
        let usual = flags("").enabled();
        assert_eq!(usual.len(), 22);
        assert_eq!(usual.first(), Some(&PluginName::NamespaceLifecycle));
        assert!(usual.contains(&PluginName::Priority) && !usual.contains(&PluginName::AlwaysPullImages));
        assert_eq!(flags("--enable-admission-plugins= --disable-admission-plugins=").enabled(), usual);
        let changed = "--enable-admission-plugins=AlwaysDeny,AlwaysPullImages \
                       --disable-admission-plugins=Priority,NodeRestriction";
        let changed = flags(changed).enabled();
        assert!(changed.contains(&PluginName::AlwaysPullImages) && !changed.contains(&PluginName::Priority));
        assert_eq!(changed.last(), Some(&PluginName::AlwaysDeny));
    }

    #[test]
    fn admission_control_names_all_that_are_on() {
        let strict = flags("--admission-control=AlwaysDeny,NodeRestriction --admission-control=LimitRanger");
        assert_eq!(strict.validate(), Ok(()));
        assert_eq!(names(&strict.enabled()), ["LimitRanger", "NodeRestriction", "AlwaysDeny"]);
        let said: Vec<String> = strict.remarks().collect();
        assert!(
            matches!(said.as_slice(), [one] if one.starts_with("Flag --admission-control has been deprecated"))
        );
        let none = flags("--admission-control=");
        assert_eq!(
            (none.validate(), none.enabled().len()),
            (Ok(()), 0),
            "no plug-in is named, so none is on"
        );
    }

    #[test]
    fn unknown_and_contradicting_names_are_refused() {
        let accepted =
            flags("--enable-admission-plugins=Priority --disable-admission-plugins=ServiceAccount");
        assert_eq!(accepted.validate(), Ok(()));
        let exclusive = "admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive";
        for (line, error) in [
            ("--enable-admission-plugins=Nope", r#"enable-admission-plugins plugin "Nope" is unknown"#),
            ("--disable-admission-plugins=Nope", r#"disable-admission-plugins plugin "Nope" is unknown"#),
            ("--admission-control=Priority,Nope", r#"admission-control plugin "Nope" is unknown"#),
            ("--admission-control=Priority,", r#"admission-control plugin "" is unknown"#),
            (
                "--enable-admission-plugins=ImagePolicyWebhook",
                r#"enable-admission-plugins plugin "ImagePolicyWebhook" is not supported by this server"#,
            ),
            (
                "--admission-control=ImagePolicyWebhook",
                r#"admission-control plugin "ImagePolicyWebhook" is not supported by this server"#,
            ),
            (
                "--enable-admission-plugins=Priority,LimitRanger --disable-admission-plugins=LimitRanger,Priority",
                "[LimitRanger Priority] in enable-admission-plugins and disable-admission-plugins overlapped",
            ),
            ("--admission-control=Priority --enable-admission-plugins=Priority", exclusive),
            ("--admission-control=Priority --disable-admission-plugins=", exclusive),
            ("--admission-control= --enable-admission-plugins=", exclusive),
        ] {
            assert_eq!(flags(line).validate(), Err(error.to_owned()), "{line}");
        }
    }

    #[test]
    fn a_plugin_that_does_nothing_is_named() {
        let line = "--enable-admission-plugins=AlwaysAdmit,ValidatingAdmissionPolicy,ImagePolicyWebhook";
        let said: Vec<String> = flags(line).remarks().collect();
        assert_eq!(said, ["--enable-admission-plugins: ImagePolicyWebhook has no effect here"]);
    }
}
