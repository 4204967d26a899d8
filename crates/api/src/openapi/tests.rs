//! Tests of whole documents.

use std::path::PathBuf;
use std::sync::OnceLock;

use openssl::sha::sha512;
use pilothouse_apimachinery::version::GroupVersion;
use serde_json::{Value, json};

use super::*;
use crate::catalog::build::Builtin;
use crate::catalog::resource::Resource;
use crate::catalog::runtime_config::RuntimeConfig;

const CORE: &str = "io.k8s.api.core.v1";

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| Registry::builtin().unwrap())
}

fn catalog(config: &str) -> Catalog {
    Builtin::load().unwrap().serve(&RuntimeConfig::parse(config).unwrap()).unwrap()
}

fn sources(catalog: &Catalog) -> Sources<'_> {
    Sources { registry: registry(), catalog, custom: &[], contents: Contents::default() }
}

fn v3(name: &str) -> Value {
    serde_json::from_slice(&sources(&catalog("")).v3(name).unwrap()).unwrap()
}

fn v2() -> Value {
    serde_json::from_slice(&sources(&catalog("")).v2()).unwrap()
}

/// A field of a core schema without its description.
fn property(document: &Value, schemas: &str, kind: &str, field: &str) -> Value {
    let mut property =
        document.pointer(schemas).unwrap()[format!("{CORE}.{kind}")]["properties"][field].clone();
    property.as_object_mut().unwrap().remove("description").expect("a description");
    property
}

#[test]
fn every_listed_openapi_name_has_a_document() {
    let catalog = catalog("api/all=true");
    let sources = sources(&catalog);
    let names = sources.names();
    for expected in [
        ".well-known/openid-configuration",
        "api",
        "api/v1",
        "apis",
        "apis/apps",
        "apis/apps/v1",
        "apis/resource.k8s.io/v1beta1",
        "openid/v1/jwks",
        "version",
    ] {
        assert!(names.iter().any(|name| name == expected), "{expected}");
    }
    for name in &names {
        let document = sources.v3(name).unwrap_or_else(|| panic!("{name}"));
        let value: Value =
            serde_json::from_slice(&document).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(value["openapi"], "3.0.0");
        assert!(v3_protobuf(&document).is_some_and(|binary| !binary.is_empty()), "{name}");
        assert_eq!(sources.v3_digest(name), Some(sha512(&document)), "{name}: the digest is of the document");
    }
    for name in ["", "api/v2", "apis/apps/v2", "apis/nope", "apis/apps/v1/x", "openapi", "api/v1/x", "apis/"]
    {
        assert!(sources.v3(name).is_none(), "{name}");
    }
}

#[test]
fn disabled_versions_have_no_openapi_document() {
    let default = catalog("");
    assert!(sources(&default).v3("apis/resource.k8s.io/v1beta1").is_none());
    let less = catalog("apps/v1=false");
    assert!(sources(&less).v3("apis/apps/v1").is_none());
    assert!(!sources(&less).names().contains(&"apis/apps".to_owned()));
}

#[test]
fn v3_schemas_have_types_defaults_and_merge_keys() {
    let document = v3("api/v1");
    let schema_property = |kind: &str, field: &str| property(&document, "/components/schemas", kind, field);
    let pod = &document["components"]["schemas"][format!("{CORE}.Pod")];
    assert!(pod["description"].as_str().unwrap().starts_with("Pod is a collection of containers"));
    assert_eq!(
        pod["x-kubernetes-group-version-kind"],
        json!([{"group": "", "kind": "Pod", "version": "v1"}])
    );
    assert_eq!(
        schema_property("Pod", "spec"),
        json!({"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}], "default": {}})
    );
    assert_eq!(
        schema_property("PodSpec", "containers"),
        json!({
            "type": "array",
            "items": {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"}], "default": {}},
            "x-kubernetes-list-map-keys": ["name"],
            "x-kubernetes-list-type": "map",
            "x-kubernetes-patch-merge-key": "name",
            "x-kubernetes-patch-strategy": "merge",
        })
    );
    assert_eq!(
        schema_property("ContainerPort", "containerPort"),
        json!({"type": "integer", "format": "int32", "default": 0})
    );
    assert_eq!(
        schema_property("PodSpec", "nodeName"),
        json!({"type": "string"}),
        "absent equals empty, so there is no default"
    );
    assert_eq!(
        schema_property("Container", "imagePullPolicy"),
        json!({"type": "string", "enum": ["Always", "IfNotPresent", "Never"]})
    );
    assert_eq!(
        schema_property("Secret", "data"),
        json!({"type": "object", "additionalProperties": {"type": "string", "format": "byte"}})
    );
    assert_eq!(
        schema_property("PersistentVolumeSpec", "claimRef")["x-kubernetes-map-type"],
        "granular",
        "the type is atomic, this use of it is not"
    );
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas[format!("{CORE}.PodSpec")]["required"], json!(["containers"]));
    assert_eq!(schemas[format!("{CORE}.LocalObjectReference")]["x-kubernetes-map-type"], "atomic");
    assert_eq!(
        schemas[format!("{CORE}.SeccompProfile")]["x-kubernetes-unions"],
        json!([{"discriminator": "type", "fields-to-discriminateBy": {"localhostProfile": "LocalhostProfile"}}])
    );
    assert_eq!(
        schemas["io.k8s.apimachinery.pkg.util.intstr.IntOrString"]["oneOf"],
        json!([{"type": "integer"}, {"type": "string"}])
    );
    let everywhere =
        &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"]["x-kubernetes-group-version-kind"];
    assert_eq!(everywhere.as_array().unwrap().len(), 62);
}

#[test]
fn descriptions_end_with_enum_values_and_their_meanings() {
    let enum_values = |document: &Value, schemas: &str, kind: &str, field: &str| {
        let description = &document.pointer(schemas).unwrap()[format!("{CORE}.{kind}")]["properties"][field];
        let (description, values) =
            description["description"].as_str().unwrap().split_once("\n\nPossible enum values:\n").unwrap();
        assert!(!description.is_empty(), "{kind}.{field}");
        values.to_owned()
    };
    for (document, schemas) in [(v3("api/v1"), "/components/schemas"), (v2(), "/definitions")] {
        assert_eq!(
            enum_values(&document, schemas, "ContainerPort", "protocol"),
            " - `\"SCTP\"` Stream Control Transmission Protocol\n \
             - `\"TCP\"` Transmission Control Protocol\n \
             - `\"UDP\"` User Datagram Protocol"
        );
        assert_eq!(
            enum_values(&document, schemas, "PodSpec", "restartPolicy"),
            " - `\"Always\"`\n - `\"Never\"`\n - `\"OnFailure\"`",
            "values without a description are only listed"
        );
        let host_path = enum_values(&document, schemas, "HostPathVolumeSource", "type");
        assert!(host_path.starts_with(" - `\"\"` nothing is checked"), "{host_path}");
    }
}

#[test]
fn v2_has_no_defaults_and_shares_parameters() {
    let document = v2();
    let definition_property = |kind: &str, field: &str| property(&document, "/definitions", kind, field);
    assert_eq!(
        definition_property("Pod", "spec"),
        json!({"$ref": "#/definitions/io.k8s.api.core.v1.PodSpec"})
    );
    assert_eq!(
        definition_property("ContainerPort", "containerPort"),
        json!({"type": "integer", "format": "int32"})
    );
    // These names are derived from the content of the parameters, and are known to clients.
    for name in
        ["pretty-tJGM1-ng", "namespace-vgWSWtn3", "fieldManager-7c6nTn1T", "body-78PwaGsr", "force-tOGGb0Yi"]
    {
        assert!(document["parameters"].get(name).is_some(), "{name}");
    }
    let pods = &document["paths"]["/api/v1/namespaces/{namespace}/pods"];
    assert_eq!(pods["parameters"][1], json!({"$ref": "#/parameters/pretty-tJGM1-ng"}));
    // Old clients do not follow references for these two.
    let inline: Vec<&str> = pods["post"]["parameters"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|parameter| parameter["name"].as_str())
        .collect();
    assert_eq!(inline, ["body", "dryRun", "fieldValidation"]);
    assert!(v2_protobuf(document.to_string().as_bytes()).unwrap().len() > 1_000_000);
}

#[test]
fn operations_have_ids_parameters_and_media_types() {
    let document = v3("apis/apps/v1");
    let paths = &document["paths"];
    let deployment = &paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"];
    let patch = &deployment["patch"];
    assert_eq!(patch["operationId"], "patchAppsV1NamespacedDeployment");
    let names = |list: &Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|parameter| parameter["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&patch["parameters"]), ["dryRun", "fieldManager", "fieldValidation", "force"]);
    assert_eq!(names(&deployment["parameters"]), ["name", "namespace", "pretty"]);
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_some());
    let scale = &paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"]["get"];
    assert_eq!(scale["description"], "read scale of the specified Deployment");
    assert_eq!(
        scale["x-kubernetes-group-version-kind"],
        json!({"group": "autoscaling", "kind": "Scale", "version": "v1"})
    );
    let all = &paths["/apis/apps/v1/deployments"]["get"];
    assert_eq!(all["operationId"], "listAppsV1DeploymentForAllNamespaces");
    assert_eq!(
        all["responses"]["200"]["content"]["application/json"]["schema"]["$ref"],
        "#/components/schemas/io.k8s.api.apps.v1.DeploymentList"
    );
    let delete_response = |document: &Value, path: &str| {
        document["paths"][path]["delete"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
            .as_str()
            .unwrap()
            .rsplit('.')
            .next()
            .unwrap()
            .to_owned()
    };
    let core = v3("api/v1");
    assert_eq!(delete_response(&core, "/api/v1/namespaces/{namespace}/pods/{name}"), "Pod");
    assert_eq!(delete_response(&core, "/api/v1/namespaces/{namespace}/configmaps/{name}"), "Status");
    let proxy = core["paths"]["/api/v1/nodes/{name}/proxy/{path}"].as_object().unwrap();
    let methods: Vec<&str> = proxy.keys().map(String::as_str).filter(|key| *key != "parameters").collect();
    assert_eq!(methods.len(), 7, "{methods:?}");
}

#[test]
fn custom_kinds_have_openapi_documents() {
    let builtin = catalog("");
    let config_maps = builtin.find("", "v1", "configmaps").unwrap();
    let gadgets = Resource {
        gv: GroupVersion::new("example.com", "v1"),
        plural: "gadgets".into(),
        kind: "Gadget".into(),
        list_kind: "GadgetList".into(),
        ..(**config_maps).clone()
    };
    let catalog = builtin.with([std::sync::Arc::new(gadgets)]);
    let custom: Vec<std::sync::Arc<CustomSchema>> = ["Gadget", "GadgetList"]
        .into_iter()
        .map(|kind| {
            std::sync::Arc::new(CustomSchema {
                kind: GroupVersionKind::new("example.com", "v1", kind),
                published: format!("com.example.v1.{kind}"),
                schema: br#"{"type":"object","additionalProperties":true}"#.to_vec(),
                schema_v2: br#"{"type":"object"}"#.to_vec(),
            })
        })
        .collect();
    let sources = Sources { custom: &custom, ..sources(&catalog) };
    assert!(sources.names().contains(&"apis/example.com/v1".to_owned()));
    let text = sources.v3("apis/example.com/v1").unwrap();
    let document: Value = serde_json::from_slice(&text).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    assert_eq!(schemas["com.example.v1.Gadget"], json!({"type": "object", "additionalProperties": true}));
    assert!(schemas.contains_key("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"));
    let read = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/gadgets/{name}"]["get"];
    assert_eq!(read["operationId"], "readExampleComV1NamespacedGadget");
    assert!(v3_protobuf(&text).is_some());
}

#[test]
fn enum_values_are_listed_only_with_their_feature_gate() {
    let catalog = catalog("");
    let listed = |allowed_values: bool| {
        let contents = Contents { allowed_values, ..Contents::default() };
        let sources = Sources { contents, ..sources(&catalog) };
        let text = String::from_utf8(sources.v3("api/v1").unwrap()).unwrap();
        (text.contains("\"enum\":"), text.contains("Possible enum values"))
    };
    assert_eq!((listed(true), listed(false)), ((true, true), (false, false)));
}

/// Compares every document with those that the reference publishes. Those have every API version and gate enabled,
/// no lists of allowed values, and no release.
#[test]
#[ignore = "needs the folder of swagger.json and v3, named by PILOTHOUSE_OPENAPI_SPEC"]
fn openapi_documents_equal_the_reference() {
    let folder = std::env::var_os("PILOTHOUSE_OPENAPI_SPEC").map(PathBuf::from);
    let folder = folder.expect("PILOTHOUSE_OPENAPI_SPEC names the folder");
    let catalog = catalog("api/all=true");
    let contents = Contents { cbor: true, ..Contents::default() };
    let sources = Sources { contents, ..sources(&catalog) };
    let read = |file: &str| -> Value {
        serde_json::from_slice(
            &std::fs::read(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}")),
        )
        .unwrap()
    };
    let normalized = |text: Vec<u8>| {
        let mut value: Value = serde_json::from_slice(&text).unwrap();
        without_values(&mut value);
        value["info"]["version"] = "unversioned".into();
        value
    };
    for name in sources.names() {
        let expected = read(&format!("v3/{}_openapi.json", name.replace('/', "__")));
        let actual: Value = normalized(sources.v3(&name).unwrap());
        assert!(actual == expected, "{name} differs");
    }
    let mut expected = read("swagger.json");
    // The files under /logs are not served here.
    for (part, prefix) in [("paths", "/logs/"), ("parameters", "logpath-")] {
        expected[part].as_object_mut().unwrap().retain(|name, _| !name.starts_with(prefix));
    }
    assert!(normalized(sources.v2()) == expected, "v2 differs");
}

/// Removes the lists of allowed values from all schemas.
fn without_values(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(without_values),
        Value::Object(fields) => {
            if fields.get("enum").is_some_and(Value::is_array) {
                fields.remove("enum");
                if let Some(Value::String(text)) = fields.get_mut("description") {
                    text.truncate(text.find("\n\nPossible enum values:").unwrap_or(text.len()));
                }
            }
            fields.values_mut().for_each(without_values);
        }
        _ => {}
    }
}

#[test]
fn log_files_are_described_where_they_are_served() {
    let catalog = catalog("");
    let contents = Contents { logs: true, ..Contents::default() };
    let served = Sources { contents, ..sources(&catalog) };
    assert!(served.names().contains(&"logs".to_owned()));
    let document: Value = serde_json::from_slice(&served.v3("logs").unwrap()).unwrap();
    let operation = json!({"tags": ["logs"], "operationId": "logFileHandler", "responses": {"401": {"description": "Unauthorized"}}});
    let parameter = json!({"name": "logpath", "in": "path", "description": "path to the log", "required": true,
        "schema": {"type": "string", "uniqueItems": true}});
    assert_eq!(document["paths"]["/logs/{logpath}"], json!({"get": operation, "parameters": [parameter]}));
    assert_eq!(document["paths"]["/logs/"]["get"]["operationId"], "logFileListHandler");
    let document: Value = serde_json::from_slice(&served.v2()).unwrap();
    let mut operation = operation;
    operation["schemes"] = json!(["https"]);
    // The name under which the reference shares the parameter.
    let parameter = json!({"$ref": "#/parameters/logpath-Noq7euwC"});
    assert_eq!(document["paths"]["/logs/{logpath}"], json!({"get": operation, "parameters": [parameter]}));
    assert!(
        sources(&catalog).v3("logs").is_none() && !sources(&catalog).names().contains(&"logs".to_owned())
    );
}
