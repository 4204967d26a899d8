//! Logs over WebSocket. Of the client's messages only pings and closes are read.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::http::websocket::stream as websocket;
use crate::limits::{DISCONNECT_TIMEOUT, LOG_MESSAGE_BYTES};

use super::pongs;

/// The encoding of log bytes in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageEncoding {
    /// Binary messages.
    Binary,
    /// Text messages in base64.
    Text,
}

impl MessageEncoding {
    /// Picks the first known subprotocol that the client proposes, and its form. A client that proposes none gets binary
    /// messages. `None`: no proposed subprotocol is known.
    pub(super) fn negotiate<'a>(
        mut proposed: impl Iterator<Item = &'a str>,
    ) -> Option<(&'static str, MessageEncoding)> {
        let lookup = |protocol: &str| match protocol {
            "binary.k8s.io" => Some(("binary.k8s.io", MessageEncoding::Binary)),
            "base64.binary.k8s.io" => Some(("base64.binary.k8s.io", MessageEncoding::Text)),
            _ => None,
        };
        match proposed.next() {
            None => Some(("", MessageEncoding::Binary)),
            Some(first) => lookup(first).or_else(|| proposed.find_map(lookup)),
        }
    }

    async fn send<W: AsyncWrite + Unpin>(
        self,
        client: &Mutex<websocket::Writer<W>>,
        bytes: &[u8],
    ) -> io::Result<()> {
        let mut client = client.lock().await;
        match self {
            MessageEncoding::Binary => client.message(&[], bytes).await,
            MessageEncoding::Text => client.text(&STANDARD.encode(bytes)).await,
        }
    }
}

/// Sends a log until it ends or the client closes.
pub(super) async fn send_log<C: AsyncRead + AsyncWrite + Unpin>(
    client: C,
    mut log: impl Stream<Item = io::Result<Bytes>> + Unpin,
    head: Vec<u8>,
    encoding: MessageEncoding,
) {
    let (from_client, mut to_client) = tokio::io::split(client);
    if to_client.write_all(&head).await.is_err() || to_client.flush().await.is_err() {
        return;
    }
    let client = Mutex::new(websocket::Writer::new(to_client));
    let mut reader = websocket::Reader::new(from_client);
    let (pings, mut received_pings) = pongs::ping_queue();
    let inward = async move {
        loop {
            match reader.next().await {
                Ok(websocket::WebSocketFrame::Piece(..)) => {}
                Ok(websocket::WebSocketFrame::Ping(bytes)) => pings.note(bytes),
                Ok(websocket::WebSocketFrame::Close) | Err(_) => return,
            }
        }
    };
    let outward = async {
        // An empty message comes first, so that clients see the connection established before the log has output.
        encoding.send(&client, &[]).await?;
        while let Some(piece) = log.next().await {
            for part in piece?.chunks(LOG_MESSAGE_BYTES) {
                encoding.send(&client, part).await?;
            }
        }
        io::Result::Ok(())
    };
    let conversation = async move {
        tokio::select! {
            () = inward => {}
            result = outward => if let Err(error) = result {
                tracing::debug!(%error, "a pod log stream broke off");
            },
        }
    };
    pongs::run_with_pongs(conversation, pongs::to_client(&mut received_pings, &client)).await;
    let _ = timeout(DISCONNECT_TIMEOUT, async { client.lock().await.close().await }).await;
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[test]
    fn log_uses_the_first_known_subprotocol() {
        let negotiated = |proposed: &[&'static str]| MessageEncoding::negotiate(proposed.iter().copied());
        assert_eq!(negotiated(&[]), Some(("", MessageEncoding::Binary)));
        assert_eq!(
            negotiated(&["x", "base64.binary.k8s.io", "binary.k8s.io"]),
            Some(("base64.binary.k8s.io", MessageEncoding::Text))
        );
        assert_eq!(negotiated(&["binary.k8s.io"]), Some(("binary.k8s.io", MessageEncoding::Binary)));
        assert_eq!(negotiated(&["v4.channel.k8s.io"]), None);
    }

    #[actix_rt::test]
    async fn log_is_sent_in_bounded_messages() {
        for (encoding, kind, expected) in
            [(MessageEncoding::Binary, 0x82, "ab"), (MessageEncoding::Text, 0x81, "YWI=")]
        {
            let (client, mut far) = tokio::io::duplex(64 << 10);
            let pieces = [Bytes::from_static(b"ab"), Bytes::from(vec![b'x'; LOG_MESSAGE_BYTES + 1])];
            let log = stream::iter(pieces.map(io::Result::Ok));
            actix_rt::spawn(send_log(client, log, b"head".to_vec(), encoding));
            let mut received = Vec::new();
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut far, &mut received).await;
            let rest = received.strip_prefix(b"head").unwrap();
            let rest = rest.strip_prefix(&[kind, 0]).unwrap();
            let rest = rest.strip_prefix(&[kind, expected.len() as u8]).unwrap();
            let rest = rest.strip_prefix(expected.as_bytes()).unwrap();
            let long = rest.iter().filter(|byte| **byte == kind).count();
            assert!(long >= 2, "two messages for the second piece");
            assert!(received.ends_with(&[0x88, 2, 0x03, 0xe8]), "a close frame follows");
        }
    }
}
