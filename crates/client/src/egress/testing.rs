//! For tests, of this crate and of others: proxies that connect wherever they are told, and say where that was.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets the unexpected fails")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::thread;

use futures::channel::mpsc;
use futures::{SinkExt as _, StreamExt as _};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use openssl::ssl::{Ssl, SslAcceptor};
use pilothouse_types::lock::Lock;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_openssl::SslStream;
use tonic::server::{Grpc, StreamingService};
use tonic::{Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::konnectivity::{CloseResponse, Data, DialResponse, Packet, Payload};

/// The number that the proxy gives its connections: each has a tunnel of its own.
const CONNECTION: i64 = 7;

/// Where connections lead in truth. Gets the host and port that the proxy was asked for.
type Resolve = dyn Fn(&str) -> Option<SocketAddr> + Send + Sync;

#[derive(Clone)]
struct Shared {
    resolve: Arc<Resolve>,
    targets: Arc<Lock<Vec<String>>>,
}

impl Shared {
    async fn connect(&self, target: &str) -> Result<TcpStream, String> {
        self.targets.lock().push(target.to_owned());
        let address = (self.resolve)(target).ok_or_else(|| format!("no route to {target}"))?;
        TcpStream::connect(address).await.map_err(|error| error.to_string())
    }
}

/// A running proxy. It ends when it is dropped, with its connections.
pub struct TestProxy {
    /// Where it listens, if that is on the network.
    pub address: Option<SocketAddr>,
    targets: Arc<Lock<Vec<String>>>,
    socket: Option<PathBuf>,
    running: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// How a proxy is reached, and what it speaks.
pub enum ProxyForm<'a> {
    /// HTTP CONNECT on a socket with this path.
    HttpOnUnix(&'a Path),
    /// gRPC on a socket with this path.
    GrpcOnUnix(&'a Path),
    /// HTTP CONNECT over TCP, with TLS if there are settings.
    HttpOnTcp(Option<SslAcceptor>),
}

enum Listener {
    Unix(StdUnixListener),
    Tcp(std::net::TcpListener),
}

impl TestProxy {
    /// Starts a proxy that leads every connection to where `resolve` says.
    pub fn start(
        form: ProxyForm<'_>,
        resolve: impl Fn(&str) -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> TestProxy {
        let targets = Arc::<Lock<Vec<String>>>::default();
        let shared = Shared { resolve: Arc::new(resolve), targets: targets.clone() };
        let (listener, socket, is_grpc, tls) = match form {
            ProxyForm::HttpOnUnix(path) => (unix(path), Some(path.to_owned()), false, None),
            ProxyForm::GrpcOnUnix(path) => (unix(path), Some(path.to_owned()), true, None),
            ProxyForm::HttpOnTcp(tls) => {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                listener.set_nonblocking(true).unwrap();
                (Listener::Tcp(listener), None, false, tls)
            }
        };
        let address = match &listener {
            Listener::Tcp(listener) => Some(listener.local_addr().unwrap()),
            Listener::Unix(_) => None,
        };
        let (running, stopped) = oneshot::channel::<()>();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = accept(listener, shared, is_grpc, tls.map(Arc::new)) => {}
                }
            });
        });
        TestProxy { address, targets, socket, running: Some(running), thread: Some(thread) }
    }

    /// What it was asked for so far.
    pub fn targets(&self) -> Vec<String> {
        self.targets.lock().clone()
    }
}

impl Drop for TestProxy {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

fn unix(path: &Path) -> Listener {
    let listener = StdUnixListener::bind(path).unwrap();
    listener.set_nonblocking(true).unwrap();
    Listener::Unix(listener)
}

async fn accept(listener: Listener, shared: Shared, is_grpc: bool, tls: Option<Arc<SslAcceptor>>) {
    match listener {
        Listener::Unix(listener) => {
            let listener = UnixListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let shared = shared.clone();
                match is_grpc {
                    true => drop(tokio::spawn(serve_grpc(stream, shared))),
                    false => drop(tokio::spawn(serve_http(stream, shared))),
                }
            }
        }
        Listener::Tcp(listener) => {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let (shared, tls) = (shared.clone(), tls.clone());
                tokio::spawn(async move {
                    let Some(acceptor) = tls else { return serve_http(stream, shared).await };
                    let mut stream = SslStream::new(Ssl::new(acceptor.context()).unwrap(), stream).unwrap();
                    if Pin::new(&mut stream).accept().await.is_ok() {
                        serve_http(stream, shared).await;
                    }
                });
            }
        }
    }
}

async fn serve_http(mut stream: impl AsyncRead + AsyncWrite + Unpin, shared: Shared) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    // Plain HTTP is not tunnelled: the whole URL is in the request.
    let (host, rest) = match target.strip_prefix("http://") {
        Some(rest) => rest.split_once('/').unwrap_or((rest, "")),
        None => (target, ""),
    };
    match shared.connect(host).await {
        Ok(mut other) => {
            let opening = match method {
                "CONNECT" => stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await,
                _ => other.write_all(head.replacen(target, &format!("/{rest}"), 1).as_bytes()).await,
            };
            if opening.is_ok() {
                let _ = copy_bidirectional(&mut stream, &mut other).await;
            }
        }
        Err(_) => {
            let _ = stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").await;
        }
    }
}

async fn serve_grpc(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: Shared) {
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = shared.clone();
        async move {
            let mut grpc = Grpc::new(ProstCodec::<Packet, Packet>::default());
            Ok::<_, Infallible>(grpc.streaming(Tunnels(shared), request).await)
        }
    });
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

/// The method that carries packets both ways.
struct Tunnels(Shared);

type Packets = mpsc::Receiver<Result<Packet, Status>>;

impl StreamingService<Packet> for Tunnels {
    type Response = Packet;
    type ResponseStream = Packets;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Packets>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Streaming<Packet>>) -> Self::Future {
        let shared = self.0.clone();
        Box::pin(async move {
            let (sender, receiver) = mpsc::channel(1);
            tokio::spawn(serve_tunnel(request.into_inner(), sender, shared));
            Ok(Response::new(receiver))
        })
    }
}

async fn serve_tunnel(
    mut requests: Streaming<Packet>,
    mut responses: mpsc::Sender<Result<Packet, Status>>,
    shared: Shared,
) {
    let Some(Ok(Packet { payload: Some(Payload::DialRequest(dial)), .. })) = requests.next().await else {
        return;
    };
    let result = shared.connect(&dial.address).await;
    let error = result.as_ref().err().cloned().unwrap_or_default();
    let connect_id = if result.is_ok() { CONNECTION } else { 0 };
    let response = DialResponse { error, connect_id, random: dial.random };
    let _ = responses.send(Ok(Payload::DialResponse(response).into())).await;
    let Ok(stream) = result else { return };
    let (mut from_server, mut to_server) = stream.into_split();
    let reading = async {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            let data = bytes::Bytes::copy_from_slice(&buffer[..count]);
            let data = Data { connect_id: CONNECTION, error: String::new(), data };
            if responses.send(Ok(Payload::Data(data).into())).await.is_err() {
                return;
            }
        }
    };
    let writing = async {
        while let Some(Ok(packet)) = requests.next().await {
            match packet.payload {
                Some(Payload::Data(data)) => {
                    if to_server.write_all(&data.data).await.is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
    let close = CloseResponse { error: String::new(), connect_id: CONNECTION };
    let _ = responses.send(Ok(Payload::CloseResponse(close).into())).await;
}
