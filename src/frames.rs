//! How the protocols that a connection can switch to put bytes into frames: WebSocket on the side of the client, SPDY on
//! that of the kubelet. Only what streams of commands and ports need of them. Frames of any size pass in pieces, so
//! nobody can make this server gather what they send.

mod outbox;
pub mod spdy;
pub mod websocket;
