//! The edge: the only folder that knows actix-web.
//!
//! [`listener`] opens the socket, [`tls`] does the handshake, [`edge`] runs the workers and hands each connection to `h1` or
//! `h2`, which hand each request to the [`app`]. [`peer`] describes the client, [`drain`] ends connections without cutting
//! requests, [`connections`] bounds how many there are, `switch` lets a connection leave HTTP, `h1_stream` writes watches, and
//! `coalesce` joins small writes. [`debug_socket`] is beside all that.

pub mod app;
mod body;
mod coalesce;
pub mod connections;
pub mod debug_socket;
pub mod drain;
pub mod edge;
mod expectations;
mod h1;
mod h1_stream;
mod h2;
mod h2_stream;
pub mod handler;
pub mod listener;
mod outbox;
pub mod peer;
mod request_heads;
mod spdy;
mod stall;
mod switch;
pub mod tls;
pub mod websocket;
