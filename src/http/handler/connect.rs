//! Subresources that connect to other servers: logs are streamed, proxies pass requests and responses on, exec, attach and
//! port-forward leave HTTP. Authorization came before; [`verbs::connect`] resolves the destination.

pub mod aggregated;
mod headers;
mod html_links;
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
use pilothouse_api::catalog::resource::Resource;
use pilothouse_api::connect::location::{self, KubeletRules};
use pilothouse_api::connect::{self, ConnectSubresource, Destination, url};
use pilothouse_api::path::ResourcePath;
use pilothouse_apimachinery::media::{self, OfferedEncodings};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::status::{GroupResource, Result, Status};
use pilothouse_types::identity::Identity;
use pilothouse_types::memory::MemoryBudget;
use tokio::time::sleep;

use crate::backend::{Backend, BodylessCall, Origin, Warnings};
use crate::heavy_pool::OwnedPool;
use crate::http::body::DeadlineLift;
use crate::http::drain::Drain;
use crate::http::peer::Peer;
use crate::limits::{KUBELET_REFUSAL_BYTES, KUBELET_REFUSAL_TIMEOUT};
use crate::upstream::{Failure, RequestBody, Upstream, UpstreamRequest, UpstreamResponse};
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
    /// The memory budget of HTML pages whose links are rewritten.
    pub pages: MemoryBudget,
    /// Set at shutdown: followed logs end then, like watches.
    pub leaving: Drain,
}

/// A request for a connecting subresource.
pub struct ConnectInput<'a> {
    /// The subresource.
    pub way: ConnectSubresource,
    /// The resource that it belongs to.
    pub resource: &'a Arc<Resource>,
    /// The parsed path.
    pub found: &'a ResourcePath<'a>,
    /// The whole path, unescaped.
    pub path: &'a str,
    /// The query parameters.
    pub query: &'a Query<'a>,
    /// The user who asks.
    pub user: &'a Identity,
    /// Collects warnings for the client.
    pub warnings: &'a Warnings,
    /// The encodings of objects.
    pub offer: OfferedEncodings,
    /// The threads for heavy work.
    pub pool: OwnedPool<Backend>,
}

/// Serves a connecting subresource.
pub async fn serve(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    out: &ConnectInput<'_>,
) -> Result<HttpResponse> {
    if out.found.name.is_empty() {
        return Err(Status::no_such_resource());
    }
    if !out.way.allows(request.method().as_str()) {
        return Err(Status::method_not_allowed());
    }
    if out.way == ConnectSubresource::Log {
        media::routed_text(text(request.headers(), header::ACCEPT), out.offer)?;
    } else {
        connect::refuse_dry_run(out.query)?;
    }
    let asked = ConnectRequest {
        way: out.way,
        plural: &out.resource.plural,
        namespace: if out.resource.namespaced { out.found.namespace } else { "" },
        name: out.found.name,
        query: out.query,
        path: url::sub_path(out.found.rest, out.path),
    };
    let call = BodylessCall {
        resource: out.resource,
        namespace: asked.namespace,
        name: asked.name,
        subresource: out.found.subresource,
        query: out.query,
        warnings: out.warnings,
        user: out.user,
        origin: Origin::Client,
        user_agent: "",
    };
    let call = call.call()?;
    admit(&worker.backend, &call, &asked).await?;
    let connecting = &worker.shared.connecting;
    let led = resolve(&worker.backend, &connecting.rules, &asked).await?.by(&out.user.name);
    if let Some(patience) = request.extensions().get::<DeadlineLift>() {
        patience.have();
    }
    match led {
        ConnectTarget::Nowhere => Ok(HttpResponse::NoContent().finish()),
        ConnectTarget::Log(to) => log(connecting, request, &to, out.found.name).await,
        ConnectTarget::Streams(to, streams) => upgraded::streams(connecting, request, &to, &streams).await,
        ConnectTarget::Ports(to) => upgraded::ports(connecting, request, &to).await,
        ConnectTarget::Proxy(to) if headers::asks_to_switch(request) => {
            upgraded::through_proxy(connecting, request, to).await
        }
        ConnectTarget::Proxy(to) => proxy::pass(connecting, request, payload, to, out).await,
    }
}

/// Streams the log of a container.
async fn log(
    connecting: &Arc<ConnectDeps>,
    request: &HttpRequest,
    to: &Destination,
    name: &str,
) -> Result<HttpResponse> {
    let ask = UpstreamRequest {
        method: Method::GET,
        headers: headers::own(&to.location),
        body: RequestBody::Empty,
    };
    let failed = |why: &dyn std::fmt::Display| {
        Status::unexplained(format!(
            "Get {}: {why}",
            pilothouse_apimachinery::field::quoted(&to.location.url())
        ))
    };
    let answer = connecting.upstream.ask(to, ask).await;
    let answer = answer.map_err(|failure| common(&failure).unwrap_or_else(|| failed(&failure)))?;
    match answer.status.as_u16() {
        200..=206 => {}
        300..=399 => return Err(failed(&"redirects forbidden")),
        code => return Err(refusal(code, answer, name).await),
    }
    let leaving = connecting.leaving.clone();
    let body = answer.body.take_until(Box::pin(async move { leaving.begun().await }));
    if translate::wants_websocket(request) {
        return translate::log(request, body);
    }
    Ok(HttpResponse::Ok().insert_header((header::CONTENT_TYPE, "text/plain")).streaming(body))
}

/// The error for a kubelet's refusal to give a log.
async fn refusal(code: u16, answer: UpstreamResponse, name: &str) -> Box<Status> {
    let said = beginning(answer.body, KUBELET_REFUSAL_TIMEOUT).await;
    let of = GroupResource { group: "", resource: "pods/log" };
    Status::passed_on(code, of, name, &String::from_utf8_lossy(&said))
}

/// Reads the beginning of a body, bounded in size and time. Logs have no timeout: a kubelet that stops in the middle of its error
/// would keep the client waiting for ever.
async fn beginning<E>(
    mut body: impl Stream<Item = std::result::Result<Bytes, E>> + Unpin,
    within: Duration,
) -> Vec<u8> {
    let mut said = Vec::new();
    let mut late = pin!(sleep(within));
    loop {
        let piece = tokio::select! {
            biased;
            piece = body.next() => piece,
            () = &mut late => break,
        };
        let Some(Ok(piece)) = piece else { break };
        let room = KUBELET_REFUSAL_BYTES - said.len();
        said.extend_from_slice(&piece[..piece.len().min(room)]);
        if said.len() == KUBELET_REFUSAL_BYTES {
            break;
        }
    }
    said
}

/// The status for failures that mean the same everywhere; `None` for the others.
fn common(failure: &Failure) -> Option<Box<Status>> {
    match failure {
        Failure::Busy => Some(Status::too_many_requests(failure.to_string(), 1)),
        Failure::NotAllowed => Some(location::not_allowed()),
        Failure::BadTarget => Some(Status::bad_request(failure.to_string())),
        Failure::SlowAnswer => Some(Status::no_answer(failure.to_string())),
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
    async fn a_refusal_is_read_as_far_as_it_comes_in_time_and_no_further() {
        let piece = |text: &'static [u8]| Ok::<_, ()>(Bytes::from_static(text));
        let whole = stream::iter([piece(b"not "), piece(b"you")]);
        assert_eq!(beginning(whole, KUBELET_REFUSAL_TIMEOUT).await, b"not you");
        let broken = stream::iter([piece(b"not "), Err(()), piece(b"you")]);
        assert_eq!(beginning(broken, KUBELET_REFUSAL_TIMEOUT).await, b"not ");
        let stuck = stream::iter([piece(b"not ")]).chain(stream::pending());
        assert_eq!(beginning(stuck, Duration::ZERO).await, b"not ");
        let endless = stream::repeat_with(|| piece(&[b'x'; 1_000]));
        assert_eq!(beginning(endless, KUBELET_REFUSAL_TIMEOUT).await.len(), KUBELET_REFUSAL_BYTES);
    }
}
