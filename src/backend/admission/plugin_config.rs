//! The operator's configuration of plug-ins, read at start so that mistakes show then.

use std::sync::Arc;

use pilothouse_actors::rates::Limit;

use crate::api::quota::Limited;
use crate::api::value::Value;

use super::{
    event_rates, node_restriction, node_selector, pod_security, quota, toleration_restriction, webhooks,
};

/// The settings of all plug-ins that have a configuration.
pub struct PluginConfig {
    pub(super) pod_security: Arc<pod_security::Configuration>,
    pub(super) event_limits: Vec<event_rates::EventLimit>,
    pub(super) node_selectors: Arc<node_selector::Selectors>,
    pub(super) tolerations: Arc<toleration_restriction::Lists>,
    limited: Vec<Limited>,
    pub(super) webhooks: webhooks::WebhookCredentials,
    /// The feature gate of PodTopologyLabels.
    pub(super) topology_labels: bool,
    pub(super) of_nodes: node_restriction::Allowances,
}

impl PluginConfig {
    /// Reads the configurations of the enabled plug-ins. Errors name the plug-in. `gate` tells whether a feature gate is on.
    pub fn read<'a>(
        enabled: &[&str],
        document: impl Fn(&str) -> Option<&'a Value>,
        gate: impl Fn(&str) -> bool,
    ) -> Result<PluginConfig, String> {
        let of = |plugin: &str| document(plugin).filter(|_| enabled.contains(&plugin));
        let broken = |plugin: &'static str| move |why: String| format!("{plugin}: {why}");
        let relaxed = gate("UserNamespacesPodSecurityStandards");
        let pod_security = pod_security::Configuration::read(of("PodSecurity"), relaxed);
        let node_selectors = node_selector::read(of("PodNodeSelector"));
        let tolerations = toleration_restriction::read(of("PodTolerationRestriction"));
        let event_limits = if enabled.contains(&"EventRateLimit") {
            event_rates::read(of("EventRateLimit")).map_err(broken("EventRateLimit"))?
        } else {
            Vec::new()
        };
        let limited = quota::read(of("ResourceQuota"));
        Ok(PluginConfig {
            pod_security: Arc::new(pod_security.map_err(broken("PodSecurity"))?),
            event_limits,
            node_selectors: Arc::new(node_selectors.map_err(broken("PodNodeSelector"))?),
            tolerations: Arc::new(tolerations.map_err(broken("PodTolerationRestriction"))?),
            limited: limited.map_err(broken("ResourceQuota"))?,
            webhooks: webhooks::WebhookCredentials::read(of(webhooks::MUTATING), of(webhooks::VALIDATING))?,
            topology_labels: gate("PodTopologyLabelsAdmission"),
            of_nodes: node_restriction::Allowances::read(&gate),
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
    use super::*;

    #[test]
    fn documents_of_plugins_that_are_off_are_not_read() {
        let broken = Value::object();
        let read = |enabled: &[&str]| PluginConfig::read(enabled, |_| Some(&broken), |_| false).map(drop);
        assert_eq!(read(&["Priority"]), Ok(()));
        for plugin in
            ["PodSecurity", "EventRateLimit", "PodTolerationRestriction", "ResourceQuota", webhooks::MUTATING]
        {
            let error = read(&[plugin]).unwrap_err();
            assert!(error.starts_with(&format!("{plugin}: ")), "{error}");
        }
    }
}
