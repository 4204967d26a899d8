//! Watches over WebSocket, for browsers and other clients without streaming HTTP. Every event is one message, text for JSON and
//! binary otherwise. Of the client's messages only pings and closes are read.

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

use crate::frames::websocket::frame::{
    self, BINARY, CLOSE, Head, LONGEST_HEAD, NORMAL, PING, PONG, PROTOCOL_ERROR, TEXT, TOKEN_PROTOCOL,
};
use crate::limits::WEBSOCKET_CHUNK_BYTES;

/// The only version of the protocol that is in use.
const VERSION: &str = "13";
/// The length prefix of each event in a Protobuf stream. A WebSocket message needs none.
const PROTOBUF_LENGTH: usize = 4;

/// A client's request to upgrade to WebSocket.
pub struct Upgrade {
    accept: String,
    protocol: Option<String>,
}

fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// The token that a browser sends as a subprotocol name, because it cannot set headers. It counts only in an upgrade request, and
/// only beside a real subprotocol. A malformed one is returned as it stands, so that authentication fails instead of being
/// skipped.
pub fn bearer(headers: &HeaderMap) -> Option<String> {
    let named = |name, word: &str| words(headers, &name).any(|one| one.eq_ignore_ascii_case(word));
    if !named(header::UPGRADE, "websocket") || !named(header::CONNECTION, "upgrade") {
        return None;
    }
    let (tokens, others): (Vec<&str>, Vec<&str>) =
        words(headers, &header::SEC_WEBSOCKET_PROTOCOL).partition(|word| word.starts_with(TOKEN_PROTOCOL));
    let first = *tokens.first()?;
    let decoded = match tokens[..] {
        // An empty token is no token, as in a header.
        [TOKEN_PROTOCOL] => return None,
        [token] if others.iter().any(|other| !other.is_empty()) => decode(token),
        _ => None,
    };
    Some(decoded.unwrap_or_else(|| first.to_owned()))
}

fn decode(token: &str) -> Option<String> {
    let encoded = token.strip_prefix(TOKEN_PROTOCOL)?;
    String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()
}

impl Upgrade {
    /// Reads the upgrade request: GET over HTTP/1.1 that names the protocol. `None` if there is none; a malformed one is a bad
    /// request.
    pub fn asked(request: &HttpRequest) -> Result<Option<Upgrade>> {
        let headers = request.headers();
        let named = |name, word: &str| words(headers, &name).any(|one| one.eq_ignore_ascii_case(word));
        let wishes = named(header::UPGRADE, "websocket") && named(header::CONNECTION, "upgrade");
        if !wishes || request.version() != Version::HTTP_11 {
            return Ok(None);
        }
        if !named(header::SEC_WEBSOCKET_VERSION, VERSION) {
            return Err(Status::bad_request("missing or bad WebSocket Version"));
        }
        let key =
            headers.get(header::SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok()).unwrap_or_default();
        if STANDARD.decode(key).map_or(0, |key| key.len()) != 16 {
            return Err(Status::bad_request("mismatch challenge/response"));
        }
        let accept = frame::accept_key(key);
        let mut protocols = words(headers, &header::SEC_WEBSOCKET_PROTOCOL);
        let protocol = protocols.find(|one| !one.is_empty() && !one.starts_with(TOKEN_PROTOCOL));
        Ok(Some(Upgrade { accept, protocol: protocol.map(str::to_owned) }))
    }

    /// Accepts the upgrade and sends the events of a watch.
    pub fn answer(self, feed: Feed, payload: Payload, encoding: Encoding) -> HttpResponse {
        let mut builder = HttpResponse::build(StatusCode::SWITCHING_PROTOCOLS);
        builder.upgrade("websocket").insert_header((header::SEC_WEBSOCKET_ACCEPT, self.accept));
        if let Some(protocol) = self.protocol {
            builder.insert_header((header::SEC_WEBSOCKET_PROTOCOL, protocol));
        }
        let (heard, cut) = (Heard::default(), feed.cut_signal());
        let conversation = Conversation { feed, payload, encoding, heard, say: VecDeque::new(), over: false };
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
    heard: Heard,
    /// Control frames to send: at most a pong and a close.
    say: VecDeque<Bytes>,
    /// Whether the conversation ends after those.
    over: bool,
}

impl Conversation {
    /// Reads the client's frames.
    fn listen(&mut self, context: &mut Context<'_>) {
        while !self.over {
            match Pin::new(&mut self.payload).poll_next(context) {
                Poll::Pending => return,
                // Request bodies have a deadline, conversations have none. The payload was polled before, so it will wake us.
                Poll::Ready(Some(Err(PayloadError::Io(late)))) if late.kind() == ErrorKind::TimedOut => {
                    return;
                }
                Poll::Ready(Some(Ok(bytes))) => self.hear(&bytes),
                Poll::Ready(Some(Err(_)) | None) => self.over = true,
            }
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        for control in self.heard.take(bytes) {
            match control {
                Control::Ping(payload) => {
                    // Only the last of several pings needs a pong.
                    self.say.clear();
                    self.say.push_back(whole(PONG, &payload));
                }
                Control::Close(payload) => self.goodbye(&payload),
                Control::Broken => self.goodbye(&PROTOCOL_ERROR),
            }
        }
    }

    fn goodbye(&mut self, payload: &[u8]) {
        if !self.over {
            self.say.push_back(whole(CLOSE, payload));
            self.over = true;
        }
    }

    /// Writes the next events as messages, or the end of the watch.
    fn tell(&mut self, context: &mut Context<'_>, out: &mut BytesMut) {
        while out.len() < WEBSOCKET_CHUNK_BYTES {
            match self.feed.poll_frame(context) {
                Poll::Pending => return,
                Poll::Ready(None) => return self.goodbye(&NORMAL),
                Poll::Ready(Some(event)) => match self.encoding {
                    Encoding::Json | Encoding::Yaml => put(out, TEXT, &event),
                    Encoding::Cbor => put(out, BINARY, &event),
                    Encoding::Protobuf => put(out, BINARY, event.get(PROTOBUF_LENGTH..).unwrap_or_default()),
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
        this.listen(context);
        let mut out = BytesMut::new();
        if !this.over {
            this.tell(context, &mut out);
        }
        this.say.drain(..).for_each(|control| out.extend_from_slice(&control));
        match (out.is_empty(), this.over) {
            (false, _) => Poll::Ready(Some(Ok(out.freeze()))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}

/// Writes a whole message as one frame.
fn put(out: &mut BytesMut, opcode: u8, payload: &[u8]) {
    out.reserve(payload.len() + LONGEST_HEAD);
    frame::begin(out, opcode, payload.len());
    out.put_slice(payload);
}

fn whole(opcode: u8, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    put(&mut out, opcode, payload);
    out.freeze()
}

/// A client frame that needs an answer.
#[derive(Debug, PartialEq, Eq)]
enum Control {
    Ping(Vec<u8>),
    Close(Vec<u8>),
    /// The client violates the protocol.
    Broken,
}

/// The state of parsing a partial frame. Message payloads are skipped, not kept.
#[derive(Debug, Default)]
struct Heard {
    /// The bytes of a frame header and control payload so far.
    begun: Vec<u8>,
    /// Payload bytes of a message that are still to be skipped.
    skip: u64,
    broken: bool,
}

impl Heard {
    fn take(&mut self, mut bytes: &[u8]) -> Vec<Control> {
        let mut found = Vec::new();
        while !bytes.is_empty() && !self.broken {
            if self.skip > 0 {
                let skipped = usize::try_from(self.skip).map_or(bytes.len(), |skip| skip.min(bytes.len()));
                self.skip -= skipped as u64;
                bytes = bytes.get(skipped..).unwrap_or_default();
                continue;
            }
            let (first, rest) = bytes.split_at(1);
            self.begun.extend_from_slice(first);
            bytes = rest;
            found.extend(self.step());
        }
        found
    }

    /// Tries to parse after each added byte.
    fn step(&mut self) -> Option<Control> {
        let head = match Head::parse(&self.begun) {
            Ok(head) => head?,
            Err(_) => {
                self.broken = true;
                return Some(Control::Broken);
            }
        };
        if head.opcode < CLOSE {
            self.skip = head.length;
            self.begun.clear();
            return None;
        }
        let begins = self.begun.get(1).map_or(0, |second| Head::bytes(*second));
        let mut payload = self.begun.get(begins..).unwrap_or_default().to_vec();
        if (payload.len() as u64) < head.length {
            return None;
        }
        head.unmask(0, &mut payload);
        self.begun.clear();
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
    fn a_token_may_be_the_name_of_a_protocol_beside_another() {
        let of = |upgrade: &str, protocols: &str| {
            let request = TestRequest::default()
                .insert_header((header::UPGRADE, upgrade))
                .insert_header((header::CONNECTION, "keep-alive, Upgrade"))
                .insert_header((header::SEC_WEBSOCKET_PROTOCOL, protocols));
            bearer(request.to_http_request().headers())
        };
        let token = format!("{TOKEN_PROTOCOL}c2VjcmV0");
        assert_eq!(of("websocket", &format!("{token}, v4.channel.k8s.io")).as_deref(), Some("secret"));
        // A malformed token must fail authentication, not count as absent.
        assert_eq!(of("websocket", &token).as_deref(), Some(&*token), "no protocol is left to agree upon");
        assert_eq!(
            of("websocket", &format!("{token}, {token}, x")).as_deref(),
            Some(&*token),
            "whose is it?"
        );
        assert_eq!(of("websocket", &format!("{TOKEN_PROTOCOL}, x")), None, "nothing is no token");
        for wrong in ["!", "_w"] {
            let wrong = format!("{TOKEN_PROTOCOL}{wrong}");
            assert_eq!(of("websocket", &format!("{wrong}, x")), Some(wrong));
        }
        assert_eq!(of("websocket", "v4.channel.k8s.io"), None);
        assert_eq!(of("SPDY/3.1", &format!("{token}, x")), None);
        let only_named = TestRequest::default()
            .insert_header((header::UPGRADE, "websocket"))
            .insert_header((header::SEC_WEBSOCKET_PROTOCOL, format!("{token}, x")));
        assert_eq!(bearer(only_named.to_http_request().headers()), None, "it does not leave HTTP");
    }

    fn said(opcode: u8, payload: &[u8]) -> Vec<u8> {
        frame::masked(0x80 | opcode, payload)
    }

    proptest! {
        /// However the network splits the client's frames, pings are answered and messages are not kept.
        #[test]
        fn only_control_frames_are_heard(
            messages in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)), 0..6),
            cut in 1usize..40,
        ) {
            let (mut wire, mut pings) = (Vec::new(), Vec::new());
            for (ping, payload) in messages {
                if ping && payload.len() <= WEBSOCKET_CONTROL_BYTES {
                    wire.extend(said(PING, &payload));
                    pings.push(Control::Ping(payload));
                } else {
                    wire.extend(said(BINARY, &payload));
                }
            }
            let mut heard = Heard::default();
            let found: Vec<Control> = wire.chunks(cut).flat_map(|part| heard.take(part)).collect();
            prop_assert_eq!(found, pings);
            prop_assert!(heard.begun.capacity() < 1_024);
        }
    }

    #[test]
    fn who_does_not_mask_does_not_speak_the_protocol() {
        let mut heard = Heard::default();
        assert_eq!(heard.take(&whole(PING, b"x")), [Control::Broken]);
        assert_eq!(heard.take(&said(PING, b"x")), []);
        assert_eq!(Heard::default().take(&said(CLOSE, b"bye")), [Control::Close(b"bye".to_vec())]);
    }

    #[test]
    fn the_wish_is_answered_as_the_protocol_says() {
        let request = || {
            TestRequest::get()
                .insert_header((header::CONNECTION, "keep-alive, Upgrade"))
                .insert_header((header::UPGRADE, "WebSocket"))
                .insert_header((header::SEC_WEBSOCKET_VERSION, "13"))
        };
        let key = (header::SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==");
        let protocols = format!("{TOKEN_PROTOCOL}abc, binary.k8s.io");
        let whole = request().insert_header(key).insert_header((header::SEC_WEBSOCKET_PROTOCOL, protocols));
        let upgrade = Upgrade::asked(&whole.to_http_request()).unwrap().unwrap();
        assert_eq!(upgrade.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(upgrade.protocol.as_deref(), Some("binary.k8s.io"));
        assert_eq!(Upgrade::asked(&request().to_http_request()).err().unwrap().code, 400);
        assert!(Upgrade::asked(&TestRequest::get().to_http_request()).unwrap().is_none());
    }
}
