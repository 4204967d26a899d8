//! The stock command-line client against the real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;
#[path = "kubectl/writes.rs"]
mod writes;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;

use serde_json::{Value, json};
use support::compare::{lost, text};
use support::kubectl::Kubectl;
use support::manifests::discover;
use support::wait::CAP;
use support::{Manifest, Server};

/// The resource as kubectl wants it said, so that no other group can be meant.
fn argument(plural: &str, group_version: &str) -> String {
    match group_version.split_once('/') {
        Some((group, version)) => format!("{plural}.{version}.{group}"),
        None => plural.to_owned(),
    }
}

fn written(folder: &Path, object: &Value) -> String {
    let path = folder.join("object.json");
    fs::write(&path, object.to_string()).expect("a file");
    path.to_str().expect("a path of letters").to_owned()
}

#[test]
fn every_kind_by_file() {
    let mut server = Server::with(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let resources = discover(&mut server.admin());
    let mut failed = Vec::new();
    for manifest in Manifest::all() {
        let resource = manifest.resource(&resources);
        let resource = argument(&resource.plural, manifest.group_version());
        if let Err(why) = life(&kubectl, &manifest, &resource) {
            failed.push(format!("{}: {why}", manifest.title()));
        }
    }
    server.unharmed();
    assert!(failed.is_empty(), "{} kinds failed:\n{}", failed.len(), failed.join("\n"));
}

/// Creates, reads, replaces and deletes one object.
fn life(kubectl: &Kubectl, manifest: &Manifest, resource: &str) -> Result<(), String> {
    let step = |arguments: &[&str]| -> Result<String, String> {
        let output = kubectl.try_run(arguments);
        let complained = String::from_utf8_lossy(&output.stderr);
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("kubectl {arguments:?}: {complained}")),
        }
    };
    let name = manifest.name();
    let file = manifest.file.to_str().ok_or("the file's name")?;
    let said = step(&["create", "--validate=false", "-f", file])?;
    if !said.contains(" created") {
        return Err(said);
    }
    let yaml = step(&["get", resource, name, "-o", "yaml"])?;
    for line in [format!("kind: {}", manifest.kind()), format!("apiVersion: {}", manifest.group_version())] {
        if !yaml.contains(&line) {
            return Err(format!("no {line:?} in {yaml}"));
        }
    }
    let mut object = kubectl.get(resource, name);
    let differences = lost(&manifest.object, &object);
    if !differences.is_empty() {
        return Err(format!("{differences:?}"));
    }
    object["metadata"]["labels"]["purpose"] = json!("replaced");
    step(&["replace", "--validate=false", "-f", &written(kubectl.home.path(), &object)])?;
    let table = step(&["get", resource, name, "--show-labels"])?;
    // A row of an IPAddress has a cell more than its table has columns, as on a real cluster, and kubectl counts cells.
    if !table.contains("purpose=replaced") && manifest.kind() != "IPAddress" {
        return Err(format!("the table lacks the new label: {table}"));
    }
    // Some kinds wait for a control loop that does not run here; the others are gone when kubectl returns.
    step(&["delete", resource, name, "--wait=false"])?;
    Ok(())
}

#[test]
fn looking_around() {
    let mut server = Server::with(&["--engine=memory"]);
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
    let complaint = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert_eq!(complaint.trim(), "Error from server (NotFound): configmaps \"nope\" not found");
    kubectl.run(&["delete", "deployment", "sample"]);
    assert!(!kubectl.run(&["get", "deployments", "-A"]).contains("sample"));
    server.unharmed();
}

/// A deployment as people write it.
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

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("a file");
    path.to_str().expect("a path of letters").to_owned()
}

/// The columns of the first line and of the line that begins with `name`.
fn columns(table: &str, name: &str) -> (Vec<String>, Vec<String>) {
    let split = |line: &str| -> Vec<String> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let head = table.lines().next().map(split).unwrap_or_default();
    let row = table.lines().find(|line| line.starts_with(name)).map(split).unwrap_or_default();
    (head, row)
}

#[test]
fn tables_and_the_other_forms_of_output() {
    let server = Server::with(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    kubectl.run(&["apply", "-f", &file(kubectl.home.path(), "web.yaml", DEPLOYMENT)]);
    let (head, row) = columns(&kubectl.run(&["get", "deployments"]), "web");
    assert_eq!(head, ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]);
    assert_eq!(row[..4], ["web", "0/2", "0", "0"]);
    let (head, row) = columns(&kubectl.run(&["get", "deployments", "-o", "wide"]), "web");
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
    let (head, row) = columns(&kubectl.run(&["get", "namespaces"]), "default");
    assert_eq!((head[1].as_str(), row[1].as_str()), ("STATUS", "Active"));
    assert!(kubectl.run(&["get", "deployments", "-A"]).starts_with("NAMESPACE"));
    assert!(kubectl.run(&["get", "deployments", "--no-headers"]).starts_with("web"));
    kubectl.run(&["describe", "deployment", "web"]);
}

#[test]
fn the_generators_of_kubectl_work() {
    let server = Server::with(&["--engine=memory"]);
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
    kubectl.run(&["create", "priorityclass", "p", "--value=7"]);
    kubectl.run(&["-n", "made", "run", "pod", "--image=example.com/app:1"]);
    let (_, row) = columns(&kubectl.run(&["-n", "made", "get", "services"]), "c");
    assert_eq!(row[1], "ClusterIP");
    assert!(row[2].parse::<std::net::IpAddr>().is_ok(), "{row:?}");
    let (_, row) = columns(&kubectl.run(&["-n", "made", "get", "pods"]), "pod");
    assert_eq!(row[1..4], ["0/1", "Pending", "0"]);
}

#[test]
fn what_is_wrong_is_refused_before_it_is_stored() {
    let server = Server::with(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let wrong = file(kubectl.home.path(), "wrong.yaml", &DEPLOYMENT.replace("replicas", "replikas"));
    // Old releases check by themselves and know no levels.
    let modern = kubectl.run(&["create", "--help"]).contains("'strict'");
    let strict = if modern { "--validate=strict" } else { "--validate=true" };
    let refused = kubectl.try_run(&["create", strict, "-f", &wrong]);
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && complaint.contains("unknown field"), "{complaint}");
    let right = file(kubectl.home.path(), "right.yaml", DEPLOYMENT);
    assert!(kubectl.run(&["create", strict, "-f", &right]).contains("created"));
    if modern {
        let warned = kubectl.try_run(&["replace", "--validate=warn", "-f", &wrong]);
        let complaint = String::from_utf8_lossy(&warned.stderr).into_owned();
        assert!(warned.status.success(), "{complaint}");
        assert_eq!(complaint.trim(), "Warning: unknown field \"spec.replikas\"");
    }
}

#[test]
fn applying_from_the_client_is_seen_as_unchanged_the_second_time() {
    let server = Server::with(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let manifest = file(kubectl.home.path(), "web.yaml", DEPLOYMENT);
    assert_eq!(kubectl.run(&["apply", "-f", &manifest]).trim(), "deployment.apps/web created");
    assert_eq!(kubectl.run(&["apply", "-f", &manifest]).trim(), "deployment.apps/web unchanged");
}

#[test]
fn changing_what_is_there() {
    let server = Server::with(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let manifest = file(kubectl.home.path(), "web.yaml", DEPLOYMENT);
    kubectl.run(&["apply", "-f", &manifest]);
    let web = || kubectl.get("deployment", "web");

    // A changed file: the client works out a strategic merge patch of three states.
    let changed = DEPLOYMENT.replace("web:1", "web:2").replace("replicas: 2", "replicas: 3");
    let added = format!(
        "{changed}        env: [{{name: A, value: b}}]\n      - {{name: side, image: example.com/side:1}}\n"
    );
    file(kubectl.home.path(), "web.yaml", &added);
    assert_eq!(kubectl.run(&["apply", "-f", &manifest]).trim(), "deployment.apps/web configured");
    let object = web();
    assert_eq!(object["spec"]["replicas"], 3);
    let containers = &object["spec"]["template"]["spec"]["containers"];
    assert_eq!(text(containers, "/0/image"), "example.com/web:2");
    assert_eq!(text(containers, "/0/env/0/value"), "b");
    assert_eq!(text(containers, "/1/name"), "side");
    assert_eq!(object["metadata"]["generation"], 2);
    // What is no longer in the file goes.
    file(kubectl.home.path(), "web.yaml", &changed);
    kubectl.run(&["apply", "-f", &manifest]);
    let containers = web()["spec"]["template"]["spec"]["containers"].clone();
    assert_eq!(containers.as_array().map(Vec::len), Some(1), "{containers}");
    assert!(containers[0]["env"].is_null(), "{containers}");

    kubectl.run(&["label", "deployment", "web", "tier=front"]);
    kubectl.run(&["annotate", "deployment", "web", "note=one two"]);
    assert_eq!(text(&web(), "/metadata/labels/tier"), "front");
    assert_eq!(text(&web(), "/metadata/annotations/note"), "one two");
    kubectl.run(&["label", "deployment", "web", "tier-"]);
    assert!(web()["metadata"]["labels"]["tier"].is_null());

    kubectl.run(&["patch", "deployment", "web", "-p", r#"{"spec":{"paused":true}}"#]);
    kubectl.run(&["patch", "deployment", "web", "--type=merge", "-p", r#"{"spec":{"minReadySeconds":7}}"#]);
    let operations = r#"[{"op":"replace","path":"/spec/replicas","value":5}]"#;
    kubectl.run(&["patch", "deployment", "web", "--type=json", "-p", operations]);
    let spec = &web()["spec"];
    assert_eq!(
        (&spec["paused"], &spec["minReadySeconds"], &spec["replicas"]),
        (&json!(true), &json!(7), &json!(5))
    );
    kubectl.run(&["set", "image", "deployment/web", "web=example.com/web:9"]);
    let object = web();
    assert_eq!(text(&object, "/spec/template/spec/containers/0/image"), "example.com/web:9");

    let mut edit = kubectl.command(&["edit", "deployment", "web"]);
    let edited = edit.env("KUBE_EDITOR", "sed -i s/web:9/web:10/").output().expect("kubectl");
    assert!(edited.status.success(), "{}", String::from_utf8_lossy(&edited.stderr));
    let object = web();
    assert_eq!(text(&object, "/spec/template/spec/containers/0/image"), "example.com/web:10");
}

#[test]
fn explaining() {
    let server = Server::with(&["--engine=memory"]);
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
fn watching() {
    let server = Server::with(&["--engine=memory"]);
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
    let told: Vec<_> = (0..3).map(|_| lines.recv_timeout(CAP)).collect();
    let _ = child.kill();
    let _ = child.wait();
    let told: Vec<String> = told.into_iter().map(|line| line.expect("a line in time")).collect();
    assert_eq!(told, ["configmap/seen-1", "configmap/seen-2", "configmap/seen-3"]);
}
