//! The OpenAPI documents, and their use by kubectl.

use std::fs;

use serde_json::Value;

use crate::support::Server;
use crate::support::kubectl::Kubectl;

const V2: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const V3: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

#[test]
fn kubectl_explain_describes_fields() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let plain = kubectl.run(&["explain", "pod.spec.containers"]);
    assert!(plain.contains("A single application container that you want to run within a pod."), "{plain}");
    server.assert_healthy();
}

/// Old releases read OpenAPI v2 as Protobuf, and print another layout.
#[test]
#[cfg_attr(has_old_kubectl, ignore = "needs kubectl 1.27 or newer")]
fn kubectl_explain_reads_openapi_v2_and_v3() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["pod.spec.containers"],
            &[
                "FIELD: containers <[]Container>",
                "A single application container that you want to run within a pod.",
            ],
        ),
        (
            &["deployment", "--recursive"],
            &["GROUP:      apps", "revisionHistoryLimit", "<integer>", "-required-"],
        ),
        (
            &["--api-version=autoscaling/v1", "hpa"],
            &[
                "VERSION:    v1",
                "KIND:       HorizontalPodAutoscaler",
                "configuration of a horizontal pod autoscaler.",
            ],
        ),
        (&["pod.spec.containers.imagePullPolicy"], &["ENUM:", "IfNotPresent"]),
        // Reads OpenAPI v2, as Protobuf.
        (&["--output=plaintext-openapiv2", "pods"], &["VERSION:  v1", "Pod is a collection of containers"]),
    ];
    for (arguments, expected) in cases {
        let stdout = kubectl.run(&[&["explain"], *arguments].concat());
        for text in *expected {
            assert!(stdout.contains(text), "explain {arguments:?}: no {text:?} in {stdout}");
        }
    }
    let unknown = kubectl.try_run(&["explain", "pod.spec.nope"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("field \"nope\" does not exist"));
    server.assert_healthy();
}

#[test]
fn kubectl_validates_with_openapi() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let file = kubectl.home.path().join("map.yaml");
    let path = file.to_str().expect("a path of letters");
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: checked\n";
    fs::write(&file, format!("{map}surplus: 1\n")).expect("a file");
    // An old kubectl validates with OpenAPI v2; a newer one lets the server validate.
    let output = kubectl.try_run(&["create", "--validate=true", "-f", path]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("unknown field \"surplus\""), "{stderr}");
    fs::write(&file, map).expect("a file");
    kubectl.run(&["create", "--dry-run=client", "-f", path]);
    assert_eq!(kubectl.run(&["create", "-f", path]).trim(), "configmap/checked created");
    server.assert_healthy();
}

#[test]
#[cfg_attr(has_old_kubectl, ignore = "needs kubectl 1.27 or newer")]
fn kubectl_lets_server_validate() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let kubectl = Kubectl::new(&server);
    let file = kubectl.home.path().join("map.yaml");
    let path = file.to_str().expect("a path of letters");
    fs::write(&file, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: checked\nsurplus: 1\n")
        .expect("a file");
    let output = kubectl.try_run(&["create", "--validate=strict", "-f", path]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("strict decoding error: unknown field \"surplus\""), "{stderr}");
    let output = kubectl.try_run(&["create", "--validate=warn", "--dry-run=server", "-f", path]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("Warning: unknown field \"surplus\""));
    server.assert_healthy();
}

#[test]
fn openapi_documents_are_cached_by_hash() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut client = server.admin();
    let index = client.get("/openapi/v3");
    assert_eq!((index.status, index.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    let index: Value = serde_json::from_slice(&index.body).expect("JSON");
    let versioned_path =
        index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().expect("a place").to_owned();
    let (path, hash) = versioned_path.split_once("?hash=").expect("a digest");
    assert_eq!((path, hash.len()), ("/openapi/v3/apis/apps/v1", 128));

    let document = client.get(&versioned_path);
    assert_eq!((document.status, document.header("content-type")), (200, Some("application/json")));
    let tag = format!("\"{hash}\"");
    assert_eq!(document.header("etag"), Some(tag.as_str()));
    assert_eq!(document.header("cache-control"), Some("public, immutable"));
    assert_eq!(document.header("vary"), Some("Accept"));
    assert!(document.header("expires").is_some() && document.header("last-modified").is_some());
    let plain = client.get(path);
    assert_eq!((plain.header("cache-control"), &plain.body), (Some("no-cache, private"), &document.body));

    let not_modified = client.request("GET", path, &[("If-None-Match", &tag)], b"");
    assert_eq!((not_modified.status, not_modified.body.len()), (304, 0));
    let redirect = client.get("/openapi/v3/apis/apps/v1?hash=OLD");
    assert_eq!((redirect.status, redirect.header("location")), (301, Some(versioned_path.as_str())));

    let cases = [(path, V3, "v3.v1.0+protobuf"), ("/openapi/v2", V2, "v2.v1.0+protobuf")];
    for (path, accept, expected) in cases {
        let binary = client.request("GET", path, &[("Accept", accept)], b"");
        assert_eq!(binary.status, 200, "{path}");
        assert!(binary.header("content-type").is_some_and(|media| media.ends_with(expected)), "{path}");
        assert_eq!(binary.body.first(), Some(&0x0a), "{path}");
    }
    assert_eq!(client.get("/openapi/v2").json()["swagger"], "2.0");
    assert_eq!(client.request("GET", "/openapi/v2", &[("Accept", "text/html")], b"").status, 406);
    for path in ["/openapi/v3/", "/openapi/v3/apis/nope/v1", "/openapi", "/openapi/v4"] {
        assert_eq!(client.get(path).status, 404, "{path}");
    }
    assert_eq!(server.anonymous().get("/openapi/v2").status, 403);
}
