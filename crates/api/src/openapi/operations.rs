//! The paths and operations of resources.

use std::sync::Arc;

use pilothouse_apimachinery::verb::Verb;
use pilothouse_apimachinery::version::GroupVersion;

use super::Sources;
use super::names::{self, META};
use super::parameters::Parameter;
use super::schemas::Schema;
use crate::catalog::resource::{Resource, Subresource};

/// The resources whose deletion returns the object; that of all others returns a Status. An empty list means all resources of
/// the group.
const RETURNED_ON_DELETE: [(&str, &[&str]); 3] = [
    (
        "",
        &[
            "persistentvolumeclaims",
            "persistentvolumes",
            "pods",
            "podtemplates",
            "resourcequotas",
            "serviceaccounts",
            "services",
        ],
    ),
    ("resource.k8s.io", &[]),
    (
        "storage.k8s.io",
        &["csidrivers", "csinodes", "storageclasses", "volumeattachments", "volumeattributesclasses"],
    ),
];

/// One path and its operations.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) path: String,
    pub(super) operations: Vec<Operation>,
}

/// One operation.
#[derive(Debug, Default)]
pub(super) struct Operation {
    pub(super) method: &'static str,
    /// `x-kubernetes-action`; empty for non-resource paths.
    pub(super) action: &'static str,
    pub(super) id: String,
    pub(super) description: String,
    pub(super) tag: String,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    pub(super) response: ResponseBody,
    pub(super) codes: &'static [(&'static str, &'static str)],
    pub(super) media: Media,
    /// Group, version and kind.
    pub(super) kind: Option<(String, String, String)>,
}

/// The body of a request.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) name: String,
    pub(super) schema: Schema,
    pub(super) required: bool,
    /// Whether it is a patch.
    pub(super) patch: bool,
}

/// The response of an operation.
#[derive(Clone, Debug, Default)]
pub(super) enum ResponseBody {
    /// No schema.
    #[default]
    Nothing,
    /// Text.
    Text,
    /// A type.
    Type(String, Schema),
}

/// The media types of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Media {
    /// An object.
    #[default]
    Object,
    /// A list, or a stream of watch events.
    Stream,
    /// An object, or the text of a log.
    Log,
    /// Anything, from the other end of a connection.
    Any,
    /// A discovery document of groups.
    Group,
    /// JSON only.
    Json,
    /// A JSON Web Key Set.
    Keys,
    /// An object or a list of a custom kind, which has no Protobuf form.
    Custom,
}

const OK: &[(&str, &str)] = &[("200", "OK")];
const CREATED: &[(&str, &str)] = &[("200", "OK"), ("201", "Created")];
const POSTED: &[(&str, &str)] = &[("200", "OK"), ("201", "Created"), ("202", "Accepted")];
const DELETED: &[(&str, &str)] = &[("200", "OK"), ("202", "Accepted")];

/// A resource or subresource whose operations are described.
struct Subject<'a> {
    resource: &'a Resource,
    sub: Option<&'a Subresource>,
    gv: &'a GroupVersion,
    kind: &'a str,
    /// `Namespaced` or nothing, the kind, and the name of the subresource, as in operation ids.
    id_suffix: String,
}

impl<'a> Subject<'a> {
    fn new(resource: &'a Resource, sub: Option<&'a Subresource>) -> Subject<'a> {
        let namespaced = if resource.namespaced { "Namespaced" } else { "" };
        let subresource = sub.map(|sub| names::identifier(&sub.name, true)).unwrap_or_default();
        Subject {
            resource,
            sub,
            gv: sub.map_or(&resource.gv, |sub| &sub.gv),
            kind: sub.map_or(&*resource.kind, |sub| &*sub.kind),
            id_suffix: format!("{namespaced}{}{subresource}", resource.kind),
        }
    }

    /// The id of an operation: `verb`, the group version, and the rest.
    fn id(&self, verb: &str, rest: &str) -> String {
        let gv = &self.resource.gv;
        let group = names::identifier(names::short_group(&gv.group), true);
        format!("{verb}{group}{}{rest}", names::identifier(&gv.version, true))
    }

    /// `status of the specified `, or the same without the subresource.
    fn specified(&self) -> String {
        let subresource = self.sub.map(|sub| format!("{} of ", sub.name)).unwrap_or_default();
        format!("{subresource}the specified {}", self.resource.kind)
    }

    /// The path parameters.
    fn path_parameters(&self, named: bool) -> Vec<Parameter> {
        let mut parameters = vec![];
        if self.resource.namespaced {
            parameters.push(Parameter::namespace());
        }
        if named {
            parameters.push(Parameter::name(self.gvk().1));
        }
        parameters
    }

    /// The kind of the operations. Subresources of a custom kind have that kind, whatever they show.
    fn gvk(&self) -> (&GroupVersion, &str) {
        match self.is_custom() {
            true => (&self.resource.gv, &self.resource.kind),
            false => (self.gv, self.kind),
        }
    }

    fn is_custom(&self) -> bool {
        self.resource.custom.is_some()
    }

    fn operation(&self, method: &'static str, action: &'static str) -> Operation {
        let gv = &self.resource.gv;
        let (kind_gv, kind) = self.gvk();
        let kind = (kind_gv.group.to_string(), kind_gv.version.to_string(), kind.to_owned());
        Operation {
            method,
            action,
            tag: names::tag(&gv.group, &gv.version),
            parameters: vec![Parameter::pretty()],
            codes: OK,
            kind: Some(kind),
            ..Operation::default()
        }
    }
}

impl Sources<'_> {
    /// The paths of a resource.
    pub(super) fn paths(&self, resource: &Resource) -> Vec<Path> {
        let gv = &resource.gv;
        let prefix = if gv.group.is_empty() {
            format!("/api/{}", gv.version)
        } else {
            format!("/apis/{}/{}", gv.group, gv.version)
        };
        let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{scope}/{}", resource.plural);
        let subject = Subject::new(resource, None);
        let mut paths = Vec::new();
        let mut add = |path: String, operations: Vec<Operation>| {
            if !operations.is_empty() {
                paths.push(Path { path, operations });
            }
        };
        add(format!("{prefix}{collection}"), self.collection_operations(&subject));
        add(format!("{prefix}{collection}/{{name}}"), self.object_operations(&subject));
        if resource.namespaced && resource.verbs.contains(Verb::List) {
            let list = self.for_all_namespaces(self.list(&subject), &subject, "list", "ForAllNamespaces");
            add(format!("{prefix}/{}", resource.plural), vec![list]);
        }
        for sub in &resource.subresources {
            let subject = Subject::new(resource, Some(sub));
            let path = format!("{prefix}{collection}/{{name}}/{}", sub.name);
            if sub.kind.ends_with("Options") {
                add(path.clone(), self.connections(&subject, false));
                if *sub.name == *"proxy" {
                    add(format!("{path}/{{path}}"), self.connections(&subject, true));
                }
            } else {
                add(path, self.object_operations(&subject));
            }
        }
        // Custom kinds never had the old watch prefix.
        if resource.verbs.contains(Verb::Watch) && resource.custom.is_none() {
            add(format!("{prefix}/watch{collection}"), vec![self.watch_list(&subject)]);
            add(format!("{prefix}/watch{collection}/{{name}}"), vec![self.watch(&subject)]);
            if resource.namespaced {
                let watch = self.for_all_namespaces(
                    self.watch_list(&subject),
                    &subject,
                    "watch",
                    "ListForAllNamespaces",
                );
                add(format!("{prefix}/watch/{}", resource.plural), vec![watch]);
            }
        }
        if resource.custom.is_some() {
            let all = paths.iter_mut().flat_map(|path| &mut path.operations);
            all.for_each(|operation| operation.media = Media::Custom);
        }
        paths
    }

    /// An operation of one namespace, changed to all namespaces.
    fn for_all_namespaces(
        &self,
        mut operation: Operation,
        subject: &Subject<'_>,
        verb: &str,
        suffix: &str,
    ) -> Operation {
        operation.id = subject.id(verb, &format!("{}{suffix}", subject.resource.kind));
        operation.parameters.retain(|parameter| parameter.name != "namespace");
        operation
    }

    fn collection_operations(&self, subject: &Subject<'_>) -> Vec<Operation> {
        let verbs = subject.resource.verbs;
        let mut operations = Vec::new();
        if verbs.contains(Verb::List) {
            operations.push(self.list(subject));
        }
        if verbs.contains(Verb::Create) {
            operations.push(self.create(subject, false));
        }
        if verbs.contains(Verb::DeleteCollection) {
            let mut operation = subject.operation("delete", "deletecollection");
            operation.id = subject.id("delete", &format!("Collection{}", subject.id_suffix));
            operation.description = format!("delete collection of {}", subject.kind);
            operation.parameters.extend(subject.path_parameters(false));
            let mut list_options = self.options("ListOptions");
            // For custom kinds the reference states only the list options.
            if !subject.is_custom() {
                list_options.retain(|parameter| !matches!(&*parameter.name, "watch" | "allowWatchBookmarks"));
                operation.parameters.extend(self.options("DeleteOptions"));
                operation.body = self.delete_body();
            }
            operation.parameters.extend(list_options);
            operation.response = self.meta_response("Status");
            operations.push(operation);
        }
        operations
    }

    fn object_operations(&self, subject: &Subject<'_>) -> Vec<Operation> {
        let verbs = subject.sub.map_or(subject.resource.verbs, |sub| sub.verbs);
        let mut operations = Vec::new();
        if verbs.contains(Verb::Get) {
            operations.push(self.read(subject));
        }
        if subject.sub.is_some() && verbs.contains(Verb::Create) {
            operations.push(self.create(subject, true));
        }
        let changes = [
            (Verb::Update, "put", "replace", "replace ", "UpdateOptions"),
            (Verb::Patch, "patch", "patch", "partially update ", "PatchOptions"),
        ];
        for (verb, method, id_prefix, description, options) in changes {
            if verbs.contains(verb) {
                let mut operation = subject.operation(method, method);
                operation.id = subject.id(id_prefix, &subject.id_suffix);
                operation.description = format!("{description}{}", subject.specified());
                operation.parameters.extend(subject.path_parameters(true));
                operation.parameters.extend(self.options(options));
                operation.response = self.response(subject.gv, subject.kind);
                operation.codes = if verb == Verb::Patch && subject.is_custom() { OK } else { CREATED };
                operation.body = if verb == Verb::Patch {
                    let name = format!("{META}.Patch");
                    Some(Body { name, schema: Schema::Patch, required: true, patch: true })
                } else {
                    self.body(subject)
                };
                operations.push(operation);
            }
        }
        if subject.sub.is_none() && verbs.contains(Verb::Delete) {
            operations.push(self.delete(subject));
        }
        operations
    }

    fn read(&self, subject: &Subject<'_>) -> Operation {
        let mut operation = subject.operation("get", "get");
        operation.id = subject.id("read", &subject.id_suffix);
        operation.description = format!("read {}", subject.specified());
        operation.parameters.extend(subject.path_parameters(true));
        if subject.is_custom() {
            let list_options = self.options("ListOptions").into_iter();
            operation.parameters.extend(list_options.filter(|parameter| parameter.name == "resourceVersion"));
        }
        operation.response = self.response(subject.gv, subject.kind);
        if subject.sub.is_some_and(|sub| *sub.name == *"log") {
            operation.media = Media::Log;
            operation.response = ResponseBody::Text;
            if let Some(id) = self.registry.kind(&subject.gv.group, &subject.gv.version, "PodLogOptions") {
                operation.parameters.extend(self.query_parameters(id, &self.published(id)));
            }
        }
        operation
    }

    fn create(&self, subject: &Subject<'_>, named: bool) -> Operation {
        let mut operation = subject.operation("post", "post");
        let kind = &subject.resource.kind;
        let subresource = subject.sub.map(|sub| format!(" {} of", sub.name)).unwrap_or_default();
        operation.id = subject.id("create", &subject.id_suffix);
        operation.description = format!("create{subresource}{}{kind}", names::article(kind));
        operation.parameters.extend(subject.path_parameters(named));
        operation.parameters.extend(self.options("CreateOptions"));
        operation.body = self.body(subject);
        operation.response = self.response(subject.gv, subject.kind);
        operation.codes = POSTED;
        operation
    }

    fn delete(&self, subject: &Subject<'_>) -> Operation {
        let mut operation = subject.operation("delete", "delete");
        operation.id = subject.id("delete", &subject.id_suffix);
        operation.description = format!("delete{}{}", names::article(subject.kind), subject.kind);
        operation.parameters.extend(subject.path_parameters(true));
        operation.parameters.extend(self.options("DeleteOptions"));
        operation.body = self.delete_body();
        let is_returned = RETURNED_ON_DELETE.iter().any(|(group, plurals)| {
            *group == &*subject.gv.group
                && (plurals.is_empty() || plurals.contains(&&*subject.resource.plural))
        });
        operation.response =
            if is_returned { self.response(subject.gv, subject.kind) } else { self.meta_response("Status") };
        operation.codes = DELETED;
        operation
    }

    fn list(&self, subject: &Subject<'_>) -> Operation {
        let mut operation = subject.operation("get", "list");
        let is_watchable = subject.resource.verbs.contains(Verb::Watch) && !subject.is_custom();
        let verbs = if is_watchable { "list or watch" } else { "list" };
        operation.id = subject.id("list", &subject.id_suffix);
        operation.description = format!("{verbs} objects of kind {}", subject.kind);
        operation.parameters.extend(subject.path_parameters(false));
        operation.parameters.extend(self.options("ListOptions"));
        operation.response = self.response(subject.gv, &subject.resource.list_kind);
        operation.media = Media::Stream;
        operation
    }

    fn watch_list(&self, subject: &Subject<'_>) -> Operation {
        let mut operation = subject.operation("get", "watchlist");
        operation.id = subject.id("watch", &format!("{}List", subject.id_suffix));
        operation.description = format!(
            "watch individual changes to a list of {}. deprecated: use the 'watch' parameter with a list operation \
             instead.",
            subject.kind
        );
        operation.parameters.extend(subject.path_parameters(false));
        operation.parameters.extend(self.options("ListOptions"));
        operation.response = self.meta_response("WatchEvent");
        operation.media = Media::Stream;
        operation
    }

    fn watch(&self, subject: &Subject<'_>) -> Operation {
        let mut operation = self.watch_list(subject);
        operation.action = "watch";
        operation.id = subject.id("watch", &subject.id_suffix);
        operation.description = format!(
            "watch changes to an object of kind {}. deprecated: use the 'watch' parameter with a list operation \
             instead, filtered to a single item with the 'fieldSelector' parameter.",
            subject.kind
        );
        operation.parameters.push(Parameter::name(subject.kind));
        operation
    }

    /// The methods of a connecting subresource.
    fn connections(&self, subject: &Subject<'_>, with_path: bool) -> Vec<Operation> {
        let Some(sub) = subject.sub else { return Vec::new() };
        let mut methods: Vec<(&'static str, &str)> = sub
            .verbs
            .iter()
            .filter_map(|verb| {
                Some(match verb {
                    Verb::Get => ("get", "Get"),
                    Verb::Create => ("post", "Post"),
                    Verb::Update => ("put", "Put"),
                    Verb::Patch => ("patch", "Patch"),
                    Verb::Delete => ("delete", "Delete"),
                    _ => return None,
                })
            })
            .collect();
        // A proxy accepts every method.
        if sub.verbs.contains(Verb::Delete) {
            methods.extend([("head", "Head"), ("options", "Options")]);
        }
        let suffix = if with_path { "WithPath" } else { "" };
        let options = self.registry.kind(&sub.gv.group, &sub.gv.version, &sub.kind);
        let query = options.map(|id| self.query_parameters(id, &self.published(id))).unwrap_or_default();
        let connect = |(method, method_name): (&'static str, &str)| {
            let mut operation = subject.operation(method, "connect");
            operation.id = subject.id("connect", &format!("{method_name}{}{suffix}", subject.id_suffix));
            operation.description = format!(
                "connect {} requests to {} of {}",
                method_name.to_uppercase(),
                sub.name,
                subject.resource.kind
            );
            operation.parameters = subject.path_parameters(true);
            operation.parameters.extend(with_path.then(Parameter::path));
            operation.parameters.extend(query.iter().cloned());
            operation.response = ResponseBody::Text;
            operation.media = Media::Any;
            operation
        };
        methods.into_iter().map(connect).collect()
    }

    fn body(&self, subject: &Subject<'_>) -> Option<Body> {
        let (name, schema) = self.find(subject.gv, subject.kind)?;
        Some(Body { name, schema, required: true, patch: false })
    }

    fn delete_body(&self) -> Option<Body> {
        let id = self.registry.meta("DeleteOptions")?;
        Some(Body { name: self.published(id), schema: Schema::Type(id), required: false, patch: false })
    }

    fn response(&self, gv: &GroupVersion, kind: &str) -> ResponseBody {
        self.find(gv, kind).map_or(ResponseBody::Nothing, |(name, schema)| ResponseBody::Type(name, schema))
    }

    /// A type of the meta group as a response.
    pub(super) fn meta_response(&self, name: &str) -> ResponseBody {
        let id = self.registry.meta(name);
        id.map_or(ResponseBody::Nothing, |id| ResponseBody::Type(self.published(id), Schema::Type(id)))
    }

    /// The schema of a kind.
    fn find(&self, gv: &GroupVersion, kind: &str) -> Option<(String, Schema)> {
        if let Some(id) = self.registry.kind(&gv.group, &gv.version, kind) {
            return Some((self.published(id), Schema::Type(id)));
        }
        let is_kind = |custom: &Arc<crate::openapi::CustomSchema>| {
            custom.kind.kind == kind && custom.kind.group == *gv.group && custom.kind.version == *gv.version
        };
        let index = self.custom.iter().position(is_kind)?;
        Some((self.custom.get(index)?.published.clone(), Schema::Custom(index)))
    }
}
