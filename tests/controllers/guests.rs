//! What a loop that panics means for the server, seen from outside: a loop that fails by itself is a mistake of ours, so one is
//! added that does, as those do who run the server inside their own process.

use std::rc::Rc;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use pilothouse::controllers::client::{At, Client as Inside};
use pilothouse::controllers::queue::{Outcome, Queue};
use pilothouse::controllers::runner::{Controller, Follows, ObjectChange};
use pilothouse::controllers::start::ControllerContext;
use pilothouse::{Assembly, Config, Server};
use pilothouse_types::clock::Clock;
use pilothouse_types::object::Key;
use serde_json::json;

use super::support::Client;
use super::support::wait::{CAP, poll};
use super::{becomes, config_map};

const NAME: &str = "example-fragile";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Says of every ConfigMap of the namespace `default` that it was seen, and panics if it hears of one named `poison`.
struct Fragile {
    client: Inside,
}

impl Controller for Fragile {
    type Key = Key;

    fn follows(&self) -> Follows {
        Follows::These(&["configmaps"])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        let key = &change.object.key;
        assert!(change.gone || key.name() != "poison", "a loop that fails on purpose");
        if !change.gone && key.namespace() == "default" {
            queue.add(key.clone());
        }
    }

    fn work(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Outcome> {
        async move {
            let resource = self.client.resource("configmaps").expect("it is served");
            let seen = self.client.edit(At::of(&resource, &key), "", |map| {
                let new = map.at(&["data", "seen"]).is_none();
                map.entry("data").set("seen", "yes");
                Ok(new)
            });
            seen.await.map_or_else(|status| Outcome::Again(status.to_string()), |()| Outcome::Done)
        }
        .boxed_local()
    }
}

/// Gives a loop of the test all rights: like the built-in ones, it has those of its service account.
fn allow(client: &mut Client, account: &str) {
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": account}]});
    client.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).ok();
}

fn restarts(client: &mut Client) -> Option<u32> {
    let text = client.get("/metrics").text();
    let line = format!("pilothouse_controller_restarts_total{{name=\"{NAME}\"}} ");
    text.lines().find_map(|found| found.strip_prefix(&line)?.parse().ok())
}

#[test]
fn a_loop_that_panics_is_seen_and_comes_back() {
    let mut config = Config::ephemeral();
    config.api.controllers = vec!["namespace".to_owned()];
    let fragile = |context: &ControllerContext| {
        let client = context.client(NAME);
        context.run(NAME, move || Fragile { client: client.clone() });
    };
    let wires = Assembly { extra_controllers: vec![Box::new(fragile)] };
    let handle = Server::start_with(config, Clock::system(), wires).unwrap();
    let admin = handle.admin();
    let mut client =
        Client::new(handle.address(), handle.ca_pem(), Some((&admin.certificates_pem, &admin.key_pem)));
    allow(&mut client, NAME);
    client.post(MAPS, &config_map("before", &[])).ok();
    becomes(&mut client, &format!("{MAPS}/before"), |map| map["data"]["seen"] == "yes");
    assert!(client.get("/readyz?verbose").text().contains("[+]poststarthook/start-controllers ok"));
    assert_eq!(restarts(&mut client), None);

    // It cannot come back while what it fails on is there, and each time it waits longer.
    let clock = Clock::system();
    let begun = clock.now();
    client.post(MAPS, &config_map("poison", &[])).ok();
    let down = poll(CAP, || {
        let answer = client.get("/readyz?verbose");
        (answer.status == 500).then(|| answer.text())
    });
    let down = down.expect("/readyz says so");
    assert!(down.contains("[-]poststarthook/start-controllers failed"), "{down}");
    poll(CAP, || (restarts(&mut client)? >= 3).then_some(())).expect("it is started again and again");
    let took = clock.now().0 - begun.0;
    assert!(took > 1_600_000, "each pause is twice the one before: {took} microseconds");
    // The server and its other loops go on meanwhile.
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "goes"}})).ok();
    client.delete("/api/v1/namespaces/goes").ok();
    super::gone(&mut client, "/api/v1/namespaces/goes");

    client.delete(&format!("{MAPS}/poison")).ok();
    client.post(MAPS, &config_map("after", &[])).ok();
    becomes(&mut client, &format!("{MAPS}/after"), |map| map["data"]["seen"] == "yes");
    let well = poll(CAP, || {
        let answer = client.get("/readyz?verbose");
        (answer.status == 200).then(|| answer.text())
    });
    assert!(well.expect("/readyz is well again").contains("[+]poststarthook/start-controllers ok"));
    handle.stop();
}

/// Decides about a ConfigMap that it has read, after somebody else has changed it.
struct Late {
    client: Inside,
}

impl Controller for Late {
    type Key = Key;

    fn follows(&self) -> Follows {
        Follows::These(&["configmaps"])
    }

    fn on_change(&self, change: &ObjectChange<'_>, queue: &mut Queue<Key>) {
        if !change.gone && change.object.key.name() == "judged" {
            queue.add(change.object.key.clone());
        }
    }

    fn work(self: Rc<Self>, key: Key) -> LocalBoxFuture<'static, Outcome> {
        async move {
            let resource = self.client.resource("configmaps").expect("it is served");
            let at = At::of(&resource, &key);
            let read = self.client.read(at).await.unwrap().expect("it is there");
            if read.at(&["data", "done"]).is_some() {
                return Outcome::Done;
            }
            let set = |field: &'static str| {
                move |map: &mut pilothouse_apimachinery::value::Value| {
                    map.entry("data").set(field, "yes");
                    Ok(true)
                }
            };
            self.client.edit(at, "", set("changed")).await.unwrap();
            self.client.edit_as_read(at, "", &read, set("too-late")).await.unwrap();
            let read = self.client.read(at).await.unwrap().expect("it is there");
            self.client.edit_as_read(at, "", &read, set("done")).await.unwrap();
            Outcome::Done
        }
        .boxed_local()
    }
}

#[test]
fn what_was_decided_about_one_version_does_not_happen_to_another() {
    let late = |context: &ControllerContext| {
        let client = context.client("example-late");
        context.run("example-late", move || Late { client: client.clone() });
    };
    let wires = Assembly { extra_controllers: vec![Box::new(late)] };
    let handle = Server::start_with(Config::ephemeral(), Clock::system(), wires).unwrap();
    let admin = handle.admin();
    let mut client =
        Client::new(handle.address(), handle.ca_pem(), Some((&admin.certificates_pem, &admin.key_pem)));
    allow(&mut client, "example-late");
    client.post(MAPS, &config_map("judged", &[])).ok();
    let judged = becomes(&mut client, &format!("{MAPS}/judged"), |map| map["data"]["done"] == "yes");
    assert_eq!((&judged["data"]["changed"], judged["data"].get("too-late")), (&json!("yes"), None));
    handle.stop();
}
