//! Outgoing calls of the server.
//!
//! [`upstream`] connects to kubelets, pods, services and extension API servers, and holds the pool of connections. [`webhook`]
//! calls servers that the operator or the users configure: one JSON object out, one back. [`api_server`] calls another API server,
//! for commands that are its clients. [`kubeconfig`] reads the files that describe such servers, with their credentials.
//! [`routes`] says over which proxies a server is reached, [`egress`] has those that some connections must take. [`socket`] sets the
//! options of TCP connections, [`paced`] limits their rate.

pub mod api_server;
mod bounded_read;
mod client_tls;
mod direct;
pub mod egress;
mod failure;
#[cfg(any(test, feature = "testing"))]
pub mod http2_testing;
pub mod kubeconfig;
pub mod limits;
pub mod paced;
pub mod routes;
pub mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod upstream;
mod verification_error;
pub mod webhook;
