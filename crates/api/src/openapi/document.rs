//! Complete OpenAPI documents, v2 and v3.

use std::collections::BTreeMap;

use ::base64::Engine as _;
use ::base64::engine::general_purpose::URL_SAFE;
use pilothouse_apimachinery::well_known::{
    APPLY_PATCH, CBOR, CBOR_APPLY_PATCH, CBOR_SEQUENCE, JSON, JSON_PATCH, MERGE_PATCH, PROTOBUF,
    STRATEGIC_PATCH, YAML,
};

use super::json::JsonWriter;
use super::operations::{Body, Media, Operation, Path, ResponseBody};
use super::parameters::Parameter;
use super::schemas::{ReferencedSchemas, Schema, group_version_kind};
use super::{Dialect, Sources};

const TITLE: &str = "Kubernetes";
const STREAMS: [&str; 2] =
    ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
const PATCHES: [&str; 4] = [JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH];

/// The paths of a document by name.
type Paths = BTreeMap<String, Vec<Operation>>;

impl Sources<'_> {
    /// The names of the v3 documents: the paths after `/openapi/v3/`.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = NON_RESOURCE_PATHS
            .iter()
            .map(|non_resource| non_resource.path.trim_matches('/').to_owned())
            .collect();
        for group in self.catalog.groups() {
            let prefix =
                if group.name.is_empty() { "api".to_owned() } else { format!("apis/{}", group.name) };
            names.extend(group.versions.iter().map(|version| format!("{prefix}/{}", version.name)));
            // Groups of custom resources have documents only for their versions.
            if group.is_builtin() {
                names.push(prefix);
            }
        }
        names.extend(self.contents.logs.then(|| LOGS.to_owned()));
        names.sort();
        names.dedup();
        names
    }

    /// A v3 document by its name, as JSON.
    pub fn v3(&self, name: &str) -> Option<Vec<u8>> {
        let mut out = JsonWriter::default();
        self.write_v3(&mut out, name)?;
        Some(out.into_bytes())
    }

    /// The SHA-512 digest of [`Sources::v3`], without holding the whole document.
    pub fn v3_digest(&self, name: &str) -> Option<[u8; 64]> {
        let mut out = JsonWriter::digesting();
        self.write_v3(&mut out, name)?;
        Some(out.into_digest())
    }

    /// The version that the documents state.
    fn release(&self) -> String {
        let (major, minor) = self.contents.release;
        format!("{major}.{minor}")
    }

    fn write_v3(&self, out: &mut JsonWriter, name: &str) -> Option<()> {
        let paths = self.document_paths(name)?;
        let group = name.strip_prefix("apis/").and_then(|rest| rest.split('/').next());
        let is_custom =
            group.and_then(|group| self.catalog.group(group)).is_some_and(|group| !group.is_builtin());
        out.object(|out| {
            out.field("openapi", "3.0.0");
            if is_custom {
                write_info(out, "Kubernetes CRD Swagger", "v0.1.0");
            } else {
                write_info(out, TITLE, &self.release());
            }
            let mut referenced = ReferencedSchemas::new();
            out.key("paths").object(|out| {
                for (path, operations) in &paths {
                    out.key(path);
                    self.path_v3(out, operations, &mut referenced);
                }
            });
            out.key("components").object(|out| {
                if !referenced.is_empty() {
                    out.key("schemas");
                    self.schemas(out, if is_custom { Dialect::V3Custom } else { Dialect::V3 }, referenced);
                }
                if !is_custom {
                    out.key("securitySchemes").object(write_security);
                }
            });
        });
        Some(())
    }

    /// The v2 document, as JSON.
    pub fn v2(&self) -> Vec<u8> {
        let mut paths = Paths::new();
        for name in self.names() {
            paths.extend(self.document_paths(&name).unwrap_or_default());
        }
        let mut out = JsonWriter::default();
        let mut referenced = ReferencedSchemas::new();
        let mut shared = BTreeMap::new();
        out.object(|out| {
            out.field("swagger", "2.0");
            write_info(out, TITLE, &self.release());
            out.key("paths").object(|out| {
                for (path, operations) in &paths {
                    out.key(path);
                    self.path_v2(out, operations, &mut referenced, &mut shared);
                }
            });
            out.key("definitions");
            self.schemas(out, Dialect::V2, referenced);
            out.key("parameters").object(|out| {
                shared.iter().for_each(|(name, json): (&String, &Vec<u8>)| out.key(name).raw(json));
            });
            out.key("securityDefinitions").object(write_security);
            out.key("security").list(|out| out.object(|out| out.key("BearerToken").list(|_| {})));
        });
        out.into_bytes()
    }

    /// The paths of a document.
    fn document_paths(&self, name: &str) -> Option<Paths> {
        let mut parts = name.splitn(3, '/');
        let (root, group, version) = match (parts.next()?, parts.next(), parts.next()) {
            ("api", version, None) => ("/api/".to_owned(), "", version),
            ("apis", Some(group), version) if !group.is_empty() => {
                (format!("/apis/{group}/"), group, version)
            }
            _ => ("/".to_owned(), "", None),
        };
        let mut paths = Paths::new();
        match (root.as_str(), version) {
            ("/", _) if name == LOGS && self.contents.logs => {
                paths.extend(log_paths().map(|path| (path.path, path.operations)));
            }
            ("/", _) | ("/api/", None) => {
                let matching = NON_RESOURCE_PATHS
                    .iter()
                    .filter(|non_resource| non_resource.path.trim_matches('/') == name);
                matching.flat_map(|non_resource| non_resource.paths(self)).for_each(|path| {
                    paths.insert(path.path, path.operations);
                });
            }
            (_, None) => {
                self.catalog.group(group).filter(|group| group.is_builtin())?;
                paths.insert(root, vec![self.discovery(group, "", "APIGroup", "get information of a group")]);
            }
            (_, Some(version)) => {
                let catalog_group = self.catalog.group(group)?;
                let catalog_version = catalog_group.version(version)?;
                if catalog_group.is_builtin() {
                    let discovery =
                        self.discovery(group, version, "APIResourceList", "get available resources");
                    paths.insert(format!("{root}{version}/"), vec![discovery]);
                }
                for path in catalog_version.resources.iter().flat_map(|resource| self.paths(resource)) {
                    paths.insert(path.path, path.operations);
                }
            }
        }
        (!paths.is_empty()).then_some(paths)
    }

    /// The operation that reads a discovery document.
    fn discovery(&self, group: &str, version: &str, kind: &str, description: &str) -> Operation {
        let capitalized = |text: &str| crate::openapi::names::identifier(text, true);
        let subject = if version.is_empty() { kind } else { "APIResources" };
        Operation {
            method: "get",
            id: format!(
                "get{}{}{subject}",
                capitalized(crate::openapi::names::short_group(group)),
                capitalized(version)
            ),
            description: description.to_owned(),
            tag: crate::openapi::names::tag(group, version),
            response: self.meta_response(kind),
            codes: &[("200", "OK")],
            media: if version.is_empty() { Media::Group } else { Media::Object },
            ..Operation::default()
        }
    }

    fn media(&self, media: Media) -> Vec<&'static str> {
        let objects = || [JSON, YAML, PROTOBUF].into_iter().chain(self.contents.cbor.then_some(CBOR));
        match media {
            Media::Object => objects().collect(),
            Media::Stream => {
                objects().chain(STREAMS).chain(self.contents.cbor.then_some(CBOR_SEQUENCE)).collect()
            }
            Media::Log => std::iter::once("text/plain").chain(objects()).collect(),
            Media::Any => vec!["*/*"],
            Media::Group => vec![JSON, YAML, PROTOBUF],
            Media::Json => vec![JSON],
            Media::Custom => vec![JSON, YAML],
            Media::Keys => vec!["application/jwk-set+json"],
        }
    }

    fn patch_types(&self, media: Media) -> Vec<&'static str> {
        let types = PATCHES.into_iter().filter(|patch| media != Media::Custom || *patch != STRATEGIC_PATCH);
        types.chain(self.contents.cbor.then_some(CBOR_APPLY_PATCH)).collect()
    }

    fn path_v3(&self, out: &mut JsonWriter, operations: &[Operation], referenced: &mut ReferencedSchemas) {
        let common = common_parameters(operations);
        out.object(|out| {
            for operation in operations {
                out.key(operation.method)
                    .object(|out| self.operation_v3(out, operation, &common, referenced));
            }
            if !common.is_empty() {
                out.key("parameters").list(|out| common.iter().for_each(|parameter| parameter.v3(out)));
            }
        });
    }

    fn operation_v3(
        &self,
        out: &mut JsonWriter,
        operation: &Operation,
        common: &[Parameter],
        referenced: &mut ReferencedSchemas,
    ) {
        write_head(out, operation);
        let own = own_parameters(operation, common);
        if !own.is_empty() {
            out.key("parameters").list(|out| own.iter().for_each(|parameter| parameter.v3(out)));
        }
        if let Some(body) = &operation.body {
            referenced.insert(body.name.clone(), body.schema);
            out.key("requestBody").object(|out| {
                let types = match operation.media {
                    media if body.patch => sorted(self.patch_types(media)),
                    Media::Custom => sorted(self.media(Media::Custom)),
                    _ => vec!["*/*"],
                };
                write_content(out, &types, |out| write_reference(out, Dialect::V3, &body.name));
                if body.required {
                    out.key("required").raw(b"true");
                }
            });
        }
        if let ResponseBody::Type(name, schema) = &operation.response {
            referenced.insert(name.clone(), *schema);
        }
        let types = sorted(self.media(operation.media));
        out.key("responses").object(|out| {
            for (code, description) in operation.codes {
                out.key(code).object(|out| {
                    out.field("description", description);
                    write_content(out, &types, |out| write_response(out, Dialect::V3, &operation.response));
                });
            }
            write_unauthorized(out);
        });
        write_tail(out, operation);
    }

    fn path_v2(
        &self,
        out: &mut JsonWriter,
        operations: &[Operation],
        referenced: &mut ReferencedSchemas,
        shared: &mut BTreeMap<String, Vec<u8>>,
    ) {
        let common = common_parameters(operations);
        out.object(|out| {
            for operation in operations {
                out.key(operation.method).object(|out| {
                    self.operation_v2(out, operation, &common, referenced, shared);
                });
            }
            if !common.is_empty() {
                out.key("parameters").list(|out| {
                    common.iter().for_each(|parameter| parameter_v2(out, parameter, shared));
                });
            }
        });
    }

    fn operation_v2(
        &self,
        out: &mut JsonWriter,
        operation: &Operation,
        common: &[Parameter],
        referenced: &mut ReferencedSchemas,
        shared: &mut BTreeMap<String, Vec<u8>>,
    ) {
        write_head(out, operation);
        let is_discovery = operation.action.is_empty();
        let is_patch = operation.body.as_ref().is_some_and(|body| body.patch);
        if !matches!(operation.response, ResponseBody::Nothing)
            && (!is_discovery || !matches!(operation.response, ResponseBody::Text))
        {
            let consumes = match (is_patch, is_discovery) {
                (true, _) => self.patch_types(operation.media),
                (false, true) => self.media(operation.media),
                (false, false) if operation.media == Media::Custom => self.media(operation.media),
                (false, false) => vec!["*/*"],
            };
            out.texts("consumes", consumes);
        }
        if !operation.codes.is_empty() {
            out.texts("produces", self.media(operation.media));
        }
        out.texts("schemes", ["https"]);
        let own = own_parameters(operation, common);
        if !own.is_empty() || operation.body.is_some() {
            out.key("parameters").list(|out| {
                if let Some(body) = &operation.body {
                    referenced.insert(body.name.clone(), body.schema);
                    body_v2(out, body, shared);
                }
                own.iter().for_each(|parameter| parameter_v2(out, parameter, shared));
            });
        }
        if let ResponseBody::Type(name, schema) = &operation.response {
            referenced.insert(name.clone(), *schema);
        }
        out.key("responses").object(|out| {
            for (code, description) in operation.codes {
                out.key(code).object(|out| {
                    out.field("description", description);
                    if !matches!(operation.response, ResponseBody::Nothing) {
                        out.key("schema");
                        write_response(out, Dialect::V2, &operation.response);
                    }
                });
            }
            write_unauthorized(out);
        });
        write_tail(out, operation);
    }
}

/// A non-resource path.
struct NonResourcePath {
    path: &'static str,
    id: &'static str,
    description: &'static str,
    tag: &'static str,
    media: Media,
    response: NonResourceResponse,
}

enum NonResourceResponse {
    Text,
    Meta(&'static str),
    Version,
}

/// The non-resource paths by name.
const NON_RESOURCE_PATHS: [NonResourcePath; 5] = [
    NonResourcePath {
        path: "/.well-known/openid-configuration/",
        id: "getServiceAccountIssuerOpenIDConfiguration",
        description: "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
        tag: "WellKnown",
        media: Media::Json,
        response: NonResourceResponse::Text,
    },
    NonResourcePath {
        path: "/api/",
        id: "getCoreAPIVersions",
        description: "get available API versions",
        tag: "core",
        media: Media::Group,
        response: NonResourceResponse::Meta("APIVersions"),
    },
    NonResourcePath {
        path: "/apis/",
        id: "getAPIVersions",
        description: "get available API versions",
        tag: "apis",
        media: Media::Group,
        response: NonResourceResponse::Meta("APIGroupList"),
    },
    NonResourcePath {
        path: "/openid/v1/jwks/",
        id: "getServiceAccountIssuerOpenIDKeyset",
        description: "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
        tag: "openid",
        media: Media::Keys,
        response: NonResourceResponse::Text,
    },
    NonResourcePath {
        path: "/version/",
        id: "getCodeVersion",
        description: "get the version information for this server",
        tag: "version",
        media: Media::Json,
        response: NonResourceResponse::Version,
    },
];

/// The name of the document about log files, and its tag.
const LOGS: &str = "logs";

/// The paths of log files. As in the reference, nothing is said of their responses.
fn log_paths() -> impl Iterator<Item = Path> {
    let path = |path: &str, id: &str, parameters| {
        let tag = LOGS.to_owned();
        let operation =
            Operation { method: "get", id: id.to_owned(), tag, parameters, ..Operation::default() };
        Path { path: path.to_owned(), operations: vec![operation] }
    };
    [
        path("/logs/", "logFileListHandler", Vec::new()),
        path("/logs/{logpath}", "logFileHandler", vec![Parameter::log_path()]),
    ]
    .into_iter()
}

impl NonResourcePath {
    fn paths(&self, sources: &Sources<'_>) -> Vec<Path> {
        let operation = Operation {
            method: "get",
            id: self.id.to_owned(),
            description: self.description.to_owned(),
            tag: self.tag.to_owned(),
            media: self.media,
            codes: &[("200", "OK")],
            response: match self.response {
                NonResourceResponse::Text => ResponseBody::Text,
                NonResourceResponse::Meta(name) => sources.meta_response(name),
                NonResourceResponse::Version => {
                    ResponseBody::Type("io.k8s.apimachinery.pkg.version.Info".to_owned(), Schema::Version)
                }
            },
            ..Operation::default()
        };
        vec![Path { path: self.path.to_owned(), operations: vec![operation] }]
    }
}

fn write_info(out: &mut JsonWriter, title: &str, version: &str) {
    out.key("info").object(|out| {
        out.field("title", title);
        out.field("version", version);
    });
}

fn write_security(out: &mut JsonWriter) {
    out.key("BearerToken").object(|out| {
        out.field("type", "apiKey");
        out.field("description", "Bearer Token authentication");
        out.field("name", "authorization");
        out.field("in", "header");
    });
}

fn write_head(out: &mut JsonWriter, operation: &Operation) {
    out.texts("tags", [operation.tag.as_str()]);
    if !operation.description.is_empty() {
        out.field("description", &operation.description);
    }
    out.field("operationId", &operation.id);
}

fn write_tail(out: &mut JsonWriter, operation: &Operation) {
    if !operation.action.is_empty() {
        out.field("x-kubernetes-action", operation.action);
    }
    if let Some((group, version, kind)) = &operation.kind {
        out.key("x-kubernetes-group-version-kind");
        group_version_kind(out, group, version, kind);
    }
}

fn write_unauthorized(out: &mut JsonWriter) {
    out.key("401").object(|out| out.field("description", "Unauthorized"));
}

/// The parameters that all operations of a path share, in document order.
fn common_parameters(operations: &[Operation]) -> Vec<Parameter> {
    let Some((first, others)) = operations.split_first() else { return Vec::new() };
    let is_common = |parameter: &&Parameter| others.iter().all(|other| other.parameters.contains(parameter));
    let mut common: Vec<Parameter> = first.parameters.iter().filter(is_common).cloned().collect();
    common.sort();
    common
}

/// The parameters of one operation. Two types of options may have the same one.
fn own_parameters(operation: &Operation, common: &[Parameter]) -> Vec<Parameter> {
    let mut own: Vec<Parameter> =
        operation.parameters.iter().filter(|parameter| !common.contains(parameter)).cloned().collect();
    own.sort();
    own.dedup_by(|a, b| a.name == b.name && a.location == b.location);
    own
}

fn sorted(mut types: Vec<&'static str>) -> Vec<&'static str> {
    types.sort_unstable();
    types
}

fn write_content(out: &mut JsonWriter, types: &[&str], schema: impl Fn(&mut JsonWriter)) {
    out.key("content").object(|out| {
        for media in types {
            out.key(media).object(|out| {
                out.key("schema");
                schema(out);
            });
        }
    });
}

fn write_reference(out: &mut JsonWriter, dialect: Dialect, name: &str) {
    out.object(|out| out.field("$ref", &dialect.reference(name)));
}

fn write_response(out: &mut JsonWriter, dialect: Dialect, response: &ResponseBody) {
    match response {
        ResponseBody::Type(name, _) => write_reference(out, dialect, name),
        ResponseBody::Text | ResponseBody::Nothing => out.object(|out| out.field("type", "string")),
    }
}

/// Writes a parameter, or a reference to a shared one.
fn parameter_v2(out: &mut JsonWriter, parameter: &Parameter, shared: &mut BTreeMap<String, Vec<u8>>) {
    let mut json = JsonWriter::default();
    parameter.v2(&mut json);
    if parameter.is_inline() {
        out.raw(&json.into_bytes());
    } else {
        write_shared(out, &parameter.name, json.into_bytes(), shared);
    }
}

fn body_v2(out: &mut JsonWriter, body: &Body, shared: &mut BTreeMap<String, Vec<u8>>) {
    let mut json = JsonWriter::default();
    json.object(|out| {
        out.field("name", "body");
        out.field("in", "body");
        if body.required {
            out.key("required").raw(b"true");
        }
        out.key("schema");
        write_reference(out, Dialect::V2, &body.name);
    });
    if body.name.starts_with("io.k8s.apimachinery") {
        write_shared(out, "body", json.into_bytes(), shared);
    } else {
        out.raw(&json.into_bytes());
    }
}

/// Writes a reference to a shared parameter. Its name is derived from its content.
fn write_shared(out: &mut JsonWriter, name: &str, json: Vec<u8>, shared: &mut BTreeMap<String, Vec<u8>>) {
    let name = format!("{name}-{}", digest(&json));
    out.object(|out| out.field("$ref", &format!("#/parameters/{name}")));
    shared.entry(name).or_insert(json);
}

/// Six bytes of the 64-bit FNV-1 hash in URL-safe base64.
fn digest(text: &[u8]) -> String {
    let hash = text
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte));
    URL_SAFE.encode(&hash.to_be_bytes()[..6])
}
