//! Whether writes can succeed, for health checks.

use std::sync::Arc;

use actix::Addr;
use tokio::sync::watch;

use crate::committer::{Check, Committer};
use crate::shared_log::SharedLog;
use crate::shared_log::messages::FollowStatus;

/// What health checks ask. Cheap to clone.
#[derive(Clone)]
pub enum StorageHealth {
    /// The committer of the log of this server: it answers only if its thread is alive and the engine accepts writes.
    Log(Addr<Committer>),
    /// A shared log, and how far it was followed.
    Shared(Arc<dyn SharedLog>, watch::Receiver<FollowStatus>),
}

impl StorageHealth {
    /// Why writes cannot succeed, if they cannot. Takes as long as the storage does.
    pub async fn check(&self) -> Result<(), String> {
        match self {
            StorageHealth::Log(committer) => match committer.send(Check).await {
                Ok(answer) => answer.map(drop).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            },
            StorageHealth::Shared(log, status) => {
                log.current_revision().await.map_err(|error| error.to_string())?;
                // Writes would not become visible.
                let disconnected = status.borrow().disconnected.clone();
                disconnected.map_or(Ok(()), |error| Err(error.to_string()))
            }
        }
    }
}
