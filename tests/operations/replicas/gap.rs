//! A server that was cut off from etcd for so long that the changes meanwhile are compacted.

use pilothouse_etcd::messages::CompactionRequest;
use pilothouse_etcd::testing::{Flow, Proxy};
use tokio::runtime::Builder;

use super::*;
use crate::support::client::Watch;

/// Types and names of the next events, sorted: the difference has no order of its own.
fn next_events(watch: &mut Watch, count: usize) -> Vec<(String, String, String)> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut events: Vec<_> = (0..count)
        .map(|_| {
            let event = watch.next();
            let object = &event["object"];
            (word(&event["type"]), word(&object["metadata"]["name"]), word(&object["data"]["value"]))
        })
        .collect();
    events.sort();
    events
}

fn event(kind: &str, name: &str, value: &str) -> (String, String, String) {
    (kind.to_owned(), name.to_owned(), value.to_owned())
}

#[test]
fn difference_is_sent_for_changes_that_are_compacted() {
    let replicas = Replicas::new(1);
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let proxy = runtime.block_on(Proxy::start(replicas.etcd.members[0].port));
    let flags = format!("--etcd-servers={}", proxy.url());
    let one = Server::start_in(&replicas.directory.path().join("one"), &[&flags]);
    let other = replicas.start("other");
    let (mut first, mut second) = (one.admin(), other.admin());
    let stays = second.post(MAPS, &map("stays", "old")).ok();
    let before = version(&second.post(MAPS, &map("goes", "")).ok());
    first.get(&format!("{MAPS}/goes")).ok();
    let mut watch = first.watch(MAPS, &format!("resourceVersion={before}"));

    proxy.set_flow(Flow::Nothing);
    let mut changed = stays;
    changed["data"]["value"] = json!("new");
    let within = version(&second.put(&format!("{MAPS}/stays"), &changed).ok());
    second.delete(&format!("{MAPS}/goes")).ok();
    let newest = version(&second.post(MAPS, &map("comes", "")).ok());
    let revision = i64::try_from(newest).unwrap();
    let compaction = CompactionRequest { revision, ..CompactionRequest::default() };
    runtime.block_on(async { replicas.etcd.client().compact(compaction).await }).unwrap();
    second.post(MAPS, &map("later", "")).ok();
    proxy.cut();
    proxy.set_flow(Flow::Open);

    let expected = [
        event("ADDED", "comes", ""),
        event("ADDED", "later", ""),
        event("DELETED", "goes", ""),
        event("MODIFIED", "stays", "new"),
    ];
    assert_eq!(next_events(&mut watch, 4), expected);
    second.delete(&format!("{MAPS}/comes")).ok();
    assert_eq!(next_events(&mut watch, 1), [event("DELETED", "comes", "")]);
    let names_at = |admin: &mut Client, query: &str| {
        let list = admin.get(&format!("{MAPS}?{query}")).ok();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names_at(&mut first, ""), names_at(&mut second, ""));

    // How it was within the gap, etcd knows as far as it is not compacted.
    let exact = |version: u64| format!("resourceVersionMatch=Exact&resourceVersion={version}");
    assert_eq!(names_at(&mut first, &exact(newest)), ["comes", "stays"]);
    let part = first.get(&format!("{MAPS}?{}&limit=1", exact(newest))).ok();
    let token = part["metadata"]["continue"].as_str().unwrap();
    assert_eq!(names_at(&mut first, &format!("continue={token}")), ["stays"]);
    let compacted = first.get(&format!("{MAPS}?{}", exact(within)));
    assert_eq!((compacted.status, &compacted.json()["reason"]), (410, &json!("Expired")));

    // What happened in it nobody can tell at this server any more; at the other one everybody can.
    let query = format!("resourceVersion={within}");
    let expired = first.watch(MAPS, &query).next();
    assert_eq!((&expired["type"], &expired["object"]["code"]), (&json!("ERROR"), &json!(410)), "{expired}");
    let mut complete = second.watch(MAPS, &query);
    assert_eq!(next_events(&mut complete, 1), [event("DELETED", "goes", "")]);
    assert_eq!(next_events(&mut complete, 1), [event("ADDED", "comes", "")]);
}
