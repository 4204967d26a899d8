//! kubectl against the server.

mod identity;
mod writes;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;

use serde_json::{Value, json};

use crate::support::compare::{missing_fields, text};
use crate::support::kubectl::Kubectl;
use crate::support::manifests::discover;
use crate::support::wait::TIMEOUT;
use crate::support::{Manifest, Server};

/// The resource with version and group as kubectl takes it, so that it is unambiguous.
fn argument(plural: &str, group_version: &str) -> String {
    match group_version.split_once('/') {
        Some((group, version)) => format!("{plural}.{version}.{group}"),
        None => plural.to_owned(),
    }
}

fn write_object(folder: &Path, object: &Value) -> String {
    let path = folder.join("object.json");
    fs::write(&path, object.to_string()).expect("a file");
    path.to_str().expect("a path of letters").to_owned()
}

#[test]
fn kubectl_creates_replaces_and_deletes_every_kind() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let resources = discover(&mut server.admin());
    let mut failed = Vec::new();
    for manifest in Manifest::all() {
        let resource = manifest.resource(&resources);
        let resource = argument(&resource.plural, manifest.group_version());
        if let Err(reason) = run_lifecycle(&kubectl, &manifest, &resource) {
            failed.push(format!("{}: {reason}", manifest.title()));
        }
    }
    server.assert_healthy();
    assert!(failed.is_empty(), "{} kinds failed:\n{}", failed.len(), failed.join("\n"));
}

/// Creates, reads, replaces and deletes one object.
fn run_lifecycle(kubectl: &Kubectl, manifest: &Manifest, resource: &str) -> Result<(), String> {
    let step = |arguments: &[&str]| -> Result<String, String> {
        let output = kubectl.try_run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("kubectl {arguments:?}: {stderr}")),
        }
    };
    let name = manifest.name();
    let file = manifest.file.to_str().ok_or("the file's name")?;
    let stdout = step(&["create", "--validate=false", "-f", file])?;
    if !stdout.contains(" created") {
        return Err(stdout);
    }
    if manifest.kind() == "CustomResourceDefinition" {
        // The server itself writes to it until then, which would make the replace below stale.
        step(&["wait", "--for=condition=Established", resource, name])?;
    }
    let yaml = step(&["get", resource, name, "-o", "yaml"])?;
    for line in [format!("kind: {}", manifest.kind()), format!("apiVersion: {}", manifest.group_version())] {
        if !yaml.contains(&line) {
            return Err(format!("no {line:?} in {yaml}"));
        }
    }
    let mut object = kubectl.get(resource, name);
    let differences = missing_fields(&manifest.object, &object);
    if !differences.is_empty() {
        return Err(format!("{differences:?}"));
    }
    object["metadata"]["labels"]["purpose"] = json!("replaced");
    step(&["replace", "--validate=false", "-f", &write_object(kubectl.home.path(), &object)])?;
    let table = step(&["get", resource, name, "--show-labels"])?;
    // A row of an IPAddress has a cell more than its table has columns, as on a real cluster, and kubectl counts cells.
    if !table.contains("purpose=replaced") && manifest.kind() != "IPAddress" {
        return Err(format!("the table lacks the new label: {table}"));
    }
    // Some kinds wait for a controller that does not run here.
    step(&["delete", resource, name, "--wait=false"])?;
    Ok(())
}

#[test]
fn kubectl_version_api_resources_and_get_all() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let version: Value = serde_json::from_str(&kubectl.run(&["version", "-o", "json"])).expect("JSON");
    assert_eq!(text(&version, "/serverVersion/major"), "1", "{version}");
    assert_eq!(text(&version, "/serverVersion/minor"), "33", "{version}");
    let resources = kubectl.run(&["api-resources"]);
    for expected in
        ["configmaps", "deployments", "priorityclasses", "flowschemas", "customresourcedefinitions"]
    {
        assert!(resources.contains(expected), "{expected} in {resources}");
    }
    assert!(kubectl.run(&["api-versions"]).lines().any(|line| line == "apps/v1"));
    let namespaces = kubectl.run(&["get", "namespaces"]);
    assert!(namespaces.contains("kube-system"), "{namespaces}");

    for manifest in Manifest::all() {
        if ["Pod", "Service", "Deployment", "Job"].contains(&manifest.kind()) {
            kubectl.run(&["create", "--validate=false", "-f", manifest.file.to_str().expect("a path")]);
        }
    }
    let all = kubectl.run(&["get", "all", "-A"]);
    for expected in ["pod/sample", "service/sample", "deployment.apps/sample", "job.batch/sample"] {
        assert!(all.contains(expected), "{expected} in {all}");
    }
    let missing = kubectl.try_run(&["get", "configmap", "nope"]);
    let stderr = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert_eq!(stderr.trim(), "Error from server (NotFound): configmaps \"nope\" not found");
    kubectl.run(&["delete", "deployment", "sample"]);
    assert!(!kubectl.run(&["get", "deployments", "-A"]).contains("sample"));
    server.assert_healthy();
}

/// A deployment manifest.
const DEPLOYMENT: &str = r"apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {app: web}
spec:
  replicas: 2
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
      - name: web
        image: example.com/web:1
        ports: [{containerPort: 80}]
";

fn write_file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("a file");
    path.to_str().expect("a path of letters").to_owned()
}

/// The columns of the first line and of the line that begins with `name`.
fn table_columns(table: &str, name: &str) -> (Vec<String>, Vec<String>) {
    let split = |line: &str| -> Vec<String> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let head = table.lines().next().map(split).unwrap_or_default();
    let row = table.lines().find(|line| line.starts_with(name)).map(split).unwrap_or_default();
    (head, row)
}

#[test]
fn kubectl_get_supports_all_output_formats() {
    let server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    kubectl.run(&["apply", "-f", &write_file(kubectl.home.path(), "web.yaml", DEPLOYMENT)]);
    let (head, row) = table_columns(&kubectl.run(&["get", "deployments"]), "web");
    assert_eq!(head, ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]);
    assert_eq!(row[..4], ["web", "0/2", "0", "0"]);
    let (head, row) = table_columns(&kubectl.run(&["get", "deployments", "-o", "wide"]), "web");
    assert_eq!(head[5..], ["CONTAINERS", "IMAGES", "SELECTOR"]);
    assert_eq!(row[5..], ["web", "example.com/web:1", "app=web"]);
    let get = |form: &str| kubectl.run(&["get", "deployment", "web", "-o", form]);
    assert_eq!(get("name").trim(), "deployment.apps/web");
    assert_eq!(get("jsonpath={.spec.replicas}"), "2");
    assert_eq!(get("go-template={{.metadata.name}}"), "web");
    assert!(
        get("custom-columns=N:.metadata.name,R:.spec.replicas")
            .lines()
            .any(|line| line.trim_end() == "web   2")
    );
    assert!(get("yaml").contains("replicas: 2"));
    assert_eq!(serde_json::from_str::<Value>(&get("json")).expect("JSON")["spec"]["replicas"], 2);
    let (head, row) = table_columns(&kubectl.run(&["get", "namespaces"]), "default");
    assert_eq!((head[1].as_str(), row[1].as_str()), ("STATUS", "Active"));
    assert!(kubectl.run(&["get", "deployments", "-A"]).starts_with("NAMESPACE"));
    assert!(kubectl.run(&["get", "deployments", "--no-headers"]).starts_with("web"));
    kubectl.run(&["describe", "deployment", "web"]);
}

#[test]
fn kubectl_create_generators_work() {
    let server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    kubectl.run(&["create", "namespace", "made"]);
    kubectl.run(&["-n", "made", "create", "configmap", "m", "--from-literal=a=b"]);
    kubectl.run(&["-n", "made", "create", "secret", "generic", "s", "--from-literal=a=b"]);
    kubectl.run(&["-n", "made", "create", "deployment", "d", "--image=example.com/app:1"]);
    kubectl.run(&["-n", "made", "create", "service", "clusterip", "c", "--tcp=80:80"]);
    kubectl.run(&["-n", "made", "create", "job", "j", "--image=example.com/app:1"]);
    kubectl.run(&["-n", "made", "create", "serviceaccount", "a"]);
    kubectl.run(&["-n", "made", "create", "role", "r", "--verb=get", "--resource=pods"]);
    kubectl.run(&["-n", "made", "create", "quota", "q", "--hard=pods=1"]);
    let scoped = ["-n", "made", "create", "quota", "b", "--hard=pods=0,cpu=1", "--scopes=NotTerminating"];
    kubectl.run(&scoped);
    kubectl.run(&["create", "priorityclass", "p", "--value=7"]);
    kubectl.run(&["-n", "made", "run", "pod", "--image=example.com/app:1"]);
    let (_, row) = table_columns(&kubectl.run(&["-n", "made", "get", "services"]), "c");
    assert_eq!(row[1], "ClusterIP");
    assert!(row[2].parse::<std::net::IpAddr>().is_ok(), "{row:?}");
    let (_, row) = table_columns(&kubectl.run(&["-n", "made", "get", "pods"]), "pod");
    assert_eq!(row[1..4], ["0/1", "Pending", "0"]);
    // A quota is enforced once its usage is known.
    let counted = r#"{"status":{"hard":{"pods":"1"},"used":{"pods":"1"}}}"#;
    kubectl.run(&[
        "-n",
        "made",
        "patch",
        "quota",
        "q",
        "--subresource=status",
        "--type=merge",
        "-p",
        counted,
    ]);
    let refused = kubectl.try_run(&["-n", "made", "run", "other", "--image=example.com/app:1"]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        stderr.contains("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"),
        "{stderr}"
    );
    assert!(kubectl.run(&["-n", "made", "describe", "quota", "q"]).contains("pods"));
}

#[test]
fn kubectl_create_token_supports_all_options() {
    let server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    kubectl.run(&["create", "serviceaccount", "a"]);
    let overrides = r#"--overrides={"spec":{"serviceAccountName":"a"}}"#;
    kubectl.run(&["run", "pod", "--image=example.com/app:1", overrides]);
    kubectl.run(&["create", "secret", "generic", "s"]);
    let decode_claims = |token: &str| -> Value {
        let payload = token.trim().split('.').nth(1).expect("three parts");
        let payload = base64::Engine::decode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, payload);
        serde_json::from_slice(&payload.expect("base64url")).expect("JSON")
    };
    let token = kubectl.run(&["create", "token", "a"]);
    assert_eq!(decode_claims(&token)["sub"], "system:serviceaccount:default:a");
    kubectl.run(&["--token", token.trim(), "version"]);
    let with_options = ["create", "token", "a", "--audience=x", "--audience=y", "--duration=20m"];
    let with_options = decode_claims(&kubectl.run(&with_options));
    assert_eq!(with_options["aud"], json!(["x", "y"]));
    assert_eq!(with_options["exp"].as_i64().unwrap() - with_options["iat"].as_i64().unwrap(), 1_200);
    for (kind, name, field) in [("Pod", "pod", "pod"), ("Secret", "s", "secret")] {
        let (kind, name) = (format!("--bound-object-kind={kind}"), format!("--bound-object-name={name}"));
        let bound = decode_claims(&kubectl.run(&["create", "token", "a", &kind, &name]));
        assert!(!text(&bound["kubernetes.io"][field], "/uid").is_empty(), "{bound}");
    }
    let yaml = kubectl.run(&["create", "token", "a", "-o", "yaml"]);
    assert!(yaml.contains("kind: TokenRequest") && yaml.contains("expirationTimestamp"), "{yaml}");
    let output = kubectl.try_run(&["create", "token", "none"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("serviceaccounts \"none\" not found"));
    let output = kubectl.try_run(&["create", "token", "a", "--duration=5m"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("less than 10 minutes"));
}

#[test]
fn kubectl_validate_refuses_or_warns_of_unknown_fields() {
    let server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let invalid_file =
        write_file(kubectl.home.path(), "wrong.yaml", &DEPLOYMENT.replace("replicas", "replikas"));
    // Old releases validate by themselves and have no validation levels.
    let has_validation_levels = kubectl.run(&["create", "--help"]).contains("'strict'");
    let strict = if has_validation_levels { "--validate=strict" } else { "--validate=true" };
    let refused = kubectl.try_run(&["create", strict, "-f", &invalid_file]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && stderr.contains("unknown field"), "{stderr}");
    let valid_file = write_file(kubectl.home.path(), "right.yaml", DEPLOYMENT);
    assert!(kubectl.run(&["create", strict, "-f", &valid_file]).contains("created"));
    if has_validation_levels {
        let output = kubectl.try_run(&["replace", "--validate=warn", "-f", &invalid_file]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        assert_eq!(stderr.trim(), "Warning: unknown field \"spec.replikas\"");
    }
}

#[test]
fn second_client_side_apply_is_unchanged() {
    let server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let manifest = write_file(kubectl.home.path(), "web.yaml", DEPLOYMENT);
    assert_eq!(kubectl.run(&["apply", "-f", &manifest]).trim(), "deployment.apps/web created");
    assert_eq!(kubectl.run(&["apply", "-f", &manifest]).trim(), "deployment.apps/web unchanged");
}

#[test]
fn kubectl_apply_label_patch_set_and_edit_change_object() {
    let server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let manifest = write_file(kubectl.home.path(), "web.yaml", DEPLOYMENT);
    kubectl.run(&["apply", "-f", &manifest]);
    let get_web = || kubectl.get("deployment", "web");

    // A changed file: the client computes a three-way strategic merge patch.
    let changed = DEPLOYMENT.replace("web:1", "web:2").replace("replicas: 2", "replicas: 3");
    let added = format!(
        "{changed}        env: [{{name: A, value: b}}]\n      - {{name: side, image: example.com/side:1}}\n"
    );
    write_file(kubectl.home.path(), "web.yaml", &added);
    assert_eq!(kubectl.run(&["apply", "-f", &manifest]).trim(), "deployment.apps/web configured");
    let object = get_web();
    assert_eq!(object["spec"]["replicas"], 3);
    let containers = &object["spec"]["template"]["spec"]["containers"];
    assert_eq!(text(containers, "/0/image"), "example.com/web:2");
    assert_eq!(text(containers, "/0/env/0/value"), "b");
    assert_eq!(text(containers, "/1/name"), "side");
    assert_eq!(object["metadata"]["generation"], 2);
    // Fields that left the file are removed.
    write_file(kubectl.home.path(), "web.yaml", &changed);
    kubectl.run(&["apply", "-f", &manifest]);
    let containers = get_web()["spec"]["template"]["spec"]["containers"].clone();
    assert_eq!(containers.as_array().map(Vec::len), Some(1), "{containers}");
    assert!(containers[0]["env"].is_null(), "{containers}");

    kubectl.run(&["label", "deployment", "web", "tier=front"]);
    kubectl.run(&["annotate", "deployment", "web", "note=one two"]);
    assert_eq!(text(&get_web(), "/metadata/labels/tier"), "front");
    assert_eq!(text(&get_web(), "/metadata/annotations/note"), "one two");
    kubectl.run(&["label", "deployment", "web", "tier-"]);
    assert!(get_web()["metadata"]["labels"]["tier"].is_null());

    kubectl.run(&["patch", "deployment", "web", "-p", r#"{"spec":{"paused":true}}"#]);
    kubectl.run(&["patch", "deployment", "web", "--type=merge", "-p", r#"{"spec":{"minReadySeconds":7}}"#]);
    let operations = r#"[{"op":"replace","path":"/spec/replicas","value":5}]"#;
    kubectl.run(&["patch", "deployment", "web", "--type=json", "-p", operations]);
    let spec = &get_web()["spec"];
    assert_eq!(
        (&spec["paused"], &spec["minReadySeconds"], &spec["replicas"]),
        (&json!(true), &json!(7), &json!(5))
    );
    kubectl.run(&["set", "image", "deployment/web", "web=example.com/web:9"]);
    let object = get_web();
    assert_eq!(text(&object, "/spec/template/spec/containers/0/image"), "example.com/web:9");

    let mut edit = kubectl.command(&["edit", "deployment", "web"]);
    let edited = edit.env("KUBE_EDITOR", "sed -i s/web:9/web:10/").output().expect("kubectl");
    assert!(edited.status.success(), "{}", String::from_utf8_lossy(&edited.stderr));
    let object = get_web();
    assert_eq!(text(&object, "/spec/template/spec/containers/0/image"), "example.com/web:10");
}

#[test]
fn kubectl_explain_describes_fields() {
    let server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let explained = kubectl.run(&["explain", "pod.spec.containers"]);
    for expected in ["List of containers belonging to the pod", "imagePullPolicy", "livenessProbe"] {
        assert!(explained.contains(expected), "{expected} in {explained}");
    }
    let deployment = kubectl.run(&["explain", "deployment", "--recursive"]);
    assert!(deployment.contains("maxSurge"), "{deployment}");
    assert!(kubectl.run(&["explain", "hpa", "--api-version=autoscaling/v2"]).contains("autoscaling"));
}

#[test]
fn kubectl_get_watch_prints_new_objects() {
    let server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let mut child = kubectl
        .command(&["get", "configmaps", "-w", "-o", "name", "--request-timeout=0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("kubectl");
    let stdout = child.stdout.take().expect("stdout");
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let mut client = server.admin();
    let maps = "/api/v1/namespaces/default/configmaps";
    for name in ["seen-1", "seen-2", "seen-3"] {
        client.post(maps, &json!({"metadata": {"name": name}})).ok();
    }
    let printed: Vec<_> = (0..3).map(|_| lines.recv_timeout(TIMEOUT)).collect();
    let _ = child.kill();
    let _ = child.wait();
    let printed: Vec<String> = printed.into_iter().map(|line| line.expect("a line in time")).collect();
    assert_eq!(printed, ["configmap/seen-1", "configmap/seen-2", "configmap/seen-3"]);
}

/// The kubeconfig of a user without rights of their own.
fn kubeconfig_of_alice(server: &Server, folder: &Path) -> String {
    let admin = fs::read_to_string(server.kubeconfig()).expect("admin.kubeconfig");
    let value = |field: &str| {
        let line = admin.lines().find_map(|line| line.trim().strip_prefix(field)?.strip_prefix(": "));
        line.expect("a field").to_owned()
    };
    let (url, authority) = (value("server"), value("certificate-authority-data"));
    let token = crate::support::server::USER_TOKEN;
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {{server: {url}, \
         certificate-authority-data: {authority}}}\nusers:\n- name: u\n  user: {{token: {token}}}\ncontexts:\n- name: c\n  \
         context: {{cluster: c, user: u}}\n"
    );
    write_file(folder, "alice.kubeconfig", &text)
}

#[test]
fn kubectl_auth_can_i_follows_roles_and_reconcile() {
    let server = Server::with_flags(&["--engine=memory", "--controllers=*"]);
    let admin = Kubectl::new(&server);
    let alice =
        Kubectl { kubeconfig: kubeconfig_of_alice(&server, admin.home.path()), ..Kubectl::new(&server) };
    assert!(!alice.try_run(&["get", "configmaps"]).status.success());
    assert_eq!(alice.run(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]), "alice");
    let denied = alice.try_run(&["auth", "can-i", "list", "configmaps"]);
    assert_eq!((denied.status.code(), &*denied.stdout), (Some(1), &b"no\n"[..]));

    admin.run(&["create", "role", "reader", "--verb=get,list", "--resource=configmaps"]);
    admin.run(&["create", "rolebinding", "reader", "--role=reader", "--user=alice"]);
    assert_eq!(alice.run(&["auth", "can-i", "list", "configmaps"]), "yes\n");
    let list = alice.run(&["auth", "can-i", "--list"]);
    assert!(
        table_columns(&list, "configmaps").1.contains(&"list]".to_owned()) || list.contains("[get list]"),
        "{list}"
    );
    alice.run(&["get", "configmaps"]);

    admin.run(&["create", "clusterrole", "all", "--aggregation-rule=join=all"]);
    admin.run(&["create", "clusterrole", "one", "--verb=delete", "--resource=secrets"]);
    admin.run(&["label", "clusterrole", "one", "join=all"]);
    admin.run(&["create", "rolebinding", "all", "--clusterrole=all", "--user=alice"]);
    let is_aggregated = crate::support::wait::poll(TIMEOUT, || {
        alice.try_run(&["auth", "can-i", "delete", "secrets"]).status.success().then_some(())
    });
    assert!(is_aggregated.is_some(), "the aggregated role has got its rules");

    let role_file = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "reader", "namespace": "default"},
        "rules": [{"verbs": ["watch"], "apiGroups": [""], "resources": ["configmaps"]}]});
    let role_file = write_object(admin.home.path(), &role_file);
    admin.run(&["auth", "reconcile", "-f", &role_file]);
    assert_eq!(alice.run(&["auth", "can-i", "watch", "configmaps"]), "yes\n");
    assert_eq!(alice.run(&["auth", "can-i", "list", "configmaps"]), "yes\n", "what was there stays");
}
