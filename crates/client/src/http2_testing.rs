//! For tests, of this crate and of others: a server that speaks HTTP/2 alone, over TLS.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets the unexpected fails")]

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use openssl::pkey::{PKey, Private};
use openssl::ssl::{AlpnError, Ssl, SslAcceptor, SslMethod, select_next_proto};
use openssl::x509::X509;
use pilothouse_types::lock::Lock;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_openssl::SslStream;

use crate::upstream::RequestBody;

/// The response to a request with this target and body: a status and a body.
type Answer = dyn Fn(&str, &[u8]) -> (u16, String) + Send + Sync;

#[derive(Clone)]
struct Shared {
    answer: Arc<Answer>,
    targets: Arc<Lock<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

/// A running server. It ends when it is dropped, with its connections.
pub struct Http2Server {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Shared,
    running: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Http2Server {
    /// Starts a server with this certificate.
    pub fn start(
        (certificate, key): (&X509, &PKey<Private>),
        answer: impl Fn(&str, &[u8]) -> (u16, String) + Send + Sync + 'static,
    ) -> Http2Server {
        let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
        acceptor.set_certificate(certificate).unwrap();
        acceptor.set_private_key(key).unwrap();
        acceptor.set_alpn_select_callback(|_, offered| {
            select_next_proto(b"\x02h2", offered).ok_or(AlpnError::ALERT_FATAL)
        });
        let acceptor = Arc::new(acceptor.build());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let shared =
            Shared { answer: Arc::new(answer), targets: Arc::default(), connections: Arc::default() };
        let (running, stopped) = oneshot::channel::<()>();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let of_thread = shared.clone();
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                let accepting = async {
                    while let Ok((stream, _)) = listener.accept().await {
                        tokio::spawn(serve(stream, acceptor.clone(), of_thread.clone()));
                    }
                };
                tokio::select! {
                    _ = stopped => {}
                    () = accepting => {}
                }
            });
        });
        Http2Server { address, shared, running: Some(running), thread: Some(thread) }
    }

    /// The targets of all requests so far.
    pub fn targets(&self) -> Vec<String> {
        self.shared.targets.lock().clone()
    }

    /// How many connections agreed on HTTP/2.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Http2Server {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(stream: TcpStream, acceptor: Arc<SslAcceptor>, shared: Shared) {
    let mut stream = SslStream::new(Ssl::new(acceptor.context()).unwrap(), stream).unwrap();
    if Pin::new(&mut stream).accept().await.is_err() {
        return;
    }
    shared.connections.fetch_add(1, Ordering::SeqCst);
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = shared.clone();
        async move {
            let target = request.uri().path_and_query().map_or("", |target| target.as_str()).to_owned();
            let mut body = request.into_body();
            let mut bytes = Vec::new();
            while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                if let Ok(piece) = frame.into_data() {
                    bytes.extend_from_slice(&piece);
                }
            }
            let (status, text) = (shared.answer)(&target, &bytes);
            shared.targets.lock().push(target);
            let response = Response::builder().status(status).header("content-type", "application/json");
            Ok::<_, Infallible>(response.body(RequestBody::Whole(Some(text.into()))).unwrap())
        }
    });
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}
