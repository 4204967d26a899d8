//! What kubectl writes besides plain creates: applying on the server, trying first, rolling out, deleting with a policy.

use std::io::Read;
use std::process::Stdio;

use serde_json::{Value, json};

use super::support::Server;
use super::support::client::Client;
use super::support::compare::text;
use super::{DEPLOYMENT, Kubectl, file};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A server and kubectl with the deployment in a file.
fn prepared() -> (Server, Kubectl, String) {
    let server = Server::with(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let manifest = file(kubectl.home.path(), "web.yaml", DEPLOYMENT);
    (server, kubectl, manifest)
}

/// Whether this client is old and lacks what the test is about. The newest that some distributions have is of 2020.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn is_too_old(kubectl: &Kubectl) -> bool {
    // The flag came with the release that moves ownership to the server; the parts of objects came before.
    let old = !kubectl.run(&["apply", "--help"]).contains("--prune-allowlist");
    if old {
        eprintln!("skipped: this kubectl is older than release 1.26");
    }
    old
}

#[test]
fn applying_on_the_server_tells_who_owns_what_and_takes_it_by_force() {
    let (_server, kubectl, manifest) = prepared();
    let apply = ["apply", "--server-side", "-f", &manifest];
    let force = ["apply", "--server-side", "--force-conflicts", "-f", &manifest];
    let web = || kubectl.get("deployment", "web");

    assert_eq!(kubectl.run(&apply).trim(), "deployment.apps/web serverside-applied");
    let version = text(&web(), "/metadata/resourceVersion").to_owned();
    kubectl.run(&apply);
    assert_eq!(text(&web(), "/metadata/resourceVersion"), version, "applying the same again changes nothing");

    kubectl.run(&["scale", "deployment", "web", "--replicas=7"]);
    let refused = kubectl.try_run(&apply);
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{complaint}");
    for expected in ["conflict with \"kubectl\"", "subresource \"scale\"", ".spec.replicas"] {
        assert!(complaint.contains(expected), "{expected} in {complaint}");
    }
    assert_eq!(web()["spec"]["replicas"], 7);
    kubectl.run(&force);
    assert_eq!(web()["spec"]["replicas"], 2);

    // What is no longer applied goes, since nobody else owns it.
    file(kubectl.home.path(), "web.yaml", &DEPLOYMENT.replace("  labels: {app: web}\nspec", "spec"));
    kubectl.run(&apply);
    assert!(web()["metadata"]["labels"].is_null(), "{}", web());
}

#[test]
fn objects_applied_from_the_client_move_to_the_server_without_conflict() {
    let (_server, kubectl, manifest) = prepared();
    if is_too_old(&kubectl) {
        return;
    }
    kubectl.run(&["apply", "-f", &manifest]);
    file(kubectl.home.path(), "web.yaml", &DEPLOYMENT.replace("replicas: 2", "replicas: 4"));
    kubectl.run(&["apply", "--server-side", "-f", &manifest]);
    let object: Value = serde_json::from_str(&kubectl.run(&[
        "get",
        "deployment",
        "web",
        "-o",
        "json",
        "--show-managed-fields",
    ]))
    .expect("JSON");
    assert_eq!(object["spec"]["replicas"], 4);
    let owners: Vec<_> = object["metadata"]["managedFields"]
        .as_array()
        .expect("owners")
        .iter()
        .map(|owner| (text(owner, "/manager"), text(owner, "/operation")))
        .collect();
    // The text of the last configuration is kept by a manager of its own, so that it is not lost.
    assert_eq!(owners, [("kubectl-last-applied", "Apply"), ("kubectl", "Apply")], "{object}");
}

#[test]
fn applying_prunes_what_left_the_files() {
    let (_server, kubectl, _) = prepared();
    if is_too_old(&kubectl) {
        return;
    }
    let map = |name: &str| {
        format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{set: a}}}}\n")
    };
    let both = file(kubectl.home.path(), "maps.yaml", &(map("one") + &map("two")));
    kubectl.run(&["create", "configmap", "apart"]);
    let prune = ["apply", "-f", &both, "--prune", "-l", "set=a", "--prune-allowlist=core/v1/ConfigMap"];
    kubectl.run(&prune);
    file(kubectl.home.path(), "maps.yaml", &map("one"));
    let said = kubectl.run(&prune);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["configmap/one unchanged", "configmap/two pruned"]);
    let left = kubectl.run(&["get", "configmaps", "-o", "name"]);
    assert_eq!(left.lines().collect::<Vec<_>>(), ["configmap/apart", "configmap/one"]);
}

#[test]
fn trying_first_changes_nothing() {
    let (server, kubectl, manifest) = prepared();
    let dry = "--dry-run=server";
    let tried = kubectl.run(&["create", "-f", &manifest, dry, "-o", "json"]);
    let tried: Value = serde_json::from_str(&tried).expect("JSON");
    assert!(!text(&tried, "/metadata/uid").is_empty());
    assert_eq!(tried["spec"]["progressDeadlineSeconds"], 600, "defaults are filled in");
    assert_eq!(server.admin().get(&format!("{DEPLOYMENTS}/web")).status, 404);

    kubectl.run(&["apply", "-f", &manifest]);
    let before = text(&kubectl.get("deployment", "web"), "/metadata/resourceVersion").to_owned();
    kubectl.run(&["patch", "deployment", "web", dry, "-p", r#"{"spec":{"replicas":9}}"#]);
    kubectl.run(&["label", "deployment", "web", dry, "a=b"]);
    kubectl.run(&["scale", "deployment", "web", dry, "--replicas=9"]);
    kubectl.run(&["set", "image", "deployment/web", "web=example.com/web:9", dry]);
    kubectl.run(&["delete", "deployment", "web", dry]);
    let after = kubectl.get("deployment", "web");
    assert_eq!(text(&after, "/metadata/resourceVersion"), before);

    // diff is a dry run that is shown: 0 without a difference, 1 with one.
    assert_eq!(kubectl.try_run(&["diff", "-f", &manifest]).status.code(), Some(0));
    file(kubectl.home.path(), "web.yaml", &DEPLOYMENT.replace("web:1", "web:2"));
    for server_side in ["--server-side=false", "--server-side"] {
        // The client applied it, so that the server has to be asked to take the field over.
        let force =
            if server_side == "--server-side" { "--force-conflicts" } else { "--force-conflicts=false" };
        let differs = kubectl.try_run(&["diff", server_side, force, "-f", &manifest]);
        let shown = String::from_utf8_lossy(&differs.stdout).into_owned();
        assert_eq!(differs.status.code(), Some(1), "{shown}{}", String::from_utf8_lossy(&differs.stderr));
        assert!(shown.contains("+      - image: example.com/web:2"), "{shown}");
    }
    assert_eq!(text(&kubectl.get("deployment", "web"), "/metadata/resourceVersion"), before);
}

/// What the loop for deployments would keep of a state that was rolled out.
fn replica_set(client: &mut Client, owner: &Value, revision: u32, image: &str) {
    let mut template = owner["spec"]["template"].clone();
    template["spec"]["containers"][0]["image"] = json!(image);
    template["metadata"]["labels"]["pod-template-hash"] = json!(format!("h{revision}"));
    client
        .post(
            "/apis/apps/v1/namespaces/default/replicasets",
            &json!({
                "metadata": {
                    "name": format!("web-h{revision}"),
                    "labels": template["metadata"]["labels"],
                    "annotations": {"deployment.kubernetes.io/revision": revision.to_string()},
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": true,
                        "uid": owner["metadata"]["uid"],
                    }],
                },
                "spec": {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template},
            }),
        )
        .ok();
}

#[test]
fn rolling_out_and_back() {
    let (server, kubectl, manifest) = prepared();
    let mut client = server.admin();
    kubectl.run(&["apply", "-f", &manifest]);
    let web = || kubectl.get("deployment", "web");
    let object = web();
    replica_set(&mut client, &object, 1, "example.com/web:0");
    replica_set(&mut client, &object, 2, "example.com/web:1");

    let history = kubectl.run(&["rollout", "history", "deployment/web"]);
    assert!(history.contains("1         <none>") && history.contains("2         <none>"), "{history}");
    assert_eq!(kubectl.run(&["rollout", "undo", "deployment/web"]).trim(), "deployment.apps/web rolled back");
    assert_eq!(text(&web(), "/spec/template/spec/containers/0/image"), "example.com/web:0");
    kubectl.run(&["rollout", "undo", "deployment/web", "--to-revision=2"]);
    assert_eq!(text(&web(), "/spec/template/spec/containers/0/image"), "example.com/web:1");

    kubectl.run(&["rollout", "restart", "deployment/web"]);
    let restarted = "/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt";
    assert!(web().pointer(restarted).is_some(), "{}", web());
    kubectl.run(&["rollout", "pause", "deployment/web"]);
    assert_eq!(web()["spec"]["paused"], true);
    kubectl.run(&["rollout", "resume", "deployment/web"]);

    // The status is another one's to write, and the client waits for it.
    let mut waiting = kubectl
        .command(&["rollout", "status", "deployment/web", "--request-timeout=0", "--timeout=60s"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl");
    let status = json!({"status": {
        "observedGeneration": web()["metadata"]["generation"],
        "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "conditions": [{"type": "Available", "status": "True", "reason": "Enough", "message": ""}],
    }});
    client.patch(&format!("{DEPLOYMENTS}/web/status"), "merge", &status).ok();
    let mut said = String::new();
    waiting.stdout.take().expect("stdout").read_to_string(&mut said).expect("text");
    assert!(waiting.wait().expect("kubectl").success(), "{said}");
    assert!(said.ends_with("deployment \"web\" successfully rolled out\n"), "{said}");
    kubectl.run(&["wait", "--for=condition=Available", "deployment/web", "--timeout=20s"]);
}

#[test]
fn deleting_with_a_policy_and_waiting_for_it() {
    let (server, kubectl, manifest) = prepared();
    let mut client = server.admin();
    kubectl.run(&["apply", "-f", &manifest]);
    kubectl.run(&["delete", "deployment", "web", "--cascade=orphan", "--wait=false"]);
    let going = kubectl.get("deployment", "web");
    assert_eq!(going["metadata"]["finalizers"], json!(["orphan"]));
    assert!(!text(&going, "/metadata/deletionTimestamp").is_empty());

    client.post(MAPS, &json!({"metadata": {"name": "kept", "finalizers": ["example.com/mine"]}})).ok();
    kubectl.run(&["delete", "configmap", "kept", "--wait=false"]);
    let impatient = kubectl.try_run(&["wait", "--for=delete", "configmap/kept", "--timeout=1s"]);
    assert!(!impatient.status.success(), "it is still there");
    let mut waiting = kubectl
        .command(&["wait", "--for=delete", "configmap/kept", "--timeout=60s", "--request-timeout=0"])
        .spawn()
        .expect("kubectl");
    let release = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
    client.patch(&format!("{MAPS}/kept"), "json", &release).ok();
    assert!(waiting.wait().expect("kubectl").success());
    assert_eq!(client.get(&format!("{MAPS}/kept")).status, 404);
}

#[test]
fn replacing_and_the_parts_of_objects() {
    let (server, kubectl, manifest) = prepared();
    if is_too_old(&kubectl) {
        return;
    }
    kubectl.run(&["create", "-f", &manifest]);
    let before = text(&kubectl.get("deployment", "web"), "/metadata/uid").to_owned();
    kubectl.run(&["replace", "-f", &manifest]);
    assert_eq!(text(&kubectl.get("deployment", "web"), "/metadata/uid"), before);
    kubectl.run(&["replace", "--force", "-f", &manifest]);
    assert_ne!(text(&kubectl.get("deployment", "web"), "/metadata/uid"), before);

    let status = r#"{"status":{"replicas":3}}"#;
    kubectl.run(&["patch", "deployment", "web", "--subresource=status", "--type=merge", "-p", status]);
    let scale: Value = serde_json::from_str(&kubectl.run(&[
        "get",
        "deployment",
        "web",
        "--subresource=scale",
        "-o",
        "json",
    ]))
    .expect("JSON");
    assert_eq!((&scale["kind"], &scale["status"]["replicas"]), (&json!("Scale"), &json!(3)));
    let unequal = kubectl.try_run(&["scale", "deployment/web", "--current-replicas=9", "--replicas=1"]);
    assert!(!unequal.status.success());
    kubectl.run(&["autoscale", "deployment", "web", "--min=1", "--max=3"]);
    kubectl.run(&["set", "env", "deployment/web", "A=b"]);
    kubectl.run(&["set", "resources", "deployment/web", "--limits=cpu=1"]);

    let mut client = server.admin();
    client.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).ok();
    let node = || kubectl.get("node", "n1")["spec"]["taints"].clone();
    kubectl.run(&["taint", "node", "n1", "a=b:NoSchedule"]);
    assert!(node().as_array().expect("taints").iter().any(|taint| taint["key"] == "a"), "{}", node());
    kubectl.run(&["cordon", "n1"]);
    assert_eq!(kubectl.get("node", "n1")["spec"]["unschedulable"], true);
    client
        .post(
            "/api/v1/namespaces/default/pods",
            &json!({"metadata": {"name": "p"}, "spec": {
                "nodeName": "n1", "containers": [{"name": "c", "image": "example.com/c:1"}],
                "terminationGracePeriodSeconds": 0,
            }}),
        )
        .ok();
    let drained = kubectl.run(&["drain", "n1", "--force", "--grace-period=0", "--timeout=30s"]);
    assert!(drained.contains("node/n1 drained"), "{drained}");
    assert_eq!(client.get("/api/v1/namespaces/default/pods/p").status, 404);
    kubectl.run(&["uncordon", "n1"]);
}
