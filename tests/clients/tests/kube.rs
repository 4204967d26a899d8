//! kube-rs against an embedded server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "kube/restoration.rs"]
mod restoration;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, ObjectMeta, PostParams, PropagationPolicy, WatchEvent,
    WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::discovery::{Discovery, Scope};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Client, Config, ResourceExt};
use pilothouse::{Handle, Server};
use serde_json::json;

/// An embedded server without controllers, and an administrator's client.
async fn start_server() -> (Handle, Client) {
    start_server_with("-*").await
}

/// The same with these controllers.
async fn start_server_with(controllers: &str) -> (Handle, Client) {
    let server = Server::start(server_config(controllers)).expect("a server");
    let client = admin_client(&server).await;
    (server, client)
}

fn server_config(controllers: &str) -> pilothouse::Config {
    let mut config = pilothouse::Config::ephemeral();
    config.controllers.controllers = vec![controllers.to_owned()];
    if controllers == "-*" {
        // Without controllers there are no default service accounts, so pods must not need one.
        config.api.disable_admission_plugins = vec!["ServiceAccount".to_owned()];
    }
    config
}

async fn admin_client(server: &Handle) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(server.kubeconfig()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("key".to_owned(), value.to_owned())])),
        ..ConfigMap::default()
    }
}

fn code(error: kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("not an answer of the API: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn object_is_created_replaced_and_deleted() {
    let (_server, client) = start_server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let created = maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    assert!(created.uid().is_some() && created.resource_version().is_some());
    let twice = maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap_err();
    assert_eq!(code(twice), 409);

    let mut changed = maps.get("a").await.unwrap();
    changed.data = Some(BTreeMap::from([("key".to_owned(), "2".to_owned())]));
    let changed = maps.replace("a", &PostParams::default(), &changed).await.unwrap();
    assert_ne!(changed.resource_version(), created.resource_version());
    let stale = maps.replace("a", &PostParams::default(), &created).await.unwrap_err();
    assert_eq!(code(stale), 409);

    let dry = PostParams { dry_run: true, ..PostParams::default() };
    maps.create(&dry, &config_map("dry", "1")).await.unwrap();
    assert!(maps.get_opt("dry").await.unwrap().is_none());

    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(code(maps.get("a").await.unwrap_err()), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_support_paging_selectors_and_metadata_only() {
    let (_server, client) = start_server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for number in 0..7 {
        let mut map = config_map(&format!("m{number}"), "1");
        map.metadata.labels = Some(BTreeMap::from([("odd".to_owned(), (number % 2 == 1).to_string())]));
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    let mut page = maps.list(&ListParams::default().limit(3)).await.unwrap();
    let mut names: Vec<String> = page.items.iter().map(ResourceExt::name_any).collect();
    while let Some(token) = page.metadata.continue_.clone().filter(|token| !token.is_empty()) {
        page = maps.list(&ListParams::default().limit(3).continue_token(&token)).await.unwrap();
        names.extend(page.items.iter().map(ResourceExt::name_any));
    }
    assert_eq!(names, ["m0", "m1", "m2", "m3", "m4", "m5", "m6"]);
    let odd_maps = maps.list(&ListParams::default().labels("odd=true")).await.unwrap();
    assert_eq!(odd_maps.items.len(), 3);

    let metadata = maps.list_metadata(&ListParams::default().labels("odd=false")).await.unwrap();
    assert_eq!(metadata.items.len(), 4);
    assert_eq!(metadata.items[0].metadata.labels.as_ref().unwrap()["odd"], "false");
    let metadata_of_m1 = maps.get_metadata("m1").await.unwrap();
    assert_eq!(metadata_of_m1.types.unwrap().kind, "PartialObjectMetadata");
    assert_eq!(metadata_of_m1.metadata.name.as_deref(), Some("m1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_reports_added_modified_and_deleted() {
    let (_server, client) = start_server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let version = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = maps.watch(&WatchParams::default().timeout(60), &version).await.unwrap().boxed();
    maps.create(&PostParams::default(), &config_map("w", "1")).await.unwrap();
    let mut map = maps.get("w").await.unwrap();
    map.data = None;
    maps.replace("w", &PostParams::default(), &map).await.unwrap();
    maps.delete("w", &DeleteParams::default()).await.unwrap();
    let mut received = Vec::new();
    while received.len() < 3 {
        match events.try_next().await.unwrap().expect("the watch goes on") {
            WatchEvent::Added(map) => received.push(("added", map.name_any())),
            WatchEvent::Modified(map) => received.push(("modified", map.name_any())),
            WatchEvent::Deleted(map) => received.push(("deleted", map.name_any())),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(error) => panic!("{error:?}"),
        }
    }
    let expected = ["added", "modified", "deleted"].map(|kind| (kind, "w".to_owned()));
    assert_eq!(received, expected);

    let mut metadata =
        maps.watch_metadata(&WatchParams::default().timeout(60), &version).await.unwrap().boxed();
    let Some(WatchEvent::Added(first)) = metadata.try_next().await.unwrap() else { panic!("an addition") };
    assert_eq!(
        (first.name_any().as_str(), first.types.unwrap().kind.as_str()),
        ("w", "PartialObjectMetadata")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn watcher_yields_each_object_once() {
    let (_server, client) = start_server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    maps.create(&PostParams::default(), &config_map("before", "1")).await.unwrap();
    let mut stream = watcher(maps.clone(), watcher::Config::default()).applied_objects().boxed();
    let next = async |stream: &mut futures::stream::BoxStream<'static, watcher::Result<ConfigMap>>| {
        let next = tokio::time::timeout(Duration::from_secs(60), stream.try_next()).await.expect("in time");
        next.unwrap().expect("the watcher goes on").name_any()
    };
    assert_eq!(next(&mut stream).await, "before");
    maps.create(&PostParams::default(), &config_map("after", "1")).await.unwrap();
    assert_eq!(next(&mut stream).await, "after");
}

#[tokio::test(flavor = "multi_thread")]
async fn reflector_store_follows_changes() {
    let (_server, client) = start_server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    maps.create(&PostParams::default(), &config_map("before", "1")).await.unwrap();
    let (reader, writer) = reflector::store();
    let events = reflector(writer, watcher(maps.clone(), watcher::Config::default())).default_backoff();
    let mut events = events.boxed();
    let holds = |name: &str, value: Option<&str>| {
        let held = reader.state().into_iter().find(|held| held.name_any() == name);
        let held = held.and_then(|held| held.data.as_ref()?.values().next().cloned());
        held.as_deref() == value
    };
    let mut until = async |name: &str, value: Option<&str>| {
        while !holds(name, value) {
            let next =
                tokio::time::timeout(Duration::from_secs(60), events.next()).await.expect("events come");
            next.expect("the reflector goes on").unwrap();
        }
    };
    until("before", Some("1")).await;
    maps.create(&PostParams::default(), &config_map("later", "2")).await.unwrap();
    until("later", Some("2")).await;
    maps.replace("later", &PostParams::default(), &config_map("later", "3")).await.unwrap();
    until("later", Some("3")).await;
    maps.delete("before", &DeleteParams::default()).await.unwrap();
    until("before", None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_objects_are_returned_with_defaults() {
    let (_server, client) = start_server().await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "example.com/app:1"}]},
    }));
    let pod = pods.create(&PostParams::default(), &pod.unwrap()).await.unwrap();
    let spec = pod.spec.unwrap();
    assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
    assert_eq!(spec.containers[0].image_pull_policy.as_deref(), Some("IfNotPresent"));

    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": {"app": "d"}},
            "template": {
                "metadata": {"labels": {"app": "d"}},
                "spec": {"containers": [{"name": "c", "image": "example.com/app:1"}]},
            },
        },
    }));
    let deployment = deployments.create(&PostParams::default(), &deployment.unwrap()).await.unwrap();
    assert_eq!(deployment.spec.unwrap().replicas, Some(1));
    let foreground = DeleteParams::default();
    let foreground = DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..foreground };
    let terminating = deployments.delete("d", &foreground).await.unwrap().left().expect("the object");
    assert!(terminating.metadata.deletion_timestamp.is_some());

    let services: Api<Service> = Api::default_namespaced(client.clone());
    let service = serde_json::from_value(json!({
        "metadata": {"name": "s"}, "spec": {"selector": {"app": "d"}, "ports": [{"port": 80}]},
    }));
    let service = services.create(&PostParams::default(), &service.unwrap()).await.unwrap();
    assert!(service.spec.unwrap().cluster_ip.is_some_and(|address| !address.is_empty()));

    let secrets: Api<Secret> = Api::default_namespaced(client);
    let bytes = k8s_openapi::ByteString(vec![0, 255, 7]);
    let secret = Secret {
        metadata: ObjectMeta { name: Some("b".to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("bytes".to_owned(), bytes)])),
        ..Secret::default()
    };
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let read = secrets.get("b").await.unwrap();
    assert_eq!(read.data.unwrap()["bytes"].0, [0, 255, 7]);
    assert_eq!(read.type_.as_deref(), Some("Opaque"));
}

#[tokio::test(flavor = "multi_thread")]
async fn validation_error_names_field() {
    let (_server, client) = start_server().await;
    let namespaces: Api<Namespace> = Api::all(client);
    let invalid = Namespace {
        metadata: ObjectMeta { name: Some("Not A Name".to_owned()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    let error = namespaces.create(&PostParams::default(), &invalid).await.unwrap_err();
    let kube::Error::Api(status) = error else { panic!("not an answer of the API") };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert_eq!(status.details.unwrap().causes[0].field, "metadata.name");
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_finds_listable_kinds() {
    let (_server, client) = start_server().await;
    let discovery = Discovery::new(client.clone()).run().await.unwrap();
    let mut listed = 0;
    for group in discovery.groups() {
        for (resource, capabilities) in group.recommended_resources() {
            if !capabilities.supports_operation("list") || resource.kind == "ComponentStatus" {
                continue;
            }
            assert!(matches!(capabilities.scope, Scope::Cluster | Scope::Namespaced));
            let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            objects
                .list(&ListParams::default())
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", resource.kind));
            listed += 1;
        }
    }
    assert!(listed > 40, "only {listed} kinds");
}

/// Waits until an object is gone.
async fn wait_until_gone<F, K>(get: impl Fn() -> F)
where
    F: Future<Output = kube::Result<Option<K>>>,
{
    let wait = async {
        while get().await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("it goes");
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_policies_cascade_to_dependents() {
    let (_server, client) = start_server_with("*").await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for (owner, policy) in [
        ("b", PropagationPolicy::Background),
        ("f", PropagationPolicy::Foreground),
        ("o", PropagationPolicy::Orphan),
    ] {
        let created = maps.create(&PostParams::default(), &config_map(owner, "1")).await.unwrap();
        let mut child = config_map(&format!("{owner}-child"), "1");
        let reference = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            name: owner.to_owned(),
            uid: created.uid().unwrap(),
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        };
        child.metadata.owner_references = Some(vec![reference]);
        maps.create(&PostParams::default(), &child).await.unwrap();
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        maps.delete(owner, &params).await.unwrap();
        wait_until_gone(|| maps.get_opt(owner)).await;
    }
    wait_until_gone(|| maps.get_opt("b-child")).await;
    assert!(maps.get_opt("f-child").await.unwrap().is_none(), "the owner goes last");
    assert!(maps.get("o-child").await.unwrap().owner_references().is_empty());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = Namespace {
        metadata: ObjectMeta { name: Some("short".to_owned()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let inside: Api<ConfigMap> = Api::namespaced(client, "short");
    inside.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    namespaces.delete("short", &DeleteParams::default()).await.unwrap();
    wait_until_gone(|| namespaces.get_opt("short")).await;
}
