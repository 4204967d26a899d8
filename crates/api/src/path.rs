//! Parses the method and path of a request: its first step.
//!
//! This code does not know which resources exist, and copies nothing: a request borrows the path.

use std::borrow::Cow;

use pilothouse_apimachinery::options::ListOptions;
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{self, Status};
use pilothouse_apimachinery::verb::Verb;

/// The names of these subresources. Such requests are long-running: they do not count as requests in flight.
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
    /// Whether the path names the namespace before the resource, as it does for what is in one.
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

impl<'a> Segments<'a> {
    fn of(path: &'a str) -> Segments<'a> {
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
    /// Whether it lasts as long as its two ends like: a watch, or a way out of this server, whoever serves the resource.
    pub fn is_long_running(&self) -> bool {
        matches!(self.verb, Verb::Watch | Verb::Proxy)
            || self.resource().is_some_and(|found| CONNECT_SUBRESOURCES.contains(&found.subresource))
    }

    /// Parses a request. `path` is unescaped already: see [`super::query::decode_path`].
    pub fn parse(method: &str, path: &'a str, query: &Query<'_>) -> status::Result<Request<'a>> {
        let mut segments = Segments::of(path);
        let Some((group, version)) = group_and_version(&mut segments) else {
            return Ok(Request { verb: plain_verb(method), target: Target::NonResource(path) });
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
        let mut found = ResourcePath { group, version, legacy_watch, ..ResourcePath::default() };
        if segments.peek() == Some("namespaces") {
            found.namespace = segments.ahead(1).unwrap_or_default();
            // A namespace has two subresources; everything else below it is a resource in it.
            if segments.ahead(2).is_some_and(|third| !matches!(third, "status" | "finalize")) {
                segments.take();
                segments.take();
                found.within_namespace = true;
            }
        }
        found.resource = segments.take().unwrap_or_default();
        found.name = segments.take().unwrap_or_default();
        if verb != Verb::Proxy {
            found.subresource = segments.take().unwrap_or_default();
        }
        found.rest = segments.0.unwrap_or_default();
        found.authorized_name = Cow::Borrowed(found.name);
        if found.name.is_empty() {
            verb = match verb {
                Verb::Get => collection_verb(query, &mut found),
                Verb::Delete => Verb::DeleteCollection,
                other => other,
            };
        } else if verb == Verb::Get && found.subresource.is_empty() && query.flag("watch") == Some(true) {
            // The specification allows watching one object by its own path; the reference would answer the object.
            verb = Verb::Watch;
        }
        Ok(Request { verb, target: Target::Resource(found) })
    }

    /// The resource path, if it is one.
    pub fn resource(&self) -> Option<&ResourcePath<'a>> {
        match &self.target {
            Target::Resource(found) => Some(found),
            Target::NonResource(_) => None,
        }
    }
}

/// Consumes the prefix, group and version of a path with at least one more segment.
fn group_and_version<'a>(segments: &mut Segments<'a>) -> Option<(&'a str, &'a str)> {
    let group = match (segments.peek()?, segments.ahead(2), segments.ahead(3)) {
        ("api", Some(_), _) => {
            segments.take();
            ""
        }
        ("apis", _, Some(_)) => {
            segments.take();
            segments.take()?
        }
        _ => return None,
    };
    Some((group, segments.take()?))
}

/// A read without a name is a list or a watch. A field selector that allows only one name counts as that name.
fn collection_verb(query: &Query<'_>, found: &mut ResourcePath<'_>) -> Verb {
    if query.get("fieldSelector").is_some() {
        // Invalid list options are refused later; here they only give no name.
        let name = ListOptions::parse(query).ok().and_then(|options| options.fields.exact("metadata.name"));
        found.authorized_name = Cow::Owned(name.filter(|name| is_path_segment(name)).unwrap_or_default());
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

fn plain_verb(method: &str) -> Verb {
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
        let found = request.resource().expect("a resource").clone();
        (request.verb, found)
    }

    fn tuple<'a>(found: &ResourcePath<'a>) -> [&'a str; 7] {
        let ResourcePath { group, version, namespace, resource, name, subresource, rest, .. } = found;
        [group, version, namespace, resource, name, subresource, rest]
    }

    #[test]
    fn every_form_of_a_resource_path() {
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
        for (method, path, verb, wanted) in table {
            let (found_verb, found) = parse(method, path, "");
            assert_eq!((found_verb, tuple(&found)), (verb, wanted), "{method} {path}");
        }
    }

    #[test]
    fn short_paths_and_other_prefixes_are_no_resources() {
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
            let wanted = Request { verb: Verb::Post, target: Target::NonResource(path) };
            assert_eq!(request, wanted, "{path}");
        }
    }

    #[test]
    fn a_watch_is_any_value_but_false_and_zero() {
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
    fn what_lasts_as_its_ends_like_is_known_by_its_path() {
        let lasts = |method: &str, path: &str, query: &str| {
            Request::parse(method, path, &Query::parse(query)).unwrap().is_long_running()
        };
        for way in CONNECT_SUBRESOURCES {
            assert!(lasts("POST", &format!("/api/v1/namespaces/n/pods/p/{way}"), ""), "{way}");
        }
        assert!(lasts("GET", "/apis/of.others/v1/namespaces/n/things/t/log", ""), "whoever serves it");
        assert!(lasts("GET", "/api/v1/pods", "watch=1") && lasts("GET", "/api/v1/watch/pods", ""));
        assert!(lasts("GET", "/api/v1/proxy/nodes/a/b", ""));
        assert!(!lasts("GET", "/api/v1/pods", "") && !lasts("GET", "/api/v1/namespaces/n/pods/log", ""));
        assert!(!lasts("PUT", "/api/v1/nodes/a/status", "") && !lasts("GET", "/healthz/log", "watch=1"));
    }

    #[test]
    fn a_selector_for_one_name_counts_as_the_name() {
        let name = |query| parse("GET", "/api/v1/pods", query).1.authorized_name;
        assert_eq!(name("fieldSelector=metadata.name%3Da"), "a");
        assert_eq!(name("watch=1&fieldSelector=spec.nodeName%3Dn,metadata.name%3D%3Da"), "a");
        assert_eq!(name("fieldSelector=metadata.name%3Da&limit=bad"), "", "options that make no sense");
        assert_eq!(name("fieldSelector=metadata.name!%3Da"), "");
        assert_eq!(name("fieldSelector=metadata.name%3Da/b"), "");
        assert_eq!(parse("GET", "/api/v1/nodes/n", "fieldSelector=metadata.name%3Da").1.authorized_name, "n");
    }

    #[test]
    fn a_prefix_without_a_resource_is_refused() {
        for path in ["/api/v1/watch", "/apis/apps/v1/proxy"] {
            assert_eq!(Request::parse("GET", path, &Query::default()).unwrap_err().code, 400, "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_makes_it_panic_and_every_part_is_borrowed(path in "(/|api|apis|v1|watch|namespaces|[a-z%.]{1,4}){0,12}") {
            if let Ok(request) = Request::parse("GET", &path, &Query::default())
                && let Some(found) = request.resource()
            {
                prop_assert!(!found.version.contains('/'));
                prop_assert!(!found.resource.contains('/') && !found.name.contains('/'));
                prop_assert!(path.contains(found.rest));
            }
        }
    }
}
