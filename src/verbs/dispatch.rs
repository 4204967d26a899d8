//! Dispatches calls to the functions of verbs, also on the threads for heavy work.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pilothouse_api::catalog::Catalog;
use pilothouse_api::catalog::backing::Backing;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::path::ResourcePath;
use pilothouse_api::subresources;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::verb::Verb;

use super::listing::DetachedListing;
use super::{Reply, Success, VerbResult};
use super::{action_subresources, computed, create, delete, delete_collection, get, list, patch, update};
use crate::registry::detached_call::DetachedCall;
use crate::registry::{Backend, Call, CallTarget, Warnings};

/// What serves a request for a resource; 404 if nothing does.
pub fn target<'a>(
    catalog: &'a Catalog,
    resource: &'a Arc<Resource>,
    path: &'a ResourcePath<'_>,
) -> Result<CallTarget<'a>> {
    let target = match &resource.backing {
        Backing::Store(stored) => {
            let subresource = path.subresource;
            if subresources::strategy(subresource).is_none()
                && !action_subresources::NAMES.contains(&subresource)
            {
                return Err(Status::no_such_resource());
            }
            CallTarget { subresource, ..CallTarget::new(resource, stored) }
        }
        Backing::Computed(computed) => CallTarget::new(resource, &computed.placeholder),
        Backing::Subresource { resource: plural, subresource } => {
            let server = catalog.find(&resource.gv.group, &resource.gv.version, plural);
            let server = server.ok_or_else(Status::no_such_resource)?;
            CallTarget { subresource, alias: Some(resource), ..CallTarget::stored(server)? }
        }
        Backing::Unserved => return Err(Status::no_such_resource()),
    };
    let namespace = if target.resource.namespaced { path.namespace } else { "" };
    Ok(CallTarget { namespace, name: path.name, ..target })
}

/// Carries out a call. Watches have a function of their own, because they stay with their worker.
pub async fn dispatch(backend: &Rc<Backend>, verb: Verb, call: &Call<'_>) -> VerbResult {
    if let Backing::Computed(computed) = &call.resource().backing {
        return Box::pin(computed::dispatch(backend, verb, call, computed.kind)).await;
    }
    match verb {
        Verb::Get => get::get(backend, call).await,
        // Boxed, because their futures are many times larger than that of a read.
        Verb::List => Box::pin(list::list(backend, call)).await,
        Verb::Create if !call.subresource().is_empty() => {
            Box::pin(action_subresources::create(backend, call)).await
        }
        Verb::Create => Box::pin(create::create(backend, call)).await,
        Verb::Update => Box::pin(update::update(backend, call)).await,
        Verb::Patch => Box::pin(patch::patch(backend, call)).await,
        Verb::Delete => Box::pin(delete::delete(backend, call)).await,
        Verb::DeleteCollection => Box::pin(delete_collection::delete_collection(backend, call)).await,
        _ => Err(Status::method_not_allowed()),
    }
}

/// The result of a heavy call, which travels between threads.
pub struct HeavyReply {
    reply: Result<DetachedReply>,
    warnings: Warnings,
}

/// A [`Reply`] that belongs to no thread.
enum DetachedReply {
    Object(Success, Bytes),
    List(Box<DetachedListing>),
    Status(Status),
}

/// Carries out a heavy call on the thread of this backend.
pub async fn dispatch_detached(backend: Rc<Backend>, verb: Verb, detached: DetachedCall) -> HeavyReply {
    let warnings = detached.warnings();
    let reply = match dispatch(&backend, verb, &detached.call(&warnings)).await {
        Ok(reply) => reply.detach(),
        Err(status) => Err(status),
    };
    HeavyReply { reply, warnings }
}

impl HeavyReply {
    /// Moves the reply to the thread of the client, and adds its warnings to those of the call.
    pub fn attach(self, backend: &Rc<Backend>, call: &Call<'_>) -> VerbResult {
        call.warnings.absorb(&self.warnings);
        self.reply.map(|reply| match reply {
            DetachedReply::Object(success, bytes) => Reply::Object(success, bytes),
            DetachedReply::List(listing) => Reply::List(listing.attach(backend)),
            DetachedReply::Status(status) => Reply::Status(status),
        })
    }
}

impl Reply {
    fn detach(self) -> Result<DetachedReply> {
        match self {
            Reply::Object(success, bytes) => Ok(DetachedReply::Object(success, bytes)),
            Reply::Status(status) => Ok(DetachedReply::Status(status)),
            Reply::List(listing) => Ok(DetachedReply::List(Box::new(listing.detach()))),
            Reply::Watch(_) => Err(Status::method_not_allowed()),
        }
    }
}
