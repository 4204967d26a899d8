//! Requests for group versions that extension API servers serve.

use std::rc::Rc;
use std::sync::Arc;

use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use pilothouse_api::aggregation::{ApiService, Service, parse_discovery_path};
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::connect::Destination;
use pilothouse_api::path::{Request, Target};
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::status::Status;

use crate::aggregation::Extensions;
use crate::limits::EXTENSION_DISCOVERY_TIMEOUT;

use super::super::openapi;
use super::super::worker::Worker;
use super::forward::{ForwardedRequest, Forwarding, unavailable};

/// The path prefix of OpenAPI v3 documents.
const OPENAPI: &str = "/openapi/v3/";
/// Extension API servers, and how they are called.
pub struct Aggregation {
    /// The group versions that they serve.
    pub extensions: Arc<Extensions>,
    /// Whether redirects are refused.
    pub refuses_redirects: bool,
    /// Whether the user's UID is sent along.
    pub sends_uid: bool,
}

/// The APIService that serves a request, unless this server does. Free for requests that matched a built-in resource. 503 if that
/// cannot be known: the wrong server might answer, and clients would believe that objects were deleted.
pub async fn route(
    worker: &Worker,
    request: &Request<'_>,
    path: &str,
    resource: Option<&Arc<Resource>>,
) -> Result<Option<Arc<ApiService>>, Box<Status>> {
    if resource.is_some_and(|resource| resource.custom.is_none()) {
        return Ok(None);
    }
    let extensions = &worker.shared.aggregation.extensions;
    let (group, version) = match &request.target {
        Target::Resource(path_info) if path.starts_with("/apis/") => (path_info.group, path_info.version),
        Target::Resource(_) => return Ok(None),
        Target::NonResource(path) => match path.strip_prefix(OPENAPI) {
            Some(document) if !openapi::has_own(worker, document) => {
                return Ok(extensions.find_by_openapi_document(document).await);
            }
            Some(_) => return Ok(None),
            None => match parse_discovery_path(path) {
                Some(version) => version,
                None => return Ok(None),
            },
        },
    };
    if is_builtin(worker, group, version) {
        return Ok(None);
    }
    let api_service = extensions.find(group, version).await;
    let api_service = api_service.map_err(|_| Status::unavailable("the APIServices cannot be read"))?;
    match api_service {
        Some(registration) if registration.is_unreadable => {
            let name = quoted(&registration.name);
            Err(Status::unavailable(format!("apiservices.apiregistration.k8s.io {name} cannot be read")))
        }
        api_service => Ok(api_service),
    }
}

/// APIServices cannot replace built-in versions.
fn is_builtin(worker: &Worker, group: &str, version: &str) -> bool {
    let served = worker.served();
    let version = served.catalog.group(group).and_then(|group| group.version(version));
    version.is_some_and(|version| version.resources.iter().any(|resource| resource.custom.is_none()))
}

/// Proxies a request to the extension API server that is registered.
pub async fn pass(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    registration: &ApiService,
    forwarded: &ForwardedRequest<'_>,
) -> HttpResponse {
    let Some(service) = registration.service.as_ref().filter(|_| registration.is_available) else {
        return unavailable("service unavailable");
    };
    let destination = match resolve(worker, service, request, forwarded).await {
        Ok(destination) => destination,
        Err(error) => {
            tracing::debug!(
                name = registration.name,
                error,
                "the service of an aggregated API cannot be resolved"
            );
            return unavailable("service unavailable");
        }
    };
    let aggregation = &worker.shared.aggregation;
    let forwarding = Forwarding {
        upstream: aggregation.extensions.upstream(),
        sends_uid: aggregation.sends_uid,
        mark: None,
        // Every client requests discovery, so a slow extension server must not delay it for long.
        head_timeout: parse_discovery_path(forwarded.path).map(|_| EXTENSION_DISCOVERY_TIMEOUT),
        refuses_redirects: aggregation.refuses_redirects,
        error_prefixes: ["error trying to reach service: ", "error dialing backend: "],
    };
    forwarding.pass(worker, request, payload, &destination, forwarded).await
}

async fn resolve(
    worker: &Worker,
    service: &Service,
    request: &HttpRequest,
    forwarded: &ForwardedRequest<'_>,
) -> Result<Destination, String> {
    let (extensions, path, query) =
        (&worker.shared.aggregation.extensions, forwarded.path, request.query_string());
    let destination = extensions.resolve(&worker.backend, forwarded.permit, service, path, query).await?;
    Ok(Destination { user: forwarded.user.name.clone(), ..destination })
}
