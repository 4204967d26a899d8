//! Assembles custom resources: starts the actor that follows CustomResourceDefinitions, and publishes the resources it defines.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use actix::Actor as _;
use pilothouse_actors::authorizer::Authorizer;
use pilothouse_actors::broadcaster::CloseType;
use pilothouse_actors::session_waker::Close;
use pilothouse_api::catalog::Catalog;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::openapi::Contents;

use super::{ServerParts, backend};
use crate::apiextensions::{Defined, Definitions, DefinitionsDeps, Synchronize};
use crate::http::handler::openapi::OpenApi;
use crate::http::handler::worker::{Served, Shared};
use crate::registry::conversion;
use crate::server::application::StartError;

/// The built-in resources, and their OpenAPI documents.
pub(super) struct Builtins {
    catalog: Catalog,
    address: Arc<str>,
    contents: Contents,
}

impl Builtins {
    pub(super) fn new(catalog: &Catalog, address: &str, contents: Contents) -> Builtins {
        Builtins { catalog: catalog.clone(), address: address.into(), contents }
    }

    /// The catalog and the documents of the built-in resources together with these custom ones.
    fn with(&self, defined: &Defined, previous: &Served) -> Served {
        let catalog = self.catalog.with(defined.resources.iter().cloned());
        let catalog = catalog.with_unreadable(defined.unreadable.clone());
        let groups: BTreeSet<&str> = defined.resources.iter().map(|resource| &*resource.gv.group).collect();
        // The OpenAPI document of a built-in group is reused unless custom resources share its group.
        let is_unchanged = |name: &str| {
            let group = name.strip_prefix("apis/").map(|rest| rest.split('/').next().unwrap_or_default());
            group.is_none_or(|group| self.catalog.group(group).is_some() && !groups.contains(group))
        };
        let openapi = OpenApi::new(defined.described.clone(), self.contents)
            .with_cache_of(&previous.openapi, is_unchanged);
        Served::new(catalog, self.address.clone(), openapi).awaiting_definitions(defined.written.clone())
    }
}

/// Starts the actor that follows definitions. When this returns, custom resources from before the start are served.
pub(super) async fn follow(parts: &Arc<ServerParts>) -> Result<(), StartError> {
    let catalog = &parts.builtin.catalog;
    let resource = catalog.find("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    let Some(resource) = resource.cloned() else { return Ok(()) };
    // A weak reference: the parts own the actor, so a strong one would keep both alive.
    let weak_parts = Arc::downgrade(parts);
    let deps = DefinitionsDeps {
        notifiers: parts.storage.notifiers.clone(),
        backend: backend(parts, Authorizer::with_source(parts.auth.authorizers.source()).start()),
        resource,
        catalog: catalog.clone(),
        first_ordinal: catalog.resources().map(|resource| resource.ordinal).max().unwrap_or(0) + 1,
        publish: Box::new(move |defined| publish(&weak_parts, &defined)),
        served: parts.shared.served_definitions.clone(),
        shared_types: parts.shared_types.clone(),
        fatal: parts.storage.fatal.clone(),
    };
    let part_error = StartError::part("custom kinds");
    let result = Definitions::begin(deps).send(Synchronize).await;
    result.map_err(|error| part_error(&error))?.map_err(|error| part_error(&error))
}

/// The resource that is served under this name now. Built-in resources are never replaced.
pub(super) fn current_resource(shared: &Shared, resource: &Arc<Resource>) -> Option<Arc<Resource>> {
    if resource.custom.is_none() {
        return Some(resource.clone());
    }
    shared.served.load().catalog.find(&resource.gv.group, &resource.gv.version, &resource.plural).cloned()
}

/// The same resource in whichever version is served now, the same one if possible.
pub(super) fn served_version(shared: &Shared, resource: &Arc<Resource>) -> Option<Arc<Resource>> {
    let any_version = || {
        let served = shared.served.load();
        served.catalog.find_in_any_version(&resource.gv.group, &resource.plural).cloned()
    };
    current_resource(shared, resource).or_else(any_version)
}

/// Publishes the defined resources, then ends watches of resources that changed or are gone. The watches of a
/// removed resource first send the deletions of its objects: nobody can watch it again.
fn publish(parts: &Weak<ServerParts>, defined: &Defined) {
    let Some(parts) = parts.upgrade() else { return };
    let previous = parts.shared.served.load_full();
    parts.shared.served.store(Arc::new(parts.builtin.with(defined, &previous)));
    // Take the new handles before dropping the old ones, so that shared connections stay open.
    let keep_alives = conversion::keep_alive_handles(&defined.resources, &parts.context.pool);
    *parts.conversion_keep_alives.lock() = keep_alives;
    let broadcasters = parts.watches.broadcasters();
    for type_name in &defined.changed {
        let is_stored_there =
            |resource: &&Arc<Resource>| resource.stored().is_some_and(|stored| stored.store == *type_name);
        let mode = match defined.resources.iter().find(is_stored_there) {
            Some(_) => Close::AtOnce,
            None => Close::WhenCaughtUp,
        };
        for broadcaster in &broadcasters {
            let closing = broadcaster.send(CloseType { type_name: type_name.clone(), how: mode });
            // A broadcaster that has stopped has no watches left.
            actix::spawn(async move {
                let _stopped = closing.await;
            });
        }
    }
}
