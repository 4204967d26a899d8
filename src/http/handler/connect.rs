//! Ways out of this server, as HTTP: a log is streamed, a proxy passes requests and answers on, a conversation leaves HTTP
//! altogether. Who may go was decided before; where to is decided by [`verbs::connect`].

pub mod extension;
mod headers;
mod pages;
mod proxy;
mod talk;
mod translate;

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
use pilothouse_actors::identity::Identity;
use tokio::time::sleep;

use crate::api::catalog::resource::Resource;
use crate::api::connect::place::{self, KubeletRules};
use crate::api::connect::{self, Destination, Way, url};
use crate::api::path::ResourcePath;
use crate::api::query::Query;
use crate::api::status::{GroupResource, Result, Status};
use crate::http::body::Patience;
use crate::http::drain::Drain;
use crate::http::peer::Peer;
use crate::limits::{KUBELET_REFUSAL, KUBELET_REFUSAL_BYTES};
use crate::upstream::{Answer, Ask, Failure, RequestBody, Upstream};
use crate::verbs::budget::Budget;
use crate::verbs::connect::{Asked, Led, admit, lead};
use crate::verbs::{Call, Warnings};

use super::render::text;
use super::worker::Worker;

/// What ways out need. One per server.
pub struct Connecting {
    /// How kubelets are found.
    pub rules: KubeletRules,
    /// The way to others.
    pub upstream: Arc<Upstream>,
    /// Whether streams of commands over WebSocket are put into the frames of kubelets.
    pub translates_streams: bool,
    /// Whether ports over WebSocket are.
    pub unpacks_tunnels: bool,
    /// How much the pages whose links are led back hold.
    pub pages: Budget,
    /// Turns when the server stops: logs that are followed end then, as watches do.
    pub leaving: Drain,
}

/// A request for a way out.
pub struct Out<'a> {
    /// Which.
    pub way: Way,
    /// What it stands below.
    pub resource: &'a Arc<Resource>,
    /// The path, taken apart.
    pub found: &'a ResourcePath<'a>,
    /// The path as a whole, without escapes.
    pub path: &'a str,
    /// The parameters.
    pub query: &'a Query<'a>,
    /// Who asks.
    pub user: &'a Identity,
    /// Where warnings go.
    pub warnings: &'a Warnings,
}

/// Goes out.
pub async fn serve(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: Payload,
    out: &Out<'_>,
) -> Result<HttpResponse> {
    if out.found.name.is_empty() {
        return Err(Status::no_such_resource());
    }
    if !out.way.allows(request.method().as_str()) {
        return Err(Status::method_not_allowed());
    }
    if out.way != Way::Log {
        connect::refuse_dry_run(out.query)?;
    }
    let asked = Asked {
        way: out.way,
        plural: &out.resource.plural,
        namespace: if out.resource.namespaced { out.found.namespace } else { "" },
        name: out.found.name,
        query: out.query,
        path: url::sub_path(out.found.rest, out.path),
    };
    let place = (asked.namespace, asked.name, out.found.subresource);
    let call = Call::own(out.resource, place, (out.query, out.warnings), (out.user, ""))?;
    admit(&worker.backend, &call, &asked).await?;
    let connecting = &worker.shared.connecting;
    let led = lead(&worker.backend, &connecting.rules, &asked).await?.by(&out.user.name);
    if let Some(patience) = request.extensions().get::<Patience>() {
        patience.have();
    }
    match led {
        Led::Nowhere => Ok(HttpResponse::NoContent().finish()),
        Led::Log(to) => log(connecting, request, &to, out.found.name).await,
        Led::Streams(to, streams) => talk::streams(connecting, request, &to, &streams).await,
        Led::Ports(to) => talk::ports(connecting, request, &to).await,
        Led::Proxy(to) if headers::asks_to_switch(request) => {
            talk::through_proxy(connecting, request, to).await
        }
        Led::Proxy(to) => proxy::pass(connecting, request, payload, to, out).await,
    }
}

/// The log of a container, as it comes.
async fn log(
    connecting: &Arc<Connecting>,
    request: &HttpRequest,
    to: &Destination,
    name: &str,
) -> Result<HttpResponse> {
    let ask = Ask { method: Method::GET, headers: headers::own(&to.location), body: RequestBody::Empty };
    let failed = |why: &dyn std::fmt::Display| {
        Status::unexplained(format!("Get {}: {why}", crate::api::field::quoted(&to.location.url())))
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

/// What a kubelet that gives no log says about it.
async fn refusal(code: u16, answer: Answer, name: &str) -> Box<Status> {
    let said = beginning(answer.body, KUBELET_REFUSAL).await;
    let of = GroupResource { group: "", resource: "pods/log" };
    Status::passed_on(code, of, name, &String::from_utf8_lossy(&said))
}

/// What comes of a body in time, up to a bound. Logs have no time of their own: a kubelet that stops in the middle of its
/// refusal would keep the client waiting for ever.
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

/// What a failure means whatever was asked for; `None` if that depends.
fn common(failure: &Failure) -> Option<Box<Status>> {
    match failure {
        Failure::Busy => Some(Status::too_many_requests(failure.to_string(), 1)),
        Failure::NotAllowed => Some(place::not_allowed()),
        Failure::BadTarget => Some(Status::bad_request(failure.to_string())),
        Failure::SlowAnswer => Some(Status::no_answer(failure.to_string())),
        _ => None,
    }
}

/// The address of the client, for those who want to know whom they answer.
fn client_address(request: &HttpRequest) -> Option<String> {
    let address = request.extensions().get::<Peer>().and_then(|peer| peer.address);
    address.map(|address| address.ip().to_string())
}

/// The host as the client named it.
fn host(request: &HttpRequest) -> &str {
    match text(request.headers(), header::HOST) {
        // HTTP/2 says it in the URL.
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
        assert_eq!(beginning(whole, KUBELET_REFUSAL).await, b"not you");
        let broken = stream::iter([piece(b"not "), Err(()), piece(b"you")]);
        assert_eq!(beginning(broken, KUBELET_REFUSAL).await, b"not ");
        let stuck = stream::iter([piece(b"not ")]).chain(stream::pending());
        assert_eq!(beginning(stuck, Duration::ZERO).await, b"not ");
        let endless = stream::repeat_with(|| piece(&[b'x'; 1_000]));
        assert_eq!(beginning(endless, KUBELET_REFUSAL).await.len(), KUBELET_REFUSAL_BYTES);
    }
}
