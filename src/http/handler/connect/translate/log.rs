//! Logs over WebSocket. Of the client's messages only pings and closes are read.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::frames::websocket;
use crate::limits::{DISCONNECT_TIMEOUT, LOG_MESSAGE_BYTES};

use super::pongs;

/// The encoding of log bytes in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Binary messages.
    Binary,
    /// Text messages in base64.
    Text,
}

impl Form {
    /// Picks the first known subprotocol that the client proposes, and its form. A client that proposes none gets binary
    /// messages. `None`: no proposed subprotocol is known.
    pub(super) fn agreed<'a>(mut proposed: impl Iterator<Item = &'a str>) -> Option<(&'static str, Form)> {
        let known = |protocol: &str| match protocol {
            "binary.k8s.io" => Some(("binary.k8s.io", Form::Binary)),
            "base64.binary.k8s.io" => Some(("base64.binary.k8s.io", Form::Text)),
            _ => None,
        };
        match proposed.next() {
            None => Some(("", Form::Binary)),
            Some(first) => known(first).or_else(|| proposed.find_map(known)),
        }
    }

    async fn say<W: AsyncWrite + Unpin>(
        self,
        client: &Mutex<websocket::Writer<W>>,
        bytes: &[u8],
    ) -> io::Result<()> {
        let mut client = client.lock().await;
        match self {
            Form::Binary => client.message(&[], bytes).await,
            Form::Text => client.text(&STANDARD.encode(bytes)).await,
        }
    }
}

/// Sends a log until it ends or the client closes.
pub(super) async fn tell<C: AsyncRead + AsyncWrite + Unpin>(
    client: C,
    mut log: impl Stream<Item = io::Result<Bytes>> + Unpin,
    head: Vec<u8>,
    form: Form,
) {
    let (from_client, mut to_client) = tokio::io::split(client);
    if to_client.write_all(&head).await.is_err() || to_client.flush().await.is_err() {
        return;
    }
    let client = Mutex::new(websocket::Writer::new(to_client));
    let mut reader = websocket::Reader::new(from_client);
    let (pings, mut pinged) = pongs::waiting();
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
        form.say(&client, &[]).await?;
        while let Some(piece) = log.next().await {
            for part in piece?.chunks(LOG_MESSAGE_BYTES) {
                form.say(&client, part).await?;
            }
        }
        io::Result::Ok(())
    };
    let conversation = async move {
        tokio::select! {
            () = inward => {}
            told = outward => if let Err(error) = told {
                tracing::debug!(%error, "a pod log stream broke off");
            },
        }
    };
    pongs::beside(conversation, pongs::to_client(&mut pinged, &client)).await;
    let _ = timeout(DISCONNECT_TIMEOUT, async { client.lock().await.close().await }).await;
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[test]
    fn the_first_protocol_that_is_known_is_spoken() {
        let agreed = |proposed: &[&'static str]| Form::agreed(proposed.iter().copied());
        assert_eq!(agreed(&[]), Some(("", Form::Binary)));
        assert_eq!(
            agreed(&["x", "base64.binary.k8s.io", "binary.k8s.io"]),
            Some(("base64.binary.k8s.io", Form::Text))
        );
        assert_eq!(agreed(&["binary.k8s.io"]), Some(("binary.k8s.io", Form::Binary)));
        assert_eq!(agreed(&["v4.channel.k8s.io"]), None);
    }

    #[actix_rt::test]
    async fn a_log_comes_in_messages_that_are_not_too_long() {
        for (form, kind, expected) in [(Form::Binary, 0x82, "ab"), (Form::Text, 0x81, "YWI=")] {
            let (client, mut far) = tokio::io::duplex(64 << 10);
            let pieces = [Bytes::from_static(b"ab"), Bytes::from(vec![b'x'; LOG_MESSAGE_BYTES + 1])];
            let log = stream::iter(pieces.map(io::Result::Ok));
            actix_rt::spawn(tell(client, log, b"head".to_vec(), form));
            let mut said = Vec::new();
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut far, &mut said).await;
            let rest = said.strip_prefix(b"head").unwrap();
            let rest = rest.strip_prefix(&[kind, 0]).unwrap();
            let rest = rest.strip_prefix(&[kind, expected.len() as u8]).unwrap();
            let rest = rest.strip_prefix(expected.as_bytes()).unwrap();
            let long = rest.iter().filter(|byte| **byte == kind).count();
            assert!(long >= 2, "two messages for the second piece");
            assert!(said.ends_with(&[0x88, 2, 0x03, 0xe8]), "and a goodbye");
        }
    }
}
