//! The bytes of a connection through a tunnel.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use futures::channel::mpsc::Sender;
use futures::{Stream as _, StreamExt as _};
use hyper::client::conn::http2::SendRequest;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tonic::Streaming;
use tonic::body::Body;

use super::{CloseRequest, Data, Packet, Payload};
use crate::limits::{KONNECTIVITY_CLOSE_TIMEOUT, KONNECTIVITY_DATA_BYTES};

/// A connection through a tunnel. What is not read stays at the other end, and what the other end does not take is not written.
pub struct TunnelStream {
    connection: i64,
    packets: Sender<Packet>,
    responses: Option<Responses>,
    /// Bytes of a packet that are not read yet.
    unread: Bytes,
    /// Its end was asked for.
    is_closing: bool,
    has_ended: bool,
}

/// The other half, which keeps the tunnel.
struct Responses {
    packets: Streaming<Packet>,
    _connection: SendRequest<Body>,
}

impl TunnelStream {
    pub(super) fn new(
        connection: i64,
        packets: Sender<Packet>,
        responses: Streaming<Packet>,
        tunnel: SendRequest<Body>,
    ) -> TunnelStream {
        let responses = Responses { packets: responses, _connection: tunnel };
        TunnelStream {
            connection,
            packets,
            responses: Some(responses),
            unread: Bytes::new(),
            is_closing: false,
            has_ended: false,
        }
    }

    fn close_request(&self) -> Packet {
        Packet::from(Payload::CloseRequest(CloseRequest { connect_id: self.connection }))
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "tunnel closed")
}

impl AsyncRead for TunnelStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        while stream.unread.is_empty() && !stream.has_ended {
            let Some(responses) = &mut stream.responses else { break };
            match ready!(Pin::new(&mut responses.packets).poll_next(cx)) {
                Some(Ok(packet)) => match packet.payload {
                    Some(Payload::Data(data)) if data.connect_id == stream.connection => {
                        stream.unread = data.data;
                    }
                    Some(Payload::CloseResponse(_)) => stream.has_ended = true,
                    _ => {}
                },
                // Not the end of the connection, but of the way to it.
                Some(Err(status)) => {
                    stream.has_ended = true;
                    let reason = format!("tunnel closed: {}", status.message());
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason)));
                }
                None => {
                    stream.has_ended = true;
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::ConnectionAborted,
                        "tunnel closed",
                    )));
                }
            }
        }
        let count = stream.unread.len().min(buf.remaining());
        buf.put_slice(&stream.unread[..count]);
        stream.unread.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_closing || self.has_ended {
            return Poll::Ready(Err(closed()));
        }
        ready!(self.packets.poll_ready(cx)).map_err(|_| closed())?;
        let piece = &bytes[..bytes.len().min(KONNECTIVITY_DATA_BYTES)];
        let data =
            Data { connect_id: self.connection, error: String::new(), data: Bytes::copy_from_slice(piece) };
        self.packets.start_send(Packet::from(Payload::Data(data))).map_err(|_| closed())?;
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_closing || self.has_ended {
            return Poll::Ready(Ok(()));
        }
        ready!(self.packets.poll_ready(cx)).map_err(|_| closed())?;
        let request = self.close_request();
        self.is_closing = true;
        Poll::Ready(self.packets.start_send(request).map_err(|_| closed()))
    }
}

/// Asks for the end of the connection, and keeps the tunnel until that has come: without it the other side may leave the connection
/// open.
impl Drop for TunnelStream {
    fn drop(&mut self) {
        let (Some(mut responses), Ok(runtime)) = (self.responses.take(), Handle::try_current()) else {
            return;
        };
        if self.has_ended {
            return;
        }
        let (mut packets, request) = (self.packets.clone(), self.close_request());
        let is_closing = self.is_closing;
        runtime.spawn(timeout(KONNECTIVITY_CLOSE_TIMEOUT, async move {
            // A new sender always has room for one packet.
            if !is_closing && packets.try_send(request).is_err() {
                return;
            }
            while let Some(Ok(packet)) = responses.packets.next().await {
                if matches!(packet.payload, Some(Payload::CloseResponse(_))) {
                    return;
                }
            }
        }));
    }
}
