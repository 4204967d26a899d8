//! A controller that panics, seen from outside. It is added by the test, as programs do that embed the server.

use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse::controllers::client::{Client as Inside, ObjectRef};
use pilothouse::controllers::queue::{Outcome, Queue};
use pilothouse::controllers::runner::{Controller, ObjectChange, WatchedTypes};
use pilothouse::controllers::start::ControllerContext;
use pilothouse::{Assembly, Config, Server};
use pilothouse_apimachinery::status::Result;
use pilothouse_types::clock::Clock;
use pilothouse_types::object::Key;
use serde_json::json;

use super::{config_map, wait_until};
use crate::support::Client;
use crate::support::wait::{TIMEOUT, poll};

const NAME: &str = "example-fragile";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Marks every ConfigMap of the namespace `default`, and panics on one named `poison`.
struct PanickingController {
    client: Inside,
}

impl Controller for PanickingController {
    type Key = Key;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&["configmaps"])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        let key = &change.object.key;
        assert!(change.is_deleted || key.name() != "poison", "a loop that fails on purpose");
        if !change.is_deleted && key.namespace() == "default" {
            queue.add(key.clone());
        }
    }

    fn reconcile(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move {
            let resource = self.client.resource("configmaps").expect("it is served");
            let edited = self.client.edit(ObjectRef::new(&resource, &key), "", |map| {
                let new = map.get_path(&["data", "seen"]).is_none();
                map.entry("data").set("seen", "yes");
                Ok(new)
            });
            edited.await.map(|()| Outcome::Done)
        }
        .boxed_local()
    }
}

/// Binds the service account of a controller to cluster-admin.
fn grant_cluster_admin(client: &mut Client, account: &str) {
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": account}]});
    client.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).ok();
}

fn restarts(client: &mut Client) -> Option<u32> {
    let text = client.get("/metrics").text();
    let prefix = format!("pilothouse_controller_restarts_total{{name=\"{NAME}\"}} ");
    text.lines().find_map(|text_line| text_line.strip_prefix(&prefix)?.parse().ok())
}

#[test]
fn panicking_controller_fails_readiness_and_restarts_with_backoff() {
    let mut config = Config::ephemeral();
    config.controllers.controllers = vec!["namespace".to_owned()];
    let add_controller = |context: &ControllerContext| {
        let client = context.client(NAME);
        context.run(NAME, move || PanickingController { client: client.clone() });
    };
    let assembly = Assembly { extra_controllers: vec![Box::new(add_controller)] };
    let handle = Server::start_with(config, Clock::system(), assembly).unwrap();
    let admin = handle.admin();
    let mut client =
        Client::new(handle.address(), handle.ca_pem(), Some((&admin.certificates_pem, &admin.key_pem)));
    grant_cluster_admin(&mut client, NAME);
    client.post(MAPS, &config_map("before", &[])).ok();
    wait_until(&mut client, &format!("{MAPS}/before"), |map| map["data"]["seen"] == "yes");
    assert!(client.get("/readyz?verbose").text().contains("[+]poststarthook/start-controllers ok"));
    assert_eq!(restarts(&mut client), Some(0));

    // It fails again while the poison is there, with growing pauses.
    let clock = Clock::system();
    let start = clock.now();
    client.post(MAPS, &config_map("poison", &[])).ok();
    let readiness = poll(TIMEOUT, || {
        let response = client.get("/readyz?verbose");
        (response.status == 500).then(|| response.text())
    });
    let readiness = readiness.expect("/readyz says so");
    assert!(readiness.contains("[-]poststarthook/start-controllers failed"), "{readiness}");
    poll(TIMEOUT, || (restarts(&mut client)? >= 3).then_some(())).expect("it is started again and again");
    let elapsed = clock.now().0 - start.0;
    assert!(elapsed > 1_600_000, "each pause is twice the one before: {elapsed} microseconds");
    // The server and its other controllers go on meanwhile.
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "goes"}})).ok();
    client.delete("/api/v1/namespaces/goes").ok();
    super::wait_until_gone(&mut client, "/api/v1/namespaces/goes");

    client.delete(&format!("{MAPS}/poison")).ok();
    client.post(MAPS, &config_map("after", &[])).ok();
    wait_until(&mut client, &format!("{MAPS}/after"), |map| map["data"]["seen"] == "yes");
    let ready_again = poll(TIMEOUT, || {
        let response = client.get("/readyz?verbose");
        (response.status == 200).then(|| response.text())
    });
    assert!(ready_again.expect("/readyz is well again").contains("[+]poststarthook/start-controllers ok"));
    handle.stop();
}

/// Edits a ConfigMap as read, after it was changed.
struct LateController {
    client: Inside,
}

impl Controller for LateController {
    type Key = Key;

    fn watched_types(&self) -> WatchedTypes {
        WatchedTypes::Only(&["configmaps"])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if !change.is_deleted && change.object.key.name() == "judged" {
            queue.add(change.object.key.clone());
        }
    }

    fn reconcile(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Result<Outcome>> {
        async move {
            let resource = self.client.resource("configmaps").expect("it is served");
            let location = ObjectRef::new(&resource, &key);
            let read_map = self.client.read(location).await.unwrap().expect("it is there");
            if read_map.get_path(&["data", "done"]).is_some() {
                return Ok(Outcome::Done);
            }
            let set = |field: &'static str| {
                move |map: &mut pilothouse_apimachinery::value::Value| {
                    map.entry("data").set(field, "yes");
                    Ok(true)
                }
            };
            self.client.edit(location, "", set("changed")).await.unwrap();
            self.client.edit_if_unchanged(location, "", &read_map, set("too-late")).await.unwrap();
            let read_map = self.client.read(location).await.unwrap().expect("it is there");
            self.client.edit_if_unchanged(location, "", &read_map, set("done")).await.unwrap();
            Ok(Outcome::Done)
        }
        .boxed_local()
    }
}

#[test]
fn edit_as_read_skips_object_changed_since_read() {
    let add_controller = |context: &ControllerContext| {
        let client = context.client("example-late");
        context.run("example-late", move || LateController { client: client.clone() });
    };
    let assembly = Assembly { extra_controllers: vec![Box::new(add_controller)] };
    let handle = Server::start_with(Config::ephemeral(), Clock::system(), assembly).unwrap();
    let admin = handle.admin();
    let mut client =
        Client::new(handle.address(), handle.ca_pem(), Some((&admin.certificates_pem, &admin.key_pem)));
    grant_cluster_admin(&mut client, "example-late");
    client.post(MAPS, &config_map("judged", &[])).ok();
    let edited_map = wait_until(&mut client, &format!("{MAPS}/judged"), |map| map["data"]["done"] == "yes");
    assert_eq!((&edited_map["data"]["changed"], edited_map["data"].get("too-late")), (&json!("yes"), None));
    handle.stop();
}
