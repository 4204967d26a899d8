//! Reads the files of `deploy/`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use pilothouse_apimachinery::codec::{to_json, yaml};
use serde_json::Value;

/// What a file starts.
pub struct CommandLine {
    /// The file, and what in it.
    pub origin: String,
    /// The arguments after the name of the program.
    pub arguments: Vec<String>,
    /// How long a stop may take.
    pub grace: Option<Duration>,
}

impl CommandLine {
    /// Whether a server is started, and no command.
    pub fn is_server(&self) -> bool {
        self.arguments.first().is_some_and(|argument| argument.starts_with("--"))
    }
}

pub fn path(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file);
    path.to_str().unwrap().to_owned()
}

pub fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The documents of a YAML file. A key that is there twice is an error.
pub fn documents(file: &str) -> Vec<Value> {
    let parse = |text: &str| {
        let (value, duplicate_keys) =
            yaml::read_strict(text.as_bytes()).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(duplicate_keys, None, "{file}");
        serde_json::from_slice(&to_json(&value)).unwrap()
    };
    read(file).split("\n---\n").map(parse).collect()
}

pub fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The pod of an object that is one, or makes some.
pub fn pod_spec(object: &Value) -> Option<&Value> {
    if object["kind"] == "Pod" { object.get("spec") } else { object.pointer("/spec/template/spec") }
}

pub fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().filter_map(|list| pod[list].as_array()).flatten()
}

pub fn compose_services(file: &str) -> Vec<(String, Value)> {
    let documents = documents(file);
    let services = documents[0]["services"].as_object().unwrap();
    services.iter().map(|(name, service)| (name.clone(), service.clone())).collect()
}

/// Everything of this program that the files start.
pub fn command_lines() -> Vec<CommandLine> {
    let mut lines = from_dockerfile();
    lines.push(from_unit());
    lines.extend(["compose.yaml", "compose-etcd.yaml"].into_iter().flat_map(from_compose));
    let manifests = ["manifests/one-server.yaml", "manifests/servers-on-etcd.yaml", "static-pod.yaml"];
    lines.extend(manifests.into_iter().flat_map(from_manifest));
    lines
}

fn from_dockerfile() -> Vec<CommandLine> {
    let text = read("Dockerfile").replace("\\\n", " ");
    let list = |line: &str| texts(&serde_json::from_str(line.split_once("CMD ").unwrap().1).unwrap());
    let with_prefix = |prefix: &str| text.lines().find(|line| line.starts_with(prefix)).unwrap();
    let check = list(with_prefix("HEALTHCHECK "));
    vec![
        CommandLine {
            origin: "Dockerfile CMD".to_owned(),
            arguments: list(with_prefix("CMD ")),
            grace: None,
        },
        CommandLine {
            origin: "Dockerfile HEALTHCHECK".to_owned(),
            arguments: check[1..].to_vec(),
            grace: None,
        },
    ]
}

fn from_unit() -> CommandLine {
    let text = read("pilothouse.service");
    let setting = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let arguments = setting("ExecStart=").split_whitespace().skip(1).map(str::to_owned).collect();
    let grace = Some(seconds(setting("TimeoutStopSec=")));
    CommandLine { origin: "pilothouse.service".to_owned(), arguments, grace }
}

fn seconds(text: &str) -> Duration {
    Duration::from_secs(text.strip_suffix('s').and_then(|number| number.parse().ok()).unwrap())
}

fn from_compose(file: &str) -> Vec<CommandLine> {
    let mut lines = Vec::new();
    for (name, service) in compose_services(file) {
        if !service["image"].as_str().unwrap().starts_with("pilothouse:") {
            continue;
        }
        let origin = format!("{file} {name}");
        let grace = service["stop_grace_period"].as_str().map(seconds);
        lines.push(CommandLine { origin: origin.clone(), arguments: texts(&service["command"]), grace });
        if !service["healthcheck"].is_null() {
            // Before the arguments there are CMD and the program.
            let arguments = texts(&service["healthcheck"]["test"])[2..].to_vec();
            lines.push(CommandLine { origin: format!("{origin} healthcheck"), arguments, grace: None });
        }
    }
    lines
}

fn from_manifest(file: &str) -> Vec<CommandLine> {
    let documents = documents(file);
    let pods = documents.iter().filter_map(pod_spec);
    let lines = pods.flat_map(|pod| {
        let grace = pod["terminationGracePeriodSeconds"].as_u64().map(Duration::from_secs);
        containers(pod).map(move |container| {
            // Without a command the program is that of the image.
            let command = texts(&container["command"]).into_iter().skip(1);
            CommandLine {
                origin: format!("{file} {}", container["name"].as_str().unwrap()),
                arguments: command.chain(texts(&container["args"])).collect(),
                grace,
            }
        })
    });
    lines.collect()
}
