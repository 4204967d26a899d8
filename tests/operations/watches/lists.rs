//! Lists at a version, their paging and timeouts.

use self::ListOutcome::{Bad, Invalid, Names};
use super::*;

/// The expected outcome of a list.
enum ListOutcome {
    /// These objects, at this version if given.
    Names(&'static [&'static str], Option<u64>),
    /// 422 with this message.
    Invalid(&'static str),
    /// 400 with this message.
    Bad(&'static str),
}

#[test]
fn list_options_combine_as_specified() {
    let (_server, mut client) = start(|_| ());
    for name in ["a", "b", "c"] {
        client.post(MAPS, &map(name)).ok();
    }
    let all_names: &[&str] = &["a", "b", "c"];
    let list = client.get(MAPS).ok();
    let head = revision(&list);
    let old = head - 1;
    let first = client.get(&format!("{MAPS}?limit=1")).ok();
    let token = text(&first, "/metadata/continue").to_owned();
    let unset = "resourceVersionMatch is forbidden unless resourceVersion is provided";
    let zero = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
    let with_token = "resourceVersionMatch is forbidden when continue is provided";
    let not_with_version = "specifying resource version is not allowed when using continue";
    let table = [
        // Match unset.
        (String::new(), Names(all_names, None)),
        ("resourceVersion=0".into(), Names(all_names, None)),
        (format!("resourceVersion={old}"), Names(all_names, Some(head))),
        ("limit=1".into(), Names(&["a"], Some(head))),
        ("limit=1&resourceVersion=0".into(), Names(all_names, None)),
        (format!("limit=3&resourceVersion={old}"), Names(&["a", "b"], Some(old))),
        (format!("limit=1&continue={token}"), Names(&["b"], Some(head))),
        (format!("limit=1&continue={token}&resourceVersion=0"), Names(&["b"], Some(head))),
        (format!("limit=1&continue={token}&resourceVersion={old}"), Bad(not_with_version)),
        (format!("continue={token}"), Names(&["b", "c"], Some(head))),
        // Exact.
        ("resourceVersionMatch=Exact".into(), Invalid(unset)),
        ("resourceVersionMatch=Exact&resourceVersion=0".into(), Invalid(zero)),
        (format!("resourceVersionMatch=Exact&resourceVersion={old}"), Names(&["a", "b"], Some(old))),
        ("resourceVersionMatch=Exact&limit=1".into(), Invalid(unset)),
        ("resourceVersionMatch=Exact&limit=1&resourceVersion=0".into(), Invalid(zero)),
        (format!("resourceVersionMatch=Exact&limit=1&resourceVersion={old}"), Names(&["a"], Some(old))),
        (format!("resourceVersionMatch=Exact&continue={token}"), Invalid(with_token)),
        // Not older than.
        ("resourceVersionMatch=NotOlderThan".into(), Invalid(unset)),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=0".into(), Names(all_names, None)),
        (format!("resourceVersionMatch=NotOlderThan&resourceVersion={old}"), Names(all_names, Some(head))),
        ("resourceVersionMatch=NotOlderThan&limit=1".into(), Invalid(unset)),
        ("resourceVersionMatch=NotOlderThan&limit=1&resourceVersion=0".into(), Names(all_names, None)),
        (
            format!("resourceVersionMatch=NotOlderThan&limit=1&resourceVersion={old}"),
            Names(&["a"], Some(head)),
        ),
        (
            format!("resourceVersionMatch=NotOlderThan&continue={token}&resourceVersion={old}"),
            Invalid(with_token),
        ),
        // Invalid match, version, token and limit.
        (
            format!("resourceVersionMatch=Newest&resourceVersion={old}"),
            Invalid("Unsupported value: \"Newest\""),
        ),
        ("resourceVersion=yesterday".into(), Bad("parsing \"yesterday\": invalid syntax")),
        ("continue=%21".into(), Bad("continue key is not valid: illegal base64 data at input byte 0")),
        ("limit=many".into(), Bad("parsing \"many\": invalid syntax")),
        ("sendInitialEvents=true".into(), Invalid("sendInitialEvents is forbidden for list")),
    ];
    for (query, outcome) in table {
        check_list(&mut client, &query, &outcome, head);
    }
}

/// Checks a list with a query; without a version in its outcome, the version must be `head`.
fn check_list(client: &mut Client, query: &str, outcome: &ListOutcome, head: u64) {
    let response = client.get(&format!("{MAPS}?{query}"));
    match outcome {
        Names(expected, version) => {
            let list = response.ok();
            assert_eq!(names(&list), *expected, "{query}");
            assert_eq!(revision(&list), version.unwrap_or(head), "{query}");
        }
        Invalid(reason) => {
            let status = response.expect_error(422, "Invalid");
            assert!(text(&status, "/message").contains(reason), "{query}: {status}");
        }
        Bad(reason) => {
            let status = response.expect_error(400, "BadRequest");
            assert!(text(&status, "/message").contains(reason), "{query}: {status}");
        }
    }
}

#[test]
fn future_version_is_awaited_then_times_out() {
    let (server, mut client) = start(|_| ());
    client.post(MAPS, &map("a")).ok();
    let head = revision(&client.get(MAPS).ok());
    let far = head + 1_000;
    for path in [format!("{MAPS}?resourceVersion={far}"), format!("{MAPS}/a?resourceVersion={far}")] {
        let response = client.get(&path);
        let status = response.expect_error(504, "Timeout");
        let message = format!("Timeout: Too large resource version: {far}, current: {head}");
        assert_eq!(text(&status, "/message"), message);
        assert_eq!(text(&status, "/details/causes/0/reason"), "ResourceVersionTooLarge");
        assert_eq!(response.header("retry-after"), Some("1"));
    }
    let event = client.watch(MAPS, &format!("resourceVersion={far}")).next();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(504)));
    // A version that appears in time is served.
    let mut late_client = new_client(&server);
    let read_thread =
        std::thread::spawn(move || late_client.get(&format!("{MAPS}?resourceVersion={}", head + 1)).ok());
    client.post(MAPS, &map("b")).ok();
    assert_eq!(names(&read_thread.join().unwrap()), ["a", "b"]);
}

#[test]
fn expired_list_continues_inconsistently() {
    let (_server, mut client) =
        start(|config| config.storage.etcd_compaction_interval = Duration::from_millis(1));
    for name in ["a", "b", "c"] {
        client.post(MAPS, &map(name)).ok();
    }
    let old = revision(&client.get(MAPS).ok());
    // A version expires even without later writes.
    let first = client.get(&format!("{MAPS}?limit=1")).ok();
    let unchanged = format!("{MAPS}?limit=1&continue={}", text(&first, "/metadata/continue"));
    poll(TIMEOUT, || (client.get(&unchanged).status == 410).then_some(())).expect("its time ends");
    let first = client.get(&format!("{MAPS}?limit=1")).ok();
    let token = text(&first, "/metadata/continue").to_owned();
    client.delete(&format!("{MAPS}/b")).ok();
    let expired = poll(TIMEOUT, || {
        let response = client.get(&format!("{MAPS}?limit=1&continue={token}"));
        (response.status == 410).then(|| response.expect_error(410, "Expired"))
    });
    let expired = expired.expect("the history ends");
    assert!(text(&expired, "/message").contains("use the continue token in this response"), "{expired}");
    let rest = client.get(&format!("{MAPS}?continue={}", text(&expired, "/metadata/continue"))).ok();
    assert_eq!(names(&rest), ["c"], "b is gone by now");
    assert!(revision(&rest) > old);
    let exact = format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact");
    let status = poll(TIMEOUT, || {
        let response = client.get(&exact);
        (response.status == 410).then(|| response.expect_error(410, "Expired"))
    });
    let status = status.expect("the history ends");
    assert_eq!(text(&status, "/message"), "The resourceVersion for the provided list is too old.");
    let event = client.watch(MAPS, &format!("resourceVersion={old}")).next();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    let message_text = text(&event, "/object/message");
    assert!(message_text.starts_with(&format!("too old resource version: {old} (")), "{event}");
}

#[test]
fn request_timeout_applies_to_lists_but_not_watches() {
    let (_server, mut client) = start(|config| config.limits.request_timeout = Duration::from_millis(200));
    let status = client.get(&format!("{MAPS}?resourceVersion=99999")).expect_error(504, "Timeout");
    let message = "Timeout: request did not complete within the allotted timeout";
    assert_eq!(text(&status, "/message"), message);
    let (_server, mut client) = start(|_| ());
    let status =
        client.get(&format!("{MAPS}?resourceVersion=99999&timeout=100ms")).expect_error(504, "Timeout");
    assert_eq!(text(&status, "/message"), message);
    let status = client.get(&format!("{MAPS}?timeout=soon")).expect_error(400, "BadRequest");
    assert!(text(&status, "/message").starts_with("invalid timeout specified in the request URL"));
    let mut watch = client.watch(MAPS, "timeout=1ms&timeoutSeconds=30");
    client.post(MAPS, &map("a")).ok();
    assert_eq!(text(&watch.next_for("a"), "/type"), "ADDED");
}

/// The continued list has a new version even without a write in between, so that clients can tell it from the first.
#[test]
fn expired_list_continues_at_new_durable_version() {
    let directory = crate::support::server::temp_directory();
    let data = directory.path().join("data");
    let short = ["--etcd-compaction-interval=1s"];
    // On etcd, others raise the version meanwhile.
    let server = crate::support::Server::start_on_file(&data, &short);
    let mut client = server.admin();
    for name in ["a", "b", "c"] {
        client.post(MAPS, &map(name)).ok();
    }
    let first = client.get(&format!("{MAPS}?limit=1")).ok();
    let token = text(&first, "/metadata/continue").to_owned();
    let expired = poll(TIMEOUT, || {
        let response = client.get(&format!("{MAPS}?limit=1&continue={token}"));
        (response.status == 410).then(|| response.json())
    });
    let continue_token = text(&expired.unwrap(), "/metadata/continue").to_owned();
    let next = client.get(&format!("{MAPS}?limit=1&continue={continue_token}")).ok();
    let revision = |list: &Value| text(list, "/metadata/resourceVersion").parse::<u64>().unwrap();
    assert_eq!((revision(&next), text(&next, "/items/0/metadata/name")), (revision(&first) + 1, "b"));
    let again = client.get(&format!("{MAPS}?limit=1&continue={continue_token}")).ok();
    assert_eq!(revision(&again), revision(&next), "once is enough");
    let last = client.get(&format!("{MAPS}?continue={}", text(&next, "/metadata/continue"))).ok();
    assert_eq!((revision(&last), text(&last, "/items/0/metadata/name")), (revision(&next), "c"));
    server.kill();
    // On etcd, others raise the version meanwhile.
    let server = crate::support::Server::start_on_file(&data, &short);
    assert_eq!(revision(&server.admin().get(MAPS).ok()), revision(&next), "it is as durable as a write");
    server.stop();
}
