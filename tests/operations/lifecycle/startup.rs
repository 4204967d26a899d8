//! Start, restart and start errors.

use super::*;
use crate::support::server::ON_FILE;

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { paths.extend(files(&path)) } else { paths.push(path) }
    }
    paths
}

/// The error line of a server that did not start.
fn error_line(failure: &StartFailure) -> String {
    assert!(!failure.status.success(), "{failure:?}");
    assert!(!failure.stderr.contains("panicked"), "{failure:?}");
    assert_eq!(failure.stdout, "", "no kubectl command without a server");
    let lines: Vec<&str> = failure.stderr.lines().filter(|line| line.starts_with("pilothouse: ")).collect();
    assert_eq!(lines.len(), 1, "one clear line: {failure:?}");
    lines[0].to_owned()
}

fn start_error(data: &Path, arguments: &[&str]) -> String {
    match Server::try_start_in(data, arguments) {
        Ok(_) => panic!("the server started"),
        Err(failure) => error_line(&failure),
    }
}

#[test]
fn first_start_creates_keys_kubeconfig_and_namespaces() {
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
    let mut client = server.kubeconfig_client();
    assert_eq!(client.get("/api/v1/namespaces").ok()["items"].as_array().map(Vec::len), Some(4));
    server.stop();
}

/// On a busy machine seconds pass during a start: the status that an APIService gets with its creation must not be written again.
#[test]
fn api_services_of_a_slow_start_are_written_once() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_with_wall_clock("+0 x1000", directory.path(), &[]);
    let services = server.admin().get("/apis/apiregistration.k8s.io/v1/apiservices").ok();
    let services = services["items"].as_array().unwrap();
    assert!(services.len() > 10, "{services:?}");
    for service in services {
        assert_eq!(service["status"]["conditions"][0]["status"], "True", "{service}");
        assert_eq!(service["metadata"]["managedFields"].as_array().map(Vec::len), Some(1), "{service}");
    }
}

#[test]
fn restart_keeps_objects_and_certificates() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let first = Server::start_in(&data, &[]);
    let mut before = first.kubeconfig_client();
    let created = before.post(MAPS, &map("kept")).ok();
    let namespaces = before.get("/api/v1/namespaces").ok();
    let authority = fs::read(data.join("pki/ca.crt")).expect("the authority");
    first.stop();

    let second = Server::start_in(&data, &[]);
    assert_eq!(fs::read(data.join("pki/ca.crt")).expect("the authority"), authority);
    // The certificates of the first server are valid for the second.
    let mut after = before.new_connection();
    after.address = second.address();
    assert_eq!(after.get(&format!("{MAPS}/kept")).ok(), created);
    assert_eq!(after.get("/api/v1/namespaces").ok()["items"], namespaces["items"]);
    let next = after.post(MAPS, &map("next")).ok();
    assert!(crate::support::compare::revision(&next) > crate::support::compare::revision(&created));
    second.stop();
}

/// The binding was split from another one; it must not be less restricted than that.
#[test]
fn restored_public_info_binding_copies_restricted_discovery_subjects() {
    const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let directory = temp_directory();
    let data = directory.path().join("data");
    let (public, discovery) =
        (format!("{BINDINGS}/system:public-info-viewer"), format!("{BINDINGS}/system:discovery"));
    let server = Server::start_in(&data, &[]);
    let mut admin = server.admin();
    let mut restricted = admin.get(&discovery).ok();
    restricted["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = json!("false");
    let subjects = json!([{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "staff"}]);
    restricted["subjects"] = subjects.clone();
    admin.put(&discovery, &restricted).ok();
    admin.delete(&public).ok();
    server.terminate();
    server.wait_for_exit();
    let restarted = Server::start_in(&data, &[]).admin().get(&public).ok();
    assert_eq!(restarted["subjects"], subjects, "{restarted}");
    assert_eq!(restarted["roleRef"]["name"], "system:public-info-viewer");
}

#[test]
fn policy_denying_bootstrap_writes_does_not_block_start() {
    const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
    let directory = temp_directory();
    let data = directory.path().join("data");
    let first = Server::start_in(&data, &[]);
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

    // The deleted role cannot be restored, and the endpoints have a new port.
    let second = Server::start_in(&data, &[]);
    let mut client = second.admin();
    assert_eq!(client.post(MAPS, &map("any")).status, 422, "the policy is in force");
    assert_eq!(client.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/view").status, 404);
    assert!(second.log().contains("bootstrap objects cannot be created; retrying"), "{}", second.log());
    let refused = "[+]poststarthook/rbac/bootstrap-roles ok: warning: something was refused, it is repeated";
    for path in ["/readyz?verbose", "/livez?verbose"] {
        let checks = client.get(path);
        assert!(checks.status == 200 && checks.text().contains(refused), "{}", checks.text());
    }
    client.delete(&format!("{ADMISSION}/validatingadmissionpolicybindings/nothing")).ok();
    client.post(MAPS, &map("any")).ok();
    second.stop();

    let third = Server::start_in(&data, &[]);
    third.admin().get("/apis/rbac.authorization.k8s.io/v1/clusterroles/view").ok();
    third.stop();
}

#[test]
fn memory_engine_keeps_nothing_across_restart() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let first = Server::start_in(&data, &["--engine=memory"]);
    first.admin().post(MAPS, &map("forgotten")).ok();
    first.stop();
    let second = Server::start_in(&data, &["--storage-backend=memory"]);
    second.admin().get(&format!("{MAPS}/forgotten")).expect_error(404, "NotFound");
}

#[test]
fn data_directory_in_use_is_refused() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let mut first = Server::start_in(&data, &[]);
    let kubeconfig = fs::read(first.kubeconfig()).expect("the kubeconfig");
    let stderr = start_error(&data, &[]);
    assert!(stderr.contains("in use by another server") && stderr.contains("data"), "{stderr}");
    assert_eq!(
        fs::read(first.kubeconfig()).expect("the kubeconfig"),
        kubeconfig,
        "the first one's file is left alone"
    );
    first.assert_healthy();
    first.stop();
    Server::start_in(&data, &[]).stop();
}

#[test]
fn start_error_names_port_in_use() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port().to_string();
    let directory = temp_directory();
    let stderr = start_error(&directory.path().join("data"), &["--secure-port", &port]);
    assert!(stderr.contains(&port) && stderr.contains("in use"), "{stderr}");
}

#[test]
fn start_error_names_damaged_data_file() {
    let directory = temp_directory();
    let data = directory.path().join("data");
    let server = Server::start_on_file(&data, &[]);
    server.admin().post(MAPS, &map("kept")).ok();
    server.stop();
    let store =
        files(&data).into_iter().find(|file| fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"redb")));
    let store = store.expect("a file of the redb engine");
    let name = store.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let content = fs::read(&store).expect("the file");

    let mut overwritten = content.clone();
    overwritten[..512].fill(0xa5);
    for (damage, bytes) in
        [("its head overwritten", overwritten), ("half of it gone", content[..content.len() / 2].to_vec())]
    {
        fs::write(&store, bytes).expect("the damage");
        let stderr = start_error(&data, &[ON_FILE]);
        assert!(stderr.contains(&name), "{damage}: the message names the file {name}: {stderr}");
    }
    fs::write(&store, &content).expect("the repair");
    let server = Server::start_on_file(&data, &[]);
    server.admin().get(&format!("{MAPS}/kept")).ok();
}

fn run_binary(arguments: &[&str]) -> Output {
    let directory = temp_directory();
    command(directory.path(), arguments).output().expect("the binary")
}

#[test]
fn start_refuses_unknown_and_invalid_flags() {
    for (flag, suggestion) in
        [("--secur-port=1", "--secure-port"), ("--token-auth-fil=x", "--token-auth-file")]
    {
        let output = run_binary(&[flag]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{flag}");
        let unknown = flag.split('=').next().unwrap_or_default();
        assert!(stderr.contains(unknown) && stderr.contains(suggestion), "{flag}: {stderr}");
    }
    for flag in
        ["--secure-port=x", "--engine=etcd9", "--bind-address=nowhere", "--feature-gates=NoSuchGate=true"]
    {
        let output = run_binary(&[flag]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{flag}");
        assert!(stderr.contains(flag.split('=').nth(1).unwrap_or_default()), "{flag}: {stderr}");
        assert!(!stderr.contains("panicked"), "{flag}: {stderr}");
    }
    let output = run_binary(&["--token-auth-file=no-such-file.csv"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("no-such-file.csv"), "{stderr}");
}

/// Runs the binary with nothing but these arguments.
fn run_command(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pilothouse")).args(arguments).output().expect("the binary")
}

#[test]
fn help_names_the_commands_before_the_flags() {
    let text = |arguments: &[&str]| {
        let output = run_command(arguments);
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let help = text(&["--help"]);
    let (commands, flags) = (help.find("\n  restore ").unwrap(), help.find("\nSecure serving:").unwrap());
    assert!(commands < flags, "{help}");
    assert_eq!(text(&["help"]), help);
    assert_eq!(text(&["help", "backup"]), text(&["backup", "--help"]));
    assert_eq!(text(&["help", "help"]), help);
    let unknown = run_command(&["help", "bakcup"]);
    assert!(!unknown.status.success() && String::from_utf8_lossy(&unknown.stderr).contains("bakcup"));
}

#[test]
fn help_lists_flags_in_groups() {
    let output = run_binary(&["--help"]);
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
    assert!(run_binary(&["--version"]).status.success());
}
