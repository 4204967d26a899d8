use actix::Actor as _;
use futures::future::ready;
use pilothouse_actors::batcher::Batcher;
use pilothouse_actors::directory::{Options, start};
use pilothouse_actors::engine::memory::Memory;
use pilothouse_api::quota::Features;
use pilothouse_apimachinery::document;
use pilothouse_apimachinery::schema::Registry;
use pilothouse_client::upstream::pool::Pool;
use pilothouse_types::clock::{Clock, Timestamp};

use super::policies::table::PolicyKind;
use super::*;
use crate::config::plugins::{Effect, PLUGINS};
use crate::live_index::LiveIndexes;

#[actix_rt::test]
async fn new_plugin_is_some_for_working_plugins_only() {
    let storage = start(Box::new(Memory::new()), Options::default()).unwrap();
    let clock = Clock::manual(Timestamp(0));
    let registry = Arc::new(Registry::builtin().unwrap());
    let indexes = LiveIndexes::new(storage.directory.clone(), registry);
    let (metrics, pool) = (Arc::new(Metrics::new(Timestamp(0)).unwrap()), Pool::new(clock.clone()));
    let features = Features {
        resized_pods: false,
        pod_resources: false,
        failed_expansion: false,
        attributes_classes: false,
        device_claims: false,
    };
    let charger = Batcher::new(Box::new(|_, _| Box::pin(ready(()))), storage.fatal.clone()).start();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("images.kubeconfig");
    let text = "clusters: [{name: c, cluster: {server: 'https://images.test'}}]\ncontexts: [{name: c, context: {cluster: c}}]\n\
                current-context: c\n";
    std::fs::write(&kubeconfig, text).unwrap();
    let image_policy_config = format!("imagePolicy: {{kubeConfigFile: {}}}", kubeconfig.display());
    let image_policy_config = document::parse(image_policy_config.as_bytes()).unwrap();
    let equivalents: Equivalents = Arc::new(|_, _| Vec::new());
    let settings = Settings {
        enabled: Vec::new(),
        not_ready_seconds: 300,
        unreachable_seconds: 300,
        quota: quota::Settings { limited: Vec::new(), features, charger },
        configured: PluginConfig::read(
            &[PluginName::ImagePolicyWebhook],
            |_| Some(&image_policy_config),
            |_| true,
            &pool,
        )
        .unwrap(),
        rates: Rates::new([], clock.clone()).start(),
        make_namespace: |_, _, _| Box::pin(async { Ok(()) }),
        kinds: Arc::new(|_, _, _| Vec::new()),
        webhooks: webhooks::Settings {
            hooks: webhooks::open(&indexes, pool.clone()).await.unwrap(),
            equivalents: equivalents.clone(),
            to_endpoints: false,
            metrics: metrics.clone(),
            clock,
            pool,
        },
        equivalents,
        policies: policies::table::open(&indexes, PolicyKind::Validating).await.unwrap(),
        mutating_policies: Some(policies::table::open(&indexes, PolicyKind::Mutating).await.unwrap()),
        _lookup_guards: lookup::open(&indexes).await.unwrap(),
        metrics,
    };
    for plugin in &PLUGINS {
        let is_some = new_plugin(plugin.name, &settings).is_some();
        assert_eq!(is_some, plugin.effect == Effect::Works, "{}", plugin.name.as_str());
    }
}
