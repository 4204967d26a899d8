//! Connects WebSocket clients to SPDY kubelets. The streams of exec and attach are translated frame by frame. Port-forward is
//! SPDY inside WebSocket already and is only unpacked. Logs become messages.

mod command;
mod log;
mod pongs;

use std::io;
use std::sync::Arc;

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures::Stream;
use hyper::Method;
use hyper::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use pilothouse_api::connect::Destination;
use pilothouse_api::connect::options::StreamOptions;
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_client::upstream::{Channel, RequestBody, UpgradeOutcome, UpstreamRequest};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::http::websocket::{frame, stream as websocket};
use crate::limits::{CONVERSATION_BYTES, DISCONNECT_TIMEOUT};

use super::super::render::text;
use super::upgraded::{refusal_response, switch, switching_response, upgrade_error};
use super::{ConnectDeps, headers};

/// The subprotocol with a close signal for stdin.
const STREAMS: &str = "v5.channel.k8s.io";
/// The prefix of tunnel subprotocols; the inner protocol follows.
const TUNNEL: &str = "SPDY/3.1+";
/// Subprotocols of exec and attach over SPDY, in order of preference.
const OVER_SPDY: [&str; 5] =
    ["v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// Whether a client asks for WebSocket.
pub(super) fn wants_websocket(request: &HttpRequest) -> bool {
    headers::is_upgrade_request(request)
        && text(request.headers(), header::UPGRADE).eq_ignore_ascii_case("websocket")
}

/// The subprotocols that a client proposes; none unless it asks for WebSocket.
fn proposed(request: &HttpRequest) -> impl Iterator<Item = &str> {
    let is_websocket = wants_websocket(request);
    headers::protocols(request).filter(move |_| is_websocket)
}

/// Whether a client asks for exec or attach over WebSocket, which kubelets cannot speak.
pub(super) fn wants_streams(request: &HttpRequest) -> bool {
    proposed(request).any(|protocol| protocol == STREAMS)
}

/// The protocols that a client proposes inside of a tunnel.
pub(super) fn wants_tunnel(request: &HttpRequest) -> Vec<String> {
    let inner_protocols = proposed(request).filter(|protocol| protocol.ends_with(".k8s.io"));
    inner_protocols.filter_map(|protocol| protocol.strip_prefix(TUNNEL)).map(str::to_owned).collect()
}

/// This server's 101 response for WebSocket.
fn response_head(request: &HttpRequest, protocol: &str) -> Result<Vec<u8>> {
    let key = text(request.headers(), header::SEC_WEBSOCKET_KEY);
    if key.is_empty() || text(request.headers(), header::SEC_WEBSOCKET_VERSION) != "13" {
        return Err(Status::bad_request("the WebSocket handshake has no key, or another version than 13"));
    }
    let accept = frame::accept_key(key);
    let mut head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n"
    );
    if !protocol.is_empty() {
        head.push_str(&format!("Sec-WebSocket-Protocol: {protocol}\r\n"));
    }
    head.push_str("\r\n");
    Ok(head.into_bytes())
}

fn upgrade_request(mut headers: HeaderMap, protocols: impl Iterator<Item = String>) -> UpstreamRequest {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    for protocol in protocols {
        if let Ok(protocol) = HeaderValue::try_from(protocol) {
            headers.append(PROTOCOL, protocol);
        }
    }
    UpstreamRequest { method: Method::POST, headers, body: RequestBody::Empty }
}

fn negotiated_protocol(channel: &Channel) -> String {
    channel.headers.get(PROTOCOL).and_then(|value| value.to_str().ok()).unwrap_or_default().trim().to_owned()
}

/// Exec and attach: the streams of a process.
pub(super) async fn streams(
    deps: &Arc<ConnectDeps>,
    request: &HttpRequest,
    destination: &Destination,
    streams: &StreamOptions,
) -> Result<HttpResponse> {
    let (switch, head) = (switch(request)?, response_head(request, STREAMS)?);
    let request_to_kubelet = upgrade_request(
        headers::for_own_request(&destination.location),
        OVER_SPDY.iter().map(|protocol| (*protocol).to_owned()),
    );
    match deps
        .upstream
        .switch(destination, request_to_kubelet)
        .await
        .map_err(|failure| upgrade_error(&failure))?
    {
        UpgradeOutcome::Response(response) => refusal_response(request, response),
        UpgradeOutcome::Channel(channel) => {
            let (streams, channel) = (streams.clone(), channel.with_rate(deps.upgraded_bytes_per_second));
            switch.leave_http(Box::new(move |client| Box::pin(command::run(client, channel, head, streams))));
            Ok(switching_response())
        }
    }
}

/// A log over WebSocket.
pub(super) fn log(
    request: &HttpRequest,
    log: impl Stream<Item = io::Result<Bytes>> + Unpin + 'static,
) -> Result<HttpResponse> {
    let switch = switch(request)?;
    let Some((protocol, encoding)) = log::MessageEncoding::negotiate(headers::without_token(request)) else {
        return Ok(HttpResponse::Forbidden().finish());
    };
    let head = response_head(request, protocol)?;
    switch.leave_http(Box::new(move |client| Box::pin(log::send_log(client, log, head, encoding))));
    Ok(switching_response())
}

/// Port-forward: SPDY inside of WebSocket.
pub(super) async fn tunnel(
    deps: &Arc<ConnectDeps>,
    request: &HttpRequest,
    destination: &Destination,
    inner_protocols: Vec<String>,
) -> Result<HttpResponse> {
    let switch = switch(request)?;
    let mut headers = headers::for_upgrade_request(request);
    for name in ["sec-websocket-protocol", "sec-websocket-key", "sec-websocket-version", PROTOCOL.as_str()] {
        headers.remove(name);
    }
    headers.remove("sec-websocket-extensions");
    let request_to_kubelet = upgrade_request(headers, inner_protocols.into_iter());
    match deps
        .upstream
        .switch(destination, request_to_kubelet)
        .await
        .map_err(|failure| upgrade_error(&failure))?
    {
        UpgradeOutcome::Response(response) => refusal_response(request, response),
        UpgradeOutcome::Channel(channel) => {
            let protocol = match negotiated_protocol(&channel) {
                protocol if protocol.is_empty() => protocol,
                protocol => format!("{TUNNEL}{protocol}"),
            };
            let head = response_head(request, &protocol)?;
            let channel = channel.with_rate(deps.upgraded_bytes_per_second);
            switch.leave_http(Box::new(move |client| Box::pin(copy_tunnel(client, channel, head))));
            Ok(switching_response())
        }
    }
}

/// Copies between WebSocket messages and the byte stream of a kubelet.
async fn copy_tunnel<C: AsyncRead + AsyncWrite + Unpin>(client: C, mut channel: Channel, head: Vec<u8>) {
    let (from_client, mut to_client) = tokio::io::split(client);
    if to_client.write_all(&head).await.is_err() || to_client.flush().await.is_err() {
        return;
    }
    let client = Mutex::new(websocket::Writer::new(to_client));
    let (mut from_kubelet, mut to_kubelet) = tokio::io::split(channel.io());
    let mut reader = websocket::Reader::new(from_client);
    let (pings, mut received_pings) = pongs::ping_queue();
    let inward = async move {
        loop {
            match reader.next().await {
                Ok(websocket::WebSocketFrame::Piece(_, bytes)) => {
                    if to_kubelet.write_all(&bytes).await.is_err() || to_kubelet.flush().await.is_err() {
                        return;
                    }
                }
                Ok(websocket::WebSocketFrame::Ping(bytes)) => pings.note(bytes),
                Ok(websocket::WebSocketFrame::Close) | Err(_) => return,
            }
        }
    };
    let outward = async {
        let mut buffer = vec![0; CONVERSATION_BYTES];
        while let Ok(read @ 1..) = from_kubelet.read(&mut buffer).await {
            if client.lock().await.message(&[], &buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    let conversation = async move {
        tokio::select! {
            () = inward => {}
            () = outward => {}
        }
    };
    pongs::run_with_pongs(conversation, pongs::to_client(&mut received_pings, &client)).await;
    let _ = timeout(DISCONNECT_TIMEOUT, async { client.lock().await.close().await }).await;
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn subprotocols_are_read_from_all_header_lines() {
        let mut request = TestRequest::get()
            .insert_header(("Connection", "Upgrade"))
            .insert_header(("Upgrade", "websocket"));
        for line in ["v4.channel.k8s.io", "SPDY/3.1+a.k8s.io, x", "SPDY/3.1+b.k8s.io", "v5.channel.k8s.io"] {
            request = request.append_header(("Sec-WebSocket-Protocol", line));
        }
        let request = request.to_http_request();
        assert!(wants_streams(&request));
        assert_eq!(wants_tunnel(&request), ["a.k8s.io", "b.k8s.io"]);
    }
}
