//! Connections to members: addresses, TLS, HTTP/2, and which member is used.

mod connection;
mod dial;
mod endpoint;
mod grpc;
mod liveness;
mod pool;
mod tls;

pub use self::connection::Connection;
pub use self::endpoint::Endpoint;
pub use self::grpc::Origin;
pub use self::pool::{Active, Pool};
