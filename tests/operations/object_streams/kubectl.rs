//! Streams from kubectl, and manifests for it.

use serde_json::json;

use super::{MAPS, command, config_map, define_ships, export, import_text, reference, stdout};
use crate::support::Server;
use crate::support::kubectl::Kubectl;
use crate::support::server::temp_directory;

#[test]
fn output_of_kubectl_get_is_imported() {
    let (from, into) = (Server::with_flags(&["--engine=memory"]), Server::with_flags(&["--engine=memory"]));
    let mut client = from.admin();
    let owner = client.post(MAPS, &config_map("owner", &[])).ok();
    client.post(MAPS, &config_map("child", &[reference(&owner)])).ok();
    let kubectl = Kubectl::new(&from);
    for form in ["yaml", "json"] {
        let list = kubectl.run(&["get", "configmaps,namespaces", "-o", form]);
        let (success, stderr) =
            import_text(&into, &list, &["--on-conflict=replace", "--resource=configmaps"]);
        assert!(success, "{stderr}");
        let mut client = into.admin();
        let (owner, child) =
            (client.get(&format!("{MAPS}/owner")).ok(), client.get(&format!("{MAPS}/child")).ok());
        assert_eq!(child["metadata"]["ownerReferences"][0]["uid"], owner["metadata"]["uid"], "{form}");
        client.delete_background(&format!("{MAPS}/owner")).ok();
        client.delete_background(&format!("{MAPS}/child")).ok();
    }
    let single = kubectl.run(&["get", "configmap", "owner", "-o", "yaml"]);
    let (success, stderr) = import_text(&into, &single, &[]);
    assert!(success && stderr.contains("1 object created"), "{stderr}");
}

#[test]
fn long_lists_of_kubectl_are_imported() {
    let (from, into) = (Server::with_flags(&["--engine=memory"]), Server::with_flags(&["--engine=memory"]));
    let mut client = from.admin();
    // More than one YAML document may have.
    for number in 0..20 {
        let mut map = config_map(&format!("large-{number:02}"), &[]);
        map["data"]["text"] = json!(format!("- items:\n\n{}\n", "x y ".repeat(50_000)));
        client.post(MAPS, &map).ok();
    }
    let list = Kubectl::new(&from).run(&["get", "configmaps", "-o", "yaml"]);
    assert!(list.len() > 3 << 20);
    let (success, stderr) = import_text(&into, &list, &[]);
    assert!(success && stderr.contains("20 objects created"), "{stderr}");
    let (old, new) =
        (client.get(&format!("{MAPS}/large-07")).ok(), into.admin().get(&format!("{MAPS}/large-07")).ok());
    assert_eq!(old["data"], new["data"]);
}

#[test]
fn kubectl_applies_exported_manifests() {
    let (from, into) = (Server::with_flags(&["--engine=memory"]), Server::with_flags(&["--engine=memory"]));
    let mut client = from.admin();
    define_ships(&mut client);
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "port"}})).ok();
    let owner = client.post(MAPS, &config_map("owner", &[])).ok();
    client.post(MAPS, &config_map("owned", &[reference(&owner)])).ok();
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    client.post("/api/v1/namespaces/port/services", &service).ok();
    let directory = temp_directory();
    let path = directory.path().join("manifests.yaml");
    let summary = export(&from, &path, &["--manifests", "--output=yaml"]);
    assert!(summary.contains("made by the cluster itself"), "{summary}");
    let text = std::fs::read_to_string(&path).unwrap();
    for field in
        ["resourceVersion:", "uid:", "creationTimestamp: \"", "managedFields:", "\nstatus:", "clusterIP:"]
    {
        assert!(!text.contains(field), "{field} in {text}");
    }
    let kubectl = Kubectl::new(&into);
    let output = kubectl.try_run(&["apply", "-f", path.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{stderr}{}", stdout(&output));
    let applied = stdout(&output);
    for line in [
        "namespace/port created",
        "configmap/owner created",
        "service/web created",
        "ships.example.com created",
    ] {
        assert!(applied.contains(line), "{applied}");
    }
    assert!(!applied.contains("configmap/owned"), "{applied}");
}

#[test]
fn kubectl_applies_a_whole_export_to_its_own_cluster() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    client.post(MAPS, &config_map("a", &[])).ok();
    client.post(MAPS, &config_map("b", &[])).ok();
    let arguments = ["-o", "yaml", "--resource=configmaps", "-n", "default"];
    let output = command("export", &server, &arguments).output().unwrap();
    assert!(output.status.success());
    let text = stdout(&output);
    assert!(text.starts_with("---\napiVersion: v1\n"), "{text}");
    let directory = temp_directory();
    let path = directory.path().join("export.yaml");
    std::fs::write(&path, text).unwrap();
    let applied = Kubectl::new(&server).run(&["apply", "-f", path.to_str().unwrap()]);
    assert_eq!(applied, "configmap/a configured\nconfigmap/b configured\n");
}
