//! Authorization rules: pure functions.
//!
//! [`rbac`] decides by roles and bindings, [`node_graph`] by the pods of a node. [`reviews`] are access reviews and token reviews,
//! [`denial`] is the response to a request that is not allowed, [`bearer`] parses the Authorization header.

pub mod bearer;
pub mod denial;
pub mod limits;
pub mod node_graph;
pub mod rbac;
pub mod reviews;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
