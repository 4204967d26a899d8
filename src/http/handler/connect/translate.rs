//! Clients that speak WebSocket, and kubelets that speak SPDY. The streams of a command are put from the frames of the one
//! into those of the other; ports are SPDY inside of WebSocket already, and are only unpacked.

use std::io;
use std::sync::Arc;

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse};
use hyper::Method;
use hyper::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::api::connect::options::StreamOptions;
use crate::api::connect::{Destination, verdict};
use crate::api::status::{Result, Status};
use crate::frames::{spdy, websocket};
use crate::limits::{CONVERSATION_BYTES, DISCONNECT, LAST_WORD_BYTES, STREAMS_OPEN};
use crate::upstream::{Ask, Channel, RequestBody, Switched};

use super::super::render::text;
use super::talk::{failed, refused, switch, switched};
use super::{Connecting, headers};

/// The protocol of streams over WebSocket in which a client can say that it has no more input.
const STREAMS: &str = "v5.channel.k8s.io";
/// What the protocol of a tunnel begins with; behind it stands the protocol inside.
const TUNNEL: &str = "SPDY/3.1+";
/// The protocols of streams over SPDY, the best first.
const OVER_SPDY: [&str; 5] =
    ["v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// The numbers of streams over WebSocket.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const LAST_WORD: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// The protocols that a client proposes for WebSocket; none if it wants to speak something else.
fn proposed(request: &HttpRequest) -> impl Iterator<Item = &str> {
    let asks = headers::asks_to_switch(request)
        && text(request.headers(), header::UPGRADE).eq_ignore_ascii_case("websocket");
    let all = text(request.headers(), header::SEC_WEBSOCKET_PROTOCOL).split(',').map(str::trim);
    all.filter(move |_| asks)
}

/// Whether a client wants the streams of a command in frames that a kubelet does not know.
pub(super) fn wants_streams(request: &HttpRequest) -> bool {
    proposed(request).any(|protocol| protocol == STREAMS)
}

/// The protocols that a client wants to speak inside of a tunnel.
pub(super) fn wants_tunnel(request: &HttpRequest) -> Vec<String> {
    let inside = proposed(request).filter(|protocol| protocol.ends_with(".k8s.io"));
    inside.filter_map(|protocol| protocol.strip_prefix(TUNNEL)).map(str::to_owned).collect()
}

/// The head with which this server agrees to WebSocket.
fn agreement(request: &HttpRequest, protocol: &str) -> Result<Vec<u8>> {
    let key = text(request.headers(), header::SEC_WEBSOCKET_KEY);
    if key.is_empty() || text(request.headers(), header::SEC_WEBSOCKET_VERSION) != "13" {
        return Err(Status::bad_request("the WebSocket handshake has no key, or another version than 13"));
    }
    let accept = websocket::accept_key(key);
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

fn ask(mut headers: HeaderMap, protocols: impl Iterator<Item = String>) -> Ask {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    for protocol in protocols {
        if let Ok(protocol) = HeaderValue::try_from(protocol) {
            headers.append(PROTOCOL, protocol);
        }
    }
    Ask { method: Method::POST, headers, body: RequestBody::Empty }
}

fn agreed_on(channel: &Channel) -> String {
    channel.headers.get(PROTOCOL).and_then(|value| value.to_str().ok()).unwrap_or_default().trim().to_owned()
}

/// The streams of a command.
pub(super) async fn streams(
    connecting: &Arc<Connecting>,
    request: &HttpRequest,
    to: &Destination,
    streams: &StreamOptions,
) -> Result<HttpResponse> {
    let (switch, head) = (switch(request)?, agreement(request, STREAMS)?);
    let ask = ask(headers::own(&to.location), OVER_SPDY.iter().map(|one| (*one).to_owned()));
    match connecting.upstream.switch(to, ask).await.map_err(|failure| failed(&failure))? {
        Switched::Answer(answer) => refused(request, answer),
        Switched::Channel(channel) => {
            let streams = streams.clone();
            switch.turn(Box::new(move |client| Box::pin(command(client, channel, head, streams))));
            Ok(switched())
        }
    }
}

/// SPDY inside of WebSocket, for ports.
pub(super) async fn tunnel(
    connecting: &Arc<Connecting>,
    request: &HttpRequest,
    to: &Destination,
    inside: Vec<String>,
) -> Result<HttpResponse> {
    let switch = switch(request)?;
    let mut headers = headers::to_switch(request);
    for name in ["sec-websocket-protocol", "sec-websocket-key", "sec-websocket-version", PROTOCOL.as_str()] {
        headers.remove(name);
    }
    headers.remove("sec-websocket-extensions");
    let ask = ask(headers, inside.into_iter());
    match connecting.upstream.switch(to, ask).await.map_err(|failure| failed(&failure))? {
        Switched::Answer(answer) => refused(request, answer),
        Switched::Channel(channel) => {
            let protocol = match agreed_on(&channel) {
                none if none.is_empty() => none,
                inside => format!("{TUNNEL}{inside}"),
            };
            let head = agreement(request, &protocol)?;
            switch.turn(Box::new(move |client| Box::pin(unpack(client, channel, head))));
            Ok(switched())
        }
    }
}

/// Carries bytes between messages and the connection to a kubelet.
async fn unpack<C: AsyncRead + AsyncWrite + Unpin>(client: C, mut channel: Channel, head: Vec<u8>) {
    let (from_client, mut to_client) = tokio::io::split(client);
    if to_client.write_all(&head).await.is_err() || to_client.flush().await.is_err() {
        return;
    }
    let client = Mutex::new(websocket::Writer::new(to_client));
    let (mut from_kubelet, mut to_kubelet) = tokio::io::split(channel.io());
    let mut reader = websocket::Reader::new(from_client);
    let inward = async {
        loop {
            match reader.next().await {
                Ok(websocket::Said::Piece(_, bytes)) => {
                    if to_kubelet.write_all(&bytes).await.is_err() || to_kubelet.flush().await.is_err() {
                        return;
                    }
                }
                Ok(websocket::Said::Ping(bytes)) => {
                    let _ = client.lock().await.pong(&bytes).await;
                }
                Ok(websocket::Said::Close) | Err(_) => return,
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
    tokio::select! {
        () = inward => {}
        () = outward => {}
    }
    let _ = timeout(DISCONNECT, async { client.lock().await.close().await }).await;
}

/// The streams of a command on the side of the kubelet, by their numbers there; zero is none.
#[derive(Debug, Default, PartialEq, Eq)]
struct Opened {
    last_word: u32,
    stdin: u32,
    stdout: u32,
    stderr: u32,
    resize: u32,
}

impl Opened {
    /// The streams that these options ask for, with the words for them, in the order in which a kubelet expects them.
    fn plan(options: &StreamOptions) -> (Opened, Vec<(u32, &'static str)>) {
        let mut planned = Vec::new();
        let mut plan = |wanted: bool, word| {
            let number = if wanted { u32::try_from(planned.len()).unwrap_or_default() * 2 + 1 } else { 0 };
            planned.extend(wanted.then_some((number, word)));
            number
        };
        let opened = Opened {
            last_word: plan(true, "error"),
            stdin: plan(options.stdin, "stdin"),
            stdout: plan(options.stdout, "stdout"),
            stderr: plan(options.stderr && !options.tty, "stderr"),
            resize: plan(options.tty, "resize"),
        };
        (opened, planned)
    }
}

type ClientWriter<C> = Mutex<websocket::Writer<tokio::io::WriteHalf<C>>>;

/// Carries the streams of a command until it has ended or the client has gone.
async fn command<C>(client: C, mut channel: Channel, head: Vec<u8>, options: StreamOptions)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let (from_client, mut to_client) = tokio::io::split(client);
    if to_client.write_all(&head).await.is_err() || to_client.flush().await.is_err() {
        return;
    }
    let client: ClientWriter<C> = Mutex::new(websocket::Writer::new(to_client));
    // The client waits for a first message, which says nothing.
    let first = [(options.stdout, STDOUT), (options.stderr, STDERR), (true, LAST_WORD)];
    let first = first.into_iter().find_map(|(wanted, number)| wanted.then_some(number)).unwrap_or(LAST_WORD);
    if client.lock().await.message(&[first], &[]).await.is_err() {
        return;
    }
    let protocol = agreed_on(&channel);
    let (from_kubelet, to_kubelet) = tokio::io::split(channel.io());
    let mut kubelet = spdy::Reader::new(from_kubelet);
    let speaker = Mutex::new(spdy::Writer::new(to_kubelet));
    let (opened, planned) = Opened::plan(&options);
    let status = match timeout(STREAMS_OPEN, open(&mut kubelet, &speaker, &planned)).await {
        Err(_) => Some(verdict::failure("the kubelet did not open the streams in time")),
        Ok(Err(error)) => Some(verdict::failure(&format!("the kubelet did not open the streams: {error}"))),
        Ok(Ok(())) => {
            let mut from_client = websocket::Reader::new(from_client);
            tokio::select! {
                said = outward(&mut kubelet, &speaker, &client, &opened) => {
                    said.ok().map(|said| verdict::of_last_word(&protocol, &said))
                }
                () = inward(&mut from_client, &client, &speaker, &opened) => None,
            }
        }
    };
    let ending = async {
        let mut client = client.lock().await;
        if let Some(status) = status {
            client.message(&[LAST_WORD], &status).await?;
        }
        client.close().await?;
        speaker.lock().await.close().await
    };
    let _ = timeout(DISCONNECT, ending).await;
}

/// Opens the streams and waits until the kubelet takes part in all of them: it starts to read only then.
async fn open<R, W>(
    kubelet: &mut spdy::Reader<R>,
    speaker: &Mutex<spdy::Writer<W>>,
    planned: &[(u32, &'static str)],
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    for (number, word) in planned {
        speaker.lock().await.open(*number, "streamtype", word).await?;
    }
    let mut missing = planned.len();
    while missing > 0 {
        match kubelet.next().await? {
            spdy::Said::Reply(_) => missing -= 1,
            spdy::Said::Ping(number) if number % 2 == 0 => speaker.lock().await.pong(number).await?,
            spdy::Said::Reset(_) | spdy::Said::Leaving => return Err(io::ErrorKind::ConnectionReset.into()),
            _ => {}
        }
    }
    Ok(())
}

/// From the kubelet to the client, until every stream has ended; answers the last word. An error means that the client has
/// gone.
async fn outward<R, W, C>(
    kubelet: &mut spdy::Reader<R>,
    speaker: &Mutex<spdy::Writer<W>>,
    client: &ClientWriter<C>,
    opened: &Opened,
) -> io::Result<Vec<u8>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    C: AsyncRead + AsyncWrite + Unpin,
{
    let mut going: Vec<u32> = [opened.last_word, opened.stdout, opened.stderr].into();
    going.retain(|stream| *stream != 0);
    let mut last_word = Vec::new();
    while !going.is_empty() {
        // A kubelet that hangs up has said everything.
        let Ok(said) = kubelet.next().await else { break };
        match said {
            spdy::Said::Data(stream, bytes, last) => {
                let to = match stream {
                    stream if stream == opened.last_word => {
                        let room = LAST_WORD_BYTES - last_word.len();
                        last_word.extend_from_slice(&bytes[..bytes.len().min(room)]);
                        None
                    }
                    stream if stream == opened.stdout => Some(STDOUT),
                    stream if stream == opened.stderr => Some(STDERR),
                    _ => None,
                };
                if let Some(to) = to.filter(|_| !bytes.is_empty()) {
                    client.lock().await.message(&[to], &bytes).await?;
                }
                if last {
                    going.retain(|one| *one != stream);
                }
            }
            spdy::Said::Reset(stream) => going.retain(|one| *one != stream),
            spdy::Said::Ping(number) if number % 2 == 0 => {
                let _ = speaker.lock().await.pong(number).await;
            }
            _ => {}
        }
    }
    Ok(last_word)
}

/// From the client to the kubelet, until the client has gone. A kubelet that takes no more does not end it: there may be
/// output on its way.
async fn inward<R, W, C>(
    from_client: &mut websocket::Reader<R>,
    client: &ClientWriter<C>,
    speaker: &Mutex<spdy::Writer<W>>,
    opened: &Opened,
) where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    C: AsyncRead + AsyncWrite + Unpin,
{
    let stream_of = |number: u8| match number {
        STDIN => opened.stdin,
        RESIZE => opened.resize,
        _ => 0,
    };
    let mut to = LAST_WORD;
    // Streams that the client has closed: SPDY allows nothing behind that.
    let mut closed = Vec::new();
    while let Ok(said) = from_client.next().await {
        let bytes = match said {
            websocket::Said::Close => return,
            websocket::Said::Ping(bytes) => {
                let _ = client.lock().await.pong(&bytes).await;
                continue;
            }
            websocket::Said::Piece(first, mut bytes) => {
                if first {
                    to = bytes.remove(0);
                }
                bytes
            }
        };
        let (stream, last) = match (to, bytes.first()) {
            (CLOSE, Some(which)) => (stream_of(*which), true),
            (number, Some(_)) => (stream_of(number), false),
            (_, None) => continue,
        };
        if stream == 0 || closed.contains(&stream) {
            continue;
        }
        let _ = match last {
            true => {
                closed.push(stream);
                speaker.lock().await.data(stream, &[], true).await
            }
            false => speaker.lock().await.data(stream, &bytes, false).await,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_opened_in_the_order_that_kubelets_expect() {
        let all = StreamOptions { stdin: true, stdout: true, stderr: true, ..StreamOptions::default() };
        let (opened, planned) = Opened::plan(&all);
        assert_eq!(planned, [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")]);
        assert_eq!(opened, Opened { last_word: 1, stdin: 3, stdout: 5, stderr: 7, resize: 0 });
        let (opened, planned) = Opened::plan(&StreamOptions { tty: true, ..all });
        assert_eq!(planned, [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "resize")]);
        assert_eq!((opened.stderr, opened.resize), (0, 7), "a terminal has one output");
    }
}
