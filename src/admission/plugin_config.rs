//! The operator's configuration of plug-ins, read at start so that mistakes show then.

use std::sync::Arc;

use pilothouse_actors::rates::Limit;
use pilothouse_api::admission_plugins::PluginName;
use pilothouse_api::gates::{POD_TOPOLOGY_LABELS_ADMISSION, USER_NAMESPACES_POD_SECURITY_STANDARDS};
use pilothouse_api::quota::Limited;
use pilothouse_apimachinery::value::Value;
use pilothouse_client::upstream::pool::Pool;

use super::{
    event_rates, image_policy, node_restriction, node_selector, pod_security, quota, toleration_restriction,
    webhooks,
};

/// The settings of all plug-ins that have a configuration.
pub struct PluginConfig {
    pub(super) pod_security: Arc<pod_security::Configuration>,
    pub(super) event_limits: Vec<event_rates::EventLimit>,
    pub(super) node_selectors: Arc<node_selector::Selectors>,
    pub(super) tolerations: Arc<toleration_restriction::Tolerations>,
    /// The remote server of ImagePolicyWebhook, if that is enabled.
    pub(super) image_policy: Option<Arc<image_policy::Reviewer>>,
    limited: Vec<Limited>,
    pub(super) webhooks: webhooks::WebhookCredentials,
    /// The feature gate of PodTopologyLabels.
    pub(super) topology_labels: bool,
    pub(super) node_restriction_allowances: node_restriction::Allowances,
}

impl PluginConfig {
    /// Reads the configurations of the enabled plug-ins. Errors name the plug-in. `gate` tells whether a feature gate is on,
    /// `pool` has the connections of this server.
    pub fn read<'a>(
        enabled: &[PluginName],
        document: impl Fn(&str) -> Option<&'a Value>,
        gate: impl Fn(&str) -> bool,
        pool: &Arc<Pool>,
    ) -> Result<PluginConfig, String> {
        let config_of = |plugin: PluginName| document(plugin.as_str()).filter(|_| enabled.contains(&plugin));
        let in_plugin = |plugin: PluginName| move |reason: String| format!("{}: {reason}", plugin.as_str());
        let relaxed = gate(USER_NAMESPACES_POD_SECURITY_STANDARDS);
        let pod_security = pod_security::Configuration::read(config_of(PluginName::PodSecurity), relaxed);
        let node_selectors = node_selector::read(config_of(PluginName::PodNodeSelector));
        let tolerations = toleration_restriction::read(config_of(PluginName::PodTolerationRestriction));
        let event_limits = if enabled.contains(&PluginName::EventRateLimit) {
            event_rates::read(config_of(PluginName::EventRateLimit))
                .map_err(in_plugin(PluginName::EventRateLimit))?
        } else {
            Vec::new()
        };
        let image_policy = if enabled.contains(&PluginName::ImagePolicyWebhook) {
            let reviewer = image_policy::Configuration::read(config_of(PluginName::ImagePolicyWebhook))
                .and_then(|configuration| image_policy::Reviewer::new(configuration, pool));
            Some(Arc::new(reviewer.map_err(in_plugin(PluginName::ImagePolicyWebhook))?))
        } else {
            None
        };
        let limited = quota::read(config_of(PluginName::ResourceQuota));
        Ok(PluginConfig {
            pod_security: Arc::new(pod_security.map_err(in_plugin(PluginName::PodSecurity))?),
            event_limits,
            node_selectors: Arc::new(node_selectors.map_err(in_plugin(PluginName::PodNodeSelector))?),
            tolerations: Arc::new(tolerations.map_err(in_plugin(PluginName::PodTolerationRestriction))?),
            image_policy,
            limited: limited.map_err(in_plugin(PluginName::ResourceQuota))?,
            webhooks: webhooks::WebhookCredentials::read(
                config_of(PluginName::MutatingAdmissionWebhook),
                config_of(PluginName::ValidatingAdmissionWebhook),
            )?,
            topology_labels: gate(POD_TOPOLOGY_LABELS_ADMISSION),
            node_restriction_allowances: node_restriction::Allowances::read(&gate),
        })
    }

    /// Resources that may be used only if a quota covers them.
    pub fn limited(&self) -> &[Limited] {
        &self.limited
    }

    /// The limits of EventRateLimit.
    pub fn event_limits(&self) -> impl Iterator<Item = Limit> + use<'_> {
        self.event_limits.iter().map(|(_, limit)| *limit)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_types::clock::Clock;

    use super::*;

    #[test]
    fn plugin_config_ignores_disabled_plugins() {
        let invalid = Value::object();
        let read = |enabled: &[PluginName]| {
            PluginConfig::read(enabled, |_| Some(&invalid), |_| false, &Pool::new(Clock::system())).map(drop)
        };
        assert_eq!(read(&[PluginName::Priority]), Ok(()));
        for plugin in [
            PluginName::PodSecurity,
            PluginName::EventRateLimit,
            PluginName::ImagePolicyWebhook,
            PluginName::PodTolerationRestriction,
            PluginName::ResourceQuota,
            PluginName::MutatingAdmissionWebhook,
        ] {
            let error = read(&[plugin]).unwrap_err();
            assert!(error.starts_with(&format!("{}: ", plugin.as_str())), "{error}");
        }
    }
}
