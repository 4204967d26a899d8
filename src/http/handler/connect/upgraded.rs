//! Upgraded connections: client and backend agree on another protocol, and this server copies their bytes in both directions
//! without reading them.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse};
use hyper::Method;
use hyper::header::HeaderMap;
use pilothouse_api::connect::Destination;
use pilothouse_api::connect::options::StreamOptions;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_client::upstream::{
    Channel, Failure, RequestBody, UpgradeOutcome, UpstreamRequest, UpstreamResponse,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::http::h1_stream;
use crate::http::switch::Switch;
use crate::limits::{CONVERSATION_BYTES, DISCONNECT_TIMEOUT};

use super::{ConnectDeps, common_status, headers, proxy, translate};

/// Exec and attach: the streams of a process.
pub(super) async fn streams(
    deps: &Arc<ConnectDeps>,
    request: &HttpRequest,
    destination: &Destination,
    streams: &StreamOptions,
) -> Result<HttpResponse> {
    if deps.translates_streams && translate::wants_streams(request) {
        return translate::streams(deps, request, destination, streams).await;
    }
    pass_through(deps, request, destination).await
}

/// Port-forward.
pub(super) async fn ports(
    deps: &Arc<ConnectDeps>,
    request: &HttpRequest,
    destination: &Destination,
) -> Result<HttpResponse> {
    let inner_protocols = if deps.unpacks_tunnels { translate::wants_tunnel(request) } else { Vec::new() };
    if !inner_protocols.is_empty() {
        return translate::tunnel(deps, request, destination, inner_protocols).await;
    }
    pass_through(deps, request, destination).await
}

/// An upgrade through a proxy, to whatever protocol client and backend agree on.
pub(super) async fn through_proxy(
    deps: &Arc<ConnectDeps>,
    request: &HttpRequest,
    mut destination: Destination,
) -> Result<HttpResponse> {
    request.query_string().clone_into(&mut destination.location.query);
    pass_through(deps, request, &destination).await
}

async fn pass_through(
    deps: &Arc<ConnectDeps>,
    request: &HttpRequest,
    destination: &Destination,
) -> Result<HttpResponse> {
    let switch = switch(request)?;
    let method = Method::from_bytes(request.method().as_str().as_bytes());
    let method = method.map_err(|_| Status::method_not_allowed())?;
    let upstream_request =
        UpstreamRequest { method, headers: headers::for_upgrade_request(request), body: RequestBody::Empty };
    match deps
        .upstream
        .switch(destination, upstream_request)
        .await
        .map_err(|failure| upgrade_error(&failure))?
    {
        UpgradeOutcome::Response(response) => refusal_response(request, response),
        UpgradeOutcome::Channel(channel) => {
            Ok(hand_over(&switch, channel.with_rate(deps.upgraded_bytes_per_second)))
        }
    }
}

/// Hands the client's connection over to the backend's.
pub(super) fn hand_over(switch: &Switch, channel: Channel) -> HttpResponse {
    let head = response_head(&channel.headers);
    switch.leave_http(Box::new(move |client| Box::pin(run_conversation(client, channel, head))));
    switching_response()
}

/// The switch by which the connection of a request leaves HTTP. HTTP/2 has no upgrade.
pub(super) fn switch(request: &HttpRequest) -> Result<Switch> {
    let switch = request.conn_data::<Switch>().filter(|_| headers::is_upgrade_request(request));
    switch.cloned().ok_or_else(|| Status::bad_request("Upgrade request required"))
}

/// A placeholder: the conversation writes the real response.
pub(super) fn switching_response() -> HttpResponse {
    HttpResponse::SwitchingProtocols().finish()
}

pub(super) fn upgrade_error(failure: &Failure) -> Box<Status> {
    common_status(failure).unwrap_or_else(|| match failure {
        Failure::Broken(_) => Status::unexplained(failure.to_string()),
        _ => Status::unexplained(format!("error dialing backend: {failure}")),
    })
}

/// The response of a backend that refuses to switch.
pub(super) fn refusal_response(request: &HttpRequest, response: UpstreamResponse) -> Result<HttpResponse> {
    if response.status.as_u16() < 400 {
        let code = response.status.as_u16();
        return Err(Status::unexplained(format!("invalid upgrade response: status code {code}")));
    }
    Ok(proxy::pass_unchanged(request, response))
}

/// The backend's 101 response, for the client.
fn response_head(headers: &HeaderMap) -> Vec<u8> {
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    h1_stream::head("101 Switching Protocols", headers)
}

async fn run_conversation<C>(mut client: C, mut channel: Channel, head: Vec<u8>)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    if client.write_all(&head).await.is_ok() && client.flush().await.is_ok() {
        copy_both_ways(&mut client, channel.io()).await;
    }
    // Both ends are shut down, but neither is waited for.
    let ending = async { tokio::join!(client.shutdown(), channel.io().shutdown()) };
    let _ = timeout(DISCONNECT_TIMEOUT, ending).await;
}

/// Copies bytes both ways until one end closes. Bytes that the other end sends shortly after that still arrive.
pub(super) async fn copy_both_ways<C, U>(client: &mut C, backend: &mut U)
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_backend, mut to_backend) = tokio::io::split(backend);
    let to_client_copy = copy(&mut from_backend, &mut to_client);
    tokio::pin!(to_client_copy);
    tokio::select! {
        () = &mut to_client_copy => {}
        () = copy(&mut from_client, &mut to_backend) => {
            let _ = timeout(DISCONNECT_TIMEOUT, async { let _ = to_backend.shutdown().await; to_client_copy.await }).await;
        }
    }
}

async fn copy<R, W>(reader: &mut R, writer: &mut W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; CONVERSATION_BYTES];
    while let Ok(read @ 1..) = reader.read(&mut buffer).await {
        if writer.write_all(&buffer[..read]).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switching_response_has_canonical_header_names() {
        let mut headers = HeaderMap::new();
        headers.insert("upgrade", "SPDY/3.1".parse().unwrap());
        headers.insert("x-stream-protocol-version", "v4.channel.k8s.io".parse().unwrap());
        let head = String::from_utf8(response_head(&headers)).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
        assert!(head.contains("\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"), "{head}");
        assert!(head.ends_with("\r\n\r\n"), "{head}");
    }

    #[actix_rt::test]
    async fn upgraded_connection_copies_both_ways_until_the_last_bytes() {
        let (mut client, mut near) = tokio::io::duplex(8);
        let (mut far, mut backend) = tokio::io::duplex(8);
        let copying = actix_rt::spawn(async move { copy_both_ways(&mut near, &mut far).await });
        let backend_task = actix_rt::spawn(async move {
            let mut text = String::new();
            backend.read_to_string(&mut text).await.unwrap();
            backend.write_all(text.to_uppercase().as_bytes()).await.unwrap();
        });
        client.write_all(b"a longer question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        assert_eq!(response, "A LONGER QUESTION");
        copying.await.unwrap();
        backend_task.await.unwrap();
    }
}
