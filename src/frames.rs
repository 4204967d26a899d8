//! Framing of the protocols that a connection can be upgraded to: WebSocket towards clients, SPDY towards kubelets. Only the parts
//! that exec, attach and port-forward need. Large frames pass in pieces, so that no peer can make this server buffer them.

mod outbox;
pub mod spdy;
pub mod websocket;
