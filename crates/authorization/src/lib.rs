//! Authorization rules: pure functions.
//!
//! [`rbac`] decides by roles and bindings, [`node_graph`] by what a node runs. [`reviews`] are the questions that clients ask about
//! access and tokens, [`denial`] is the answer to a request that is not allowed, [`bearer`] reads a token from a header.

pub mod bearer;
pub mod denial;
pub mod limits;
pub mod node_graph;
pub mod rbac;
pub mod reviews;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
