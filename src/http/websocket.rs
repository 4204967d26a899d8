//! Watches over WebSocket, for browsers and other clients without streaming HTTP. Every event is one message, text for JSON and
//! binary otherwise. Of the client's messages only pings and closes are read.

pub mod frame;
pub mod stream;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use actix_web::error::PayloadError;
use actix_web::http::header::{self, HeaderMap, HeaderName};
use actix_web::http::{StatusCode, Version};
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream as _;
use pilothouse_actors::session::feed::Feed;
use pilothouse_apimachinery::media::Encoding;
use pilothouse_apimachinery::status::{Result, Status};

use self::frame::{
    BINARY, CLOSE, Head, MAX_HEAD_BYTES, NORMAL, PING, PONG, PROTOCOL_ERROR, TEXT, TOKEN_PROTOCOL,
};
use crate::limits::WEBSOCKET_CHUNK_BYTES;

/// The only version of the protocol that is in use.
const VERSION: &str = "13";
/// The length prefix of each event in a Protobuf stream. A WebSocket message needs none.
const PROTOBUF_LENGTH: usize = 4;

/// A client's request to upgrade to WebSocket.
pub struct Upgrade {
    accept_key: String,
    protocol: Option<String>,
}

fn header_items<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// The token that a browser sends as a subprotocol name, because it cannot set headers. It counts only in an upgrade request, and
/// only beside a real subprotocol. A malformed one is returned as it stands, so that authentication fails instead of being
/// skipped.
pub fn bearer(headers: &HeaderMap) -> Option<String> {
    let has_item = |name, item: &str| {
        header_items(headers, &name).any(|header_item| header_item.eq_ignore_ascii_case(item))
    };
    if !has_item(header::UPGRADE, "websocket") || !has_item(header::CONNECTION, "upgrade") {
        return None;
    }
    let (tokens, protocols): (Vec<&str>, Vec<&str>) = header_items(headers, &header::SEC_WEBSOCKET_PROTOCOL)
        .partition(|item| item.starts_with(TOKEN_PROTOCOL));
    let first_token = *tokens.first()?;
    let decoded = match tokens[..] {
        // An empty token is no token, as in a header.
        [TOKEN_PROTOCOL] => return None,
        [token] if protocols.iter().any(|other| !other.is_empty()) => decode(token),
        _ => None,
    };
    Some(decoded.unwrap_or_else(|| first_token.to_owned()))
}

fn decode(token: &str) -> Option<String> {
    let encoded = token.strip_prefix(TOKEN_PROTOCOL)?;
    String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()
}

impl Upgrade {
    /// Reads the upgrade request: GET over HTTP/1.1 that names the protocol. `None` if there is none; a malformed one is a bad
    /// request.
    pub fn from_request(request: &HttpRequest) -> Result<Option<Upgrade>> {
        let headers = request.headers();
        let has_item = |name, item: &str| {
            header_items(headers, &name).any(|header_item| header_item.eq_ignore_ascii_case(item))
        };
        let is_upgrade = has_item(header::UPGRADE, "websocket") && has_item(header::CONNECTION, "upgrade");
        if !is_upgrade || request.version() != Version::HTTP_11 {
            return Ok(None);
        }
        if !has_item(header::SEC_WEBSOCKET_VERSION, VERSION) {
            return Err(Status::bad_request("missing or bad WebSocket Version"));
        }
        let key =
            headers.get(header::SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok()).unwrap_or_default();
        if STANDARD.decode(key).map_or(0, |key| key.len()) != 16 {
            return Err(Status::bad_request("mismatch challenge/response"));
        }
        let accept_key = frame::accept_key(key);
        let mut protocols = header_items(headers, &header::SEC_WEBSOCKET_PROTOCOL);
        let protocol =
            protocols.find(|header_item| !header_item.is_empty() && !header_item.starts_with(TOKEN_PROTOCOL));
        Ok(Some(Upgrade { accept_key, protocol: protocol.map(str::to_owned) }))
    }

    /// Accepts the upgrade and sends the events of a watch.
    pub fn accept(self, mut feed: Feed, payload: Payload, encoding: Encoding) -> HttpResponse {
        let mut builder = HttpResponse::build(StatusCode::SWITCHING_PROTOCOLS);
        builder.upgrade("websocket").insert_header((header::SEC_WEBSOCKET_ACCEPT, self.accept_key));
        if let Some(protocol) = self.protocol {
            builder.insert_header((header::SEC_WEBSOCKET_PROTOCOL, protocol));
        }
        let (parser, cut) = (ControlParser::default(), feed.cut_signal());
        let conversation =
            Conversation { feed, payload, encoding, parser, control_frames: VecDeque::new(), is_over: false };
        let mut response = builder.body(conversation);
        cut.map(|cut| response.extensions_mut().insert(cut));
        response
    }
}

/// One watch over WebSocket.
struct Conversation {
    feed: Feed,
    payload: Payload,
    encoding: Encoding,
    parser: ControlParser,
    /// Control frames to send: at most a pong and a close.
    control_frames: VecDeque<Bytes>,
    /// Whether the conversation ends after those.
    is_over: bool,
}

impl Conversation {
    /// Reads the client's frames.
    fn read_frames(&mut self, context: &mut Context<'_>) {
        while !self.is_over {
            match Pin::new(&mut self.payload).poll_next(context) {
                Poll::Pending => return,
                // Request bodies have a deadline, conversations have none. The payload was polled before, so it will wake us.
                Poll::Ready(Some(Err(PayloadError::Io(late)))) if late.kind() == ErrorKind::TimedOut => {
                    return;
                }
                Poll::Ready(Some(Ok(bytes))) => self.handle(&bytes),
                Poll::Ready(Some(Err(_)) | None) => self.is_over = true,
            }
        }
    }

    fn handle(&mut self, bytes: &[u8]) {
        for control in self.parser.take(bytes) {
            match control {
                Control::Ping(payload) => {
                    // Only the last of several pings needs a pong.
                    self.control_frames.clear();
                    self.control_frames.push_back(encode_frame(PONG, &payload));
                }
                Control::Close(payload) => self.queue_close(&payload),
                Control::ProtocolError => self.queue_close(&PROTOCOL_ERROR),
            }
        }
    }

    fn queue_close(&mut self, payload: &[u8]) {
        if !self.is_over {
            self.control_frames.push_back(encode_frame(CLOSE, payload));
            self.is_over = true;
        }
    }

    /// Writes the next events as messages, or the end of the watch.
    fn write_events(&mut self, context: &mut Context<'_>, buffer: &mut BytesMut) {
        while buffer.len() < WEBSOCKET_CHUNK_BYTES {
            match self.feed.poll_frame(context) {
                Poll::Pending => return,
                Poll::Ready(None) => return self.queue_close(&NORMAL),
                Poll::Ready(Some(event)) => match self.encoding {
                    Encoding::Json | Encoding::Yaml => write_message(buffer, TEXT, &event),
                    Encoding::Cbor => write_message(buffer, BINARY, &event),
                    Encoding::Protobuf => {
                        write_message(buffer, BINARY, event.get(PROTOBUF_LENGTH..).unwrap_or_default());
                    }
                },
            }
        }
    }
}

impl MessageBody for Conversation {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Bytes, Infallible>>> {
        let this = self.get_mut();
        this.read_frames(context);
        let mut buffer = BytesMut::new();
        if !this.is_over {
            this.write_events(context, &mut buffer);
        }
        this.control_frames.drain(..).for_each(|control| buffer.extend_from_slice(&control));
        match (buffer.is_empty(), this.is_over) {
            (false, _) => Poll::Ready(Some(Ok(buffer.freeze()))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}

/// Writes a whole message as one frame.
fn write_message(buffer: &mut BytesMut, opcode: u8, payload: &[u8]) {
    buffer.reserve(payload.len() + MAX_HEAD_BYTES);
    frame::write_head(buffer, opcode, payload.len());
    buffer.put_slice(payload);
}

fn encode_frame(opcode: u8, payload: &[u8]) -> Bytes {
    let mut buffer = BytesMut::new();
    write_message(&mut buffer, opcode, payload);
    buffer.freeze()
}

/// A client frame that needs an answer.
#[derive(Debug, PartialEq, Eq)]
enum Control {
    Ping(Vec<u8>),
    Close(Vec<u8>),
    /// The client violates the protocol.
    ProtocolError,
}

/// The state of parsing a partial frame. Message payloads are skipped, not kept.
#[derive(Debug, Default)]
struct ControlParser {
    /// The bytes of a frame header and control payload so far.
    partial: Vec<u8>,
    /// Payload bytes of a message that are still to be skipped.
    skip: u64,
    is_broken: bool,
}

impl ControlParser {
    fn take(&mut self, mut bytes: &[u8]) -> Vec<Control> {
        let mut controls = Vec::new();
        while !bytes.is_empty() && !self.is_broken {
            if self.skip > 0 {
                let skipped = usize::try_from(self.skip).map_or(bytes.len(), |skip| skip.min(bytes.len()));
                self.skip -= skipped as u64;
                bytes = bytes.get(skipped..).unwrap_or_default();
                continue;
            }
            let (first, rest) = bytes.split_at(1);
            self.partial.extend_from_slice(first);
            bytes = rest;
            controls.extend(self.step());
        }
        controls
    }

    /// Tries to parse after each added byte.
    fn step(&mut self) -> Option<Control> {
        let head = match Head::parse(&self.partial) {
            Ok(head) => head?,
            Err(_) => {
                self.is_broken = true;
                return Some(Control::ProtocolError);
            }
        };
        if head.opcode < CLOSE {
            self.skip = head.length;
            self.partial.clear();
            return None;
        }
        let payload_start = self.partial.get(1).map_or(0, |second| Head::bytes(*second));
        let mut payload = self.partial.get(payload_start..).unwrap_or_default().to_vec();
        if (payload.len() as u64) < head.length {
            return None;
        }
        head.unmask(0, &mut payload);
        self.partial.clear();
        match head.opcode {
            CLOSE => Some(Control::Close(payload)),
            PING => Some(Control::Ping(payload)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;
    use proptest::prelude::*;

    use super::*;
    use crate::limits::WEBSOCKET_CONTROL_BYTES;

    #[test]
    fn bearer_token_is_read_from_a_subprotocol() {
        let bearer_for = |upgrade: &str, protocols: &str| {
            let request = TestRequest::default()
                .insert_header((header::UPGRADE, upgrade))
                .insert_header((header::CONNECTION, "keep-alive, Upgrade"))
                .insert_header((header::SEC_WEBSOCKET_PROTOCOL, protocols));
            bearer(request.to_http_request().headers())
        };
        let token = format!("{TOKEN_PROTOCOL}c2VjcmV0");
        assert_eq!(
            bearer_for("websocket", &format!("{token}, v4.channel.k8s.io")).as_deref(),
            Some("secret")
        );
        // A malformed token must fail authentication, not count as absent.
        assert_eq!(
            bearer_for("websocket", &token).as_deref(),
            Some(&*token),
            "no other subprotocol is proposed"
        );
        assert_eq!(
            bearer_for("websocket", &format!("{token}, {token}, x")).as_deref(),
            Some(&*token),
            "two tokens are ambiguous"
        );
        assert_eq!(
            bearer_for("websocket", &format!("{TOKEN_PROTOCOL}, x")),
            None,
            "an empty token is no token"
        );
        for malformed in ["!", "_w"] {
            let malformed = format!("{TOKEN_PROTOCOL}{malformed}");
            assert_eq!(bearer_for("websocket", &format!("{malformed}, x")), Some(malformed));
        }
        assert_eq!(bearer_for("websocket", "v4.channel.k8s.io"), None);
        assert_eq!(bearer_for("SPDY/3.1", &format!("{token}, x")), None);
        let without_connection = TestRequest::default()
            .insert_header((header::UPGRADE, "websocket"))
            .insert_header((header::SEC_WEBSOCKET_PROTOCOL, format!("{token}, x")));
        assert_eq!(
            bearer(without_connection.to_http_request().headers()),
            None,
            "Connection does not name the upgrade"
        );
    }

    fn masked_frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
        frame::masked(0x80 | opcode, payload)
    }

    proptest! {
        /// However the network splits the client's frames, pings are answered and messages are not kept.
        #[test]
        fn websocket_parser_returns_only_control_frames(
            messages in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)), 0..6),
            split in 1usize..40,
        ) {
            let (mut wire, mut pings) = (Vec::new(), Vec::new());
            for (ping, payload) in messages {
                if ping && payload.len() <= WEBSOCKET_CONTROL_BYTES {
                    wire.extend(masked_frame(PING, &payload));
                    pings.push(Control::Ping(payload));
                } else {
                    wire.extend(masked_frame(BINARY, &payload));
                }
            }
            let mut parser = ControlParser::default();
            let controls: Vec<Control> = wire.chunks(split).flat_map(|part| parser.take(part)).collect();
            prop_assert_eq!(controls, pings);
            prop_assert!(parser.partial.capacity() < 1_024);
        }
    }

    #[test]
    fn unmasked_frame_is_a_protocol_error() {
        let mut parser = ControlParser::default();
        assert_eq!(parser.take(&encode_frame(PING, b"x")), [Control::ProtocolError]);
        assert_eq!(parser.take(&masked_frame(PING, b"x")), []);
        assert_eq!(
            ControlParser::default().take(&masked_frame(CLOSE, b"bye")),
            [Control::Close(b"bye".to_vec())]
        );
    }

    #[test]
    fn websocket_upgrade_is_accepted_as_in_rfc_6455() {
        let request = || {
            TestRequest::get()
                .insert_header((header::CONNECTION, "keep-alive, Upgrade"))
                .insert_header((header::UPGRADE, "WebSocket"))
                .insert_header((header::SEC_WEBSOCKET_VERSION, "13"))
        };
        let key = (header::SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==");
        let protocols = format!("{TOKEN_PROTOCOL}abc, binary.k8s.io");
        let complete =
            request().insert_header(key).insert_header((header::SEC_WEBSOCKET_PROTOCOL, protocols));
        let upgrade = Upgrade::from_request(&complete.to_http_request()).unwrap().unwrap();
        assert_eq!(upgrade.accept_key, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(upgrade.protocol.as_deref(), Some("binary.k8s.io"));
        assert_eq!(Upgrade::from_request(&request().to_http_request()).err().unwrap().code, 400);
        assert!(Upgrade::from_request(&TestRequest::get().to_http_request()).unwrap().is_none());
    }
}
