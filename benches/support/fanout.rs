//! The floor of a fan-out: a program that writes the same bytes to the same number of TLS sockets, or to as many streams of the
//! HTTP/2 library on as many sockets, and does nothing else.

use std::future::poll_fn;
use std::net::TcpListener;
use std::pin::Pin;

use bytes::Bytes;
use openssl::ssl::{AlpnError, Ssl, SslContext, select_next_proto};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::broadcast;
use tokio_openssl::SslStream;

use super::watchers::{MARK, MARK_BYTES};

/// Sends an event of `bytes` bytes with the mark of each PUT to every client that has sent a GET. Prints its port.
pub fn serve(bytes: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    let mut acceptor = super::floor::acceptor();
    acceptor.set_alpn_select_callback(|_, offered| {
        select_next_proto(b"\x02h2\x08http/1.1", offered).ok_or(AlpnError::NOACK)
    });
    let context = acceptor.build().into_context();
    let (events_sender, _) = broadcast::channel(4_096);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let serving = (0..threads).map(|_| {
        let (listener, context, events_sender) =
            (listener.try_clone().unwrap(), context.clone(), events_sender.clone());
        std::thread::spawn(move || accept(listener, &context, &events_sender, bytes))
    });
    serving.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

fn accept(
    listener: TcpListener,
    context: &SslContext,
    events_sender: &broadcast::Sender<Bytes>,
    bytes: usize,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            tcp.set_nodelay(true).unwrap();
            let stream = SslStream::new(Ssl::new(context).unwrap(), tcp).unwrap();
            tokio::task::spawn_local(serve_connection(stream, events_sender.clone(), bytes));
        }
    });
}

/// Serves one connection until the client closes it.
async fn serve_connection(
    mut stream: SslStream<TcpStream>,
    events_sender: broadcast::Sender<Bytes>,
    bytes: usize,
) -> std::io::Result<()> {
    Pin::new(&mut stream).accept().await.map_err(std::io::Error::other)?;
    if stream.ssl().selected_alpn_protocol() == Some(b"h2") {
        return serve_http2(stream, events_sender).await.map_err(std::io::Error::other);
    }
    let mut buffer = Vec::new();
    loop {
        let Some(end) = memchr::memmem::find(&buffer, b"\r\n\r\n") else {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            continue;
        };
        if buffer.starts_with(b"GET") {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
            let mut receiver = events_sender.subscribe();
            while let Ok(chunk) = receiver.recv().await {
                stream.write_all(&chunk).await?;
            }
            return Ok(());
        }
        let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let length_with_body = end + 4 + length.unwrap_or(0);
        while buffer.len() < length_with_body {
            stream.read_buf(&mut buffer).await?;
        }
        let mark = memchr::memmem::find(&buffer, MARK).map(|index| &buffer[index..index + MARK_BYTES]);
        let mut event = mark.unwrap_or_default().to_vec();
        event.resize(bytes, b'x');
        let mut chunk = format!("{bytes:x}\r\n").into_bytes();
        chunk.extend_from_slice(&event);
        chunk.extend_from_slice(b"\r\n");
        let _no_receivers = events_sender.send(Bytes::from(chunk));
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await?;
        buffer.drain(..length_with_body);
    }
}

/// Sends every event to every stream of an HTTP/2 connection.
async fn serve_http2(
    stream: SslStream<TcpStream>,
    events_sender: broadcast::Sender<Bytes>,
) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(request) = connection.accept().await {
        let (_, mut responder) = request?;
        let mut receiver = events_sender.subscribe();
        let mut body = responder.send_response(http::Response::new(()), false)?;
        tokio::task::spawn_local(async move {
            while let Ok(event) = receiver.recv().await {
                body.reserve_capacity(event.len());
                while body.capacity() < event.len() {
                    if poll_fn(|context| body.poll_capacity(context))
                        .await
                        .is_none_or(|capacity| capacity.is_err())
                    {
                        return;
                    }
                }
                if body.send_data(event, false).is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}
