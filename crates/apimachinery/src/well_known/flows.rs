//! The FlowSchemas and priority levels that always exist.

/// The name of the FlowSchema and the priority level of system:masters.
pub const EXEMPT: &str = "exempt";
/// The name of the FlowSchema and the priority level for requests that match no other FlowSchema.
pub const CATCH_ALL: &str = "catch-all";
