//! The packets of the protocol.

use prost::{Message, Oneof};

/// One packet.
#[derive(Clone, PartialEq, Message)]
pub struct Packet {
    /// What it is: see [`Payload`].
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// Its contents.
    #[prost(oneof = "Payload", tags = "2, 3, 4, 5, 6, 7, 8")]
    pub payload: Option<Payload>,
}

/// The contents of a packet.
#[derive(Clone, PartialEq, Oneof)]
pub enum Payload {
    /// Asks for a connection.
    #[prost(message, tag = "2")]
    DialRequest(DialRequest),
    /// Says whether there is one.
    #[prost(message, tag = "3")]
    DialResponse(DialResponse),
    /// Bytes of it.
    #[prost(message, tag = "4")]
    Data(Data),
    /// Asks for its end.
    #[prost(message, tag = "5")]
    CloseRequest(CloseRequest),
    /// It has ended.
    #[prost(message, tag = "6")]
    CloseResponse(CloseResponse),
    /// A dial that has no response was given up.
    #[prost(message, tag = "7")]
    CloseDial(CloseDial),
    /// An agent is about to end; of no concern to clients.
    #[prost(message, tag = "8")]
    Drain(Drain),
}

/// Asks for a connection.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DialRequest {
    /// `tcp`.
    #[prost(string, tag = "1")]
    pub protocol: String,
    /// Host and port.
    #[prost(string, tag = "2")]
    pub address: String,
    /// The number of the dial.
    #[prost(int64, tag = "3")]
    pub random: i64,
}

/// Says whether there is a connection.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DialResponse {
    /// Why there is none.
    #[prost(string, tag = "1")]
    pub error: String,
    /// The number of the connection.
    #[prost(int64, tag = "2")]
    pub connect_id: i64,
    /// The number of the dial.
    #[prost(int64, tag = "3")]
    pub random: i64,
}

/// Asks for the end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CloseRequest {
    /// The number of the connection.
    #[prost(int64, tag = "1")]
    pub connect_id: i64,
}

/// A connection has ended.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CloseResponse {
    /// What went wrong with that.
    #[prost(string, tag = "1")]
    pub error: String,
    /// The number of the connection.
    #[prost(int64, tag = "2")]
    pub connect_id: i64,
}

/// A dial was given up.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CloseDial {
    /// The number of the dial.
    #[prost(int64, tag = "1")]
    pub random: i64,
}

/// An agent is about to end.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Drain {}

/// Bytes of a connection.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Data {
    /// The number of the connection.
    #[prost(int64, tag = "1")]
    pub connect_id: i64,
    /// What went wrong.
    #[prost(string, tag = "2")]
    pub error: String,
    /// The bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub data: bytes::Bytes,
}

impl From<Payload> for Packet {
    fn from(payload: Payload) -> Packet {
        let kind = match &payload {
            Payload::DialRequest(_) => 0,
            Payload::DialResponse(_) => 1,
            Payload::CloseRequest(_) => 2,
            Payload::CloseResponse(_) => 3,
            Payload::Data(_) => 4,
            Payload::CloseDial(_) => 5,
            Payload::Drain(_) => 6,
        };
        Packet { kind, payload: Some(payload) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What other implementations send.
    #[test]
    fn packets_have_the_form_of_the_protocol() {
        let dial = DialRequest { protocol: "tcp".to_owned(), address: "n:1".to_owned(), random: 7 };
        let encoded = Packet::from(Payload::DialRequest(dial)).encode_to_vec();
        assert_eq!(encoded, b"\x12\x0c\x0a\x03tcp\x12\x03n:1\x18\x07");
        let data = Data { connect_id: 5, data: bytes::Bytes::from_static(b"hi"), ..Data::default() };
        let packet = Packet::from(Payload::Data(data));
        let encoded = packet.encode_to_vec();
        assert_eq!(encoded, b"\x08\x04\x22\x06\x08\x05\x1a\x02hi");
        assert_eq!(Packet::decode(encoded.as_slice()), Ok(packet));
    }
}
