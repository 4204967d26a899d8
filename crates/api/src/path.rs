//! Parses the method and path of a request: its first step.
//!
//! This code does not know which resources exist, and copies nothing: a request borrows the path.

use std::borrow::Cow;

use pilothouse_apimachinery::options::ListOptions;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{self, Status};
use pilothouse_apimachinery::verb::Verb;

/// The connecting subresources. Requests to them are long-running: they do not count as requests in flight.
pub const CONNECT_SUBRESOURCES: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// A request, as authorization and the handlers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The verb.
    pub verb: Verb,
    /// The target.
    pub target: Target<'a>,
}

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A resource, one object of it, or a subresource.
    Resource(ResourcePath<'a>),
    /// Any other path: health, discovery, documents.
    NonResource(&'a str),
}

/// The parts of a resource path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourcePath<'a> {
    /// The group, empty for the core group.
    pub group: &'a str,
    /// The version.
    pub version: &'a str,
    /// The namespace, empty if the path has none. For a Namespace it is its own name.
    pub namespace: &'a str,
    /// Whether the path names a namespace before the resource, as for namespaced resources.
    pub within_namespace: bool,
    /// The plural of the resource.
    pub resource: &'a str,
    /// The name of the object, empty if the path has none.
    pub name: &'a str,
    /// The subresource, empty if the path has none.
    pub subresource: &'a str,
    /// The rest after the subresource, without its leading slash: the path that a proxy passes on.
    pub rest: &'a str,
    /// The name for authorization: the one in the path, or the only one that the field selector of a list or watch can match.
    pub authorized_name: Cow<'a, str>,
    /// Whether the path has the deprecated watch prefix, which changes what it may contain.
    pub legacy_watch: bool,
}

/// Splits a path into segments. Empty segments count: `//` has one between its slashes.
struct Segments<'a>(Option<&'a str>);

/// Below this path are profiles, which take as long as the client wants.
const PROFILES: &str = "/debug/pprof/";

impl<'a> Segments<'a> {
    fn new(path: &'a str) -> Segments<'a> {
        let trimmed = path.trim_matches('/');
        Segments((!trimmed.is_empty()).then_some(trimmed))
    }

    fn peek(&self) -> Option<&'a str> {
        self.0.map(|rest| rest.split_once('/').map_or(rest, |(first, _)| first))
    }

    fn take(&mut self) -> Option<&'a str> {
        let rest = self.0?;
        let (first, left) = match rest.split_once('/') {
            Some((first, left)) => (first, Some(left)),
            None => (rest, None),
        };
        self.0 = left;
        Some(first)
    }

    /// The segment after `skip` others, without consuming any.
    fn ahead(&self, skip: usize) -> Option<&'a str> {
        self.0.and_then(|rest| rest.split('/').nth(skip))
    }
}

impl<'a> Request<'a> {
    /// Whether it has no time limit: a watch or a connection, also to a resource of an extension API server, or a profile.
    pub fn is_long_running(&self) -> bool {
        matches!(self.verb, Verb::Watch | Verb::Proxy)
            || matches!(self.target, Target::NonResource(path) if path.starts_with(PROFILES))
            || self.resource().is_some_and(|resource| CONNECT_SUBRESOURCES.contains(&resource.subresource))
    }

    /// Parses a request. `path` is unescaped already: see [`super::query::decode_path`].
    pub fn parse(method: &str, path: &'a str, query: &Query<'_>) -> status::Result<Request<'a>> {
        let mut segments = Segments::new(path);
        let Some((group, version)) = group_and_version(&mut segments) else {
            return Ok(Request { verb: non_resource_verb(method), target: Target::NonResource(path) });
        };
        let mut verb = resource_verb(method);
        let mut legacy_watch = false;
        if let Some(special) = segments.peek().and_then(special_verb) {
            segments.take();
            if segments.peek().is_none() {
                return Err(Status::bad_request(format!(
                    "unable to determine kind and namespace from url, {path}"
                )));
            }
            verb = special;
            legacy_watch = special == Verb::Watch;
        }
        let mut resource = ResourcePath { group, version, legacy_watch, ..ResourcePath::default() };
        if segments.peek() == Some("namespaces") {
            resource.namespace = segments.ahead(1).unwrap_or_default();
            // A namespace has two subresources; everything else below it is a resource in it.
            if segments.ahead(2).is_some_and(|third| !matches!(third, "status" | "finalize")) {
                segments.take();
                segments.take();
                resource.within_namespace = true;
            }
        }
        resource.resource = segments.take().unwrap_or_default();
        resource.name = segments.take().unwrap_or_default();
        if verb != Verb::Proxy {
            resource.subresource = segments.take().unwrap_or_default();
        }
        resource.rest = segments.0.unwrap_or_default();
        resource.authorized_name = Cow::Borrowed(resource.name);
        if resource.name.is_empty() {
            verb = match verb {
                Verb::Get => collection_verb(query, &mut resource),
                Verb::Delete => Verb::DeleteCollection,
                other => other,
            };
        } else if verb == Verb::Get && resource.subresource.is_empty() && query.flag("watch") == Some(true) {
            // The specification allows watching one object by its own path; the reference would return the object.
            verb = Verb::Watch;
        }
        Ok(Request { verb, target: Target::Resource(resource) })
    }

    /// The resource path, if it is one.
    pub fn resource(&self) -> Option<&ResourcePath<'a>> {
        match &self.target {
            Target::Resource(resource) => Some(resource),
            Target::NonResource(_) => None,
        }
    }
}

/// Consumes the prefix, group and version of a path with at least one more segment.
fn group_and_version<'a>(segments: &mut Segments<'a>) -> Option<(&'a str, &'a str)> {
    let group = match segments.peek()? {
        "api" if segments.ahead(2).is_some() => {
            segments.take();
            ""
        }
        "apis" if segments.ahead(3).is_some() => {
            segments.take();
            segments.take()?
        }
        _ => return None,
    };
    Some((group, segments.take()?))
}

/// A read without a name is a list or a watch. A field selector that allows only one name counts as that name.
fn collection_verb(query: &Query<'_>, resource: &mut ResourcePath<'_>) -> Verb {
    if query.get("fieldSelector").is_some() {
        // Invalid list options are refused later; here they only give no name.
        let name = ListOptions::parse(query).ok().and_then(|options| options.fields.exact("metadata.name"));
        resource.authorized_name = Cow::Owned(name.filter(|name| is_path_segment(name)).unwrap_or_default());
    }
    if query.flag("watch") == Some(true) { Verb::Watch } else { Verb::List }
}

/// Whether a name is valid in a path.
fn is_path_segment(name: &str) -> bool {
    !matches!(name, "." | "..") && !name.contains(['/', '%'])
}

fn special_verb(segment: &str) -> Option<Verb> {
    match segment {
        "watch" => Some(Verb::Watch),
        "proxy" => Some(Verb::Proxy),
        _ => None,
    }
}

/// The verb of a method on an object.
pub fn resource_verb(method: &str) -> Verb {
    match method {
        "POST" => Verb::Create,
        "GET" | "HEAD" => Verb::Get,
        "PUT" => Verb::Update,
        "PATCH" => Verb::Patch,
        "DELETE" => Verb::Delete,
        _ => Verb::Unknown,
    }
}

fn non_resource_verb(method: &str) -> Verb {
    match method {
        "GET" => Verb::Get,
        "POST" => Verb::Post,
        "PUT" => Verb::Put,
        "PATCH" => Verb::Patch,
        "DELETE" => Verb::Delete,
        "HEAD" => Verb::Head,
        "OPTIONS" => Verb::Options,
        "TRACE" => Verb::Trace,
        "CONNECT" => Verb::Connect,
        _ => Verb::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse<'a>(method: &str, path: &'a str, query: &str) -> (Verb, ResourcePath<'a>) {
        let request = Request::parse(method, path, &Query::parse(query)).unwrap();
        let resource = request.resource().expect("a resource").clone();
        (request.verb, resource)
    }

    fn tuple<'a>(resource: &ResourcePath<'a>) -> [&'a str; 7] {
        let ResourcePath { group, version, namespace, resource, name, subresource, rest, .. } = resource;
        [group, version, namespace, resource, name, subresource, rest]
    }

    #[test]
    fn resource_paths_are_parsed() {
        let table = [
            ("GET", "/api/v1/namespaces", Verb::List, ["", "v1", "", "namespaces", "", "", ""]),
            ("GET", "/api/v1/namespaces/n", Verb::Get, ["", "v1", "n", "namespaces", "n", "", ""]),
            (
                "PUT",
                "/api/v1/namespaces/n/finalize",
                Verb::Update,
                ["", "v1", "n", "namespaces", "n", "finalize", ""],
            ),
            (
                "GET",
                "/api/v1/namespaces/n/status",
                Verb::Get,
                ["", "v1", "n", "namespaces", "n", "status", ""],
            ),
            ("GET", "/api/v1/namespaces/n/pods", Verb::List, ["", "v1", "n", "pods", "", "", ""]),
            ("POST", "/api/v1/namespaces/n/pods", Verb::Create, ["", "v1", "n", "pods", "", "", ""]),
            ("HEAD", "/api/v1/namespaces/n/pods/p", Verb::Get, ["", "v1", "n", "pods", "p", "", ""]),
            (
                "GET",
                "/api/v1/namespaces/n/pods/p/proxy/a/b",
                Verb::Get,
                ["", "v1", "n", "pods", "p", "proxy", "a/b"],
            ),
            ("DELETE", "/api/v1/pods", Verb::DeleteCollection, ["", "v1", "", "pods", "", "", ""]),
            ("DELETE", "/api/v1/nodes/a/", Verb::Delete, ["", "v1", "", "nodes", "a", "", ""]),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/n/deployments/d/scale",
                Verb::Patch,
                ["apps", "v1", "n", "deployments", "d", "scale", ""],
            ),
            ("BREW", "/api/v1/pods", Verb::Unknown, ["", "v1", "", "pods", "", "", ""]),
            ("GET", "/api/v1//pods", Verb::Get, ["", "v1", "", "", "pods", "", ""]),
            ("GET", "/api/v1/namespaces//pods", Verb::List, ["", "v1", "", "pods", "", "", ""]),
            ("GET", "/api/v1/watch/namespaces/n/pods/p", Verb::Watch, ["", "v1", "n", "pods", "p", "", ""]),
            (
                "GET",
                "/apis/apps/v1/watch/deployments",
                Verb::Watch,
                ["apps", "v1", "", "deployments", "", "", ""],
            ),
            ("GET", "/api/v1/proxy/nodes/a/b/c", Verb::Proxy, ["", "v1", "", "nodes", "a", "", "b/c"]),
        ];
        for (method, path, verb, expected) in table {
            let (actual_verb, resource) = parse(method, path, "");
            assert_eq!((actual_verb, tuple(&resource)), (verb, expected), "{method} {path}");
        }
    }

    #[test]
    fn paths_without_resource_are_non_resource_requests() {
        let paths = [
            "/",
            "",
            "/healthz",
            "/api",
            "/api/v1",
            "/api/v1/",
            "/apis",
            "/apis/apps",
            "/apis/apps/v1",
            "/apis/apps/v1/",
            "/other/a/b/c",
            "//api/v1//",
            "/version",
        ];
        for path in paths {
            let request = Request::parse("POST", path, &Query::default()).unwrap();
            let expected = Request { verb: Verb::Post, target: Target::NonResource(path) };
            assert_eq!(request, expected, "{path}");
        }
    }

    #[test]
    fn watch_parameter_is_true_except_for_false_and_zero() {
        let verb = |query| parse("GET", "/api/v1/pods", query).0;
        for query in ["watch", "watch=1", "watch=true", "watch=x", "watch=1&limit=bad"] {
            assert_eq!(verb(query), Verb::Watch, "{query}");
        }
        for query in ["", "watch=0", "watch=FALSE", "watched=1"] {
            assert_eq!(verb(query), Verb::List, "{query}");
        }
        assert_eq!(parse("GET", "/api/v1/nodes/a", "watch=1").0, Verb::Watch, "of one object");
        assert_eq!(parse("GET", "/api/v1/nodes/a/status", "watch=1").0, Verb::Get);
        assert_eq!(parse("DELETE", "/api/v1/nodes/a", "watch=1").0, Verb::Delete);
    }

    #[test]
    fn watches_and_connections_are_long_running() {
        let is_long_running = |method: &str, path: &str, query: &str| {
            Request::parse(method, path, &Query::parse(query)).unwrap().is_long_running()
        };
        for subresource in CONNECT_SUBRESOURCES {
            assert!(
                is_long_running("POST", &format!("/api/v1/namespaces/n/pods/p/{subresource}"), ""),
                "{subresource}"
            );
        }
        assert!(
            is_long_running("GET", "/apis/of.others/v1/namespaces/n/things/t/log", ""),
            "also of extension servers"
        );
        assert!(
            is_long_running("GET", "/api/v1/pods", "watch=1")
                && is_long_running("GET", "/api/v1/watch/pods", "")
        );
        assert!(is_long_running("GET", "/api/v1/proxy/nodes/a/b", ""));
        assert!(
            !is_long_running("GET", "/api/v1/pods", "")
                && !is_long_running("GET", "/api/v1/namespaces/n/pods/log", "")
        );
        assert!(
            is_long_running("GET", "/debug/pprof/heap", "") && !is_long_running("GET", "/debug/pprof", "")
        );
        assert!(
            !is_long_running("PUT", "/api/v1/nodes/a/status", "")
                && !is_long_running("GET", "/healthz/log", "watch=1")
        );
    }

    #[test]
    fn field_selector_of_one_name_is_the_authorized_name() {
        let name = |query| parse("GET", "/api/v1/pods", query).1.authorized_name;
        assert_eq!(name("fieldSelector=metadata.name%3Da"), "a");
        assert_eq!(name("watch=1&fieldSelector=spec.nodeName%3Dn,metadata.name%3D%3Da"), "a");
        assert_eq!(name("fieldSelector=metadata.name%3Da&limit=bad"), "", "invalid options");
        assert_eq!(name("fieldSelector=metadata.name!%3Da"), "");
        assert_eq!(name("fieldSelector=metadata.name%3Da/b"), "");
        assert_eq!(parse("GET", "/api/v1/nodes/n", "fieldSelector=metadata.name%3Da").1.authorized_name, "n");
    }

    #[test]
    fn watch_and_proxy_prefix_without_resource_are_refused() {
        for path in ["/api/v1/watch", "/apis/apps/v1/proxy"] {
            assert_eq!(Request::parse("GET", path, &Query::default()).unwrap_err().code, 400, "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_path_is_parsed_into_borrowed_parts(path in "(/|api|apis|v1|watch|namespaces|[a-z%.]{1,4}){0,12}") {
            if let Ok(request) = Request::parse("GET", &path, &Query::default())
                && let Some(resource) = request.resource()
            {
                prop_assert!(!resource.version.contains('/'));
                prop_assert!(!resource.resource.contains('/') && !resource.name.contains('/'));
                prop_assert!(path.contains(resource.rest));
            }
        }
    }
}
