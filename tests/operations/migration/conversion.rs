//! Migration of a custom resource whose versions a webhook converts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::*;
use crate::support::hook_server::{HookServer, Reply};

/// Converts by setting the version.
fn convert(request: &Value) -> Reply {
    let mut objects = request["objects"].as_array().cloned().unwrap_or_default();
    for object in &mut objects {
        object["apiVersion"] = request["desiredAPIVersion"].clone();
    }
    Reply::Review(json!({"result": {"status": "Success"}, "convertedObjects": objects}))
}

/// Lets a webhook convert kites.
fn define_with_webhook(admin: &mut Client, hooks: &HookServer) {
    define(admin);
    let conversion = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": hooks.url("/convert"), "caBundle": STANDARD.encode(&hooks.ca_pem)}}});
    admin.patch(DEFINITION, "merge", &json!({"spec": {"conversion": conversion}})).ok();
    admin.post(KITES_V1, &kite("v1", "first")).ok();
    let is_used = || {
        admin.get(&format!("{KITES_V2}/first")).ok();
        (!hooks.requests().is_empty()).then_some(())
    };
    poll(TIMEOUT, is_used).expect("the webhook is used");
}

/// The hash of the storage version in discovery.
fn storage_hash(admin: &mut Client) -> Value {
    let resources = admin.get("/apis/toys.example/v2").ok();
    let kites =
        resources["resources"].as_array().and_then(|all| all.iter().find(|item| item["name"] == "kites"));
    kites.expect("kites")["storageVersionHash"].clone()
}

/// Stores kites as v2, and waits until the server does so.
fn switch_storage_and_wait(admin: &mut Client) {
    let before = storage_hash(admin);
    switch_storage(admin);
    poll(TIMEOUT, || (storage_hash(admin) != before).then_some(())).expect("v2 is the storage version");
}

#[test]
fn migration_converts_objects_by_webhook() {
    let hooks = HookServer::start("h", |_, request| convert(request));
    let server = Server::with_flags(&MIGRATOR);
    let mut admin = server.admin();
    define_with_webhook(&mut admin, &hooks);
    for name in ["a", "b"] {
        admin.post(KITES_V1, &kite("v1", name)).ok();
    }
    switch_storage_and_wait(&mut admin);
    let resource = json!({"group": "toys.example", "version": "v1", "resource": "kites"});
    // In whichever version: they are stored as v2.
    let path = migrate(&mut admin, "m", &resource);
    let migration = wait_until_finished(&mut admin, &path);
    assert!(has_condition(&migration, "Succeeded"), "{migration}");
    assert_eq!(stored_versions(&mut admin), json!(["v2"]));
    hooks.clear_requests();
    for name in ["first", "a", "b"] {
        assert_eq!(admin.get(&format!("{KITES_V2}/{name}")).ok()["spec"]["size"], 3);
    }
    assert_eq!(hooks.requests(), [Value::Null; 0], "stored as v2, so nothing is converted");
}

#[test]
fn write_that_began_before_the_storage_version_changed_is_refused() {
    let is_released = Arc::new(AtomicBool::new(false));
    let may_respond = is_released.clone();
    let hooks = HookServer::start("h", move |_, request| {
        if text(request, "/desiredAPIVersion").ends_with("/v1") {
            poll(TIMEOUT, || may_respond.load(Ordering::Acquire).then_some(())).expect("it is released");
        }
        convert(request)
    });
    let server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    define_with_webhook(&mut admin, &hooks);
    // It waits until it is converted to v1, the storage version.
    let mut writer = admin.new_connection();
    let write = thread::spawn(move || writer.post(KITES_V2, &kite("v2", "late")));
    let is_converting = |request: &Value| text(request, "/desiredAPIVersion").ends_with("/v1");
    poll(TIMEOUT, || hooks.requests().iter().any(is_converting).then_some(()))
        .expect("it is being converted");
    switch_storage_and_wait(&mut admin);
    is_released.store(true, Ordering::Release);
    let refused = write.join().expect("the writer");
    let status = refused.expect_error(429, "TooManyRequests");
    assert!(text(&status, "/message").contains("storage version"), "{status}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(admin.get(&format!("{KITES_V2}/late")).status, 404);
    admin.post(KITES_V2, &kite("v2", "late")).ok();
}
