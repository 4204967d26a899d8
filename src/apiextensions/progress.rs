//! How far definitions are served.

use std::sync::Arc;

use pilothouse_types::object::Revision;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::limits::DEFINITION_WAIT;

/// The revision up to which this server serves definitions. Cheap to clone.
#[derive(Clone, Default)]
pub struct DefinitionProgress(Arc<watch::Sender<Revision>>);

impl DefinitionProgress {
    /// Every definition up to this revision is served, if it can be.
    pub fn mark_served(&self, revision: Revision) {
        self.0.send_replace(revision);
    }

    /// Waits until the definition of this revision is served. Not for ever: the objects of its kind may not be readable now.
    pub async fn wait_for(&self, revision: Revision) {
        let mut served = self.0.subscribe();
        let _served_or_late = timeout(DEFINITION_WAIT, served.wait_for(|served| *served >= revision)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn definition_is_waited_for_until_it_is_served() {
        let progress = DefinitionProgress::default();
        progress.mark_served(Revision(3));
        progress.wait_for(Revision(3)).await;
        let waiting = tokio::spawn({
            let progress = progress.clone();
            async move { progress.wait_for(Revision(4)).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        progress.mark_served(Revision(5));
        waiting.await.unwrap();
    }
}
