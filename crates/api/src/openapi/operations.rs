//! The paths and operations of resources.

use std::sync::Arc;

use pilothouse_apimachinery::verb::Verb;
use pilothouse_apimachinery::version::GroupVersion;

use super::Sources;
use super::names::{self, META};
use super::parameters::Parameter;
use super::schemas::Schema;
use crate::catalog::resource::{Resource, Subresource};

/// The resources whose deletion answers the object; that of all others answers a Status. An empty list stands for all
/// resources of the group.
const DELETED_ARE_RETURNED: [(&str, &[&str]); 3] = [
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
    pub(super) about: String,
    pub(super) tag: String,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Body>,
    pub(super) answer: ResponseBody,
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

/// The media types of an answer.
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
    word: String,
}

impl<'a> Subject<'a> {
    fn new(resource: &'a Resource, sub: Option<&'a Subresource>) -> Subject<'a> {
        let namespaced = if resource.namespaced { "Namespaced" } else { "" };
        let below = sub.map(|sub| names::identifier(&sub.name, true)).unwrap_or_default();
        Subject {
            resource,
            sub,
            gv: sub.map_or(&resource.gv, |sub| &sub.gv),
            kind: sub.map_or(&*resource.kind, |sub| &*sub.kind),
            word: format!("{namespaced}{}{below}", resource.kind),
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
        let of = self.sub.map(|sub| format!("{} of ", sub.name)).unwrap_or_default();
        format!("{of}the specified {}", self.resource.kind)
    }

    /// The path parameters.
    fn place(&self, named: bool) -> Vec<Parameter> {
        let mut parameters = vec![];
        if self.resource.namespaced {
            parameters.push(Parameter::namespace());
        }
        if named {
            parameters.push(Parameter::name(self.about().1));
        }
        parameters
    }

    /// The kind of the operations. Subresources of a custom kind have that kind, whatever they show.
    fn about(&self) -> (&GroupVersion, &str) {
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
        let (about, kind) = self.about();
        let kind = (about.group.to_string(), about.version.to_string(), kind.to_owned());
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
        let place = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{place}/{}", resource.plural);
        let subject = Subject::new(resource, None);
        let mut paths = Vec::new();
        let mut add = |path: String, operations: Vec<Operation>| {
            if !operations.is_empty() {
                paths.push(Path { path, operations });
            }
        };
        add(format!("{prefix}{collection}"), self.of_collection(&subject));
        add(format!("{prefix}{collection}/{{name}}"), self.of_object(&subject));
        if resource.namespaced && resource.verbs.contains(Verb::List) {
            let list = self.everywhere(self.list(&subject), &subject, "list", "ForAllNamespaces");
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
                add(path, self.of_object(&subject));
            }
        }
        // Custom kinds never had the old watch prefix.
        if resource.verbs.contains(Verb::Watch) && resource.custom.is_none() {
            add(format!("{prefix}/watch{collection}"), vec![self.watch_list(&subject)]);
            add(format!("{prefix}/watch{collection}/{{name}}"), vec![self.watch(&subject)]);
            if resource.namespaced {
                let watch =
                    self.everywhere(self.watch_list(&subject), &subject, "watch", "ListForAllNamespaces");
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
    fn everywhere(&self, one: Operation, subject: &Subject<'_>, verb: &str, suffix: &str) -> Operation {
        let mut all = one;
        all.id = subject.id(verb, &format!("{}{suffix}", subject.resource.kind));
        all.parameters.retain(|parameter| parameter.name != "namespace");
        all
    }

    fn of_collection(&self, subject: &Subject<'_>) -> Vec<Operation> {
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
            operation.id = subject.id("delete", &format!("Collection{}", subject.word));
            operation.about = format!("delete collection of {}", subject.kind);
            operation.parameters.extend(subject.place(false));
            let mut listing = self.options("ListOptions");
            // For custom kinds the reference states only the list options.
            if !subject.is_custom() {
                listing.retain(|parameter| !matches!(&*parameter.name, "watch" | "allowWatchBookmarks"));
                operation.parameters.extend(self.options("DeleteOptions"));
                operation.body = self.delete_body();
            }
            operation.parameters.extend(listing);
            operation.answer = self.meta_answer("Status");
            operations.push(operation);
        }
        operations
    }

    fn of_object(&self, subject: &Subject<'_>) -> Vec<Operation> {
        let verbs = subject.sub.map_or(subject.resource.verbs, |sub| sub.verbs);
        let mut operations = Vec::new();
        if verbs.contains(Verb::Get) {
            operations.push(self.read(subject));
        }
        if subject.sub.is_some() && verbs.contains(Verb::Create) {
            operations.push(self.create(subject, true));
        }
        let change = [
            (Verb::Update, "put", "replace", "replace ", "UpdateOptions"),
            (Verb::Patch, "patch", "patch", "partially update ", "PatchOptions"),
        ];
        for (verb, method, word, about, options) in change {
            if verbs.contains(verb) {
                let mut operation = subject.operation(method, method);
                operation.id = subject.id(word, &subject.word);
                operation.about = format!("{about}{}", subject.specified());
                operation.parameters.extend(subject.place(true));
                operation.parameters.extend(self.options(options));
                operation.answer = self.answer(subject.gv, subject.kind);
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
        operation.id = subject.id("read", &subject.word);
        operation.about = format!("read {}", subject.specified());
        operation.parameters.extend(subject.place(true));
        if subject.is_custom() {
            let listing = self.options("ListOptions").into_iter();
            operation.parameters.extend(listing.filter(|parameter| parameter.name == "resourceVersion"));
        }
        operation.answer = self.answer(subject.gv, subject.kind);
        if subject.sub.is_some_and(|sub| *sub.name == *"log") {
            operation.media = Media::Log;
            operation.answer = ResponseBody::Text;
            if let Some(id) = self.registry.kind(&subject.gv.group, &subject.gv.version, "PodLogOptions") {
                operation.parameters.extend(self.query_of(id, &self.published(id)));
            }
        }
        operation
    }

    fn create(&self, subject: &Subject<'_>, named: bool) -> Operation {
        let mut operation = subject.operation("post", "post");
        let kind = &subject.resource.kind;
        let of = subject.sub.map(|sub| format!(" {} of", sub.name)).unwrap_or_default();
        operation.id = subject.id("create", &subject.word);
        operation.about = format!("create{of}{}{kind}", names::article(kind));
        operation.parameters.extend(subject.place(named));
        operation.parameters.extend(self.options("CreateOptions"));
        operation.body = self.body(subject);
        operation.answer = self.answer(subject.gv, subject.kind);
        operation.codes = POSTED;
        operation
    }

    fn delete(&self, subject: &Subject<'_>) -> Operation {
        let mut operation = subject.operation("delete", "delete");
        operation.id = subject.id("delete", &subject.word);
        operation.about = format!("delete{}{}", names::article(subject.kind), subject.kind);
        operation.parameters.extend(subject.place(true));
        operation.parameters.extend(self.options("DeleteOptions"));
        operation.body = self.delete_body();
        let returned = DELETED_ARE_RETURNED.iter().any(|(group, plurals)| {
            *group == &*subject.gv.group
                && (plurals.is_empty() || plurals.contains(&&*subject.resource.plural))
        });
        operation.answer =
            if returned { self.answer(subject.gv, subject.kind) } else { self.meta_answer("Status") };
        operation.codes = DELETED;
        operation
    }

    fn list(&self, subject: &Subject<'_>) -> Operation {
        let mut operation = subject.operation("get", "list");
        let watched = subject.resource.verbs.contains(Verb::Watch) && !subject.is_custom();
        let watch = if watched { "list or watch" } else { "list" };
        operation.id = subject.id("list", &subject.word);
        operation.about = format!("{watch} objects of kind {}", subject.kind);
        operation.parameters.extend(subject.place(false));
        operation.parameters.extend(self.options("ListOptions"));
        operation.answer = self.answer(subject.gv, &subject.resource.list_kind);
        operation.media = Media::Stream;
        operation
    }

    fn watch_list(&self, subject: &Subject<'_>) -> Operation {
        let mut operation = subject.operation("get", "watchlist");
        operation.id = subject.id("watch", &format!("{}List", subject.word));
        operation.about = format!(
            "watch individual changes to a list of {}. deprecated: use the 'watch' parameter with a list operation \
             instead.",
            subject.kind
        );
        operation.parameters.extend(subject.place(false));
        operation.parameters.extend(self.options("ListOptions"));
        operation.answer = self.meta_answer("WatchEvent");
        operation.media = Media::Stream;
        operation
    }

    fn watch(&self, subject: &Subject<'_>) -> Operation {
        let mut operation = self.watch_list(subject);
        operation.action = "watch";
        operation.id = subject.id("watch", &subject.word);
        operation.about = format!(
            "watch changes to an object of kind {}. deprecated: use the 'watch' parameter with a list operation \
             instead, filtered to a single item with the 'fieldSelector' parameter.",
            subject.kind
        );
        operation.parameters.push(Parameter::name(subject.kind));
        operation
    }

    /// The methods of a connecting subresource.
    fn connections(&self, subject: &Subject<'_>, deeper: bool) -> Vec<Operation> {
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
        let suffix = if deeper { "WithPath" } else { "" };
        let options = self.registry.kind(&sub.gv.group, &sub.gv.version, &sub.kind);
        let query = options.map(|id| self.query_of(id, &self.published(id))).unwrap_or_default();
        let connect = |(method, word): (&'static str, &str)| {
            let mut operation = subject.operation(method, "connect");
            operation.id = subject.id("connect", &format!("{word}{}{suffix}", subject.word));
            operation.about = format!(
                "connect {} requests to {} of {}",
                word.to_uppercase(),
                sub.name,
                subject.resource.kind
            );
            operation.parameters = subject.place(true);
            operation.parameters.extend(deeper.then(Parameter::path));
            operation.parameters.extend(query.iter().cloned());
            operation.answer = ResponseBody::Text;
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

    fn answer(&self, gv: &GroupVersion, kind: &str) -> ResponseBody {
        self.find(gv, kind).map_or(ResponseBody::Nothing, |(name, schema)| ResponseBody::Type(name, schema))
    }

    /// A type of the meta group as a response.
    pub(super) fn meta_answer(&self, name: &str) -> ResponseBody {
        let id = self.registry.meta(name);
        id.map_or(ResponseBody::Nothing, |id| ResponseBody::Type(self.published(id), Schema::Type(id)))
    }

    /// The schema of a kind.
    fn find(&self, gv: &GroupVersion, kind: &str) -> Option<(String, Schema)> {
        if let Some(id) = self.registry.kind(&gv.group, &gv.version, kind) {
            return Some((self.published(id), Schema::Type(id)));
        }
        let same = |custom: &Arc<crate::openapi::Custom>| {
            custom.kind.kind == kind && custom.kind.group == *gv.group && custom.kind.version == *gv.version
        };
        let at = self.custom.iter().position(same)?;
        Some((self.custom.get(at)?.published.clone(), Schema::Custom(at)))
    }
}
