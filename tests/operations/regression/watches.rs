//! Watches and their events.

use super::*;

/// A watch from a version that does not exist waited in silence and sent a false bookmark.
#[test]
fn watch_from_future_version_is_refused() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let response = client.get(&format!("{MAPS}?watch=1&resourceVersion=99999&allowWatchBookmarks=true"));
    let event = response.ok();
    let status = &event["object"];
    assert_eq!((&event["type"], &status["code"]), (&json!("ERROR"), &json!(504)));
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

/// Versions of one kind shared one memory of what had been encoded, and one was answered with the other.
#[test]
fn watches_encode_each_version_separately() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let (core, events_v1) =
        ("/api/v1/namespaces/default/events", "/apis/events.k8s.io/v1/namespaces/default/events");
    let mut watch_core = client.watch(core, "");
    let mut watch_other = client.watch(events_v1, "");
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": "R", "message": "m",
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "type": "Normal"});
    client.post(core, &event).ok();
    assert_eq!(watch_core.next_for("e")["object"]["apiVersion"], "v1");
    assert_eq!(watch_other.next_for("e")["object"]["apiVersion"], "events.k8s.io/v1");
}

/// The response to a delete that ended a grace period had the version of the first delete, not of the DELETED event.
#[test]
fn final_delete_returns_version_of_deleted_event() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "example.com/c:1"}]},
    });
    let created = client.post(pods, &pod).ok();
    let mut watch = client.watch(
        pods,
        &format!("resourceVersion={}", created["metadata"]["resourceVersion"].as_str().expect("one")),
    );
    client.delete(&format!("{pods}/p")).ok();
    let deleted = client.delete(&format!("{pods}/p?gracePeriodSeconds=0")).ok();
    let last =
        std::iter::repeat_with(|| watch.next()).find(|event| event["type"] == "DELETED").expect("the end");
    assert_eq!(last["object"]["metadata"]["resourceVersion"], deleted["metadata"]["resourceVersion"]);
}

/// A watch as PartialObjectMetadataList sent objects.
#[test]
fn watch_as_metadata_list_sends_no_events() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    client.post(MAPS, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})).ok();
    let accept = ("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    let watched = client.request("GET", &format!("{MAPS}?watch=1&timeoutSeconds=60"), &[accept], b"");
    assert_eq!((watched.status, watched.text().as_str()), (200, ""));
}

/// Table events of APIServices had column definitions only in the first event.
#[test]
fn apiservice_watch_table_events_all_have_columns() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/apis/apiregistration.k8s.io/v1/apiservices?watch=1&timeoutSeconds=1";
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let events = client.request("GET", path, &table, b"").text();
    assert!(events.lines().count() > 1);
    assert!(events.lines().all(|event| event.contains(r#""columnDefinitions":["#)), "{events}");
}
