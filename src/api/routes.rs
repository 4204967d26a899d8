//! What a path leads to, and what may be done there: which resource, whether there is such a part of it, and which verbs fit. Which of
//! several errors a client sees is the reference's choice.

use std::sync::Arc;

use super::catalog::resource::Resource;
use super::catalog::{Catalog, Group};
use super::field::quoted;
use super::path::ResourcePath;
use super::status::{Result, Status};
use super::verb::Verb;

/// The resource of the path. `None`: not even its group is known, which the reference answers in plain text.
pub fn find(
    catalog: &Catalog,
    known: Option<Arc<Resource>>,
    found: &ResourcePath<'_>,
    verb: Verb,
) -> Result<Option<Arc<Resource>>> {
    let Some(resource) = known else {
        // Of groups that were defined the reference knows nothing but what is in them.
        let known = catalog.group(found.group).is_some_and(Group::is_builtin);
        return if known { Err(Status::no_such_resource()) } else { Ok(None) };
    };
    let misplaced = match (resource.namespaced, found.namespace.is_empty()) {
        // A namespaced object has no address without its namespace; its collection has one.
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
    // What is only asked and never kept has an address for questions, and none for objects or those of all namespaces.
    let everywhere = resource.namespaced && found.namespace.is_empty();
    let only_asked = !resource.verbs.contains(Verb::Get) && !resource.verbs.contains(Verb::List);
    let nothing_there = only_asked && found.subresource.is_empty() && (!found.name.is_empty() || everywhere);
    if misplaced || unknown_sub || too_deep || nothing_there {
        return Err(Status::no_such_resource());
    }
    Ok(Some(resource))
}

/// The same for a resource that is not built in: it is either what the path says or not there at all.
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
    if unknown_sub || !found.rest.is_empty() {
        return Err(Status::not_found(resource.name(), found.name));
    }
    let is_going = resource.custom.as_ref().is_some_and(|custom| custom.is_going);
    if is_going && verb == Verb::Create && found.subresource.is_empty() {
        return Err(Status::definition_is_going(resource.name()));
    }
    Ok(Some(resource))
}

/// The verb, if the resource or its sub-resource knows it.
pub fn allowed_verb(resource: &Resource, found: &ResourcePath<'_>, verb: Verb, method: &str) -> Result<Verb> {
    let verbs = resource.subresource(found.subresource).map_or(resource.verbs, |sub| sub.verbs);
    let named = !found.name.is_empty();
    let everywhere = resource.namespaced && found.namespace.is_empty();
    let is_custom = resource.custom.is_some();
    // An object is not a collection: POST to a name and PUT to a collection have no meaning. Neither has a new object in
    // all namespaces at once. Of custom objects the name in the path of a POST is no more than what others are told of it.
    let fits = match verb {
        Verb::Create => (!named || is_custom || !found.subresource.is_empty()) && !everywhere,
        Verb::DeleteCollection => !everywhere,
        // The old prefix says it in the path: that alone does not make a write a watch.
        Verb::Watch => method == "GET",
        Verb::Update | Verb::Patch | Verb::Get | Verb::Delete => named,
        _ => true,
    };
    let is_unnamed = !named && matches!(method, "PUT" | "PATCH");
    if is_unnamed && is_custom && !everywhere {
        return Err(Status::bad_request("name must be provided"));
    }
    // Where a collection can be listed and not watched, a watch is refused later and in other words: see `dispatch` of the handler.
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

/// Whether there is anything at a path, for whatever method: some resources have no objects, others no collection in all
/// namespaces.
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

/// A name that could not stand in a path by itself is no name of anything.
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
    use super::*;
    use crate::api::catalog::build::Builtin;
    use crate::api::catalog::runtime_config::RuntimeConfig;
    use crate::api::path::Request;
    use crate::api::query::Query;

    /// The verb that is done, or the code of the refusal; 0 for a path that is nobody's.
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
            // All namespaces at once: they can be listed and nothing else.
            ("GET", "/api/v1/pods".to_owned(), Ok(Verb::List)),
            ("POST", "/api/v1/pods".to_owned(), Err(405)),
            ("DELETE", "/api/v1/pods".to_owned(), Err(405)),
            ("GET", "/api/v1/pods/p".to_owned(), Err(404)),
            // What has no namespace is found in none but that which is itself.
            ("GET", format!("{roles}/r"), Ok(Verb::Get)),
            ("GET", "/apis/rbac.authorization.k8s.io/v1/namespaces/n/clusterroles/r".to_owned(), Err(404)),
            ("GET", "/api/v1/namespaces/n".to_owned(), Ok(Verb::Get)),
            ("PUT", "/api/v1/namespaces/n/finalize".to_owned(), Ok(Verb::Update)),
            ("DELETE", "/api/v1/namespaces".to_owned(), Err(405)),
            // What is only asked has no objects.
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
