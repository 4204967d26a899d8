//! Routing: which resource and subresource a path leads to, and which verbs are allowed. The order of checks is the reference's,
//! because it decides which of several errors a client sees.

use std::sync::Arc;

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::verb::Verb;

use super::catalog::resource::Resource;
use super::catalog::{Catalog, Group};
use super::path::{self, ResourcePath};

/// The resource of the path. `None`: even its group is unknown, which the reference answers in plain text.
pub fn find(
    catalog: &Catalog,
    known: Option<Arc<Resource>>,
    found: &ResourcePath<'_>,
    verb: Verb,
) -> Result<Option<Arc<Resource>>> {
    let Some(resource) = known else {
        // Below custom groups the reference knows only what is in them.
        let known = catalog.group(found.group).is_some_and(Group::is_builtin);
        return if known { Err(Status::no_such_resource()) } else { Ok(None) };
    };
    let misplaced = match (resource.namespaced, found.namespace.is_empty()) {
        // A namespaced object needs its namespace in the path; its collection does not.
        (true, true) => !found.name.is_empty(),
        // The request would be authorized in the namespace of the path, and served as an object of the whole cluster.
        (false, false) => found.within_namespace,
        _ => false,
    };
    let unknown_sub = !found.subresource.is_empty() && resource.subresource(found.subresource).is_none();
    if resource.custom.is_some() {
        return custom(resource, found, verb, unknown_sub, misplaced);
    }
    let too_deep = !found.rest.is_empty() && found.subresource != "proxy";
    // Reviews have only a collection to POST to: no objects, and none across all namespaces.
    let everywhere = resource.namespaced && found.namespace.is_empty();
    let only_asked = !resource.verbs.contains(Verb::Get) && !resource.verbs.contains(Verb::List);
    let nothing_there = only_asked && found.subresource.is_empty() && (!found.name.is_empty() || everywhere);
    if misplaced || unknown_sub || too_deep || nothing_there {
        return Err(Status::no_such_resource());
    }
    Ok(Some(resource))
}

/// Routing of custom resources: either the path matches completely or there is nothing.
fn custom(
    resource: Arc<Resource>,
    found: &ResourcePath<'_>,
    verb: Verb,
    unknown_sub: bool,
    misplaced: bool,
) -> Result<Option<Arc<Resource>>> {
    let everywhere = resource.namespaced && found.namespace.is_empty();
    if misplaced || (everywhere && !matches!(verb, Verb::List | Verb::Watch)) {
        return Ok(None);
    }
    // What follows a subresource is ignored.
    if unknown_sub {
        return Err(Status::not_found(resource.name(), found.name));
    }
    let is_terminating = resource.custom.as_ref().is_some_and(|custom| custom.is_terminating);
    if is_terminating && verb == Verb::Create && found.subresource.is_empty() {
        return Err(Status::definition_terminating(resource.name()));
    }
    Ok(Some(resource))
}

/// Refuses a path with nothing in the place of a name, as before a subresource: `pods//status`.
pub fn check_named(resource: &Resource, found: &ResourcePath<'_>, method: &str) -> Result<()> {
    let is_nameless = found.name.is_empty() && !found.subresource.is_empty() && resource.custom.is_none();
    let verbs = resource.subresource(found.subresource).map(|sub| sub.verbs);
    match verbs.filter(|verbs| is_nameless && verbs.contains(path::resource_verb(method))) {
        Some(_) => Err(Status::bad_request("name must be provided")),
        None => Ok(()),
    }
}

/// The verb, if the resource or subresource supports it.
pub fn allowed_verb(resource: &Resource, found: &ResourcePath<'_>, verb: Verb, method: &str) -> Result<Verb> {
    let verbs = resource.subresource(found.subresource).map_or(resource.verbs, |sub| sub.verbs);
    let named = !found.name.is_empty();
    let everywhere = resource.namespaced && found.namespace.is_empty();
    let is_custom = resource.custom.is_some();
    // POST to an object and PUT to a collection are meaningless, and so is a create across all namespaces. For custom resources
    // the name in the path of a POST is only informative.
    let fits = match verb {
        Verb::Create => (!named || is_custom || !found.subresource.is_empty()) && !everywhere,
        Verb::DeleteCollection => !everywhere,
        // The deprecated watch prefix is part of the path: it does not turn a write into a watch.
        Verb::Watch => method == "GET",
        Verb::Update | Verb::Patch | Verb::Get | Verb::Delete => named,
        _ => true,
    };
    let is_unnamed = !named && matches!(method, "PUT" | "PATCH");
    if is_unnamed && is_custom && !everywhere {
        return Err(Status::bad_request("name must be provided"));
    }
    // A watch of a collection that can only be listed is refused later, with another message: see `dispatch` of the handler.
    let looked_at = verb == Verb::Watch && !found.legacy_watch && !named && verbs.contains(Verb::List);
    if !fits || !(verbs.contains(verb) || looked_at) || (method == "HEAD" && !is_custom) {
        if is_custom {
            return Err(Status::not_supported(resource.name(), verb.as_str()));
        }
        let exists = verb != Verb::Proxy && is_mounted(resource, found, everywhere);
        return Err(if exists { Status::method_not_allowed() } else { Status::no_such_resource() });
    }
    if matches!(verb, Verb::Get | Verb::Delete | Verb::Patch) && !is_custom {
        check_segment(found.name)?;
    }
    Ok(verb)
}

/// Whether the path exists for any method: some resources have no objects, others no collection across all namespaces.
fn is_mounted(resource: &Resource, found: &ResourcePath<'_>, everywhere: bool) -> bool {
    let any = |verbs: &[Verb]| verbs.iter().any(|verb| resource.verbs.contains(*verb));
    if found.legacy_watch {
        return found.subresource.is_empty() && any(&[Verb::Watch]);
    }
    if !found.subresource.is_empty() {
        return true;
    }
    match (found.name.is_empty(), everywhere) {
        (false, _) => any(&[Verb::Get, Verb::Update, Verb::Patch, Verb::Delete]),
        (true, true) => any(&[Verb::List, Verb::Watch]),
        (true, false) => any(&[Verb::List, Verb::Watch, Verb::Create, Verb::DeleteCollection]),
    }
}

/// Refuses a name that is no valid path segment.
fn check_segment(name: &str) -> Result<()> {
    let why = match name {
        "." => "may not be '.'",
        ".." => "may not be '..'",
        _ if name.contains('/') => "may not contain '/'",
        _ if name.contains('%') => "may not contain '%'",
        _ => return Ok(()),
    };
    Err(Status::bad_request(format!("Name parameter invalid: {}: {why}", quoted(name))))
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::query::Query;

    use super::*;
    use crate::catalog::build::Builtin;
    use crate::catalog::runtime_config::RuntimeConfig;
    use crate::path::Request;

    /// The resulting verb, or the code of the error; 0 for an unknown path.
    fn routed(catalog: &Catalog, method: &str, path: &str) -> std::result::Result<Verb, u16> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let request = Request::parse(method, path, &Query::parse(query)).unwrap();
        let found = request.resource().expect("a resource");
        let known = catalog.at(found).cloned();
        let resource =
            find(catalog, known, found, request.verb).map_err(|status| status.code)?.ok_or(0_u16)?;
        allowed_verb(&resource, found, request.verb, method).map_err(|status| status.code)
    }

    #[test]
    fn every_path_leads_where_the_reference_leads_it() {
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
            assert_eq!(routed(&catalog, method, &path), expected, "{method} {path}");
        }
    }
}
