//! The heaviest requests that the server accepts, of users who are not exempt.

use super::load::{fetch_body, request};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const COSTLY: &str = "/apis/hostile.example.com/v1/costlys";

/// A request as another user, who may do everything.
pub fn sent_by(user: &str, request: Vec<u8>) -> Vec<u8> {
    let headers = format!("Impersonate-User: {user}\r\nImpersonate-Group: hostile\r\nUser-Agent:");
    String::from_utf8(request).unwrap().replacen("User-Agent:", &headers, 1).into_bytes()
}

fn with_media(media: &str, request: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8(request).unwrap();
    text.replacen("Content-Type: application/json", &format!("Content-Type: {media}"), 1).into_bytes()
}

fn keys(count: usize) -> String {
    (0..count).map(|key| format!("\"key-{key}\":\"value\"")).collect::<Vec<_>>().join(",")
}

/// Creates the role binding, the objects to patch, and a CRD with a rule of the maximum cost.
pub fn prepare(port: u16) {
    let binding = r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"hostile"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"Group","name":"hostile","apiGroup":"rbac.authorization.k8s.io"}]}"#;
    fetch_body(port, &request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding));
    let finalizers = (0..30_000).map(|number| format!("\"a/b{number}\"")).collect::<Vec<_>>().join(",");
    for (name, rest) in
        [("keys", format!("\"data\":{{{}}}", keys(60_000))), ("list", "\"data\":{}".to_owned())]
    {
        let finalizers = if name == "list" { &finalizers } else { "" };
        let body = format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}","finalizers":[{finalizers}]}},{rest}}}"#
        );
        fetch_body(port, &request("POST", MAPS, &body));
    }
    let rule = r#"[{"rule":"self.list.all(x, self.list.exists(y, y == x))"}]"#;
    let list = r#"{"type":"array","maxItems":1000,"items":{"type":"integer"}}"#;
    let spec =
        format!(r#"{{"type":"object","properties":{{"list":{list}}},"x-kubernetes-validations":{rule}}}"#);
    fetch_body(port, &request("POST", DEFINITIONS, &definition("Costly", &spec)));
}

fn definition(kind: &str, spec: &str) -> String {
    let plural = format!("{}s", kind.to_lowercase());
    let schema = format!(r#"{{"type":"object","properties":{{"spec":{spec}}}}}"#);
    format!(
        r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"{plural}.hostile.example.com"}},"spec":{{"group":"hostile.example.com","scope":"Cluster","names":{{"kind":"{kind}","plural":"{plural}"}},"versions":[{{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{schema}}}}}]}}}}"#
    )
}

/// Eight connections of each of four users, with requests of all kinds.
pub fn requests() -> Vec<Vec<u8>> {
    let operation = |path: &str, value: &str| format!(r#"{{"op":"add","path":"{path}","value":"{value}"}}"#);
    let insertions = vec![operation("/metadata/finalizers/0", "a/c"); 10_000].join(",");
    let entries =
        (0..10_000).map(|key| operation(&format!("/data/new-{key}"), "v")).collect::<Vec<_>>().join(",");
    let patch = |name: &str, operations: &str| {
        let path = format!("{MAPS}/{name}?dryRun=All");
        with_media("application/json-patch+json", request("PATCH", &path, &format!("[{operations}]")))
    };
    let applied = keys(60_000);
    let apply = |name: &str| {
        let applied = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{{applied}}}}}"#
        );
        let path = format!("{MAPS}/{name}?fieldManager=hostile&force=true");
        with_media("application/apply-patch+yaml", request("PATCH", &path, &applied))
    };
    let fields: Vec<String> = (0..20_000)
        .map(|number| format!(r#""f{number}":{{"type":"string","pattern":"^[a-z]{{1,30}}$"}}"#))
        .collect();
    let wide = definition("Wide", &format!(r#"{{"type":"object","properties":{{{}}}}}"#, fields.join(",")));
    let numbers = (0..900).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    let costly = format!(
        r#"{{"apiVersion":"hostile.example.com/v1","kind":"Costly","metadata":{{"name":"c"}},"spec":{{"list":[{numbers}]}}}}"#
    );
    let requests_of = |user: &str| {
        [
            patch("list", &insertions),
            patch("keys", &entries),
            apply(&format!("applied-{user}")),
            apply("keys"),
            with_media(
                "application/merge-patch+json",
                request("PATCH", &format!("{MAPS}/keys"), r#"{"data":{"a":"b"}}"#),
            ),
            request("POST", &format!("{DEFINITIONS}?dryRun=All"), &wide),
            request("POST", &format!("{COSTLY}?dryRun=All"), &costly),
            patch("list", &insertions),
        ]
        .map(|request| sent_by(user, request))
    };
    ["u1", "u2", "u3", "u4"].into_iter().flat_map(requests_of).collect()
}
