//! The admission plug-ins of kube-apiserver: names, order and defaults.

use std::collections::BTreeSet;

use pilothouse_api::admission_plugins::PluginName;

use super::flag_groups::Api;
use super::values::non_empty_list;

use self::DefaultState::{Off, On};
use self::Effect::{Idle, Works};

/// One plug-in.
#[derive(Debug, PartialEq, Eq)]
pub struct Plugin {
    /// The name of the plug-in.
    pub name: PluginName,
    /// Whether it is on by default.
    pub default_state: DefaultState,
    /// Its effect when it is on.
    pub effect: Effect,
}

/// Whether a plug-in is on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultState {
    /// On by default.
    On,
    /// On only if a flag names it.
    Off,
}

/// The effect of a plug-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// That of kube-apiserver.
    Works,
    /// None, as in kube-apiserver.
    Idle,
}

const fn plugin(name: PluginName, default_state: DefaultState, effect: Effect) -> Plugin {
    Plugin { name, default_state, effect }
}

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
    plugin(PluginName::ImagePolicyWebhook, Off, Works),
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

/// The flags of plug-ins.
pub struct PluginFlags {
    /// `--admission-control`, the deprecated flag: exactly these. An empty list disables all.
    exact: Option<Vec<String>>,
    /// `--enable-admission-plugins`: these in addition to the default ones.
    enable: Option<Vec<String>>,
    /// `--disable-admission-plugins`: the default ones without these.
    disable: Option<Vec<String>>,
}

/// The names in a flag; `None` if it is not set.
fn flag_names(values: &[String]) -> Option<Vec<String>> {
    (!values.is_empty()).then(|| non_empty_list(values))
}

fn is_named(names: Option<&Vec<String>>, plugin: PluginName) -> bool {
    names.is_some_and(|names| names.iter().any(|name| name == plugin.as_str()))
}

impl PluginFlags {
    /// Reads the flags.
    pub fn new(flags: &Api) -> PluginFlags {
        PluginFlags {
            exact: flag_names(&flags.admission_control),
            enable: flag_names(&flags.enable_admission_plugins),
            disable: flag_names(&flags.disable_admission_plugins),
        }
    }

    /// Checks the names. Errors are kube-apiserver's.
    pub fn validate(&self) -> Result<(), String> {
        if self.exact.is_some() && (self.enable.is_some() || self.disable.is_some()) {
            return Err("admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually \
                        exclusive"
                .to_owned());
        }
        let lists = [
            ("admission-control", &self.exact),
            ("enable-admission-plugins", &self.enable),
            ("disable-admission-plugins", &self.disable),
        ];
        for (flag, names) in lists {
            let is_known = |name: &String| PLUGINS.iter().any(|plugin| plugin.name.as_str() == *name);
            if let Some(name) = names.iter().flatten().find(|name| !is_known(name)) {
                return Err(format!("{flag} plugin {name:?} is unknown"));
            }
        }
        let (enable, disable) = (self.enable.iter().flatten(), self.disable.iter().flatten());
        let disable: BTreeSet<&String> = disable.collect();
        let overlap: BTreeSet<&str> =
            enable.filter(|name| disable.contains(name)).map(String::as_str).collect();
        if overlap.is_empty() {
            return Ok(());
        }
        let overlap: Vec<&str> = overlap.into_iter().collect();
        let overlap = overlap.join(" ");
        Err(format!("[{overlap}] in enable-admission-plugins and disable-admission-plugins overlapped"))
    }

    /// The enabled plug-ins, in the order in which they run, whatever the order of the names.
    pub fn enabled(&self) -> Vec<PluginName> {
        let is_enabled = |plugin: &&Plugin| match &self.exact {
            Some(exact) => is_named(Some(exact), plugin.name),
            None => {
                is_named(self.enable.as_ref(), plugin.name)
                    || (plugin.default_state == On && !is_named(self.disable.as_ref(), plugin.name))
            }
        };
        PLUGINS.iter().filter(is_enabled).map(|plugin| plugin.name).collect()
    }

    /// Warnings about deprecated flags.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let deprecated = "Flag --admission-control has been deprecated, Use --enable-admission-plugins or \
                          --disable-admission-plugins instead. Will be removed in a future version.";
        self.exact.iter().map(move |_| deprecated.to_owned())
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
    fn admission_plugin_flags_keep_the_execution_order() {
        let default_plugins = flags("").enabled();
        assert_eq!(default_plugins.len(), 22);
        assert_eq!(default_plugins.first(), Some(&PluginName::NamespaceLifecycle));
        assert!(
            default_plugins.contains(&PluginName::Priority)
                && !default_plugins.contains(&PluginName::AlwaysPullImages)
        );
        assert_eq!(
            flags("--enable-admission-plugins= --disable-admission-plugins=").enabled(),
            default_plugins
        );
        let changed = "--enable-admission-plugins=AlwaysDeny,AlwaysPullImages \
                       --disable-admission-plugins=Priority,NodeRestriction";
        let changed = flags(changed).enabled();
        assert!(changed.contains(&PluginName::AlwaysPullImages) && !changed.contains(&PluginName::Priority));
        assert_eq!(changed.last(), Some(&PluginName::AlwaysDeny));
    }

    #[test]
    fn admission_control_flag_lists_exactly_the_enabled_plugins() {
        let exact = flags("--admission-control=AlwaysDeny,NodeRestriction --admission-control=LimitRanger");
        assert_eq!(exact.validate(), Ok(()));
        assert_eq!(names(&exact.enabled()), ["LimitRanger", "NodeRestriction", "AlwaysDeny"]);
        let warnings: Vec<String> = exact.warnings().collect();
        assert!(
            matches!(warnings.as_slice(), [warning] if warning.starts_with("Flag --admission-control has been deprecated"))
        );
        let no_plugins = flags("--admission-control=");
        assert_eq!(
            (no_plugins.validate(), no_plugins.enabled().len()),
            (Ok(()), 0),
            "the empty list disables all"
        );
    }

    #[test]
    fn unknown_and_contradicting_admission_plugins_are_refused() {
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
}
