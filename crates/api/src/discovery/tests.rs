//! Discovery documents, alone and compared with recordings.

use std::path::{Path, PathBuf};

use serde_json::Value;
use serde_json::value::RawValue;

use super::*;
use crate::catalog::build::Builtin;
use crate::catalog::runtime_config::RuntimeConfig;
use crate::release::Release;

fn documents(config: &str) -> Documents {
    let config = RuntimeConfig::parse(config).unwrap();
    Documents::new(&Builtin::load().unwrap().serve(&config).unwrap(), "10.0.0.1:6443")
}

fn text(document: Option<&Document>) -> &str {
    std::str::from_utf8(&document.expect("a document").json).unwrap()
}

#[test]
fn discovery_documents_have_the_reference_form() {
    let documents = documents("");
    assert_eq!(
        text(documents.get("/api/")),
        r#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.1:6443"}]}"#
    );
    assert_eq!(
        text(documents.get("/apis/autoscaling")),
        r#"{"kind":"APIGroup","apiVersion":"v1","name":"autoscaling","versions":[{"groupVersion":"autoscaling/v2","version":"v2"},{"groupVersion":"autoscaling/v1","version":"v1"}],"preferredVersion":{"groupVersion":"autoscaling/v2","version":"v2"}}"#
    );
    assert_eq!(
        text(documents.get("/apis/policy/v1")),
        r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"policy/v1","resources":[{"name":"poddisruptionbudgets","singularName":"poddisruptionbudget","namespaced":true,"kind":"PodDisruptionBudget","verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["pdb"],"storageVersionHash":"EVWiDmWqyJw="},{"name":"poddisruptionbudgets/status","singularName":"","namespaced":true,"kind":"PodDisruptionBudget","verbs":["get","patch","update"]}]}"#
    );
    assert!(text(documents.get("/api/v1")).starts_with(r#"{"kind":"APIResourceList","groupVersion":"v1","#));
    assert!(text(documents.get("/api/v1")).contains(
        r#"{"name":"pods/eviction","singularName":"","namespaced":true,"group":"policy","version":"v1","kind":"Eviction","verbs":["create"]}"#
    ));
    for unknown in ["/api/v2", "/apis/policy/v1beta1", "/apis/zoo", "/", "/apis/policy/v1/pods"] {
        assert_eq!(documents.get(unknown), None, "{unknown}");
    }
}

#[test]
fn aggregated_discovery_equals_unaggregated_discovery() {
    let documents = documents("api/all=true");
    let parse = |document: Option<&Document>| serde_json::from_str::<Value>(text(document)).unwrap();
    let groups = parse(documents.get("/apis"));
    let aggregated = parse(documents.aggregated_at("/apis"));
    let names = |list: &Value, pointer: &str| -> Vec<Value> {
        list.as_array().unwrap().iter().map(|item| item.pointer(pointer).unwrap().clone()).collect()
    };
    assert_eq!(names(&groups["groups"], "/name"), names(&aggregated["items"], "/metadata/name"));
    for item in aggregated["items"].as_array().unwrap() {
        for version in item["versions"].as_array().unwrap() {
            let path = format!(
                "/apis/{}/{}",
                item["metadata"]["name"].as_str().unwrap(),
                version["version"].as_str().unwrap()
            );
            let list = parse(documents.get(&path));
            let resource_names: Vec<&Value> = list["resources"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|resource| !resource["name"].as_str().unwrap().contains('/'))
                .map(|resource| &resource["name"])
                .collect();
            let resources = version["resources"].as_array().unwrap();
            assert_eq!(
                resource_names,
                resources.iter().map(|resource| &resource["resource"]).collect::<Vec<_>>()
            );
        }
    }
    let core = parse(documents.aggregated_at("/api"));
    assert_eq!(core["items"][0]["metadata"], serde_json::json!({"creationTimestamp": null}));
    assert_eq!(documents.aggregated_at("/apis/apps"), None);
}

#[test]
fn etags_change_with_content() {
    let first = documents("");
    let same = documents("");
    let other = documents("policy/v1=false");
    let tag = first.aggregated_apis.etag.clone().unwrap();
    assert_eq!((tag.len(), tag.starts_with('"'), tag.ends_with('"')), (130, true, true));
    assert!(tag.trim_matches('"').bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase()));
    assert_eq!(same.aggregated_apis.etag, Some(tag.clone()));
    assert_ne!(other.aggregated_apis.etag, Some(tag));
    assert_eq!(first.apis.etag, None);
}

#[derive(serde::Deserialize)]
struct Scenario {
    steps: Vec<Step>,
}

#[derive(serde::Deserialize)]
struct Step {
    path: String,
    #[serde(default)]
    headers: HashMap<String, String>,
    expect: Expect,
}

#[derive(serde::Deserialize)]
struct Expect {
    code: u16,
    kind: String,
    /// Raw, to compare the order of fields too.
    body: Box<RawValue>,
}

/// Compares with recorded responses of the reference. The recordings are not part of this repository; see `build.rs`.
#[test]
#[cfg_attr(not(has_recorded_responses), ignore = "needs ../shared/golden, or PILOTHOUSE_GOLDEN")]
fn discovery_equals_recorded_responses() {
    let default_folder = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let golden = std::env::var_os("PILOTHOUSE_GOLDEN").map_or_else(default_folder, PathBuf::from);
    let files = std::fs::read_dir(golden.join("discovery")).unwrap();
    let documents = documents("");
    let mut compared = 0;
    for file in files {
        let scenario = std::fs::read(file.unwrap().path()).unwrap();
        let scenario: Scenario = serde_json::from_slice(&scenario).unwrap();
        for step in scenario.steps {
            let body = without_spaces(step.expect.body.get());
            if step.expect.code != 200 || step.expect.kind != "json" || body == "\"<any>\"" {
                continue;
            }
            let accept = step.headers.get("Accept").map_or("", String::as_str);
            let actual = match step.path.trim_end_matches('/') {
                "/version" => Release::default().document(),
                _ if accept.contains("as=APIGroupDiscoveryList") => {
                    documents.aggregated_at(&step.path).unwrap().json.clone()
                }
                path => documents.get(path).unwrap_or_else(|| panic!("nothing at {path}")).json.clone(),
            };
            let actual = without_spaces(std::str::from_utf8(&actual).unwrap());
            assert!(
                matches_recording(&actual, &body),
                "{} {accept}\nactual   {actual}\nrecorded {body}",
                step.path
            );
            compared += 1;
        }
    }
    println!("compared {compared} documents with the recorded ones");
    assert!(compared > 30, "only {compared} documents compared");
}

/// The same JSON without the spaces between its tokens.
fn without_spaces(json: &str) -> String {
    let (mut quoted, mut escaped) = (false, false);
    let keep = |c: &char| {
        quoted ^= *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        quoted || !c.is_whitespace()
    };
    json.chars().filter(keep).collect()
}

/// Whether a text equals the recorded one, in which `<any>` and `<server>` match any value.
fn matches_recording(actual: &str, recorded: &str) -> bool {
    let mut rest = actual;
    for (index, piece) in recorded.replace("<server>", "<any>").split("<any>").enumerate() {
        let Some(start) = rest.find(piece).filter(|start| index > 0 || *start == 0) else {
            return false;
        };
        rest = &rest[start + piece.len()..];
    }
    rest.is_empty()
}

#[test]
fn document_line_and_json_share_one_buffer() {
    let document = document("APIVersions", &serde_json::json!({"versions": ["v1"]}));
    assert_eq!(*document.line, *b"{\"versions\":[\"v1\"]}\n");
    assert_eq!(
        (document.json.as_ptr(), document.json.len() + 1),
        (document.line.as_ptr(), document.line.len())
    );
}
