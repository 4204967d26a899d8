//! Input that is not as it should be.

use serde_json::json;

use super::{MAPS, config_map, import, import_text};
use crate::support::Server;
use crate::support::server::temp_directory;

#[test]
fn bad_lines_are_reported_and_the_others_imported() {
    let server = Server::with_flags(&["--engine=memory"]);
    let (a, b) = (config_map("a", &[]), config_map("b", &[]));
    // More than a line may have.
    let too_long = "x".repeat(33 << 20);
    let boat = json!({"apiVersion": "example.com/v1", "kind": "Boat", "metadata": {"name": "x", "namespace": "default"}});
    let invalid =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "N_o", "namespace": "default"}});
    let nowhere =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "nowhere"}});
    let truncated = a.to_string().replace("\"data\"", "\"da");
    let truncated = truncated.split_once("\"da").unwrap().0.to_owned() + "\"da";
    let stream = format!("{a}\n{truncated}\n{{\"x\":\"{too_long}\"}}\n{boat}\n{invalid}\n{nowhere}\n{b}\n");
    let (success, stderr) = import_text(&server, &stream, &[]);
    assert!(!success, "{stderr}");
    for line in [
        "failed: input: line 2: not JSON: EOF while parsing a string",
        "failed: input: line 3: more than 33554432 bytes",
        "failed: Boat.example.com default/x: no kind \"Boat\" in version \"example.com/v1\"",
        "failed: ConfigMap default/N_o: ConfigMap \"N_o\" is invalid: metadata.name",
        "failed: ConfigMap nowhere/c: namespaces \"nowhere\" not found",
        "2 objects created, 5 failed",
        "pilothouse import: 5 objects were not imported",
    ] {
        assert!(stderr.contains(line), "{line}: {stderr}");
    }
    let mut client = server.admin();
    for name in ["a", "b"] {
        client.get(&format!("{MAPS}/{name}")).ok();
    }
}

#[test]
fn unknown_fields_are_reported() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut map = config_map("a", &[]);
    map["extra"] = json!(1);
    let (success, stderr) = import_text(&server, &map.to_string(), &[]);
    assert!(success && stderr.contains("warning: ConfigMap default/a: unknown field \"extra\""), "{stderr}");
}

#[test]
fn truncated_yaml_and_missing_file_are_reported() {
    let server = Server::with_flags(&["--engine=memory"]);
    let good = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n";
    let (success, stderr) = import_text(&server, &format!("{good}---\nkind: [\n"), &[]);
    assert!(!success && stderr.contains("failed: input: line 5: not YAML: "), "{stderr}");
    server.admin().get(&format!("{MAPS}/a")).ok();
    let directory = temp_directory();
    let (success, stderr) = import(&server, &directory.path().join("no-such-file"), &[]);
    assert!(!success && stderr.contains("no-such-file: No such file"), "{stderr}");
    let (success, stderr) = import_text(&server, "", &[]);
    assert!(success && stderr.contains("0 objects created, 0 failed"), "{stderr}");
}

#[test]
fn unreachable_server_is_reported() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    server.assert_healthy();
    let directory = temp_directory();
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::copy(server.kubeconfig(), &kubeconfig).unwrap();
    let mut command = super::command("export", &server, &["--certificate-authority"]);
    let other_ca = directory.path().join("ca.crt");
    std::fs::write(&other_ca, "no certificate").unwrap();
    command.arg(&other_ca);
    let (success, stderr) = super::run(command);
    assert!(!success && stderr.starts_with("pilothouse export: "), "{stderr}");
}
