//! Handles requests once they are read: the chain that all of them pass, and the server's own endpoints.

pub mod app;
pub mod audit;
mod body;
pub mod connect;
mod counted;
mod deadline;
mod documents;
mod flags;
mod guards;
mod gzip;
pub mod health;
pub mod merged;
mod metrics;
pub mod openapi;
mod render;
pub mod worker;
