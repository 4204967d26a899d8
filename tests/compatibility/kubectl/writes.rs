//! kubectl apply, dry run, rollout, delete policies and subresources.

use std::io::Read;
use std::process::Stdio;

use serde_json::{Value, json};

use super::{DEPLOYMENT, Kubectl, write_file};
use crate::support::Server;
use crate::support::client::Client;
use crate::support::compare::text;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A server and kubectl with the deployment in a file.
fn server_with_manifest() -> (Server, Kubectl, String) {
    let server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let manifest = write_file(kubectl.home.path(), "web.yaml", DEPLOYMENT);
    (server, kubectl, manifest)
}

#[test]
fn server_side_apply_reports_conflicts_and_forces() {
    let (_server, kubectl, manifest) = server_with_manifest();
    let apply = ["apply", "--server-side", "-f", &manifest];
    let force = ["apply", "--server-side", "--force-conflicts", "-f", &manifest];
    let get_web = || kubectl.get("deployment", "web");

    assert_eq!(kubectl.run(&apply).trim(), "deployment.apps/web serverside-applied");
    let version = text(&get_web(), "/metadata/resourceVersion").to_owned();
    kubectl.run(&apply);
    assert_eq!(
        text(&get_web(), "/metadata/resourceVersion"),
        version,
        "applying the same again changes nothing"
    );

    kubectl.run(&["scale", "deployment", "web", "--replicas=7"]);
    let refused = kubectl.try_run(&apply);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{stderr}");
    for expected in ["conflict with \"kubectl\"", "subresource \"scale\"", ".spec.replicas"] {
        assert!(stderr.contains(expected), "{expected} in {stderr}");
    }
    assert_eq!(get_web()["spec"]["replicas"], 7);
    kubectl.run(&force);
    assert_eq!(get_web()["spec"]["replicas"], 2);

    // Fields that are no longer applied are removed, since they have no other owner.
    write_file(kubectl.home.path(), "web.yaml", &DEPLOYMENT.replace("  labels: {app: web}\nspec", "spec"));
    kubectl.run(&apply);
    assert!(get_web()["metadata"]["labels"].is_null(), "{}", get_web());
}

#[test]
#[cfg_attr(has_old_kubectl, ignore = "needs kubectl 1.27 or newer")]
fn client_side_apply_migrates_to_server_side_without_conflict() {
    let (_server, kubectl, manifest) = server_with_manifest();
    kubectl.run(&["apply", "-f", &manifest]);
    write_file(kubectl.home.path(), "web.yaml", &DEPLOYMENT.replace("replicas: 2", "replicas: 4"));
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
    // A separate manager owns the last-applied annotation.
    assert_eq!(owners, [("kubectl-last-applied", "Apply"), ("kubectl", "Apply")], "{object}");
}

#[test]
#[cfg_attr(has_old_kubectl, ignore = "needs kubectl 1.27 or newer")]
fn apply_prune_deletes_objects_missing_from_files() {
    let (_server, kubectl, _) = server_with_manifest();
    let map = |name: &str| {
        format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{set: a}}}}\n")
    };
    let file_path = write_file(kubectl.home.path(), "maps.yaml", &(map("one") + &map("two")));
    kubectl.run(&["create", "configmap", "apart"]);
    let prune = ["apply", "-f", &file_path, "--prune", "-l", "set=a", "--prune-allowlist=core/v1/ConfigMap"];
    kubectl.run(&prune);
    write_file(kubectl.home.path(), "maps.yaml", &map("one"));
    let stdout = kubectl.run(&prune);
    assert_eq!(stdout.lines().collect::<Vec<_>>(), ["configmap/one unchanged", "configmap/two pruned"]);
    let remaining = kubectl.run(&["get", "configmaps", "-o", "name"]);
    assert_eq!(remaining.lines().collect::<Vec<_>>(), ["configmap/apart", "configmap/one"]);
}

#[test]
fn kubectl_dry_run_and_diff_change_nothing() {
    let (server, kubectl, manifest) = server_with_manifest();
    let dry = "--dry-run=server";
    let created = kubectl.run(&["create", "-f", &manifest, dry, "-o", "json"]);
    let created: Value = serde_json::from_str(&created).expect("JSON");
    assert!(!text(&created, "/metadata/uid").is_empty());
    assert_eq!(created["spec"]["progressDeadlineSeconds"], 600, "defaults are filled in");
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
    write_file(kubectl.home.path(), "web.yaml", &DEPLOYMENT.replace("web:1", "web:2"));
    for server_side in ["--server-side=false", "--server-side"] {
        // The fields are owned by client-side apply, so server-side apply must force.
        let force =
            if server_side == "--server-side" { "--force-conflicts" } else { "--force-conflicts=false" };
        let output = kubectl.try_run(&["diff", server_side, force, "-f", &manifest]);
        let diff = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{diff}{}", String::from_utf8_lossy(&output.stderr));
        assert!(diff.contains("+      - image: example.com/web:2"), "{diff}");
    }
    assert_eq!(text(&kubectl.get("deployment", "web"), "/metadata/resourceVersion"), before);
}

/// Creates the ReplicaSet that the deployment controller would create for a revision.
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
fn kubectl_rollout_history_undo_restart_and_status() {
    let (server, kubectl, manifest) = server_with_manifest();
    let mut client = server.admin();
    kubectl.run(&["apply", "-f", &manifest]);
    let get_web = || kubectl.get("deployment", "web");
    let object = get_web();
    replica_set(&mut client, &object, 1, "example.com/web:0");
    replica_set(&mut client, &object, 2, "example.com/web:1");

    let history = kubectl.run(&["rollout", "history", "deployment/web"]);
    assert!(history.contains("1         <none>") && history.contains("2         <none>"), "{history}");
    assert_eq!(kubectl.run(&["rollout", "undo", "deployment/web"]).trim(), "deployment.apps/web rolled back");
    assert_eq!(text(&get_web(), "/spec/template/spec/containers/0/image"), "example.com/web:0");
    kubectl.run(&["rollout", "undo", "deployment/web", "--to-revision=2"]);
    assert_eq!(text(&get_web(), "/spec/template/spec/containers/0/image"), "example.com/web:1");

    kubectl.run(&["rollout", "restart", "deployment/web"]);
    let restarted = "/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt";
    assert!(get_web().pointer(restarted).is_some(), "{}", get_web());
    kubectl.run(&["rollout", "pause", "deployment/web"]);
    assert_eq!(get_web()["spec"]["paused"], true);
    kubectl.run(&["rollout", "resume", "deployment/web"]);

    // kubectl waits for the status, which this test writes.
    let mut process = kubectl
        .command(&["rollout", "status", "deployment/web", "--request-timeout=0", "--timeout=60s"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl");
    let status = json!({"status": {
        "observedGeneration": get_web()["metadata"]["generation"],
        "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "conditions": [{"type": "Available", "status": "True", "reason": "Enough", "message": ""}],
    }});
    client.patch(&format!("{DEPLOYMENTS}/web/status"), "merge", &status).ok();
    let mut stdout = String::new();
    process.stdout.take().expect("stdout").read_to_string(&mut stdout).expect("text");
    assert!(process.wait().expect("kubectl").success(), "{stdout}");
    assert!(stdout.ends_with("deployment \"web\" successfully rolled out\n"), "{stdout}");
    kubectl.run(&["wait", "--for=condition=Available", "deployment/web", "--timeout=20s"]);
}

#[test]
fn kubectl_delete_cascade_orphan_and_wait() {
    let (server, kubectl, manifest) = server_with_manifest();
    let mut client = server.admin();
    kubectl.run(&["apply", "-f", &manifest]);
    kubectl.run(&["delete", "deployment", "web", "--cascade=orphan", "--wait=false"]);
    let terminating = kubectl.get("deployment", "web");
    assert_eq!(terminating["metadata"]["finalizers"], json!(["orphan"]));
    assert!(!text(&terminating, "/metadata/deletionTimestamp").is_empty());

    client.post(MAPS, &json!({"metadata": {"name": "kept", "finalizers": ["example.com/mine"]}})).ok();
    kubectl.run(&["delete", "configmap", "kept", "--wait=false"]);
    let timed_out = kubectl.try_run(&["wait", "--for=delete", "configmap/kept", "--timeout=1s"]);
    assert!(!timed_out.status.success(), "it is still there");
    let mut process = kubectl
        .command(&["wait", "--for=delete", "configmap/kept", "--timeout=60s", "--request-timeout=0"])
        .spawn()
        .expect("kubectl");
    let release = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
    client.patch(&format!("{MAPS}/kept"), "json", &release).ok();
    assert!(process.wait().expect("kubectl").success());
    assert_eq!(client.get(&format!("{MAPS}/kept")).status, 404);
}

#[test]
#[cfg_attr(has_old_kubectl, ignore = "needs kubectl 1.27 or newer")]
fn kubectl_replace_subresources_taint_and_drain() {
    let (server, kubectl, manifest) = server_with_manifest();
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
    let output = kubectl.try_run(&["scale", "deployment/web", "--current-replicas=9", "--replicas=1"]);
    assert!(!output.status.success());
    kubectl.run(&["autoscale", "deployment", "web", "--min=1", "--max=3"]);
    kubectl.run(&["set", "env", "deployment/web", "A=b"]);
    kubectl.run(&["set", "resources", "deployment/web", "--limits=cpu=1"]);

    let mut client = server.admin();
    client.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).ok();
    let taints = || kubectl.get("node", "n1")["spec"]["taints"].clone();
    kubectl.run(&["taint", "node", "n1", "a=b:NoSchedule"]);
    assert!(taints().as_array().expect("taints").iter().any(|taint| taint["key"] == "a"), "{}", taints());
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
    let output_of_drain = kubectl.run(&["drain", "n1", "--force", "--grace-period=0", "--timeout=30s"]);
    assert!(output_of_drain.contains("node/n1 drained"), "{output_of_drain}");
    assert_eq!(client.get("/api/v1/namespaces/default/pods/p").status, 404);
    kubectl.run(&["uncordon", "n1"]);
}
