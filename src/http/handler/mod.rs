//! What happens to a request once it has been read: one chain for all of them, and the answers of the server itself.

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
#[expect(clippy::disallowed_methods, reason = "not yet through `pilothouse_actors::lock`")]
pub mod openapi;
mod render;
pub mod worker;
