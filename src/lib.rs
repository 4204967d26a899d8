//! Pilothouse: a control-plane API server on actix actors.

pub mod api;
