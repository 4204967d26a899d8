//! One test per bug that was found. The name says what went wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use pilothouse::Config;
use serde_json::{Value, json};
use support::wait::{CAP, poll};
use support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A path that was authorized in one namespace and served from another.
#[test]
fn a_namespace_does_not_stand_in_another() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}});
    client.get("/api/v1/namespaces/default/namespaces").refused(404, "NotFound");
    client.get("/api/v1/namespaces/default/namespaces/kube-system").refused(404, "NotFound");
    client.delete("/api/v1/namespaces/default/namespaces/kube-node-lease").refused(404, "NotFound");
    client.get("/api/v1/namespaces/default/namespaces/default").refused(404, "NotFound");
    client.get("/api/v1/namespaces/default/namespaces/default/status").refused(404, "NotFound");
    client.post("/api/v1/namespaces/default/namespaces", &object).refused(404, "NotFound");
    client.get("/api/v1/namespaces/default").ok();
}

/// A watch from a version that does not exist waited in silence and sent a false bookmark.
#[test]
fn a_watch_from_a_version_that_does_not_exist_is_refused() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let answer = client.get(&format!("{MAPS}?watch=1&resourceVersion=99999&allowWatchBookmarks=true"));
    let event = answer.ok();
    let status = &event["object"];
    assert_eq!((&event["type"], &status["code"]), (&json!("ERROR"), &json!(504)));
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

/// The old watch prefix turned any method into a watch.
#[test]
fn a_watch_is_a_get() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    for method in ["DELETE", "POST", "PUT"] {
        client.request(method, "/api/v1/watch/namespaces", &[], b"").refused(405, "MethodNotAllowed");
    }
}

/// Comparing every owner with every other held a worker for minutes.
#[test]
fn twenty_thousand_owners_are_compared_in_time() {
    let mut server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let owners: Vec<Value> = (0..20_000)
        .map(|n| json!({"apiVersion": "v1", "kind": "Pod", "name": format!("p{n}"), "uid": format!("u{n}")}))
        .collect();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "ownerReferences": owners}});
    let created = client.post(MAPS, &object).ok();
    assert_eq!(created["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(20_000));
    server.unharmed();
}

/// A body that was wrong in many places made an answer a hundred times its size.
#[test]
fn an_answer_does_not_name_every_mistake() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let finalizers: Vec<String> = (0..20_000).map(|n| format!("bad {n}")).collect();
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": finalizers}});
    let status = client.post(MAPS, &object).refused(422, "Invalid");
    assert_eq!(status["details"]["causes"].as_array().map(Vec::len), Some(1_000));
}

/// Versions of one kind shared one memory of what had been encoded, and one was answered with the other.
#[test]
fn two_versions_of_one_object_are_told_apart_on_watches() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let (core, other) =
        ("/api/v1/namespaces/default/events", "/apis/events.k8s.io/v1/namespaces/default/events");
    let mut watch_core = client.watch(core, "");
    let mut watch_other = client.watch(other, "");
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": "R", "message": "m",
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "type": "Normal"});
    client.post(core, &event).ok();
    assert_eq!(watch_core.next_of("e")["object"]["apiVersion"], "v1");
    assert_eq!(watch_other.next_of("e")["object"]["apiVersion"], "events.k8s.io/v1");
}

/// An update that wrote a zero default counted as a change of the spec.
#[test]
fn a_label_does_not_move_the_generation() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/api/v1/namespaces/default/replicationcontrollers";
    let object = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "r"}, "spec": {
        "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}});
    let mut created = client.post(path, &object).ok();
    created["metadata"]["labels"]["new"] = json!("yes");
    let updated = client.put(&format!("{path}/r"), &created).ok();
    assert_eq!(updated["metadata"]["generation"], 1);
}

/// A status without labels took those away that a controller has from its template.
#[test]
fn what_is_read_back_has_the_labels_of_its_template() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}});
    let mut pods = template.clone();
    pods["spec"]["restartPolicy"] = json!("Always");
    let controllers = "/api/v1/namespaces/default/replicationcontrollers";
    let controller = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "r"}, "spec": {"template": pods}});
    client.post(controllers, &controller).ok();
    let bare = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "r"}});
    for query in ["?dryRun=All", ""] {
        let answer = client.put(&format!("{controllers}/r/status{query}"), &bare).ok();
        assert_eq!(answer["metadata"]["labels"], json!({"app": "a"}));
    }
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let job = |meta: serde_json::Value| json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": template}});
    // The labels that the pods of a Job get are its own, too, as long as it shares theirs; a name that is made parts them.
    let named = client.post(jobs, &job(json!({"name": "j"}))).ok();
    assert_eq!(named["metadata"]["labels"]["job-name"], "j");
    let made = client.post(jobs, &job(json!({"generateName": "j-"}))).ok();
    assert_eq!(made["metadata"]["labels"], json!({"app": "a"}));
    let bare = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}});
    let answer = client.put(&format!("{jobs}/j/status"), &bare).ok();
    assert_eq!(answer["metadata"]["labels"]["job-name"], "j", "{answer}");
}

/// An overhead without amounts counted as none.
#[test]
fn an_empty_overhead_needs_a_class() {
    let server = Server::with(&["--engine=memory", "--disable-admission-plugins=ServiceAccount"]);
    let mut client = server.admin();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"overhead": {}, "containers": [{"name": "c", "image": "i:1"}]}});
    let status = client.post(pods, &pod).refused(403, "Forbidden");
    assert!(
        status["message"].as_str().is_some_and(|why| why.contains("Pod Overhead set without")),
        "{status}"
    );
    // An update may say it: it says nothing new.
    let mut plain = pod.clone();
    plain["spec"].as_object_mut().expect("a spec").remove("overhead");
    client.post(pods, &plain).ok();
    let updated = client.put(&format!("{pods}/p"), &pod).ok();
    assert_eq!(updated["metadata"]["generation"], 1);
}

/// The answer to a deletion that ended a grace period had the version of the mark, which no watch ends with.
#[test]
fn a_deletion_that_takes_the_object_out_answers_with_the_version_of_its_last_event() {
    let server = Server::with(&["--engine=memory"]);
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
    let gone = client.delete(&format!("{pods}/p?gracePeriodSeconds=0")).ok();
    let last =
        std::iter::repeat_with(|| watch.next()).find(|event| event["type"] == "DELETED").expect("the end");
    assert_eq!(last["object"]["metadata"]["resourceVersion"], gone["metadata"]["resourceVersion"]);
}

/// A manifest with the version 0, which means none, could not be created.
#[test]
fn the_version_zero_is_none() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let object = |name: &str, version: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "resourceVersion": version}})
    };
    let created = client.post(MAPS, &object("a", "0")).ok();
    assert_ne!(created["metadata"]["resourceVersion"], "0");
    assert_eq!(client.get(&format!("{MAPS}/a")).ok(), created);
    client.post(MAPS, &object("b", "1")).refused(400, "BadRequest");
}

/// The priority classes of the system could be deleted, and were back only after a restart.
#[test]
fn the_priorities_of_the_system_stay() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical";
    let refused = client.delete(path).refused(403, "Forbidden");
    let message = refused["message"].as_str().unwrap();
    assert!(message.ends_with("this is a system priority class and cannot be deleted"), "{message}");
    client.get(path).ok();
}

/// A list of one name told of a next chunk, and a token that said where to go on by a key alone was refused.
#[test]
fn a_list_goes_on_from_any_key() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    for name in ["a", "b", "c"] {
        client.post(MAPS, &json!({"metadata": {"name": name}})).ok();
    }
    let one = client.get(&format!("{MAPS}?limit=1&fieldSelector=metadata.name%3Db")).ok();
    assert_eq!(
        (one["items"].as_array().map(Vec::len), &one["metadata"]["continue"]),
        (Some(1), &Value::Null)
    );
    // {"v":"meta.k8s.io/v1","rv":-1,"start":"b"}
    let token = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiYiJ9";
    let rest = client.get(&format!("{MAPS}?continue={token}")).ok();
    assert_eq!(
        (&rest["items"][0]["metadata"]["name"], rest["items"].as_array().map(Vec::len)),
        (&json!("b"), Some(2))
    );
    let first = client.get("/api/v1/configmaps?limit=1&fieldSelector=metadata.namespace%3Ddefault").ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let path = "/api/v1/configmaps?fieldSelector=metadata.namespace%3Ddefault";
    let second = client.get(&format!("{path}&limit=1&continue={token}")).ok();
    assert_eq!(second["items"][0]["metadata"]["name"], "b");
}

/// A form that cannot be had was refused before anybody looked whether there is an object.
#[test]
fn what_is_not_there_has_no_form() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    client.post(MAPS, &json!({"metadata": {"name": "a"}})).ok();
    let accept = [("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")];
    client.request("GET", &format!("{MAPS}/none"), &accept, b"").refused(404, "NotFound");
    client.request("GET", &format!("{MAPS}/a"), &accept, b"").refused(406, "NotAcceptable");
    let gone = client.request("DELETE", &format!("{MAPS}/a"), &accept, b"").ok();
    assert_eq!(gone["status"], "Success");
}

/// A collection that cannot be watched answered as if its path took no GET.
#[test]
fn what_cannot_be_watched_says_so() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let answer = client.get("/api/v1/componentstatuses?watch=1");
    assert_eq!(answer.header("warning"), Some("299 - \"v1 ComponentStatus is deprecated in v1.19+\""));
    let status = answer.refused(405, "MethodNotAllowed");
    assert_eq!(status["message"], "watch is not supported on resources of kind \"componentstatuses\"");
    assert_eq!(status["details"], json!({"kind": "componentstatuses"}));
    client.get("/api/v1/watch/componentstatuses").refused(404, "NotFound");
    client.get("/api/v1/watch/namespaces/default/pods/x/log").refused(404, "NotFound");
}

/// Aggregated discovery was told where the reference does not, and not told to who would rather have something else.
#[test]
fn all_groups_at_once_are_for_who_knows_them() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let all = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let mut get = |path: &str, accept: &str| client.request("GET", path, &[("Accept", accept)], b"");
    let preferring = format!("application/json,{all};q=0.1");
    assert_eq!(get("/apis", &preferring).json()["kind"], "APIGroupDiscoveryList");
    get("/apis/", all).refused(406, "NotAcceptable");
    assert_eq!(get("/apis/", &format!("{all},application/json")).json()["kind"], "APIGroupList");
}

/// Checks that clients know by the names of the reference were not there.
#[test]
fn health_has_the_names_that_clients_ask_for() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    for path in ["/livez/poststarthook/rbac/bootstrap-roles", "/readyz/etcd-readiness"] {
        assert_eq!((client.get(path).status, client.get(path).text()), (200, "ok".to_owned()), "{path}");
    }
    assert_eq!(client.get("/livez/etcd-readiness").status, 404);
    let told = client.get("/livez?verbose&exclude=nope&exclude=nada").text();
    assert!(told.contains("no matches for \"nada\",\"nope\"\n"), "{told}");
}

/// A write that offered WebSocket waited for ever: what came after its head was a body without end.
#[test]
fn a_write_that_offers_another_protocol_is_a_write() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let offers = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Content-Type", "application/json")];
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}).to_string();
    assert_eq!(client.request("POST", MAPS, &offers, object.as_bytes()).status, 201);
    assert_eq!(client.request("DELETE", &format!("{MAPS}/x"), &offers, b"").status, 200);
    client.get(&format!("{MAPS}/x")).refused(404, "NotFound");
}

/// A watch that asks for lists of metadata told of objects.
#[test]
fn no_event_is_a_list_of_metadata() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    client.post(MAPS, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})).ok();
    let accept = ("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    let watched = client.request("GET", &format!("{MAPS}?watch=1&timeoutSeconds=60"), &[accept], b"");
    assert_eq!((watched.status, watched.text().as_str()), (200, ""));
}

/// Selectors with empty parts counted as those without.
#[test]
fn an_empty_part_of_a_selector_moves_the_generation_of_a_network_policy() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a"},
        "spec": {"podSelector": {}}});
    client.post(policies, &policy).ok();
    for (part, generation) in
        [(json!({"matchExpressions": []}), 2), (json!({"matchLabels": {}}), 3), (json!({}), 3)]
    {
        let patch = json!({"spec": {"podSelector": part}});
        let patched = client.patch(&format!("{policies}/a"), "merge", &patch).ok();
        assert_eq!(patched["metadata"]["generation"], generation, "{part}");
        assert_eq!(patched["spec"]["podSelector"], json!({}));
    }
}

/// Fields of features that are off by default were dropped whatever the gates said.
#[test]
fn gates_decide_about_fields() {
    let pods = "/api/v1/namespaces/default/pods?dryRun=All";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {
        "os": {"name": "linux"},
        "volumes": [{"name": "i", "image": {"reference": "r:1"}},
            {"name": "p", "projected": {"sources": [{"clusterTrustBundle": {"name": "b", "path": "ca.pem"}}]}}],
        "containers": [{"name": "c", "image": "i:1", "lifecycle": {"stopSignal": "SIGUSR1"},
            "volumeMounts": [{"name": "i", "mountPath": "/i"}]}]}});
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims?dryRun=All";
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeAttributesClassName": "gold",
        "dataSourceRef": {"apiGroup": "g.example", "kind": "K", "name": "n", "namespace": "other"}}});
    const VERSIONS: &str = "--runtime-config=storage.k8s.io/v1beta1=true";
    const GATES: &str = "--feature-gates=ContainerStopSignals=true,ImageVolume=true,ClusterTrustBundleProjection=true,\
                         CrossNamespaceVolumeDataSource=true,VolumeAttributesClass=true";
    for (flags, kept) in [(&["--engine=memory"][..], false), (&["--engine=memory", GATES][..], true)] {
        let server =
            Server::with(&[flags, &["--disable-admission-plugins=ServiceAccount", VERSIONS]].concat());
        let mut client = server.admin();
        let spec = &client.post(pods, &pod).ok()["spec"];
        let (container, volumes) = (&spec["containers"][0], spec["volumes"].as_array().unwrap());
        assert_eq!(container["lifecycle"]["stopSignal"] == "SIGUSR1", kept);
        assert_eq!(container["volumeMounts"].is_array(), kept);
        assert_eq!(volumes.iter().any(|volume| volume["image"]["pullPolicy"] == "IfNotPresent"), kept);
        let sources = &volumes.iter().find(|volume| volume["name"] == "p").unwrap()["projected"]["sources"];
        assert_eq!(sources[0]["clusterTrustBundle"]["path"] == "ca.pem", kept);
        let class = json!({"apiVersion": "storage.k8s.io/v1beta1", "kind": "VolumeAttributesClass",
            "metadata": {"name": "gold"}, "driverName": "d.example", "parameters": {"a": "b"}});
        let made =
            client.post("/apis/storage.k8s.io/v1beta1/volumeattributesclasses?dryRun=All", &class).ok();
        assert_eq!(made["metadata"]["finalizers"] == json!(["kubernetes.io/vac-protection"]), kept);
        let spec = &client.post(claims, &claim).ok()["spec"];
        assert_eq!(spec["volumeAttributesClassName"] == "gold", kept);
        assert_eq!(spec["dataSourceRef"]["namespace"] == "other", kept);
    }
}

/// Two servers of one process had the gates of whichever was started last, and both took privileged containers or neither.
#[test]
fn servers_of_one_process_have_gates_of_their_own() {
    let start = |gates: &[&str], privileged: bool| {
        let mut config = Config::ephemeral();
        config.api.controllers = vec!["-*".to_owned()];
        config.api.disable_admission_plugins = vec!["ServiceAccount".to_owned()];
        config.api.feature_gates = gates.iter().map(|gate| gate.parse().unwrap()).collect();
        config.api.allow_privileged = privileged;
        let server = pilothouse::Server::start(config).unwrap();
        let admin = server.admin();
        let identity = Some((&admin.certificates_pem[..], &admin.key_pem[..]));
        let client = Client::new(server.address(), server.ca_pem(), identity);
        (server, client)
    };
    let (first, mut open) = start(&["ContainerStopSignals=true", "MaxUnavailableStatefulSet=true"], true);
    let (second, mut closed) =
        start(&["UserNamespacesSupport=false", "JobPodReplacementPolicy=false"], false);
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str, privileged: bool| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"os": {"name": "linux"},
            "hostUsers": true, "containers": [{"name": "c", "image": "i:1", "lifecycle": {"stopSignal": "SIGUSR1"},
                "securityContext": {"privileged": privileged}}]}})
    };
    // In turns, so that neither can be lucky.
    for name in ["a", "b"] {
        let spec = &open.post(pods, &pod(name, true)).ok()["spec"];
        assert_eq!(spec["containers"][0]["lifecycle"]["stopSignal"], "SIGUSR1");
        assert_eq!(spec["hostUsers"], true);
        let refused = closed.post(pods, &pod(name, true)).refused(422, "Invalid");
        assert!(refused["message"].as_str().unwrap().contains("disallowed by cluster policy"), "{refused}");
        let spec = &closed.post(pods, &pod(name, false)).ok()["spec"];
        assert_eq!((&spec["hostUsers"], &spec["containers"][0]["lifecycle"]), (&json!(null), &json!(null)));
    }
    let labels = json!({"a": "b"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i:1"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}});
    let mut always = template;
    always["spec"]["restartPolicy"] = json!("Always");
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"},
        "spec": {"serviceName": "s", "selector": {"matchLabels": labels}, "template": always}});
    for (client, replaced, missing) in [(&mut open, true, true), (&mut closed, false, false)] {
        let made = client.post("/apis/batch/v1/namespaces/default/jobs", &job).ok();
        assert_eq!(made["spec"]["podReplacementPolicy"] == "TerminatingOrFailed", replaced, "{made}");
        let made = client.post("/apis/apps/v1/namespaces/default/statefulsets", &set).ok();
        assert_eq!(made["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1, missing, "{made}");
    }
    let told = |client: &mut Client, gate: &str| client.get("/metrics").text().contains(gate);
    let gate = "kubernetes_feature_enabled{name=\"ContainerStopSignals\",stage=\"ALPHA\"} 1";
    assert!(told(&mut open, gate) && !told(&mut closed, gate));
    first.stop();
    second.stop();
}

/// What pods ask for as a whole and the devices that they claim were dropped whatever the gates said.
#[test]
fn pods_ask_as_a_whole_and_claim_devices_where_they_can() {
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |claim: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {
            "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}],
            "containers": [{"name": "c", "image": "i:1", "resources": {"claims": [{"name": claim}], "requests": {"cpu": "1"}}}]}})
    };
    let server = Server::with(&[
        "--engine=memory",
        "--disable-admission-plugins=ServiceAccount",
        "--feature-gates=PodLevelResources=true,DynamicResourceAllocation=true",
    ]);
    let mut client = server.admin();
    let refused = client.post(pods, &pod("other")).refused(422, "Invalid");
    let why = "must be one of the names in pod.spec.resourceClaims: gpu";
    assert!(refused["message"].as_str().unwrap().contains(why), "{refused}");
    let made = client.post(pods, &pod("gpu")).ok();
    assert_eq!(made["spec"]["resources"]["requests"], json!({"cpu": "1", "memory": "1Gi"}));
    assert_eq!(made["spec"]["containers"][0]["resources"]["claims"], json!([{"name": "gpu"}]));
    assert_eq!(made["status"]["qosClass"], "Burstable");
    let status = json!({"status": {"resourceClaimStatuses": [{"name": "none"}]}});
    client.patch(&format!("{pods}/a/status"), "merge", &status).refused(422, "Invalid");
    let status = json!({"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]}});
    let told = client.patch(&format!("{pods}/a/status"), "merge", &status).ok();
    assert_eq!(told["status"]["resourceClaimStatuses"][0]["resourceClaimName"], "made");
}

/// Fields that were stored while a gate was open went with the next write after it was closed.
#[test]
fn a_gate_that_is_closed_leaves_what_is_stored() {
    let directory = support::server::directory();
    let data = directory.path().join("data");
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"os": {"name": "linux"},
        "containers": [{"name": "c", "image": "i:1", "lifecycle": {"stopSignal": "SIGUSR1"}}]}});
    const PLAIN: &str = "--disable-admission-plugins=ServiceAccount";
    let server = Server::on(&data, &[PLAIN, "--feature-gates=ContainerStopSignals=true"]);
    server.admin().post(pods, &pod).ok();
    server.stop();
    let server = Server::on(&data, &[PLAIN]);
    let mut client = server.admin();
    let labelled =
        client.patch(&format!("{pods}/a"), "merge", &json!({"metadata": {"labels": {"a": "b"}}})).ok();
    assert_eq!(labelled["spec"]["containers"][0]["lifecycle"]["stopSignal"], "SIGUSR1");
    let mut other = pod;
    other["metadata"]["name"] = json!("b");
    assert_eq!(client.post(pods, &other).ok()["spec"]["containers"][0]["lifecycle"], json!(null));
}

/// A pod whose containers claim devices could not be stored again as it was.
#[test]
fn claims_of_devices_that_nobody_hears_of_change_nothing() {
    let server = Server::with(&["--engine=memory", "--disable-admission-plugins=ServiceAccount"]);
    let mut client = server.admin();
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    client.post("/api/v1/namespaces/default/pods", &pod).ok();
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "x"}]});
    client.put("/api/v1/namespaces/default/pods/a", &pod).ok();
}

/// Groups of sources that were stored are not read again, and what is wrong twice is told twice.
#[test]
fn the_sources_of_a_claim_that_has_some_are_looked_at_less() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = |group: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "dataSourceRef": {"apiGroup": group, "kind": "K", "name": "n"}}})
    };
    client.post(claims, &claim("g.example")).ok();
    let refused = client.put(&format!("{claims}/a"), &claim("Bad!")).refused(422, "Invalid");
    let causes = refused["details"]["causes"].as_array().unwrap();
    assert_eq!((causes.len(), &causes[0]["field"]), (1, &json!("spec")), "{refused}");
}

/// Versions that later releases deprecate were warned of, and claims of devices had to say how many.
#[test]
fn what_later_releases_deprecate_is_no_concern_yet() {
    let server = Server::with(&["--engine=memory", "--runtime-config=resource.k8s.io/v1beta1=true"]);
    let mut client = server.admin();
    let claim = json!({"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim", "metadata": {"name": "a"},
        "spec": {"devices": {"requests": [{"name": "one", "deviceClassName": "c"},
            {"name": "all", "deviceClassName": "c", "allocationMode": "All"}]}}});
    let made = client.post("/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims", &claim);
    assert_eq!(made.warnings(), [""; 0]);
    let requests = &made.ok()["spec"]["devices"]["requests"];
    assert_eq!((&requests[0]["allocationMode"], &requests[0]["count"]), (&json!("ExactCount"), &json!(1)));
    assert_eq!(requests[1].get("count"), None);
}

/// With the gate open, those who were turned away at the door and those who asked for groups were answered in CBOR, and a body that
/// could not be read was told of in words that nobody knows.
#[test]
fn cbor_is_spoken_where_objects_are_and_nowhere_else() {
    let server = Server::with(&["--engine=memory", "--feature-gates=CBORServingAndStorage=true"]);
    let mut client = server.admin();
    const CBOR: &str = "application/cbor";
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.g.example"}, "spec": {"group": "g.example", "scope": "Namespaced",
            "names": {"plural": "foos", "kind": "Foo"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).ok();
    poll(CAP, || (client.get("/apis/g.example/v1").status == 200).then_some(())).unwrap();
    let mut ask = |method: &str, path: &str, accept: &str| {
        let answer = client.request(method, path, &[("accept", accept)], b"");
        (answer.status, answer.header("content-type").unwrap_or_default().to_owned(), answer.text())
    };
    for path in [&format!("{MAPS}/none"), "/apis/apps/v1", "/api/v1/namespaces/default"] {
        assert_eq!(ask("GET", path, CBOR).1, CBOR, "{path}");
    }
    for (method, path, code) in [
        ("GET", "/api", 406),
        ("GET", "/apis", 406),
        ("GET", "/apis/apps", 406),
        ("GET", "/apis/apiregistration.k8s.io", 406),
        ("GET", "/apis/g.example/v1", 406),
        ("GET", "/version", 406),
        ("GET", "/api/v1/none", 404),
        ("POST", "/api/v1/namespaces/default", 405),
        ("POST", "/apis/apps/v1", 405),
    ] {
        let (answered, media, _) = ask(method, path, CBOR);
        assert_eq!((answered, &*media), (code, "application/json"), "{method} {path}");
    }
    for (path, accept) in
        [(&*format!("{MAPS}?watch=1"), "application/cbor-seq"), ("/apis/g.example/v1", "text/html")]
    {
        let (code, _, text) = ask("GET", path, accept);
        assert!(code == 406 && text.contains("only the following media types are accepted"), "{text}");
    }
    let mut apply = |body: &[u8]| {
        let path = format!("{MAPS}/a?fieldManager=m");
        let said = client.request("PATCH", &path, &[("content-type", "application/apply-patch+cbor")], body);
        said.refused(400, "BadRequest")["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(apply(b"\xff"), "error decoding YAML: cbor: unexpected \"break\" code");
    let into = "into Go value of type map[string]interface {}";
    assert_eq!(apply(b"\x80"), format!("error decoding YAML: cbor: cannot unmarshal array {into}"));
    assert_eq!(
        apply(b"\x20"),
        format!("error decoding YAML: cbor: cannot unmarshal negative integer {into}")
    );
}

/// The group of registrations was told to any method, and what is accepted was not looked at first.
#[test]
fn the_group_of_registrations_is_told_like_a_version() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/apis/apiregistration.k8s.io";
    client.get(path).ok();
    client.post(path, &json!({})).refused(405, "MethodNotAllowed");
    let refused =
        client.request("GET", path, &[("accept", "application/*")], b"").refused(406, "NotAcceptable");
    assert!(refused["message"].as_str().unwrap().starts_with("406: Not Acceptable"), "{refused}");
    client.request("POST", "/apis/apps", &[], b"").ok();
}

/// Owners that stand twice are taken out of what a patch makes, and not of what was sent.
#[test]
fn owners_that_a_patch_says_twice_are_told_of_in_their_own_words() {
    let server = Server::with(&["--engine=memory", "--controllers=-*"]);
    let mut client = server.admin();
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
    let twice = json!({"metadata": {"name": "a", "ownerReferences": [owner, owner]}});
    let made = client.post(MAPS, &twice).warnings();
    assert!(made[0].contains("contains duplicate entries; API server"), "{made:?}");
    let patched = client.patch(&format!("{MAPS}/a"), "merge", &twice).warnings();
    assert!(
        patched[0].contains("duplicate entries after mutating admission happens; API server"),
        "{patched:?}"
    );
}

/// Columns of registrations were described with their first event alone.
#[test]
fn every_event_of_registrations_describes_its_columns() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/apis/apiregistration.k8s.io/v1/apiservices?watch=1&timeoutSeconds=1";
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let events = client.request("GET", path, &table, b"").text();
    assert!(events.lines().count() > 1);
    assert!(events.lines().all(|event| event.contains(r#""columnDefinitions":["#)), "{events}");
}

/// The state of the range of service addresses was updated by the server, and not applied by whoever looks after ranges.
#[test]
fn the_state_of_the_range_is_applied() {
    let server = Server::with(&["--engine=memory"]);
    let range = server.admin().get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").ok();
    let managers = range["metadata"]["managedFields"].as_array().unwrap();
    let status = managers.iter().find(|manager| manager["subresource"] == "status").unwrap();
    assert_eq!(
        (&status["manager"], &status["operation"]),
        (&json!("kubernetes-service-cidr-controller"), &json!("Apply"))
    );
    assert_eq!(range["status"]["conditions"][0]["status"], "True");
}

/// Whoever could make claims could ask for devices that others use.
#[test]
fn devices_are_administered_only_from_namespaces_that_are_marked() {
    let server = Server::with(&[
        "--engine=memory",
        "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true",
        "--feature-gates=DynamicResourceAllocation=true,DRAAdminAccess=true",
    ]);
    let mut client = server.admin();
    let asks = json!({"name": "a", "deviceClassName": "c", "allocationMode": "All", "adminAccess": true});
    let old = json!({"devices": {"requests": [{"name": "b", "deviceClassName": "c"}, asks]}});
    let exactly = json!({"deviceClassName": "c", "allocationMode": "All", "adminAccess": true});
    let new = json!({"devices": {"requests": [{"name": "a", "exactly": exactly}]}});
    let of = |namespace: &str, version: &str, plural: &str| {
        format!("/apis/resource.k8s.io/{version}/namespaces/{namespace}/{plural}")
    };
    let claims = of("default", "v1beta1", "resourceclaims");
    for (version, plural, kind, spec, at) in [
        ("v1beta1", "resourceclaims", "ResourceClaim", old.clone(), 1),
        ("v1beta1", "resourceclaimtemplates", "ResourceClaimTemplate", json!({"spec": old}), 1),
        ("v1beta2", "resourceclaims", "ResourceClaim", new, 0),
    ] {
        let object = json!({"apiVersion": format!("resource.k8s.io/{version}"), "kind": kind,
            "metadata": {"name": version}, "spec": spec});
        let refused = client.post(&of("default", version, plural), &object).refused(422, "Invalid");
        let why = format!(
            "spec.devices.requests[{at}].adminAccess: Forbidden: admin access to devices requires the \
             `resource.k8s.io/admin-access: true` label on the containing namespace"
        );
        assert!(refused["message"].as_str().unwrap().ends_with(&why), "{refused}");
        client
            .patch(
                "/api/v1/namespaces/kube-system",
                "merge",
                &json!({"metadata": {"labels": {"resource.k8s.io/admin-access": "true"}}}),
            )
            .ok();
        client.post(&of("kube-system", version, plural), &object).ok();
    }
    // What was given is looked at, too.
    let plain = json!({"metadata": {"name": "plain"},
        "spec": {"devices": {"requests": [{"name": "a", "deviceClassName": "c"}]}}});
    client.post(&claims, &plain).ok();
    let status = |admin: bool| {
        json!({"status": {"allocation": {"devices": {"results": [
            {"request": "a", "driver": "d.example", "pool": "p", "device": "x", "adminAccess": admin}]}}}})
    };
    let refused =
        client.patch(&format!("{claims}/plain/status"), "merge", &status(true)).refused(422, "Invalid");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("status.allocation.devices.results[0].adminAccess: Forbidden"), "{message}");
    client.patch(&format!("{claims}/plain/status"), "merge", &status(false)).ok();
}

/// A write that asked for a form which one object cannot have was refused before its own mistakes were seen.
#[test]
fn a_form_that_cannot_be_had_comes_after_everything_else() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let list = ("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    let json = ("content-type", "application/json");
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}).to_string();
    client.request("POST", MAPS, &[list, json], object.as_bytes()).refused(406, "NotAcceptable");
    client.get(&format!("{MAPS}/a")).ok();
    client.request("POST", MAPS, &[list, json], object.as_bytes()).refused(409, "AlreadyExists");
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let one = ("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io");
    let status = client.request("GET", events, &[one], b"").refused(406, "NotAcceptable");
    assert!(status["message"].as_str().unwrap().ends_with("is a list (*core.EventList)"), "{status}");
    // The options of a list come before its form as well.
    let later = [("accept", "application/json;as=Table;v=v2;g=meta.k8s.io")];
    client.request("GET", MAPS, &later, b"").refused(406, "NotAcceptable");
    client.request("GET", &format!("{MAPS}?limit=x"), &later, b"").refused(400, "BadRequest");
    client.request("GET", &format!("{MAPS}?labelSelector=(("), &later, b"").refused(400, "BadRequest");
}

/// A request that no route takes was told that its API is deprecated.
#[test]
fn what_is_not_routed_is_not_warned_of() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let path = "/api/v1/namespaces/default/endpoints";
    assert_eq!(client.get(path).warnings().len(), 1);
    let refused = client.request("GET", path, &[("accept", "text/html")], b"");
    refused.refused(406, "NotAcceptable");
    assert!(refused.warnings().is_empty());
}

/// A dry run of a binding named the key of the pod as if it had been written, and a log came to whoever cannot read text.
#[test]
fn a_dry_binding_names_the_key_of_a_dry_run() {
    let server = Server::with(&["--engine=memory", "--disable-admission-plugins=ServiceAccount"]);
    let mut client = server.admin();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    client.post(pods, &pod).ok();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p", "uid": "x"},
        "target": {"kind": "Node", "name": "n"}});
    // A log is text, or nothing that anybody asks for.
    let refused = client.request("GET", &format!("{pods}/p/log"), &[("accept", "text/html")], b"");
    let status = refused.refused(406, "NotAcceptable");
    assert!(status["message"].as_str().unwrap().contains("representations: text/plain, "), "{status}");
    for accept in ["text/plain", "application/json", "*/*"] {
        assert_eq!(client.request("GET", &format!("{pods}/p/log"), &[("accept", accept)], b"").status, 204);
    }
    for (query, key) in [("", "/registry/pods/default/p"), ("?dryRun=All", "/pods/default/p")] {
        let status = client.post(&format!("{pods}/p/binding{query}"), &binding).refused(409, "Conflict");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.contains(&format!("Key: {key},")), "{message}");
    }
}

/// The name of an event of the core was reported beside other mistakes, and a refusal of admission like one of the authorizer.
#[test]
fn refusals_say_no_more_than_the_reference() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let events = "/api/v1/namespaces/default/events";
    let status = client.post(events, &json!({"metadata": {"name": "a%b"}})).refused(422, "Invalid");
    let causes = status["details"]["causes"].as_array().map(Vec::len);
    assert_eq!(causes, Some(1), "{status}");
    let about = json!({"metadata": {"name": "a%b"}, "involvedObject": {"namespace": "default"}});
    let status = client.post(events, &about).refused(422, "Invalid");
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.name");
    let status = client.get(&format!("{events}/e?resourceVersion=x")).refused(400, "BadRequest");
    assert!(status["message"].as_str().unwrap().starts_with("invalid resource version: "), "{status}");
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}],
        "priorityClassName": "none"}});
    let denied = client.post("/api/v1/namespaces/default/pods", &pod);
    denied.refused(403, "Forbidden");
    assert_eq!(denied.header("x-content-type-options"), None);
    assert_eq!(client.get("/livez/ping").header("x-content-type-options"), None);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    for (kind, why) in
        [("Status", "converting (v1.Status) to (coordination.Lease)"), ("A\tB", "no kind \"A\\tB\" is")]
    {
        let body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": kind});
        let status = client.post(leases, &body).refused(400, "BadRequest");
        assert!(status["message"].as_str().unwrap().contains(why), "{status}");
    }
    let unknown = server.anonymous().get(MAPS);
    unknown.refused(403, "Forbidden");
    assert_eq!(unknown.header("x-content-type-options"), Some("nosniff"));
}

/// A new object was refused for a resourceVersion that is none, and a deletion of many for its body before its selector.
#[test]
fn what_is_no_version_does_not_keep_an_object_from_being_made() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let object = |version: &str| json!({"metadata": {"name": "a", "resourceVersion": version}});
    client.post(MAPS, &object("5")).refused(400, "BadRequest");
    let made = client.post(MAPS, &object("x")).ok();
    assert!(made["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().is_ok(), "{made}");
    client.post(MAPS, &object("x")).refused(409, "AlreadyExists");
    let json = [("content-type", "application/json")];
    let refused = client.request("DELETE", &format!("{MAPS}?fieldSelector=nope=1"), &json, b",{}");
    let status = refused.refused(400, "BadRequest");
    assert!(status["message"].as_str().unwrap().contains("nope"), "{status}");
}

/// A path without a name before its subresource was refused as if the method were wrong, and one without a resource was named.
#[test]
fn a_path_with_nothing_in_the_place_of_a_name_says_what_is_missing() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    for path in ["/apis/batch/v1/namespaces/default/jobs//status", "/api/v1/namespaces/default/pods//log"] {
        let status = client.get(path).refused(400, "BadRequest");
        assert_eq!(status["message"], "name must be provided", "{path}");
    }
    let nobody = json!({"apiVersion": "v1", "kind": "Binding", "target": {"name": "n"}});
    client.post("/api/v1/namespaces/default/pods//binding", &nobody).refused(400, "BadRequest");
    // Slashes at the end of a document do not count.
    for path in ["/api/v1//", "/apis/apps//", "/apis/apps/v1//", "/version//"] {
        client.get(path).ok();
    }
    let status = server.anonymous().get("/api/v1//namespaces").refused(403, "Forbidden");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("forbidden: User \"system:anonymous\" cannot get resource \"\""),
        "{message}"
    );
}

/// A list whose token and version were both wrong complained about the version.
#[test]
fn a_bad_token_is_told_before_a_version_beside_it() {
    let server = Server::with(&["--engine=memory"]);
    let status =
        server.admin().get(&format!("{MAPS}?continue=x&resourceVersion=7")).refused(400, "BadRequest");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("invalid continue token"), "{message}");
}

/// The errors of an event's metadata came before those that both groups check first.
#[test]
fn an_event_is_checked_before_its_metadata() {
    let server = Server::with(&["--engine=memory"]);
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "finalizers": ["bad"]},
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "R", "type": "Normal",
        "eventTime": "2020-01-01T00:00:00.000000Z", "reportingController": "a.b/c", "reportingInstance": "i"});
    let status = server
        .admin()
        .post("/apis/events.k8s.io/v1/namespaces/default/events", &event)
        .refused(422, "Invalid");
    let fields: Vec<&Value> =
        status["details"]["causes"].as_array().unwrap().iter().map(|c| &c["field"]).collect();
    assert_eq!(fields, ["action", "metadata.finalizers[0]"]);
}

/// A grace period in an apply that creates was dropped.
#[test]
fn a_grace_period_stays_in_what_an_apply_creates() {
    let server = Server::with(&["--engine=memory"]);
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "deletionGracePeriodSeconds": 5}});
    let headers = [("Content-Type", "application/apply-patch+yaml")];
    let body = object.to_string();
    let mut client = server.admin();
    let made = client.request("PATCH", &format!("{MAPS}/a?fieldManager=m"), &headers, body.as_bytes()).ok();
    assert_eq!(made["metadata"]["deletionGracePeriodSeconds"], 5);
    assert_eq!(made["metadata"]["deletionTimestamp"], Value::Null);
}

/// A document that does not exist was refused for its media type.
#[test]
fn a_missing_document_is_missing_in_every_form() {
    let server = Server::with(&["--engine=memory"]);
    let mut client = server.admin();
    let headers = [("Accept", "text/html")];
    let missing = client.request("GET", "/openapi/v3/apis/nope/v1", &headers, b"");
    assert_eq!(missing.status, 404);
    let refused = client.request("GET", "/openapi/v3/api/v1", &headers, b"");
    assert_eq!((refused.status, refused.header("vary")), (406, Some("Accept")));
}
