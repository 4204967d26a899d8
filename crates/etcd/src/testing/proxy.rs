//! A TCP proxy that can hold data back and cut connections.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// What is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Everything.
    Open,
    /// What the client sends. What the server sends is held back.
    RequestsOnly,
    /// Nothing. Connections stay.
    Nothing,
}

#[derive(Clone, Copy)]
struct State {
    flow: Flow,
    /// Connections of earlier generations end.
    generation: u64,
}

/// A proxy in front of one server, on the runtime where it was started.
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    _listener: AbortOnDropHandle<()>,
}

impl Proxy {
    /// A proxy on a free port in front of this port.
    pub async fn start(target: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, _) = watch::channel(State { flow: Flow::Open, generation: 0 });
        let connections = state.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = connections.subscribe();
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await {
                        forward(client, server, state).await;
                    }
                });
            }
        });
        Proxy { address, state, _listener: AbortOnDropHandle::new(task) }
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Decides what is passed on from now on.
    pub fn set_flow(&self, flow: Flow) {
        self.state.send_modify(|state| state.flow = flow);
    }

    /// Ends all connections. What was held back is lost.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.generation += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn forward(client: TcpStream, server: TcpStream, mut state: watch::Receiver<State>) {
    let generation = state.borrow().generation;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = copy(from_client, to_server, state.clone(), |flow| flow != Flow::Nothing);
    let responses = copy(from_server, to_client, state.clone(), |flow| flow == Flow::Open);
    tokio::select! {
        _ended = requests => {}
        _ended = responses => {}
        _cut = state.wait_for(|state| state.generation != generation) => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<State>,
    passes: impl Fn(Flow) -> bool,
) {
    let generation = state.borrow().generation;
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        // What is held back when the connection is cut is not passed on, even if that would be allowed again by now.
        let is_cut = match state.wait_for(|state| state.generation != generation || passes(state.flow)).await
        {
            Ok(state) => state.generation != generation,
            Err(_) => true,
        };
        if is_cut {
            return;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
