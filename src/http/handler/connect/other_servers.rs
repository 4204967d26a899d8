//! Requests that this server does not serve itself.

use std::rc::Rc;
use std::sync::Arc;

use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use pilothouse_api::aggregation::ApiService;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::path::{Request, Target};
use pilothouse_apimachinery::status::Result;

use super::super::worker::Worker;
use super::forward::ForwardedRequest;
use super::{aggregated, peers};

/// The servers that serve a request.
pub enum OtherServer {
    /// The extension API server of this APIService.
    Extension(Arc<ApiService>),
    /// API servers on the same etcd, by their ids.
    Peers(Vec<String>),
}

/// Who serves a request, unless this server does. `resource`: what this server has at its path.
pub async fn route(
    worker: &Worker,
    http: &HttpRequest,
    request: &Request<'_>,
    path: &str,
    resource: Option<&Arc<Resource>>,
) -> Result<Option<OtherServer>> {
    if let Some(registration) = aggregated::route(worker, request, path, resource).await? {
        return Ok(Some(OtherServer::Extension(registration)));
    }
    let Target::Resource(path_info) = &request.target else { return Ok(None) };
    // No server has a handler for a path that begins with two slashes.
    if resource.is_some() || path.starts_with("//") {
        return Ok(None);
    }
    let servers = peers::route(worker, http, path_info);
    if servers.is_empty() {
        return Ok(None);
    }
    // A definition that cannot be read here is served by nobody.
    worker.served().catalog.check_readable(path_info.group, path_info.resource)?;
    Ok(Some(OtherServer::Peers(servers)))
}

/// Passes a request on.
pub async fn pass(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    server: OtherServer,
    forwarded: &ForwardedRequest<'_>,
) -> Result<HttpResponse> {
    match server {
        OtherServer::Extension(registration) => {
            Ok(aggregated::pass(worker, request, payload, &registration, forwarded).await)
        }
        OtherServer::Peers(servers) => peers::pass(worker, request, payload, &servers, forwarded).await,
    }
}
