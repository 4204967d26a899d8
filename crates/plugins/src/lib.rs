//! Calls to plugins: programs beside the server that speak gRPC on a Unix socket, such as KMS plugins and signers of tokens, or
//! elsewhere, such as collectors of traces.
//!
//! - [`PluginClient`] makes calls, over one connection that it makes again when it breaks;
//! - [`PluginRuntime`] is the thread on which they are made, so that any thread may wait for one and none of the server's workers is
//!   disturbed;
//! - [`CallError`] is what goes wrong.

mod address;
mod client;
mod connection;
mod failure;
pub mod limits;
mod runtime;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use address::Address;
pub use client::{CallTimes, PluginClient};
pub use connection::{Dialer, Dialing, Duplex};
pub use failure::{CallError, clipped, code_name};
pub use prost::Message;
pub use runtime::PluginRuntime;
pub use tonic::Code;
