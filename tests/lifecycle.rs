//! Starting, refusing to start, stopping, starting again; and servers inside another process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "lifecycle/guards.rs"]
mod guards;
mod support;

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode};
use openssl::x509::extension::{BasicConstraints, ExtendedKeyUsage};
use openssl::x509::{X509, X509Name};
use pilothouse::config::Config;
use pilothouse::server::{Exit, Handle, Server as Embedded};
use pilothouse_actors::engine::redb::Redb;
use pilothouse_types::object::TypeName;
use serde_json::{Value, json};
use support::client::JSON;
use support::compare::text;
use support::server::{Refusal, command, directory};
use support::wait::{CAP, Deadline, poll};
use support::wire::Connection;
use support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"kept": "yes"}})
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// The one thing that a server which cannot start says.
fn complaint(refusal: &Refusal) -> String {
    assert!(!refusal.status.success(), "{refusal:?}");
    assert!(!refusal.stderr.contains("panicked"), "{refusal:?}");
    assert_eq!(refusal.stdout, "", "nothing to paste when nothing runs");
    let said: Vec<&str> = refusal.stderr.lines().filter(|line| line.starts_with("pilothouse: ")).collect();
    assert_eq!(said.len(), 1, "one clear line: {refusal:?}");
    said[0].to_owned()
}

fn refused(data: &Path, arguments: &[&str]) -> String {
    match Server::try_on(data, arguments) {
        Ok(_) => panic!("the server started"),
        Err(refusal) => complaint(&refusal),
    }
}

#[test]
fn the_first_start_makes_what_is_needed() {
    let server = Server::start();
    let kubeconfig = server.kubeconfig();
    let expected = format!("kubectl --kubeconfig {} get namespaces", kubeconfig.display());
    assert_eq!(server.greeting, expected);
    assert_eq!(server.output(), expected, "one line and nothing else");
    let mut keys = 0;
    for file in files(&server.data) {
        let bytes = fs::read(&file).expect("a readable file");
        let holds_key = file == kubeconfig || bytes.windows(11).any(|window| window == b"PRIVATE KEY");
        if holds_key {
            keys += 1;
            let mode = fs::metadata(&file).expect("metadata").permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{} is for its owner alone", file.display());
        }
    }
    assert!(
        keys >= 4,
        "authority, server, client and token keys, and the kubeconfig: {:?}",
        files(&server.data)
    );
    let mut client = server.by_certificate();
    assert_eq!(client.get("/api/v1/namespaces").ok()["items"].as_array().map(Vec::len), Some(4));
    server.stop();
}

#[test]
fn a_restart_keeps_everything() {
    let directory = directory();
    let data = directory.path().join("data");
    let first = Server::on(&data, &[]);
    let mut before = first.by_certificate();
    let created = before.post(MAPS, &map("kept")).ok();
    let spaces = before.get("/api/v1/namespaces").ok();
    let authority = fs::read(data.join("pki/ca.crt")).expect("the authority");
    first.stop();

    let second = Server::on(&data, &[]);
    assert_eq!(fs::read(data.join("pki/ca.crt")).expect("the authority"), authority);
    // A client that knows the first server's certificates is at home with the second.
    let mut after = before.again();
    after.address = second.address();
    assert_eq!(after.get(&format!("{MAPS}/kept")).ok(), created);
    assert_eq!(after.get("/api/v1/namespaces").ok()["items"], spaces["items"]);
    let next = after.post(MAPS, &map("next")).ok();
    assert!(support::compare::revision(&next) > support::compare::revision(&created));
    second.stop();
}

/// Operators can forbid what a start wants to write. They must be able to take that back.
#[test]
fn a_lost_binding_comes_back_as_restricted_as_the_one_it_was_split_from() {
    const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let directory = directory();
    let data = directory.path().join("data");
    let (public, discovery) =
        (format!("{BINDINGS}/system:public-info-viewer"), format!("{BINDINGS}/system:discovery"));
    let server = Server::on(&data, &[]);
    let mut admin = server.admin();
    let mut restricted = admin.get(&discovery).ok();
    restricted["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = json!("false");
    let subjects = json!([{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "staff"}]);
    restricted["subjects"] = subjects.clone();
    admin.put(&discovery, &restricted).ok();
    admin.delete(&public).ok();
    server.terminate();
    server.ended();
    let again = Server::on(&data, &[]).admin().get(&public).ok();
    assert_eq!(again["subjects"], subjects, "{again}");
    assert_eq!(again["roleRef"]["name"], "system:public-info-viewer");
}

#[test]
fn what_operators_forbid_does_not_keep_the_server_from_starting() {
    const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
    let directory = directory();
    let data = directory.path().join("data");
    let first = Server::on(&data, &[]);
    let mut client = first.admin();
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "nothing"}, "spec": {"failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{"apiGroups": ["", "discovery.k8s.io", "rbac.authorization.k8s.io"],
                "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["*"]}]},
            "validations": [{"expression": "false"}]}});
    client.delete("/apis/rbac.authorization.k8s.io/v1/clusterroles/view").ok();
    client.post(&format!("{ADMISSION}/validatingadmissionpolicies"), &policy).ok();
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "nothing"}, "spec": {"policyName": "nothing", "validationActions": ["Deny"]}});
    client.post(&format!("{ADMISSION}/validatingadmissionpolicybindings"), &binding).ok();
    first.stop();

    // The role is missing, and the port is another one.
    let second = Server::on(&data, &[]);
    let mut client = second.admin();
    assert_eq!(client.post(MAPS, &map("any")).status, 422, "the policy is in force");
    assert_eq!(client.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/view").status, 404);
    assert!(second.log().contains("bootstrap objects cannot be created; retrying"), "{}", second.log());
    client.delete(&format!("{ADMISSION}/validatingadmissionpolicybindings/nothing")).ok();
    client.post(MAPS, &map("any")).ok();
    second.stop();

    let third = Server::on(&data, &[]);
    third.admin().get("/apis/rbac.authorization.k8s.io/v1/clusterroles/view").ok();
    third.stop();
}

const FORCE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential=true";

/// Three objects, of which the record of the second is damaged while no server runs. It holds a finalizer.
fn damaged(data: &Path) -> u64 {
    let server = Server::on(data, &[]);
    let mut client = server.admin();
    client.post(MAPS, &map("a")).ok();
    let mut held = map("b");
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    client.post(MAPS, &held).ok();
    let last = client.post(MAPS, &map("c")).ok();
    server.stop();
    let mut engine = Redb::open(&data.join("pilothouse.redb")).expect("the store");
    assert!(engine.damage(&TypeName::new("configmaps"), "default/b").expect("a store that can be written"));
    support::compare::revision(&last)
}

/// A record that is damaged says nothing; that is not the same as an object without labels or of another uid.
#[test]
fn what_cannot_be_read_is_not_taken_for_empty() {
    let directory = directory();
    let data = directory.path().join("data");
    let server = Server::on(&data, &[]);
    let mut client = server.admin();
    let guarded = json!({"metadata": {"name": "guarded", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    client.post("/api/v1/namespaces", &guarded).ok();
    let owner = client.post(MAPS, &map("owner")).ok();
    let mut dependent = map("dependent");
    dependent["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    ]);
    client.post(MAPS, &dependent).ok();
    let mut orphan = dependent.clone();
    orphan["metadata"]["name"] = json!("orphan");
    orphan["metadata"]["ownerReferences"][0]["name"] = json!("nobody");
    orphan["metadata"]["ownerReferences"][0]["uid"] = json!("none");
    client.post(MAPS, &orphan).ok();
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "counted"}})).ok();
    for name in ["broken", "whole"] {
        let resources = json!({"requests": {"cpu": "1"}});
        let pod = json!({"metadata": {"name": name}, "spec": {
            "containers": [{"name": "c", "image": "i", "resources": resources}]}});
        client.post("/api/v1/namespaces/counted/pods", &pod).ok();
    }
    server.stop();
    let mut engine = Redb::open(&data.join("pilothouse.redb")).expect("the store");
    for (of, key) in [("namespaces", "guarded"), ("configmaps", "default/owner"), ("pods", "counted/broken")]
    {
        assert!(engine.damage(&TypeName::new(of), key).expect("a store that can be written"), "{key}");
    }
    drop(engine);

    let server = Server::on(&data, &["--controllers=*"]);
    let mut client = server.admin();
    // The collector has looked at both: the one whose owner is really gone goes.
    support::wait::poll(support::wait::CAP, || {
        (client.get(&format!("{MAPS}/orphan")).status == 404).then_some(())
    })
    .expect("it goes");
    client.get(&format!("{MAPS}/dependent")).ok();
    // A pod that nobody can read is one, and does not keep the others from being counted.
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "5", "requests.cpu": "5"}}});
    client.post("/api/v1/namespaces/counted/resourcequotas", &quota).ok();
    let used = support::wait::poll(support::wait::CAP, || {
        let quota = client.get("/api/v1/namespaces/counted/resourcequotas/q").ok();
        Some(quota["status"]["used"].clone()).filter(|used| !used.is_null())
    });
    assert_eq!(used.expect("it is counted"), json!({"pods": "2", "requests.cpu": "1"}));
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}}]}});
    let refused = client.post("/api/v1/namespaces/guarded/pods", &pod);
    assert!(refused.status >= 400, "{}", refused.text());
    assert_eq!(client.get("/api/v1/namespaces/guarded/pods/p").status, 404);
}

#[test]
fn one_object_that_cannot_be_read_does_not_keep_the_others() {
    let directory = directory();
    let data = directory.path().join("data");
    let head = damaged(&data);
    let server = Server::on(&data, &[]);
    let mut client = server.admin();
    let corrupt = "StorageError: corrupt object, Code: 7, Key: /registry/configmaps/default/b";
    assert_eq!(client.get(&format!("{MAPS}/a")).ok()["data"], json!({"kept": "yes"}));
    let b = format!("{MAPS}/b");
    let merge = "merge";
    for answer in [
        client.get(&b),
        client.put(&b, &map("b")),
        client.patch(&b, merge, &json!({"data": {"x": "y"}})),
        client.delete(&b),
    ] {
        let status = answer.refused(500, "InternalError");
        assert!(text(&status, "/message").contains(corrupt), "{status}");
    }
    client.post(MAPS, &map("b")).refused(409, "AlreadyExists");
    for path in [MAPS, "/api/v1/configmaps?limit=500", &format!("{MAPS}?labelSelector=x=y")] {
        let status = client.get(path).refused(500, "StorageReadError");
        assert_eq!(status["message"], "failed to read one or more configmaps from the storage");
        assert_eq!(status["details"]["name"], "list");
        let causes = status["details"]["causes"].as_array().expect("causes");
        assert_eq!(causes.len(), 1, "{status}");
        assert_eq!(causes[0]["field"], "/registry/configmaps/default/b");
        assert_eq!(causes[0]["reason"], "UnexpectedServerResponse");
    }
    client.delete(MAPS).refused(500, "StorageReadError");
    assert_eq!(client.get("/api/v1/namespaces/kube-public/configmaps").ok()["items"], json!([]));
    assert_eq!(
        client.get(&format!("{MAPS}?fieldSelector=metadata.name%3Da")).ok()["items"][0]["data"]["kept"],
        "yes"
    );
    // Whoever watches from the start is told, and so is whoever has the object from before.
    let mut watch = client.watch(MAPS, "");
    assert_eq!(watch.next()["object"]["metadata"]["name"], "a");
    let error = watch.next();
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(500)));
    // Without the gate the option is not heard of, and the deletion is like any other.
    client.delete(&format!("{b}?{FORCE}&gracePeriodSeconds=1")).refused(500, "InternalError");
    assert_eq!(client.post(MAPS, &map("d")).ok()["metadata"]["resourceVersion"], (head + 1).to_string());
    server.stop();
}

#[test]
fn with_the_gate_what_cannot_be_read_can_be_removed() {
    let directory = directory();
    let data = directory.path().join("data");
    let head = damaged(&data);
    let server = Server::on(&data, &["--feature-gates=AllowUnsafeMalformedObjectDeletion=true"]);
    let mut client = server.admin();
    let b = format!("{MAPS}/b");
    client.delete(&b).refused(500, "InternalError");
    for (path, why) in [
        (
            format!("{MAPS}/a?{FORCE}"),
            "is exclusively used to delete corrupt object(s), try again by removing this option",
        ),
        (format!("{MAPS}/none?{FORCE}"), "is exclusively used to delete corrupt object(s)"),
        (format!("{b}?{FORCE}&gracePeriodSeconds=0"), "cannot be set together with .gracePeriodSeconds"),
        (
            format!("{MAPS}?{FORCE}"),
            "is not allowed with DELETECOLLECTION, try again after removing the option",
        ),
    ] {
        let status = client.delete(&path).refused(422, "Invalid");
        assert!(text(&status, "/message").contains(why), "{path}: {status}");
    }
    client
        .with_token(Some(support::server::USER_TOKEN))
        .delete(&format!("{b}?{FORCE}"))
        .refused(403, "Forbidden");
    let mut selective = client.watch(MAPS, &format!("labelSelector=x=y&resourceVersion={head}"));
    let mut elsewhere =
        client.watch("/api/v1/namespaces/kube-system/configmaps", &format!("resourceVersion={head}"));
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1",
        "ignoreStoreReadErrorWithClusterBreakingPotential": true});
    let gone = client.request("DELETE", &b, &JSON, options.to_string().as_bytes()).ok();
    assert_eq!(gone["details"], json!({"name": "b", "kind": "ConfigMap"}), "{gone}");
    let error = selective.next();
    assert_eq!(error["type"], "ERROR");
    assert_eq!(error["object"]["reason"], "StorageReadError");
    let message = text(&error, "/object/message");
    assert!(
        message.starts_with("saw a DELETED event, but object data is corrupt - object not decodable"),
        "{error}"
    );
    client.get(&b).refused(404, "NotFound");
    let names = |client: &mut Client| -> Vec<Value> {
        let list = client.get(MAPS).ok();
        list["items"].as_array().expect("items").iter().map(|item| item["metadata"]["name"].clone()).collect()
    };
    assert_eq!(names(&mut client), ["a", "c"]);
    client.post("/api/v1/namespaces/kube-system/configmaps", &map("e")).ok();
    assert_eq!(elsewhere.next()["object"]["metadata"]["name"], "e", "other namespaces go on");
    client.post(MAPS, &map("b")).ok();
    server.stop();
    let again = Server::on(&data, &[]);
    assert_eq!(names(&mut again.admin()), ["a", "b", "c"]);
    again.stop();
}

#[test]
fn the_memory_engine_forgets() {
    let directory = directory();
    let data = directory.path().join("data");
    let first = Server::on(&data, &["--engine=memory"]);
    first.admin().post(MAPS, &map("forgotten")).ok();
    first.stop();
    let second = Server::on(&data, &["--storage-backend=memory"]);
    second.admin().get(&format!("{MAPS}/forgotten")).refused(404, "NotFound");
}

#[test]
fn two_servers_cannot_share_a_data_directory() {
    let directory = directory();
    let data = directory.path().join("data");
    let mut first = Server::on(&data, &[]);
    let kubeconfig = fs::read(first.kubeconfig()).expect("the kubeconfig");
    let said = refused(&data, &[]);
    assert!(said.contains("in use by another server") && said.contains("data"), "{said}");
    assert_eq!(
        fs::read(first.kubeconfig()).expect("the kubeconfig"),
        kubeconfig,
        "the first one's file is left alone"
    );
    first.unharmed();
    first.stop();
    Server::on(&data, &[]).stop();
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let directory = directory();
    let said = refused(&directory.path().join("data"), &["--secure-port", &port]);
    assert!(said.contains(&port) && said.contains("in use"), "{said}");
}

#[test]
fn a_damaged_data_file_is_named() {
    let directory = directory();
    let data = directory.path().join("data");
    let server = Server::on(&data, &[]);
    server.admin().post(MAPS, &map("kept")).ok();
    server.stop();
    let store =
        files(&data).into_iter().find(|file| fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"redb")));
    let store = store.expect("a file of the redb engine");
    let name = store.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let whole = fs::read(&store).expect("the file");

    let mut scribbled = whole.clone();
    scribbled[..512].fill(0xa5);
    for (what, bytes) in
        [("its head overwritten", scribbled), ("half of it gone", whole[..whole.len() / 2].to_vec())]
    {
        fs::write(&store, bytes).expect("the damage");
        let said = refused(&data, &[]);
        assert!(said.contains(&name), "{what}: the message names the file {name}: {said}");
    }
    fs::write(&store, &whole).expect("the repair");
    let server = Server::on(&data, &[]);
    server.admin().get(&format!("{MAPS}/kept")).ok();
}

fn run(arguments: &[&str]) -> Output {
    let directory = directory();
    command(directory.path(), arguments).output().expect("the binary")
}

#[test]
fn flags_that_nobody_knows() {
    for (given, meant) in [("--secur-port=1", "--secure-port"), ("--token-auth-fil=x", "--token-auth-file")] {
        let output = run(&[given]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{given}");
        let unknown = given.split('=').next().unwrap_or_default();
        assert!(said.contains(unknown) && said.contains(meant), "{given}: {said}");
    }
    for bad in
        ["--secure-port=x", "--engine=etcd9", "--bind-address=nowhere", "--feature-gates=NoSuchGate=true"]
    {
        let output = run(&[bad]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{bad}");
        assert!(said.contains(bad.split('=').nth(1).unwrap_or_default()), "{bad}: {said}");
        assert!(!said.contains("panicked"), "{bad}: {said}");
    }
    let output = run(&["--token-auth-file=no-such-file.csv"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("no-such-file.csv"), "{said}");
}

#[test]
fn help_has_groups() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    for heading in ["Secure serving", "Storage", "Authentication", "Authorization", "Logging"] {
        assert!(help.lines().any(|line| line.trim_end() == format!("{heading}:")), "{heading} in {help}");
    }
    for flag in [
        "--secure-port",
        "--bind-address",
        "--cert-dir",
        "--tls-cert-file",
        "--tls-private-key-file",
        "--client-ca-file",
        "--token-auth-file",
        "--anonymous-auth",
        "--authorization-mode",
        "--feature-gates",
        "--runtime-config",
        "--data-dir",
        "--controllers",
        "--shutdown-delay-duration",
        "-v",
    ] {
        assert!(help.contains(flag), "{flag} in {help}");
    }
    assert!(run(&["--version"]).status.success());
}

#[test]
fn stopping_is_graceful() {
    let directory = directory();
    let data = directory.path().join("data");
    // Long enough for all that is asked for meanwhile, also on a busy machine.
    let server = Server::on(&data, &["--shutdown-delay-duration=6s"]);
    let mut client = server.admin();
    let mut health = server.admin();
    let from = text(&client.get(MAPS).ok(), "/metadata/resourceVersion").to_owned();
    let mut watch = client.watch(MAPS, &format!("resourceVersion={from}"));
    client.post(MAPS, &map("seen")).ok();
    assert_eq!(text(&watch.next(), "/object/metadata/name"), "seen");

    // A request whose body comes only after the server was told to stop.
    let body = map("in-flight").to_string();
    let (first, rest) = body.as_bytes().split_at(20);
    let mut slow = client.raw();
    let head = format!("{}Content-Length: {}\r\n\r\n", client.head("POST", MAPS, &JSON), body.len());
    slow.send(head.as_bytes()).expect("the head");
    slow.send(first).expect("a part of the body");

    server.terminate();
    let failing = poll(CAP, || Some(health.get("/readyz")).filter(|answer| answer.status != 200));
    assert_eq!(failing.expect("/readyz fails while the server is stopping").status, 500);
    assert_eq!(health.get("/livez").status, 200, "stopping is not being dead");
    client.post(MAPS, &map("late")).ok();
    assert_eq!(text(&watch.next(), "/object/metadata/name"), "late", "the watch lives through the delay");

    let end = watch.attempt(Deadline::after(CAP)).expect("the watch ends with its last chunk");
    assert_eq!(end, None);
    let refused = poll(CAP, || TcpStream::connect(server.address()).err());
    let refused = refused.expect("a new client does not wait in vain");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    slow.send(rest).expect("the rest of the body");
    let deadline = Deadline::after(CAP);
    let answer = slow.head(deadline).expect("the request in flight is answered");
    assert_eq!(answer.status, 201);
    slow.body(Connection::framing(&answer, "POST"), deadline).expect("the whole answer");

    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    let server = Server::on(&data, &[]);
    for name in ["seen", "late", "in-flight"] {
        server.admin().get(&format!("{MAPS}/{name}")).ok();
    }
}

/// A certificate with its key: an authority's own, or a client's that an authority vouches for.
fn certificate(name: &str, issuer: Option<&(X509, PKey<Private>)>) -> (X509, PKey<Private>) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("a curve");
    let key = PKey::from_ec_key(EcKey::generate(&group).expect("a key")).expect("a key");
    let mut subject = X509Name::builder().expect("a name");
    subject.append_entry_by_text("CN", name).expect("a name");
    subject.append_entry_by_text("O", "system:masters").expect("a group");
    let subject = subject.build();
    let mut draft = X509::builder().expect("a certificate");
    draft.set_version(2).expect("version 3");
    draft.set_subject_name(&subject).expect("a subject");
    draft.set_issuer_name(issuer.map_or(&*subject, |issuer| issuer.0.subject_name())).expect("an issuer");
    draft.set_not_before(&Asn1Time::days_from_now(0).expect("now")).expect("a beginning");
    draft.set_not_after(&Asn1Time::days_from_now(2).expect("later")).expect("an end");
    draft.set_pubkey(&key).expect("a key");
    if issuer.is_none() {
        let basic = BasicConstraints::new().critical().ca().build().expect("an extension");
        draft.append_extension(basic).expect("an authority");
    } else {
        let usage = ExtendedKeyUsage::new().client_auth().build().expect("an extension");
        draft.append_extension(usage).expect("a client");
    }
    draft.sign(issuer.map_or(&key, |issuer| &issuer.1), MessageDigest::sha256()).expect("a signature");
    (draft.build(), key)
}

#[test]
fn certificates_are_replaced_without_a_restart() {
    let directory = directory();
    let (data, bundle) = (directory.path().join("data"), directory.path().join("clients.crt"));
    let [first, second] = ["first", "second"].map(|name| certificate(name, None));
    let write = |authority: &X509| fs::write(&bundle, authority.to_pem().expect("PEM")).expect("a file");
    write(&first.0);
    let server = Server::on(&data, &["--client-ca-file", bundle.to_str().expect("a path")]);
    let trusted = fs::read(data.join("pki/ca.crt")).expect("the authority");
    let ask = |issuer: &(X509, PKey<Private>)| {
        let (certificate, key) = certificate("somebody", Some(issuer));
        let pem = (certificate.to_pem().expect("PEM"), key.private_key_to_pem_pkcs8().expect("PEM"));
        Client::new(server.address(), &trusted, Some((&pem.0, &pem.1))).get("/api/v1/namespaces").status
    };
    assert_eq!((ask(&first), ask(&second)), (200, 401));
    write(&second.0);
    poll(CAP, || (ask(&second) == 200).then_some(())).expect("the new authority is believed");
    assert_eq!(ask(&first), 401, "the old one is not");
    // Without a serving certificate the server makes itself one, and shows it to whoever comes.
    let serving = data.join("pki/apiserver.crt");
    let before = fs::read(&serving).expect("a certificate");
    fs::remove_file(&serving).expect("it is gone");
    let made = poll(CAP, || fs::read(&serving).ok().filter(|made| *made != before)).expect("a new one");
    let made = X509::from_pem(&made).expect("PEM").to_der().expect("DER");
    poll(CAP, || (server.anonymous().raw().certificate() == made).then_some(())).expect("it is shown");
    let ready = server.admin().get("/readyz");
    assert_eq!((ready.status, ready.header("strict-transport-security")), (200, None));
}

/// The certificate (DER) that a server shows to whoever asks for a host.
fn shown(address: SocketAddr, host: Option<&str>) -> Vec<u8> {
    let mut connector = SslConnector::builder(SslMethod::tls()).expect("TLS");
    connector.set_verify(SslVerifyMode::NONE);
    let mut asking = connector
        .build()
        .configure()
        .expect("TLS")
        .verify_hostname(false)
        .use_server_name_indication(host.is_some());
    asking.set_verify(SslVerifyMode::NONE);
    let stream = std::net::TcpStream::connect(address).expect("a connection");
    let stream = asking.connect(host.unwrap_or("nobody"), stream).expect("a handshake");
    stream.ssl().peer_certificate().expect("a certificate").to_der().expect("DER")
}

#[test]
fn who_asks_for_a_name_is_shown_its_certificate() {
    let directory = directory();
    let place = |name: &str| directory.path().join(name);
    let write = |name: &str, (certificate, key): &(X509, PKey<Private>)| {
        fs::write(place(&format!("{name}.key")), key.private_key_to_pem_pkcs8().expect("PEM"))
            .expect("a file");
        fs::write(place(&format!("{name}.crt")), certificate.to_pem().expect("PEM")).expect("a file");
    };
    let flag = |name: &str, names: &str| {
        format!(
            "{},{}{names}",
            place(&format!("{name}.crt")).display(),
            place(&format!("{name}.key")).display()
        )
    };
    let [said, own, later] = ["said", "own.example.com", "later"].map(|name| certificate(name, None));
    write("said", &said);
    write("own", &own);
    let data = directory.path().join("data");
    let (said_flag, own_flag) = (flag("said", ":api.example.com,*.more.example.com"), flag("own", ""));
    let hsts = "--strict-transport-security-directives=max-age=31536000,includeSubDomains,preload";
    let server =
        Server::on(&data, &["--tls-sni-cert-key", &own_flag, "--tls-sni-cert-key", &said_flag, hsts]);
    let der = |pair: &(X509, PKey<Private>)| pair.0.to_der().expect("DER");
    for host in ["api.example.com", "API.example.com", "one.more.example.com"] {
        assert_eq!(shown(server.address(), Some(host)), der(&said), "{host}");
    }
    assert_eq!(shown(server.address(), Some("own.example.com")), der(&own));
    let serving = shown(server.address(), None);
    for host in ["said", "two.one.more.example.com", "elsewhere.example.com", "localhost"] {
        assert_eq!(shown(server.address(), Some(host)), serving, "{host}");
    }
    write("said", &later);
    poll(CAP, || (shown(server.address(), Some("api.example.com")) == der(&later)).then_some(()))
        .expect("the new one");
    let told = "max-age=31536000; includeSubDomains; preload";
    for path in ["/healthz", "/api/v1/namespaces/none", "/nonsense"] {
        let answer = server.admin().get(path);
        assert_eq!(answer.header("strict-transport-security"), Some(told), "{path}");
    }
    // An address is for those who name nobody.
    let mut config = Config::ephemeral();
    config.serving.tls_sni_cert_key = vec![flag("own", ":127.0.0.1").parse().expect("files and a name")];
    let server = Embedded::start(config).expect("an embedded server");
    assert_eq!(shown(server.address(), None), der(&own));
    assert_ne!(shown(server.address(), Some("localhost")), der(&own));
}

fn client_of(handle: &Handle) -> Client {
    let admin = handle.admin();
    Client::new(handle.address(), handle.ca_pem(), Some((&admin.certificates_pem, &admin.key_pem)))
}

fn two_at_once() -> (Handle, Handle) {
    let start = || Embedded::start(Config::ephemeral()).expect("an embedded server");
    let (one, other) = (start(), start());
    assert_ne!(one.address(), other.address());
    client_of(&one).post(MAPS, &map("mine")).ok();
    client_of(&one).get(&format!("{MAPS}/mine")).ok();
    client_of(&other).get(&format!("{MAPS}/mine")).refused(404, "NotFound");
    (one, other)
}

#[test]
fn several_servers_live_in_one_process() {
    let (one, other) = two_at_once();
    let gone = one.address();
    assert_eq!(one.stop(), Exit::Stopped);
    assert!(std::net::TcpStream::connect(gone).is_err(), "nobody listens any more");
    client_of(&other).get(MAPS).ok();
    assert_eq!(other.stop(), Exit::Stopped);
}

#[tokio::test]
async fn a_server_starts_inside_another_runtime() {
    let server = Embedded::start_async(Config::ephemeral()).await.expect("an embedded server");
    let mut client = client_of(&server);
    let asked = tokio::task::spawn_blocking(move || client.get("/api/v1/namespaces").ok());
    assert_eq!(text(&asked.await.expect("an answer"), "/kind"), "NamespaceList");
    assert_eq!(server.stop_async().await, Exit::Stopped);
    // The blocking call does its work from here too.
    let (one, other) = two_at_once();
    drop(one);
    assert_eq!(other.stop_async().await, Exit::Stopped);
}
