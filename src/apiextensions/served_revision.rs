//! Up to which revision this server serves definitions.

use std::sync::Arc;

use pilothouse_types::object::Revision;
use tokio::sync::watch;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::limits::DEFINITION_WAIT;

/// The newest revision of definitions that this server serves. Cheap to clone.
#[derive(Clone, Default)]
pub struct ServedRevision(Arc<watch::Sender<Revision>>);

impl ServedRevision {
    /// Every definition up to this revision is served, if it can be.
    pub fn advance(&self, revision: Revision) {
        self.0.send_replace(revision);
    }

    /// Waits until the definition of this revision is served. Not for ever: the objects of its kind may not be readable now.
    pub async fn wait_for(&self, revision: Revision) -> Result<(), Elapsed> {
        let mut served = self.0.subscribe();
        timeout(DEFINITION_WAIT, served.wait_for(|served| *served >= revision)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn definition_is_waited_for_until_it_is_served() {
        let served = ServedRevision::default();
        served.advance(Revision(3));
        served.wait_for(Revision(3)).await.unwrap();
        let waiting = tokio::spawn({
            let served = served.clone();
            async move { served.wait_for(Revision(4)).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        served.advance(Revision(5));
        waiting.await.unwrap().unwrap();
    }
}
