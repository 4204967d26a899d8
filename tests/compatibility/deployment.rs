//! The files of `deploy/`: a cluster accepts them, their flags are flags of the programs that they start, and what one file says of
//! another is so.

mod files;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use pilothouse::Config;
use serde_json::Value;

use self::files::{
    CommandLine, command_lines, compose_services, containers, documents, path, pod_spec, read,
};
use crate::support::Server;
use crate::support::kubectl::Kubectl;
use crate::support::server::temp_directory;

/// The flags of a server, parsed.
fn server_config(line: &CommandLine) -> Config {
    let pod_address = |argument: &String| argument.replace("$(POD_IP)", "192.0.2.7");
    let arguments = line.arguments.iter().map(pod_address);
    Config::parse(std::iter::once("pilothouse".to_owned()).chain(arguments))
        .unwrap_or_else(|error| panic!("{}: {error}", line.origin))
}

fn servers() -> Vec<CommandLine> {
    command_lines().into_iter().filter(CommandLine::is_server).collect()
}

#[test]
fn flags_of_deployed_servers_are_accepted_and_have_an_effect() {
    let mut origins = BTreeSet::new();
    for line in servers() {
        let config = server_config(&line);
        assert_eq!(config.validate(), Ok(()), "{}", line.origin);
        // Whoever has kubelets with verifiable certificates names their CA: these files cannot know it, as kubeadm does not.
        let is_expected =
            |warning: &&String| warning.starts_with("--kubelet-certificate-authority is not set");
        let unexpected: Vec<&String> =
            config.warnings.iter().filter(|warning| !is_expected(warning)).collect();
        assert!(unexpected.is_empty(), "{}: {unexpected:?}", line.origin);
        let is_on_etcd = line.origin.contains("etcd") || line.origin.contains("static-pod");
        assert_eq!(config.etcd().is_some(), is_on_etcd, "{}", line.origin);
        origins.insert(line.origin);
    }
    let expected = [
        "Dockerfile CMD",
        "compose-etcd.yaml pilothouse-1",
        "compose-etcd.yaml pilothouse-2",
        "compose.yaml pilothouse",
        "manifests/one-server.yaml pilothouse",
        "manifests/servers-on-etcd.yaml pilothouse",
        "pilothouse.service",
        "static-pod.yaml kube-apiserver",
    ];
    assert_eq!(origins, expected.map(str::to_owned).into());
}

/// What kubeadm 1.33 gives to kube-apiserver by default.
const KUBEADM_FLAGS: [&str; 27] = [
    "advertise-address",
    "allow-privileged",
    "authorization-mode",
    "client-ca-file",
    "enable-admission-plugins",
    "enable-bootstrap-token-auth",
    "etcd-cafile",
    "etcd-certfile",
    "etcd-keyfile",
    "etcd-servers",
    "kubelet-client-certificate",
    "kubelet-client-key",
    "kubelet-preferred-address-types",
    "proxy-client-cert-file",
    "proxy-client-key-file",
    "requestheader-allowed-names",
    "requestheader-client-ca-file",
    "requestheader-extra-headers-prefix",
    "requestheader-group-headers",
    "requestheader-username-headers",
    "secure-port",
    "service-account-issuer",
    "service-account-key-file",
    "service-account-signing-key-file",
    "service-cluster-ip-range",
    "tls-cert-file",
    "tls-private-key-file",
];

#[test]
fn static_pod_has_every_flag_of_kubeadm() {
    let line = servers().into_iter().find(|line| line.origin.starts_with("static-pod")).unwrap();
    for flag in KUBEADM_FLAGS {
        let prefix = format!("--{flag}=");
        assert!(line.arguments.iter().any(|argument| argument.starts_with(&prefix)), "{flag}");
    }
}

#[test]
fn arguments_of_deployed_commands_are_accepted() {
    let commands: Vec<CommandLine> = command_lines().into_iter().filter(|line| !line.is_server()).collect();
    let names: BTreeSet<&str> = commands.iter().map(|line| line.arguments[0].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["healthcheck", "share-keys"]));
    for line in commands {
        // Arguments are parsed from left to right, so the help is shown only if all before it are accepted.
        let program = env!("CARGO_BIN_EXE_pilothouse");
        let output = Command::new(program).args(&line.arguments).arg("--help").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {:?}: {stderr}", line.origin, line.arguments);
    }
    let program = env!("CARGO_BIN_EXE_pilothouse");
    let refused = Command::new(program).args(["healthcheck", "--no-such-flag", "--help"]).output().unwrap();
    assert!(!refused.status.success(), "a flag that there is not is noticed");
}

#[test]
fn stops_last_as_long_as_the_flags_allow() {
    const MARGIN: Duration = Duration::from_secs(5);
    let mut count = 0;
    for line in servers() {
        let Some(grace) = line.grace else { continue };
        let config = server_config(&line);
        let needed = config.lifecycle.shutdown_delay_duration + config.limits.request_timeout + MARGIN;
        assert!(grace >= needed, "{}: {grace:?} is less than {needed:?}", line.origin);
        count += 1;
    }
    assert_eq!(count, 7, "all but the image, whose engine decides");
}

#[test]
fn startup_probes_wait_longer_than_a_start_waits_for_etcd() {
    for file in ["manifests/one-server.yaml", "manifests/servers-on-etcd.yaml", "static-pod.yaml"] {
        let documents = documents(file);
        let pod = documents.iter().find_map(pod_spec).unwrap();
        let probe = &pod["containers"][0]["startupProbe"];
        let number = |name: &str| probe[name].as_u64().unwrap();
        let line = servers().into_iter().find(|line| line.origin.starts_with(file)).unwrap();
        let timeout = server_config(&line).etcd_flags.storage_initialization_timeout;
        assert!(number("periodSeconds") * number("failureThreshold") > timeout.as_secs(), "{file}: {probe}");
        let endpoints = ["livenessProbe", "readinessProbe"].map(|name| {
            let path = pod["containers"][0][name]["httpGet"]["path"].as_str().unwrap();
            path.split('?').next().unwrap_or_default()
        });
        assert_eq!(endpoints, ["/livez", "/readyz"], "{file}");
    }
}

#[test]
#[cfg_attr(has_old_kubectl, ignore = "needs kubectl 1.27 or newer")]
fn servers_with_shared_keys_accept_the_same_administrator() {
    let directory = temp_directory();
    let homes = ["one", "other"].map(|name| directory.path().join(name));
    let kubeconfig = directory.path().join("admin");
    let output = Command::new(env!("CARGO_BIN_EXE_pilothouse"))
        .arg("share-keys")
        .args(homes.each_ref().map(|home| home.join("pki")))
        .arg("--admin-kubeconfig")
        .arg(&kubeconfig)
        .arg("--server=https://api.example.org:6443")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let kubectl = Kubectl { home: temp_directory(), kubeconfig: kubeconfig.to_str().unwrap().to_owned() };
    let view = kubectl.run(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"]);
    assert_eq!(view, "https://api.example.org:6443");
    for home in &homes {
        let server = Server::start_in(home, &["--engine=memory"]);
        // It verifies the certificate of the server, too.
        let address = format!("--server=https://{}", server.address());
        let user = kubectl.run(&[&address, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]);
        assert_eq!(user, "kubernetes-admin");
    }
}

const MANIFESTS: [&str; 3] =
    ["manifests/common.yaml", "manifests/one-server.yaml", "manifests/servers-on-etcd.yaml"];

#[test]
#[cfg_attr(has_old_kubectl, ignore = "needs kubectl 1.27 or newer")]
fn manifests_pass_server_side_dry_run_without_warnings() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let dry_run = |file: &str| {
        let flags = ["apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", file];
        let output = kubectl.try_run(&flags);
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.success(), stdout, stderr)
    };
    kubectl.run(&[
        "apply",
        "--validate=strict",
        "--warnings-as-errors",
        "-f",
        &path("manifests/namespace.yaml"),
    ]);
    for file in MANIFESTS.into_iter().chain(["static-pod.yaml"]) {
        let (is_accepted, stdout, stderr) = dry_run(&path(file));
        assert!(is_accepted && stderr.is_empty(), "{file}: {stderr}");
        let count = stdout.lines().filter(|line| line.ends_with(" created (server dry run)")).count();
        assert_eq!(count, documents(file).len(), "{file}: {stdout}");
    }
    // The namespace warns about pods that could do more than the server needs, so the above means something.
    let lax = read("manifests/servers-on-etcd.yaml").replace("runAsNonRoot: true", "runAsNonRoot: false");
    let file = kubectl.home.path().join("lax.yaml");
    fs::write(&file, lax).unwrap();
    let (is_accepted, _, stderr) = dry_run(file.to_str().unwrap());
    assert!(!is_accepted && stderr.contains("runAsNonRoot"), "{stderr}");
    server.assert_healthy();
}

#[test]
fn every_image_has_a_fixed_version() {
    let mut images: Vec<(String, String)> = Vec::new();
    for file in MANIFESTS.into_iter().chain(["static-pod.yaml"]) {
        let documents = documents(file);
        let containers = documents.iter().filter_map(pod_spec).flat_map(containers);
        let of_file =
            containers.map(|container| (file.to_owned(), container["image"].as_str().unwrap().to_owned()));
        images.extend(of_file);
    }
    for file in ["compose.yaml", "compose-etcd.yaml"] {
        // What is built here has the version that the builder gives it.
        let others = compose_services(file).into_iter().filter(|(_, service)| service["build"].is_null());
        images.extend(others.map(|(_, service)| (file.to_owned(), default_value(&service["image"]))));
    }
    assert!(images.len() >= 10, "{images:?}");
    for (file, image) in images {
        let (_, tag) = image.rsplit_once(':').unwrap_or_else(|| panic!("{file}: {image} has no tag"));
        let numbers = tag.trim_start_matches('v').split('.').filter(|part| part.parse::<u32>().is_ok());
        assert_eq!(numbers.count(), 3, "{file}: {image}");
    }
}

/// The text without a variable that may replace it: `${NAME:-text}`.
fn default_value(text: &Value) -> String {
    let text = text.as_str().unwrap();
    let default = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')?.split_once(":-"));
    default.map_or(text, |(_, default)| default).to_owned()
}

#[test]
fn containers_of_compose_files_have_no_privileges() {
    for file in ["compose.yaml", "compose-etcd.yaml"] {
        for (name, service) in compose_services(file) {
            let title = format!("{file} {name}");
            assert_eq!(service["read_only"], true, "{title}");
            assert_eq!(service["cap_drop"][0], "ALL", "{title}");
            assert_eq!(service["security_opt"][0], "no-new-privileges:true", "{title}");
            assert!(service["privileged"].is_null() && service["user"] != "root", "{title}");
        }
    }
}

#[test]
fn etcd_knows_the_flags_of_the_compose_file() {
    let etcd = pilothouse_etcd::testing::etcd();
    let output = Command::new(etcd).arg("--help").stdin(Stdio::null()).output().unwrap();
    let help = [output.stdout, output.stderr].concat();
    let help = String::from_utf8_lossy(&help);
    let known: BTreeSet<&str> = help.split_whitespace().filter(|word| word.starts_with("--")).collect();
    let members: Vec<Vec<String>> = compose_services("compose-etcd.yaml")
        .into_iter()
        .filter(|(name, _)| name.starts_with("etcd-"))
        .map(|(_, service)| files::texts(&service["command"]))
        .collect();
    assert_eq!(members.len(), 3);
    for argument in members.iter().flat_map(|command| &command[1..]) {
        let (flag, _) = argument.split_once('=').unwrap();
        assert!(known.contains(flag), "{flag}");
    }
}

#[test]
fn proxy_knows_every_server_of_the_compose_file() {
    let is_server =
        |service: &Value| service["command"][0].as_str().is_some_and(|flag| flag.starts_with("--"));
    let services = compose_services("compose-etcd.yaml");
    let servers = services.iter().filter(|(_, service)| is_server(service)).map(|(name, _)| name.clone());
    let configuration = read("haproxy.cfg");
    let lines = configuration.lines().map(str::split_whitespace).map(Iterator::collect::<Vec<_>>);
    let backends: BTreeSet<String> = lines
        .filter(|words| words.first() == Some(&"server"))
        .map(|words| {
            assert_eq!(words[2], format!("{}:6443", words[1]));
            words[1].to_owned()
        })
        .collect();
    assert_eq!(backends, servers.collect());
    assert!(backends.len() > 1);
}
