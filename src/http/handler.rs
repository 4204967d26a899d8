//! Handles requests once they are read: the filter chain that all of them pass, and the server's own endpoints.

pub mod app;
pub mod audit;
pub mod backup;
mod body;
mod budgeted_body;
pub mod connect;
mod cors;
mod deadline;
mod debug_flags;
pub mod debug_pages;
mod documents;
mod established;
mod filters;
mod gzip;
pub mod health;
pub mod merged_discovery;
mod metered_body;
mod metrics;
pub mod openapi;
mod render;
mod request_trace;
mod resource;
mod seated_body;
pub mod shutdown;
pub mod storage_probe;
mod streamed_body;
pub mod worker;
