//! Routing: which resource and subresource a path leads to, and which verbs are allowed. The order of checks is the reference's,
//! because it decides which of several errors a client sees.

use std::sync::Arc;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::verb::Verb;

use super::catalog::resource::Resource;
use super::catalog::{Catalog, Group};
use super::path::{ResourcePath, resource_verb};

/// Checks the resource of the path, as looked up in the catalog. Returns `None` if even its group is unknown, for which the
/// reference responds in plain text.
pub fn find(
    catalog: &Catalog,
    resource: Option<Arc<Resource>>,
    path: &ResourcePath<'_>,
    verb: Verb,
) -> Result<Option<Arc<Resource>>> {
    let Some(resource) = resource else {
        // In custom groups an unknown resource is treated as an unknown group.
        let is_builtin = catalog.group(path.group).is_some_and(Group::is_builtin);
        return if is_builtin { Err(Status::no_such_resource()) } else { Ok(None) };
    };
    let is_misplaced = match (resource.namespaced, path.namespace.is_empty()) {
        // A namespaced object needs its namespace in the path; its collection does not.
        (true, true) => !path.name.is_empty(),
        // The request would be authorized in the namespace of the path, and served as an object of the whole cluster.
        (false, false) => path.within_namespace,
        _ => false,
    };
    let has_unknown_subresource =
        !path.subresource.is_empty() && resource.subresource(path.subresource).is_none();
    if resource.custom.is_some() {
        return custom(resource, path, verb, has_unknown_subresource, is_misplaced);
    }
    let is_too_deep = !path.rest.is_empty() && path.subresource != "proxy";
    // Reviews have only a collection to POST to: no objects, and none across all namespaces.
    let is_across_namespaces = resource.namespaced && path.namespace.is_empty();
    let is_review = !resource.verbs.contains(Verb::Get) && !resource.verbs.contains(Verb::List);
    let is_missing =
        is_review && path.subresource.is_empty() && (!path.name.is_empty() || is_across_namespaces);
    if is_misplaced || has_unknown_subresource || is_too_deep || is_missing {
        return Err(Status::no_such_resource());
    }
    Ok(Some(resource))
}

/// Routing of custom resources: the path must match completely.
fn custom(
    resource: Arc<Resource>,
    path: &ResourcePath<'_>,
    verb: Verb,
    has_unknown_subresource: bool,
    is_misplaced: bool,
) -> Result<Option<Arc<Resource>>> {
    let is_across_namespaces = resource.namespaced && path.namespace.is_empty();
    if is_misplaced || (is_across_namespaces && !matches!(verb, Verb::List | Verb::Watch)) {
        return Ok(None);
    }
    // What follows a subresource is ignored.
    if has_unknown_subresource {
        return Err(Status::not_found(resource.name(), path.name));
    }
    let is_terminating = resource.custom.as_ref().is_some_and(|custom| custom.is_terminating);
    if is_terminating && verb == Verb::Create && path.subresource.is_empty() {
        return Err(Status::definition_terminating(resource.name()));
    }
    Ok(Some(resource))
}

/// Refuses a path with a subresource and an empty name: `pods//status`.
pub fn check_name(resource: &Resource, path: &ResourcePath<'_>, method: &str) -> Result<()> {
    let is_nameless = path.name.is_empty() && !path.subresource.is_empty() && resource.custom.is_none();
    let verbs = resource.subresource(path.subresource).map(|sub| sub.verbs);
    match verbs.filter(|verbs| is_nameless && verbs.contains(resource_verb(method))) {
        Some(_) => Err(Status::bad_request("name must be provided")),
        None => Ok(()),
    }
}

/// The verb, if the resource or subresource supports it.
pub fn allowed_verb(resource: &Resource, path: &ResourcePath<'_>, verb: Verb, method: &str) -> Result<Verb> {
    let verbs = resource.subresource(path.subresource).map_or(resource.verbs, |sub| sub.verbs);
    let is_named = !path.name.is_empty();
    let is_across_namespaces = resource.namespaced && path.namespace.is_empty();
    let is_custom = resource.custom.is_some();
    // POST to an object and PUT to a collection are meaningless, and so is a create across all namespaces. For custom resources
    // the name in the path of a POST is only informative.
    let is_applicable = match verb {
        Verb::Create => (!is_named || is_custom || !path.subresource.is_empty()) && !is_across_namespaces,
        Verb::DeleteCollection => !is_across_namespaces,
        // The deprecated watch prefix is part of the path: it does not turn a write into a watch.
        Verb::Watch => method == "GET",
        Verb::Update | Verb::Patch | Verb::Get | Verb::Delete => is_named,
        _ => true,
    };
    let is_unnamed = !is_named && matches!(method, "PUT" | "PATCH");
    if is_unnamed && is_custom && !is_across_namespaces {
        return Err(Status::bad_request("name must be provided"));
    }
    // A watch of a collection that can only be listed is refused later, with another message: see `dispatch` of the handler.
    let is_list_watch = verb == Verb::Watch && !path.legacy_watch && !is_named && verbs.contains(Verb::List);
    if !is_applicable || !(verbs.contains(verb) || is_list_watch) || (method == "HEAD" && !is_custom) {
        if is_custom {
            return Err(Status::not_supported(resource.name(), verb.as_str()));
        }
        let exists = verb != Verb::Proxy && is_mounted(resource, path, is_across_namespaces);
        return Err(if exists { Status::method_not_allowed() } else { Status::no_such_resource() });
    }
    if matches!(verb, Verb::Get | Verb::Delete | Verb::Patch) && !is_custom {
        check_segment(path.name)?;
    }
    Ok(verb)
}

/// Whether the path exists for any method: some resources have no objects, others no collection across all namespaces.
fn is_mounted(resource: &Resource, path: &ResourcePath<'_>, is_across_namespaces: bool) -> bool {
    let supports_any = |verbs: &[Verb]| verbs.iter().any(|verb| resource.verbs.contains(*verb));
    if path.legacy_watch {
        return path.subresource.is_empty() && supports_any(&[Verb::Watch]);
    }
    if !path.subresource.is_empty() {
        return true;
    }
    match (path.name.is_empty(), is_across_namespaces) {
        (false, _) => supports_any(&[Verb::Get, Verb::Update, Verb::Patch, Verb::Delete]),
        (true, true) => supports_any(&[Verb::List, Verb::Watch]),
        (true, false) => supports_any(&[Verb::List, Verb::Watch, Verb::Create, Verb::DeleteCollection]),
    }
}

/// Refuses a name that is no valid path segment.
fn check_segment(name: &str) -> Result<()> {
    let reason = match name {
        "." => "may not be '.'",
        ".." => "may not be '..'",
        _ if name.contains('/') => "may not contain '/'",
        _ if name.contains('%') => "may not contain '%'",
        _ => return Ok(()),
    };
    Err(Status::bad_request(format!("Name parameter invalid: {}: {reason}", quoted(name))))
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::query::Query;

    use super::*;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;
    use crate::path::Request;

    /// The resulting verb, or the code of the error; 0 for an unknown path.
    fn route(catalog: &Catalog, method: &str, uri: &str) -> std::result::Result<Verb, u16> {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let request = Request::parse(method, path, &Query::parse(query)).unwrap();
        let path = request.resource().expect("a resource");
        let resource = catalog.resource_at(path).cloned();
        let resource =
            find(catalog, resource, path, request.verb).map_err(|status| status.code)?.ok_or(0_u16)?;
        allowed_verb(&resource, path, request.verb, method).map_err(|status| status.code)
    }

    #[test]
    fn paths_are_routed_like_the_reference() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let (pods, roles) = ("/api/v1/namespaces/n/pods", "/apis/rbac.authorization.k8s.io/v1/clusterroles");
        for (method, path, expected) in [
            ("GET", pods.to_owned(), Ok(Verb::List)),
            ("POST", pods.to_owned(), Ok(Verb::Create)),
            ("DELETE", pods.to_owned(), Ok(Verb::DeleteCollection)),
            ("GET", format!("{pods}?watch=1"), Ok(Verb::Watch)),
            ("PUT", pods.to_owned(), Err(405)),
            ("PATCH", pods.to_owned(), Err(405)),
            ("GET", format!("{pods}/p"), Ok(Verb::Get)),
            ("PUT", format!("{pods}/p/status"), Ok(Verb::Update)),
            ("POST", format!("{pods}/p"), Err(405)),
            ("POST", format!("{pods}/p/eviction"), Ok(Verb::Create)),
            ("POST", format!("{pods}/p/status"), Err(405)),
            ("HEAD", format!("{pods}/p"), Err(405)),
            ("GET", format!("{pods}/p/nothing"), Err(404)),
            ("GET", format!("{pods}/p/status/more"), Err(404)),
            ("GET", format!("{pods}/%"), Err(400)),
            // All namespaces at once can only be listed.
            ("GET", "/api/v1/pods".to_owned(), Ok(Verb::List)),
            ("POST", "/api/v1/pods".to_owned(), Err(405)),
            ("DELETE", "/api/v1/pods".to_owned(), Err(405)),
            ("GET", "/api/v1/pods/p".to_owned(), Err(404)),
            // A cluster-scoped resource is not found below a namespace, except for the namespace itself.
            ("GET", format!("{roles}/r"), Ok(Verb::Get)),
            ("GET", "/apis/rbac.authorization.k8s.io/v1/namespaces/n/clusterroles/r".to_owned(), Err(404)),
            ("GET", "/api/v1/namespaces/n".to_owned(), Ok(Verb::Get)),
            ("PUT", "/api/v1/namespaces/n/finalize".to_owned(), Ok(Verb::Update)),
            ("DELETE", "/api/v1/namespaces".to_owned(), Err(405)),
            // Reviews have no objects.
            ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews".to_owned(), Ok(Verb::Create)),
            ("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews".to_owned(), Err(405)),
            ("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews/s".to_owned(), Err(404)),
            ("GET", "/apis/apps/v1/nothings".to_owned(), Err(404)),
            ("GET", "/apis/nobody.example.com/v1/nothings".to_owned(), Err(0)),
            ("GET", "/api/v1/watch/pods".to_owned(), Ok(Verb::Watch)),
            ("DELETE", "/api/v1/watch/pods".to_owned(), Err(405)),
        ] {
            assert_eq!(route(&catalog, method, &path), expected, "{method} {path}");
        }
    }
}
