//! Requests that would remove a Service which another server has removed in the meantime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use pilothouse_types::lock::Lock;

use super::*;
use crate::support::hook_server::{HookServer, Reply};

const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const PORT: u64 = 30_001;
const ADDRESS: &str = "10.96.0.50";
/// The address in its record.
const ADDRESS_ITEM: usize = 49;

/// A webhook that can hold one request about a Service.
struct HoldingWebhook {
    _hooks: HookServer,
    holds_next: Arc<AtomicBool>,
    held: Receiver<()>,
    go_on: Sender<()>,
}

impl HoldingWebhook {
    fn start(admin: &mut Client) -> HoldingWebhook {
        let holds_next = Arc::new(AtomicBool::new(false));
        let ((is_held, held), (go_on, may_go_on)) = (channel(), channel());
        let (holds, may_go_on) = (holds_next.clone(), Lock::new(may_go_on));
        let hooks = HookServer::start("h", move |_, _| {
            if holds.swap(false, Ordering::SeqCst) {
                is_held.send(()).unwrap();
                may_go_on.lock().recv_timeout(TIMEOUT).unwrap();
            }
            Reply::Review(json!({"allowed": true}))
        });
        let rule = json!({"operations": ["UPDATE", "DELETE"], "apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["services"]});
        let client = json!({"url": hooks.url("/"), "caBundle": BASE64_STANDARD.encode(&hooks.ca_pem)});
        let webhook = json!({"name": "holds.x.io", "clientConfig": client, "rules": [rule],
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 30});
        admin.post(WEBHOOKS, &json!({"metadata": {"name": "holds"}, "webhooks": [webhook]})).ok();
        HoldingWebhook { _hooks: hooks, holds_next, held, go_on }
    }

    /// Makes a request and does something else before it goes on.
    fn hold(&self, request: impl FnOnce() -> Response + Send, meanwhile: impl FnOnce()) -> Response {
        self.holds_next.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            let request = scope.spawn(request);
            self.held.recv_timeout(TIMEOUT).unwrap();
            meanwhile();
            self.go_on.send(()).unwrap();
            request.join().unwrap()
        })
    }
}

fn service_with_all(name: &str, finalizers: &[&str]) -> Value {
    let mut service = service(name, &[Some(PORT)]);
    service["metadata"]["finalizers"] = json!(finalizers);
    service["spec"]["clusterIP"] = json!(ADDRESS);
    service
}

fn assert_both_are_taken(records: &Records<'_>) {
    assert_eq!(records.ports(), [PORT].into());
    assert!(records.read(CLUSTER_IPS).allocated.iter().any(|item| item == ADDRESS_ITEM));
}

// Whoever was given them meanwhile keeps them.

#[test]
fn port_and_address_are_not_released_by_an_update_that_would_have_removed_the_service() {
    let replicas = Replicas::new(1);
    let records = Records::new(&replicas);
    let servers = ["one", "other"].map(|name| replicas.start_with(name, &[ADDRESSES]));
    let [mut one, mut other] = servers.each_ref().map(|server| server.admin());
    let webhook = HoldingWebhook::start(&mut one);
    let path = format!("{SERVICES}/a");
    one.post(SERVICES, &service_with_all("a", &["x.io/y"])).ok();
    let mut marked = one.delete(&path).ok();
    assert_eq!(marked["metadata"]["finalizers"], json!(["x.io/y"]));
    // Without its last finalizer it is removed.
    marked["metadata"]["finalizers"] = json!([]);
    let late = webhook.hold(
        || one.put(&path, &marked),
        || {
            other.put(&path, &marked).ok();
            other.post(SERVICES, &service_with_all("next", &[])).ok();
            assert_both_are_taken(&records);
        },
    );
    late.ok();
    assert_both_are_taken(&records);
    assert!(refused_as_taken(&one.post(SERVICES, &service("refused", &[Some(PORT)]))));
}

#[test]
fn port_and_address_are_not_released_by_a_deletion_of_a_service_that_is_gone() {
    let replicas = Replicas::new(1);
    let records = Records::new(&replicas);
    let servers = ["one", "other"].map(|name| replicas.start_with(name, &[ADDRESSES]));
    let [mut one, mut other] = servers.each_ref().map(|server| server.admin());
    let webhook = HoldingWebhook::start(&mut one);
    let path = format!("{SERVICES}/a");
    one.post(SERVICES, &service_with_all("a", &[])).ok();
    let late = webhook.hold(
        || one.delete(&path),
        || {
            other.delete(&path).ok();
            other.post(SERVICES, &service_with_all("next", &[])).ok();
            assert_both_are_taken(&records);
        },
    );
    late.expect_error(404, "NotFound");
    assert_both_are_taken(&records);
    assert!(refused_as_taken(&one.post(SERVICES, &service("refused", &[Some(PORT)]))));
}
