//! For tests, of this crate and of others: a gRPC server on a Unix socket, or on a port.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets the unexpected fails")]

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::io;
use std::net::{SocketAddr as TcpAddr, TcpListener as StdTcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use hyper::body::Incoming;
use hyper::http::{Request, Response};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;

pub use tonic::Status;

/// What a plugin sends back.
pub type Reply = Response<Body>;

/// A call of a plugin.
pub struct Call(Request<Incoming>);

impl Call {
    /// The path of the method.
    pub fn method(&self) -> &str {
        self.0.uri().path()
    }

    /// Answers it.
    pub async fn answer<Q, R>(self, method: impl FnMut(Q) -> Result<R, Status>) -> Reply
    where
        Q: Message + Default + 'static,
        R: Message + 'static,
    {
        Grpc::new(ProstCodec::<R, Q>::default()).unary(Method(method), self.0).await
    }

    /// Answers that there is no such method.
    pub fn unimplemented(&self) -> Reply {
        Status::unimplemented(self.method()).into_http()
    }
}

/// A running plugin. It stops when it is dropped.
pub struct PluginServer {
    path: Option<PathBuf>,
    /// The thread ends when this is dropped.
    running: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl PluginServer {
    /// Starts a plugin on a socket with this path. A file that is there already is replaced.
    pub fn start<F: Future<Output = Reply> + Send + 'static>(
        path: &Path,
        answer: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> io::Result<PluginServer> {
        let _ = std::fs::remove_file(path);
        PluginServer::serve_unix(StdListener::bind(path)?, Some(path.to_owned()), answer)
    }

    /// Starts a plugin on an abstract socket.
    pub fn start_abstract<F: Future<Output = Reply> + Send + 'static>(
        name: &str,
        answer: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> io::Result<PluginServer> {
        let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        PluginServer::serve_unix(listener, None, answer)
    }

    /// Starts one on a port of this address, and tells which.
    pub fn start_tcp<F: Future<Output = Reply> + Send + 'static>(
        address: TcpAddr,
        answer: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> io::Result<(PluginServer, TcpAddr)> {
        let listener = StdTcpListener::bind(address)?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let server = PluginServer::serve(None, answer, Listening::Tcp(listener))?;
        Ok((server, address))
    }

    fn serve_unix<F: Future<Output = Reply> + Send + 'static>(
        listener: StdListener,
        path: Option<PathBuf>,
        answer: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> io::Result<PluginServer> {
        listener.set_nonblocking(true)?;
        PluginServer::serve(path, answer, Listening::Unix(listener))
    }

    fn serve<F: Future<Output = Reply> + Send + 'static>(
        path: Option<PathBuf>,
        answer: impl Fn(Call) -> F + Send + Sync + 'static,
        listening: Listening,
    ) -> io::Result<PluginServer> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (running, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("plugin".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = accept(listening, Arc::new(answer)) => {}
                }
            });
        })?;
        Ok(PluginServer { path, running: Some(running), thread: Some(thread) })
    }
}

impl Drop for PluginServer {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Where connections come from.
enum Listening {
    Unix(StdListener),
    Tcp(StdTcpListener),
}

async fn accept<F: Future<Output = Reply> + Send + 'static>(
    listening: Listening,
    answer: Arc<impl Fn(Call) -> F + Send + Sync + 'static>,
) {
    let expected = "a listener of the standard library";
    match listening {
        Listening::Unix(listener) => {
            let listener = UnixListener::from_std(listener).expect(expected);
            while let Ok((stream, _)) = listener.accept().await {
                serve_connection(stream, answer.clone());
            }
        }
        Listening::Tcp(listener) => {
            let listener = TcpListener::from_std(listener).expect(expected);
            while let Ok((stream, _)) = listener.accept().await {
                serve_connection(stream, answer.clone());
            }
        }
    }
}

fn serve_connection<F: Future<Output = Reply> + Send + 'static>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    answer: Arc<impl Fn(Call) -> F + Send + Sync + 'static>,
) {
    let service = service_fn(move |request| {
        let reply = answer(Call(request));
        async move { Ok::<_, Infallible>(reply.await) }
    });
    // A client that hangs up is no concern of the plugin.
    tokio::spawn(async move {
        let _ =
            http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
    });
}

/// A method of the plugin.
struct Method<F>(F);

impl<F, Q, R> UnaryService<Q> for Method<F>
where
    F: FnMut(Q) -> Result<R, Status>,
{
    type Response = R;
    type Future = Ready<Result<tonic::Response<R>, Status>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        ready(self.0(request.into_inner()).map(tonic::Response::new))
    }
}
