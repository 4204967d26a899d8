//! Reflectors that run while the server is restarted and while its store is restored from a backup.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, future};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Store, reflector};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, InitialListStrategy};
use kube::runtime::{WatchStreamExt as _, watcher as watch_and_list};
use kube::{Client, ResourceExt};
use pilothouse::{Exit, Handle};
use serde_json::{Value, json};

use super::{admin_client, server_config};

const TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Waits as long after each failure.
struct Constant;

impl Iterator for Constant {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(PAUSE)
    }
}

impl Backoff for Constant {
    fn reset(&mut self) {}
}

/// A port that stays the same while the server is away. It is none of those that the system gives to outgoing connections.
fn free_port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
    (first..first + 1_000).find(is_free).expect("a port")
}

async fn start(data: &Path, port: u16) -> (Handle, Client) {
    let mut config = server_config("-*");
    config.storage.engine = pilothouse::config::flag_groups::Engine::Redb;
    config.storage.data_dir = Some(data.to_owned());
    config.serving.secure_port = port;
    // For the informers whose list is a watch.
    config.api.feature_gates = vec!["WatchList=true".parse().unwrap()];
    let server = pilothouse::Server::start_async(config).await.expect("a server");
    let client = admin_client(&server).await;
    (server, client)
}

async fn stop(server: Handle) {
    assert!(matches!(server.stop_async().await, Exit::Stopped));
}

/// Runs a command of the binary.
async fn run(arguments: &[&str]) {
    let arguments: Vec<OsString> = ["pilothouse"].iter().chain(arguments).map(OsString::from).collect();
    let command = tokio::task::spawn_blocking(move || pilothouse::commands::run_if_selected(arguments));
    assert_eq!(command.await.unwrap(), Some(ExitCode::SUCCESS));
}

/// A reflector that runs on and on.
struct Informer {
    api: Api<DynamicObject>,
    cache: Store<DynamicObject>,
    /// How often it has listed.
    lists: Arc<AtomicUsize>,
}

impl Informer {
    fn spawn(client: &Client, resource: &ApiResource, strategy: InitialListStrategy) -> Informer {
        let api: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), resource);
        let writer = Writer::new(resource.clone());
        let (cache, lists) = (writer.as_reader(), Arc::new(AtomicUsize::new(0)));
        let config = watcher::Config { initial_list_strategy: strategy, ..watcher::Config::default() };
        let events = reflector(writer, watch_and_list(api.clone(), config)).backoff(Constant);
        let counter = Arc::clone(&lists);
        tokio::spawn(events.for_each(move |event| {
            if matches!(event, Ok(Event::Init)) {
                counter.fetch_add(1, Ordering::SeqCst);
            }
            future::ready(())
        }));
        Informer { api, cache, lists }
    }

    fn cached(&self) -> BTreeMap<String, Value> {
        let objects = self.cache.state();
        objects.iter().map(|object| (object.name_any(), render(object))).collect()
    }

    /// Waits until the cache has what the server has, exactly, and returns the values.
    async fn wait_until_equal(&self) -> BTreeMap<String, String> {
        let list = self.api.list(&ListParams::default()).await.unwrap();
        let listed =
            list.iter().map(|object| (object.name_any(), render(object))).collect::<BTreeMap<_, _>>();
        let wait = async {
            while self.cached() != listed {
                tokio::time::sleep(PAUSE).await;
            }
        };
        let waited = tokio::time::timeout(TIMEOUT, wait).await;
        waited.unwrap_or_else(|_| panic!("cached {:#?}, listed {listed:#?}", self.cached()));
        let value = |object: &DynamicObject| object.annotations()["value"].clone();
        list.iter().map(|object| (object.name_any(), value(object))).collect()
    }
}

/// All of an object. A list says the kind once for all of its objects.
fn render(object: &DynamicObject) -> Value {
    serde_json::to_value(DynamicObject { types: None, ..object.clone() }).unwrap()
}

async fn create_definition(client: &Client) -> ApiResource {
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "anchors.sea.example"},
        "spec": {
            "group": "sea.example", "scope": "Namespaced", "names": {"plural": "anchors", "kind": "Anchor"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    }))
    .unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    let anchors = ApiResource::from_gvk(&GroupVersionKind::gvk("sea.example", "v1", "Anchor"));
    let api: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &anchors);
    let wait = async {
        while api.list(&ListParams::default()).await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.expect("the definition is served");
    anchors
}

/// What a client does with one resource.
struct Writes<'a>(&'a Api<DynamicObject>, &'a ApiResource);

impl Writes<'_> {
    async fn create(&self, name: &str, value: &str) {
        let mut object = DynamicObject::new(name, self.1);
        object.annotations_mut().insert("value".to_owned(), value.to_owned());
        self.0.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn change(&self, name: &str, value: &str) {
        let patch = json!({"metadata": {"annotations": {"value": value}}});
        self.0.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }

    async fn delete(&self, name: &str) {
        self.0.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reflectors_have_what_the_server_has_after_restart_and_restoration() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("data"), directory.path().join("backup"));
    let (data_text, file) = (data.to_string_lossy(), file.to_string_lossy());
    let port = free_port();
    let (server, client) = start(&data, port).await;
    let resources = [
        ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap")),
        ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Secret")),
        create_definition(&client).await,
    ];
    let informers: Vec<Informer> = resources
        .iter()
        .flat_map(|resource| {
            [InitialListStrategy::ListWatch, InitialListStrategy::StreamingList]
                .map(|strategy| Informer::spawn(&client, resource, strategy))
        })
        .collect();
    let each = informers.iter().step_by(2).zip(&resources);
    let each = each.map(|(informer, resource)| Writes(&informer.api, resource)).collect::<Vec<_>>();
    let expect = async |objects: &[(&str, &str)], lists: usize| {
        let expected = objects.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let expected: BTreeMap<String, String> = expected.collect();
        for informer in &informers {
            assert_eq!(informer.wait_until_equal().await, expected, "{:?}", informer.api);
            assert_eq!(informer.lists.load(Ordering::SeqCst), lists, "lists of {:?}", informer.api);
        }
    };
    for writes in &each {
        for name in ["changed", "deleted", "kept"] {
            writes.create(name, "before").await;
        }
    }
    expect(&[("changed", "before"), ("deleted", "before"), ("kept", "before")], 1).await;

    stop(server).await;
    let (server, _) = start(&data, port).await;
    for writes in &each {
        writes.change("kept", "restarted").await;
    }
    expect(&[("changed", "before"), ("deleted", "before"), ("kept", "restarted")], 1).await;

    let kubeconfig = server.kubeconfig_path().unwrap().to_string_lossy().into_owned();
    run(&["backup", "--to", &file, "--kubeconfig", &kubeconfig]).await;
    for writes in &each {
        writes.create("new", "after").await;
        writes.change("changed", "after").await;
        writes.delete("deleted").await;
    }
    expect(&[("changed", "after"), ("kept", "restarted"), ("new", "after")], 1).await;

    stop(server).await;
    run(&["restore", &file, "--data-dir", &data_text, "--replace"]).await;
    let (server, _) = start(&data, port).await;
    expect(&[("changed", "before"), ("deleted", "before"), ("kept", "restarted")], 2).await;
    for writes in &each {
        writes.create("new", "restored").await;
        writes.change("changed", "restored").await;
        writes.delete("kept").await;
    }
    expect(&[("changed", "restored"), ("deleted", "before"), ("new", "restored")], 2).await;
    stop(server).await;
}
