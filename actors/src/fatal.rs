//! The signal that this server must end.
//!
//! A server that lost a store, or that does not know the state of its disk, must not go on. The part that notices raises this
//! signal. From then on stores refuse writes, and the server exits. Recovery decides the rest.

use std::sync::Arc;

use tokio::sync::watch;

/// Shared by all parts that may raise it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Fatal(Arc<watch::Sender<Option<String>>>);

impl Fatal {
    /// A signal that is not raised.
    pub fn new() -> Fatal {
        Fatal(Arc::new(watch::Sender::new(None)))
    }

    /// Ends the server. The first reason is reported: later ones are its consequences.
    pub fn raise(&self, reason: String) {
        self.0.send_if_modified(|raised| {
            if raised.is_some() {
                return false;
            }
            tracing::error!(reason, "fatal error, the server stops");
            *raised = Some(reason);
            true
        });
    }

    /// The reason why the server must end, if it must.
    pub fn raised(&self) -> Option<String> {
        self.0.borrow().clone()
    }

    /// Whether the server must end.
    pub fn is_raised(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Waits until the server must end, and returns the reason.
    pub async fn wait(&self) -> String {
        let mut changes = self.0.subscribe();
        match changes.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            // The sender is `self.0`, which outlives this call.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Default for Fatal {
    fn default() -> Fatal {
        Fatal::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix_rt::test]
    async fn fatal_reports_first_reason_to_all_waiters() {
        let fatal = Fatal::new();
        assert_eq!(fatal.raised(), None);
        let waiting = actix_rt::spawn({
            let fatal = fatal.clone();
            async move { fatal.wait().await }
        });
        fatal.raise("disk".into());
        fatal.raise("consequence".into());
        assert_eq!(waiting.await.unwrap(), "disk");
        assert_eq!(fatal.wait().await, "disk");
        assert_eq!(fatal.raised().as_deref(), Some("disk"));
    }
}
