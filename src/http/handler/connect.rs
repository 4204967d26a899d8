//! Subresources that connect to other servers: logs are streamed, proxies pass requests and responses on, exec, attach and
//! port-forward leave HTTP. Authorization came before; [`verbs::connect`] resolves the destination.

pub mod aggregated;
pub mod forward;
mod headers;
mod html_links;
pub mod other_servers;
mod peers;
mod proxy;
mod translate;
mod upgraded;

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header;
use actix_web::web::Payload;
use actix_web::{HttpMessage as _, HttpRequest, HttpResponse};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use hyper::Method;
use pilothouse_actors::permit::Permit;
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::connect::location::{self, KubeletRules};
use pilothouse_api::connect::{self, ConnectSubresource, Destination, url};
use pilothouse_api::path::ResourcePath;
use pilothouse_apimachinery::media::{self, OfferedEncodings};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_client::upstream::{Failure, RequestBody, Upstream, UpstreamRequest, UpstreamResponse};
use pilothouse_types::identity::Identity;
use pilothouse_types::memory::MemoryBudget;
use pilothouse_types::trace::RequestTrace;
use tokio::time::sleep;

use crate::flowcontrol::heavy_pool::OwnedPool;
use crate::http::body::DeadlineLift;
use crate::http::drain::Drain;
use crate::http::peer::Peer;
use crate::limits::{KUBELET_REFUSAL_BYTES, KUBELET_REFUSAL_TIMEOUT};
use crate::registry::{Backend, Call, CallTarget, Execution, Origin, Requester, Warnings};
use crate::verbs::connect::{ConnectRequest, ConnectTarget, admit, resolve};

use super::render::text;
use super::worker::Worker;

/// Shared state of connecting subresources. One per server.
pub struct ConnectDeps {
    /// How the address of a kubelet is chosen.
    pub rules: KubeletRules,
    /// Connections to other servers.
    pub upstream: Arc<Upstream>,
    /// Whether exec and attach over WebSocket are translated to SPDY for kubelets.
    pub translates_streams: bool,
    /// Whether port-forward over WebSocket is unpacked to SPDY for kubelets.
    pub unpacks_tunnels: bool,
    /// How many bytes an upgraded connection may carry in a second, each way; `None` for any number.
    pub upgraded_bytes_per_second: Option<u64>,
    /// The memory budget of HTML pages whose links are rewritten.
    pub pages: MemoryBudget,
    /// Set at shutdown: followed logs end then, like watches.
    pub drain: Drain,
}

/// A request for a connecting subresource.
pub struct ConnectInput<'a> {
    /// The subresource.
    pub subresource: ConnectSubresource,
    /// The resource that it belongs to.
    pub resource: &'a Arc<Resource>,
    /// The parsed path.
    pub path_info: &'a ResourcePath<'a>,
    /// The whole path, unescaped.
    pub path: &'a str,
    /// The query parameters.
    pub query: &'a Query<'a>,
    /// The user of the request.
    pub user: &'a Identity,
    /// Collects warnings for the client.
    pub warnings: &'a Warnings,
    /// The encodings of objects.
    pub offer: OfferedEncodings,
    /// The threads for heavy work.
    pub pool: OwnedPool<Backend>,
    /// The trace of the request.
    pub trace: &'a RequestTrace,
}

/// Serves a connecting subresource.
pub async fn serve(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    input: &ConnectInput<'_>,
) -> Result<HttpResponse> {
    if input.path_info.name.is_empty() {
        return Err(Status::no_such_resource());
    }
    if !input.subresource.allows(request.method().as_str()) {
        return Err(Status::method_not_allowed());
    }
    if input.subresource == ConnectSubresource::Log {
        media::check_acceptable_text(text(request.headers(), header::ACCEPT), input.offer)?;
    } else {
        connect::refuse_dry_run(input.query)?;
    }
    let connect_request = ConnectRequest {
        subresource: input.subresource,
        plural: &input.resource.plural,
        namespace: if input.resource.namespaced { input.path_info.namespace } else { "" },
        name: input.path_info.name,
        query: input.query,
        path: url::sub_path(input.path_info.rest, input.path),
    };
    let target = CallTarget {
        namespace: connect_request.namespace,
        name: connect_request.name,
        subresource: input.path_info.subresource,
        ..CallTarget::stored(input.resource)?
    };
    let requester = Requester { user: input.user, origin: Origin::Client, user_agent: "" };
    let execution =
        Execution { permit: Permit::none().traced(input.trace.clone()), ..Execution::unlimited() };
    let call = Call { execution, ..Call::new(target, requester, input.query, input.warnings) };
    admit(&worker.backend, &call, &connect_request).await?;
    let deps = &worker.shared.connect;
    let target =
        resolve(&worker.backend, &deps.rules, &connect_request).await?.on_behalf_of(&input.user.name);
    if let Some(deadline) = request.extensions().get::<DeadlineLift>() {
        deadline.lift();
    }
    match target {
        ConnectTarget::NotScheduled => Ok(HttpResponse::NoContent().finish()),
        ConnectTarget::Log(destination) => log(deps, request, &destination, input.path_info.name).await,
        ConnectTarget::Streams(destination, streams) => {
            upgraded::streams(deps, request, &destination, &streams).await
        }
        ConnectTarget::Ports(destination) => upgraded::ports(deps, request, &destination).await,
        ConnectTarget::Proxy(destination) if headers::is_upgrade_request(request) => {
            upgraded::through_proxy(deps, request, destination).await
        }
        ConnectTarget::Proxy(destination) => proxy::pass(deps, request, payload, destination, input).await,
    }
}

/// Streams the log of a container.
async fn log(
    deps: &Arc<ConnectDeps>,
    request: &HttpRequest,
    destination: &Destination,
    name: &str,
) -> Result<HttpResponse> {
    let request_to_kubelet = UpstreamRequest {
        method: Method::GET,
        headers: headers::for_own_request(&destination.location),
        body: RequestBody::Empty,
    };
    let get_error = |error: &dyn std::fmt::Display| {
        Status::unexplained(format!(
            "Get {}: {error}",
            pilothouse_apimachinery::field::quoted(&destination.location.url())
        ))
    };
    let response = deps.upstream.send(destination, request_to_kubelet).await;
    let response =
        response.map_err(|failure| common_status(&failure).unwrap_or_else(|| get_error(&failure)))?;
    match response.status.as_u16() {
        200..=206 => {}
        300..=399 => return Err(get_error(&"redirects forbidden")),
        code => return Err(refusal(code, response, name).await),
    }
    let drain = deps.drain.clone();
    let body = response.body.take_until(Box::pin(async move { drain.begun().await }));
    if translate::wants_websocket(request) {
        return translate::log(request, body);
    }
    Ok(HttpResponse::Ok().insert_header((header::CONTENT_TYPE, "text/plain")).streaming(body))
}

/// The error for a kubelet's refusal to give a log.
async fn refusal(code: u16, response: UpstreamResponse, name: &str) -> Box<Status> {
    let message = read_prefix(response.body, KUBELET_REFUSAL_TIMEOUT).await;
    let resource = GroupResource { group: "", resource: "pods/log" };
    Status::from_remote(code, resource, name, &String::from_utf8_lossy(&message))
}

/// Reads the beginning of a body, bounded in size and time. Logs have no timeout: a kubelet that stops in the middle of its error
/// would keep the client waiting for ever.
async fn read_prefix<E>(
    mut body: impl Stream<Item = std::result::Result<Bytes, E>> + Unpin,
    limit: Duration,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut timer = pin!(sleep(limit));
    loop {
        let piece = tokio::select! {
            biased;
            piece = body.next() => piece,
            () = &mut timer => break,
        };
        let Some(Ok(piece)) = piece else { break };
        let remaining = KUBELET_REFUSAL_BYTES - bytes.len();
        bytes.extend_from_slice(&piece[..piece.len().min(remaining)]);
        if bytes.len() == KUBELET_REFUSAL_BYTES {
            break;
        }
    }
    bytes
}

/// The status for failures that mean the same everywhere; `None` for the others.
fn common_status(failure: &Failure) -> Option<Box<Status>> {
    match failure {
        Failure::Busy => Some(Status::too_many_requests(failure.to_string(), 1)),
        Failure::NotAllowed => Some(location::not_allowed()),
        Failure::BadTarget => Some(Status::bad_request(failure.to_string())),
        Failure::SlowResponse => Some(Status::no_answer(failure.to_string())),
        _ => None,
    }
}

/// The address of the client, for X-Forwarded-For.
fn client_address(request: &HttpRequest) -> Option<String> {
    let address = request.extensions().get::<Peer>().and_then(|peer| peer.address);
    address.map(|address| address.ip().to_string())
}

/// The host as the client named it.
fn host(request: &HttpRequest) -> &str {
    match text(request.headers(), header::HOST) {
        // HTTP/2 has it in the `:authority` of the URL.
        "" => request.uri().authority().map(|authority| authority.as_str()).unwrap_or_default(),
        host => host,
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[actix_rt::test]
    async fn kubelet_refusal_is_read_up_to_its_limits_of_size_and_time() {
        let piece = |text: &'static [u8]| Ok::<_, ()>(Bytes::from_static(text));
        let whole = stream::iter([piece(b"not "), piece(b"you")]);
        assert_eq!(read_prefix(whole, KUBELET_REFUSAL_TIMEOUT).await, b"not you");
        let broken = stream::iter([piece(b"not "), Err(()), piece(b"you")]);
        assert_eq!(read_prefix(broken, KUBELET_REFUSAL_TIMEOUT).await, b"not ");
        let stuck = stream::iter([piece(b"not ")]).chain(stream::pending());
        assert_eq!(read_prefix(stuck, Duration::ZERO).await, b"not ");
        let endless = stream::repeat_with(|| piece(&[b'x'; 1_000]));
        assert_eq!(read_prefix(endless, KUBELET_REFUSAL_TIMEOUT).await.len(), KUBELET_REFUSAL_BYTES);
    }
}
