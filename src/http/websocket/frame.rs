//! WebSocket frames as bytes: heads, masks, and the handshake. RFC 6455 without extensions, on the server side.

use openssl::sha::sha1;

use crate::limits::WEBSOCKET_CONTROL_BYTES;

/// The constant that every handshake adds to the client's key.
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A continuation frame.
pub const CONTINUATION: u8 = 0;
/// A text frame.
pub const TEXT: u8 = 1;
/// A binary frame.
pub const BINARY: u8 = 2;
/// A close. Opcodes from here on are control frames.
pub const CLOSE: u8 = 8;
/// A ping.
pub const PING: u8 = 9;
/// A pong.
pub const PONG: u8 = 10;

/// The close code of a normal end.
pub const NORMAL: [u8; 2] = 1_000_u16.to_be_bytes();
/// The close code of a protocol error.
pub const PROTOCOL_ERROR: [u8; 2] = 1_002_u16.to_be_bytes();

/// The prefix of bearer tokens that clients without custom headers send as a subprotocol. It is never negotiated, and never
/// passed on to backends.
pub const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

const FINAL: u8 = 0x80;
const EXTENSIONS: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
/// Lengths that announce how many bytes of length follow.
const LENGTH_IN_TWO_BYTES: u8 = 126;
const LENGTH_IN_EIGHT_BYTES: u8 = 127;
const MASK_BYTES: usize = 4;

/// The size of the longest head.
pub const MAX_HEAD_BYTES: usize = 14;

/// The accept value for a client's key.
pub fn accept_key(key: &str) -> String {
    openssl::base64::encode_block(&sha1(format!("{key}{MAGIC}").as_bytes()))
}

/// The head of a client's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The opcode.
    pub opcode: u8,
    /// The length of the payload.
    pub length: u64,
    /// The mask of the payload.
    pub mask: [u8; MASK_BYTES],
}

impl Head {
    /// The size of a head with this second byte.
    pub fn bytes(second: u8) -> usize {
        2 + extended_length_bytes(second) + MASK_BYTES
    }

    /// Parses a head; `None` until it is complete. Invalid frames are detected from the second byte on.
    pub fn parse(bytes: &[u8]) -> Result<Option<Head>, &'static str> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let (opcode, short) = (first & OPCODE, second & !MASKED);
        if first & EXTENSIONS != 0 || second & MASKED == 0 {
            return Err("a frame with an extension, or without a mask");
        }
        if opcode >= CLOSE && usize::from(short) > WEBSOCKET_CONTROL_BYTES {
            return Err("a control frame that is too long");
        }
        let Some((length, rest)) = rest.split_at_checked(extended_length_bytes(*second)) else {
            return Ok(None);
        };
        let Some(mask) = rest.first_chunk() else { return Ok(None) };
        let length = match length {
            [] => u64::from(short),
            long => long.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        };
        Ok(Some(Head { opcode, length, mask: *mask }))
    }

    /// Unmasks a piece of the payload that begins after `passed` bytes.
    pub fn unmask(&self, passed: u64, piece: &mut [u8]) {
        let skipped = usize::try_from(passed % self.mask.len() as u64).unwrap_or_default();
        for (byte, mask) in piece.iter_mut().zip(self.mask.iter().cycle().skip(skipped)) {
            *byte ^= mask;
        }
    }
}

/// The number of length bytes after the second byte.
fn extended_length_bytes(second: u8) -> usize {
    match second & !MASKED {
        LENGTH_IN_TWO_BYTES => 2,
        LENGTH_IN_EIGHT_BYTES => 8,
        _ => 0,
    }
}

/// Writes the head of an unfragmented server frame.
pub fn write_head(out: &mut impl Extend<u8>, opcode: u8, length: usize) {
    out.extend([FINAL | opcode]);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..LENGTH_IN_TWO_BYTES), _) => out.extend([short]),
        (_, Ok(middle)) => {
            out.extend([LENGTH_IN_TWO_BYTES]);
            out.extend(middle.to_be_bytes());
        }
        _ => {
            out.extend([LENGTH_IN_EIGHT_BYTES]);
            out.extend((length as u64).to_be_bytes());
        }
    }
}

/// A frame as a client would send it.
#[cfg(test)]
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    write_head(&mut frame, first & OPCODE, payload.len());
    (frame[0], frame[1]) = (first, frame[1] | MASKED);
    let head = Head { opcode: first & OPCODE, length: payload.len() as u64, mask: [1, 2, 3, 4] };
    frame.extend(head.mask);
    let mut payload = payload.to_vec();
    head.unmask(0, &mut payload);
    frame.extend(payload);
    frame
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn accept_key_matches_the_example_of_rfc_6455() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn frame_length_has_three_encodings() {
        let head_of = |opcode, length| {
            let mut bytes = Vec::new();
            write_head(&mut bytes, opcode, length);
            bytes
        };
        assert_eq!(head_of(TEXT, 125), b"\x81\x7d");
        assert_eq!(head_of(BINARY, 126), b"\x82\x7e\x00\x7e");
        assert_eq!(head_of(BINARY, 65_535), b"\x82\x7e\xff\xff");
        assert_eq!(head_of(BINARY, 70_000), b"\x82\x7f\x00\x00\x00\x00\x00\x01\x11\x70");
    }

    #[test]
    fn invalid_frame_head_is_rejected_from_two_bytes() {
        for invalid in [&[0x82, 0x01][..], &[0xc2, 0x80], &[0x89, 0xfe]] {
            assert!(Head::parse(invalid).is_err(), "{invalid:?}");
        }
    }

    proptest! {
        #[test]
        fn frame_head_is_parsed_once_complete(opcode in 0_u8..3, length in 0_usize..100_000) {
            let frame = masked(0x80 | opcode, &vec![7; length]);
            let head_bytes = Head::bytes(frame[1]);
            prop_assert!(head_bytes <= MAX_HEAD_BYTES);
            for length_so_far in 0..head_bytes {
                prop_assert_eq!(Head::parse(&frame[..length_so_far]), Ok(None));
            }
            let expected = Head { opcode, length: length as u64, mask: [1, 2, 3, 4] };
            prop_assert_eq!(Head::parse(&frame), Ok(Some(expected)));
            prop_assert_eq!(frame.len(), head_bytes + length);
        }
    }
}
