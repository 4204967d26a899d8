//! The edge: the only folder that knows actix-web.
//!
//! [`listener`] opens the socket, [`tls`] makes connections private, [`edge`] runs the workers and hands each
//! connection to `h1` or `h2`, and these hand each request to the [`app`]. [`peer`] says who is at the other end,
//! [`drain`] ends connections without cutting requests, `switch` lets a connection leave HTTP, `h1_stream` writes watches, `gather` lets small
//! writes leave together.

pub mod app;
mod body;
pub mod drain;
pub mod edge;
mod gather;
mod h1;
mod h1_stream;
mod h2;
mod h2_stream;
pub mod handler;
pub mod listener;
pub mod peer;
mod stall;
mod switch;
pub mod tls;
pub mod websocket;
