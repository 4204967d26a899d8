//! Requests for resources that only other API servers on the same etcd serve, because they are of another release, or have other flags.

use std::rc::Rc;

use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use pilothouse_api::path::ResourcePath;
use pilothouse_apimachinery::status::{Result, Status};

use super::super::worker::Worker;
use super::forward::{ForwardedRequest, Forwarding};

/// Marks a request that another server has passed on, so that it is not passed on again.
const PROXIED: &str = "x-kubernetes-peer-proxied";
const TRUE: &str = "true";

/// The ids of the servers that serve a resource which this one does not serve. None, if another server has passed the request on: then
/// it is served here, or not at all.
pub fn route(worker: &Worker, request: &HttpRequest, path: &ResourcePath<'_>) -> Vec<String> {
    let Some(peers) = &worker.shared.peers else { return Vec::new() };
    if request.headers().get(PROXIED).is_some_and(|value| value == TRUE) {
        return Vec::new();
    }
    peers.serving(path.group, path.version, path.resource)
}

/// Passes a request on to one of these servers.
pub async fn pass(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    servers: &[String],
    forwarded: &ForwardedRequest<'_>,
) -> Result<HttpResponse> {
    let live = match &worker.shared.peers {
        Some(peers) => peers.find_live(servers).await.map(|peer| (peers, peer)),
        None => None,
    };
    let Some((peers, peer)) = live else {
        return Err(Status::unavailable(
            "Error getting ip and port info of the remote server while proxying",
        ));
    };
    let (path, query) = (forwarded.path, request.query_string());
    let destination = peers.destination(&peer, path, query, &forwarded.user.name);
    let forwarding = Forwarding {
        upstream: peers.upstream(),
        sends_uid: true,
        mark: Some((PROXIED, TRUE)),
        head_timeout: None,
        refuses_redirects: false,
        error_prefixes: ["", ""],
    };
    let response = forwarding.pass(worker, request, payload, &destination, forwarded).await;
    worker.shared.metrics.peers.count_rerouted(response.status().as_u16());
    Ok(response)
}
