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
use crate::application::StartError;
use crate::backend::conversion;
use crate::definitions::{Defined, Definitions, DefinitionsDeps, Synchronize};
use crate::http::handler::openapi::OpenApi;
use crate::http::handler::worker::{Served, Shared};

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
    fn with(&self, defined: &Defined, before: &Served) -> Served {
        let catalog = self.catalog.with(defined.resources.iter().cloned());
        let catalog = catalog.with_unreadable(defined.unreadable.clone());
        let groups: BTreeSet<&str> = defined.resources.iter().map(|resource| &*resource.gv.group).collect();
        // The OpenAPI document of a built-in group is reused unless custom resources share its group.
        let same = |name: &str| {
            let group = name.strip_prefix("apis/").map(|rest| rest.split('/').next().unwrap_or_default());
            group.is_none_or(|group| self.catalog.group(group).is_some() && !groups.contains(group))
        };
        let openapi = OpenApi::new(defined.described.clone(), self.contents).keeping(&before.openapi, same);
        Served::new(catalog, self.address.clone(), openapi).pending(defined.written.clone())
    }
}

/// Starts the actor that follows definitions. When this returns, custom resources from before the start are served.
pub(super) async fn follow(parts: &Arc<ServerParts>) -> Result<(), StartError> {
    let catalog = &parts.builtin.catalog;
    let found = catalog.find("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    let Some(resource) = found.cloned() else { return Ok(()) };
    // A weak reference: the parts own the actor, so a strong one would keep both alive.
    let held = Arc::downgrade(parts);
    let outside = DefinitionsDeps {
        notifiers: parts.storage.notifiers.clone(),
        backend: backend(parts, Authorizer::asking(parts.auth.deciding.panel()).start()),
        resource,
        catalog: catalog.clone(),
        first_ordinal: catalog.resources().map(|resource| resource.ordinal).max().unwrap_or(0) + 1,
        publish: Box::new(move |defined| publish(&held, &defined)),
        fatal: parts.storage.fatal.clone(),
    };
    let broken = StartError::part("custom kinds");
    let done = Definitions::begin(outside).send(Synchronize).await;
    done.map_err(|error| broken(&error))?.map_err(|why| broken(&why))
}

/// The resource that is served under this name now. Built-in resources are never replaced.
pub(super) fn served_now(shared: &Shared, resource: &Arc<Resource>) -> Option<Arc<Resource>> {
    if resource.custom.is_none() {
        return Some(resource.clone());
    }
    shared.served.load().catalog.find(&resource.gv.group, &resource.gv.version, &resource.plural).cloned()
}

/// Publishes the defined resources, then ends watches of resources that changed or are gone. Of the deletions that came with the
/// end of a resource its watches are the only ones to tell: nobody can watch it again.
fn publish(parts: &Weak<ServerParts>, defined: &Defined) {
    let Some(parts) = parts.upgrade() else { return };
    let before = parts.shared.served.load_full();
    parts.shared.served.store(Arc::new(parts.builtin.with(defined, &before)));
    // Take the new handles before dropping the old ones, so that shared connections stay open.
    let converters = conversion::wanted(&defined.resources, &parts.context.pool);
    *parts.converters.lock() = converters;
    let all = parts.watches.broadcasters();
    for changed in &defined.changed {
        let is_of =
            |resource: &&Arc<Resource>| resource.stored.as_ref().is_some_and(|it| it.store == *changed);
        let how = match defined.resources.iter().find(is_of) {
            Some(_) => Close::AtOnce,
            None => Close::WhenCaughtUp,
        };
        for broadcaster in &all {
            let told = broadcaster.send(CloseType { type_name: changed.clone(), how });
            // A broadcaster that is gone has no watches left.
            actix::spawn(async move {
                let _gone = told.await;
            });
        }
    }
}
