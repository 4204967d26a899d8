//! Discovery documents that include aggregated groups: rebuilt when the catalog, the APIServices or their servers' discovery
//! change.

use std::sync::Arc;

use pilothouse_actors::lock::Lock;

use crate::api::aggregation::ApiService;
use crate::api::discovery::{Documents, usual_places};
use crate::backend::aggregation::{Extensions, State};

use super::worker::Served;

/// The last built documents, and the inputs that they were built from.
#[derive(Default)]
pub struct MergedDocuments(Lock<Option<Written>>);

struct Written {
    of: Arc<Served>,
    state: State,
    documents: Arc<Documents>,
}

impl MergedDocuments {
    /// The discovery documents of all groups, local and aggregated.
    pub async fn of(&self, served: &Arc<Served>, extensions: &Extensions) -> Arc<Documents> {
        let here = served.clone();
        let is_ours = move |known: &ApiService| {
            let (group, version) = (&*known.gv.group, &*known.gv.version);
            let places = (known.group_priority, known.version_priority);
            here.serves(group, version) && places == usual_places(group, version)
        };
        let state = extensions.state(is_ours).await;
        let Some(state) = state.filter(|state| !state.is_plain) else { return served.documents().clone() };
        if let Some(known) = self.known(served, state) {
            return known;
        }
        let documents = Arc::new(served.documents_with(&extensions.all().await.unwrap_or_default()));
        let written = Written { of: served.clone(), state, documents: documents.clone() };
        *self.0.lock() = Some(written);
        documents
    }

    fn known(&self, served: &Arc<Served>, state: State) -> Option<Arc<Documents>> {
        let known = self.0.lock();
        let known = known.as_ref().filter(|known| Arc::ptr_eq(&known.of, served) && known.state == state);
        known.map(|known| known.documents.clone())
    }
}
