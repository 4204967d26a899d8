//! Upgraded connections: client and backend agree on another protocol, and this server copies their bytes in both directions
//! without reading them.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse};
use hyper::Method;
use hyper::header::HeaderMap;
use pilothouse_api::connect::Destination;
use pilothouse_api::connect::options::StreamOptions;
use pilothouse_apimachinery::status::{Result, Status};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::http::h1_stream;
use crate::http::switch::Switch;
use crate::limits::{CONVERSATION_BYTES, DISCONNECT_TIMEOUT};
use crate::upstream::{Channel, Failure, RequestBody, Switched, UpstreamRequest, UpstreamResponse};

use super::{ConnectDeps, common, headers, proxy, translate};

/// Exec and attach: the streams of a process.
pub(super) async fn streams(
    connecting: &Arc<ConnectDeps>,
    request: &HttpRequest,
    to: &Destination,
    streams: &StreamOptions,
) -> Result<HttpResponse> {
    if connecting.translates_streams && translate::wants_streams(request) {
        return translate::streams(connecting, request, to, streams).await;
    }
    pass_through(connecting, request, to).await
}

/// Port-forward.
pub(super) async fn ports(
    connecting: &Arc<ConnectDeps>,
    request: &HttpRequest,
    to: &Destination,
) -> Result<HttpResponse> {
    let inside = if connecting.unpacks_tunnels { translate::wants_tunnel(request) } else { Vec::new() };
    if !inside.is_empty() {
        return translate::tunnel(connecting, request, to, inside).await;
    }
    pass_through(connecting, request, to).await
}

/// An upgrade through a proxy, to whatever protocol client and backend agree on.
pub(super) async fn through_proxy(
    connecting: &Arc<ConnectDeps>,
    request: &HttpRequest,
    mut to: Destination,
) -> Result<HttpResponse> {
    request.query_string().clone_into(&mut to.location.query);
    pass_through(connecting, request, &to).await
}

async fn pass_through(
    connecting: &Arc<ConnectDeps>,
    request: &HttpRequest,
    to: &Destination,
) -> Result<HttpResponse> {
    let switch = switch(request)?;
    let method = Method::from_bytes(request.method().as_str().as_bytes());
    let method = method.map_err(|_| Status::method_not_allowed())?;
    let ask = UpstreamRequest { method, headers: headers::to_switch(request), body: RequestBody::Empty };
    match connecting.upstream.switch(to, ask).await.map_err(|failure| failed(&failure))? {
        Switched::Answer(answer) => refused(request, answer),
        Switched::Channel(channel) => Ok(hand_over(&switch, channel)),
    }
}

/// Hands the client's connection over to the backend's.
pub(super) fn hand_over(switch: &Switch, channel: Channel) -> HttpResponse {
    let head = agreement(&channel.headers);
    switch.turn(Box::new(move |client| Box::pin(converse(client, channel, head))));
    switched()
}

/// The switch by which the connection of a request leaves HTTP. HTTP/2 has no upgrade.
pub(super) fn switch(request: &HttpRequest) -> Result<Switch> {
    let switch = request.conn_data::<Switch>().filter(|_| headers::asks_to_switch(request));
    switch.cloned().ok_or_else(|| Status::bad_request("Upgrade request required"))
}

/// A placeholder: the conversation writes the real response.
pub(super) fn switched() -> HttpResponse {
    HttpResponse::SwitchingProtocols().finish()
}

pub(super) fn failed(failure: &Failure) -> Box<Status> {
    common(failure).unwrap_or_else(|| match failure {
        Failure::Broken(_) => Status::unexplained(failure.to_string()),
        _ => Status::unexplained(format!("error dialing backend: {failure}")),
    })
}

/// The response of a backend that refuses to switch.
pub(super) fn refused(request: &HttpRequest, answer: UpstreamResponse) -> Result<HttpResponse> {
    if answer.status.as_u16() < 400 {
        let code = answer.status.as_u16();
        return Err(Status::unexplained(format!("invalid upgrade response: status code {code}")));
    }
    Ok(proxy::whole(request, answer))
}

/// The backend's 101 response, for the client.
fn agreement(headers: &HeaderMap) -> Vec<u8> {
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    h1_stream::head("101 Switching Protocols", headers)
}

async fn converse<C>(mut client: C, mut channel: Channel, head: Vec<u8>)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    if client.write_all(&head).await.is_ok() && client.flush().await.is_ok() {
        carry(&mut client, channel.io()).await;
    }
    // Both ends are told that nothing follows, but neither is waited for.
    let ending = async { tokio::join!(client.shutdown(), channel.io().shutdown()) };
    let _ = timeout(DISCONNECT_TIMEOUT, ending).await;
}

/// Carries bytes both ways until one end has no more to say. What the other end says within a moment after that still
/// arrives.
pub(super) async fn carry<C, U>(client: &mut C, other: &mut U)
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_other, mut to_other) = tokio::io::split(other);
    let back = copy(&mut from_other, &mut to_client);
    tokio::pin!(back);
    tokio::select! {
        () = &mut back => {}
        () = copy(&mut from_client, &mut to_other) => {
            let _ = timeout(DISCONNECT_TIMEOUT, async { let _ = to_other.shutdown().await; back.await }).await;
        }
    }
}

async fn copy<R, W>(from: &mut R, to: &mut W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; CONVERSATION_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if to.write_all(&buffer[..read]).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agreement_is_spelled_as_clients_know_it() {
        let mut headers = HeaderMap::new();
        headers.insert("upgrade", "SPDY/3.1".parse().unwrap());
        headers.insert("x-stream-protocol-version", "v4.channel.k8s.io".parse().unwrap());
        let head = String::from_utf8(agreement(&headers)).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
        assert!(head.contains("\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"), "{head}");
        assert!(head.ends_with("\r\n\r\n"), "{head}");
    }

    #[actix_rt::test]
    async fn bytes_pass_both_ways_and_what_was_said_last_arrives() {
        let (mut client, mut near) = tokio::io::duplex(8);
        let (mut far, mut other) = tokio::io::duplex(8);
        let carrying = actix_rt::spawn(async move { carry(&mut near, &mut far).await });
        let answering = actix_rt::spawn(async move {
            let mut said = String::new();
            other.read_to_string(&mut said).await.unwrap();
            other.write_all(said.to_uppercase().as_bytes()).await.unwrap();
        });
        client.write_all(b"a longer question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "A LONGER QUESTION");
        carrying.await.unwrap();
        answering.await.unwrap();
    }
}
