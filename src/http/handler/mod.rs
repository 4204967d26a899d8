//! What happens to a request once it has been read: one chain for all of them, and the answers of the server itself.

pub mod app;
mod body;
pub mod connect;
mod counted;
mod deadline;
mod documents;
mod flags;
mod guards;
mod gzip;
pub mod health;
mod metrics;
pub mod openapi;
mod render;
pub mod worker;
