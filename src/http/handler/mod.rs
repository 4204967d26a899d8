//! What happens to a request once it has been read: one chain for all of them, and the answers of the server itself.

pub mod app;
mod body;
mod documents;
mod guards;
pub mod health;
mod metrics;
mod render;
pub mod worker;
