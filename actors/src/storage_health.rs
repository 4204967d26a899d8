//! Whether writes can succeed, for health checks.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use tokio::sync::watch;
use tokio::time::timeout;

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
    /// Why writes cannot succeed, if they cannot. A shared log may take so long; the log of this server takes as long as it does.
    pub async fn check(&self, max_wait: Duration) -> Result<(), String> {
        match self {
            StorageHealth::Log(committer) => match committer.send(Check).await {
                Ok(answer) => answer.map(drop).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            },
            StorageHealth::Shared(log, status) => {
                let newest = log.probe(max_wait).await.map_err(|error| error.to_string())?;
                // Else writes would not become visible.
                let mut status = status.clone();
                let is_over = |status: &FollowStatus| status.seen >= newest || status.disconnected.is_some();
                let followed = timeout(max_wait, status.wait_for(is_over)).await;
                match followed {
                    Ok(Ok(status)) if status.seen >= newest => Ok(()),
                    Ok(Ok(status)) => Err(status.disconnected.iter().map(ToString::to_string).collect()),
                    Ok(Err(_)) | Err(_) => Err("the shared log is not followed".to_owned()),
                }
            }
        }
    }
}
