//! Discovery documents that include aggregated groups: rebuilt when the catalog, the APIServices or their servers' discovery
//! change.

use std::sync::Arc;

use pilothouse_api::aggregation::ApiService;
use pilothouse_api::discovery::{Documents, usual_places};
use pilothouse_apimachinery::status::Result;
use pilothouse_types::lock::Lock;

use crate::backend::aggregation::{Extensions, State};

use super::render::Context;
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
    /// The discovery documents of all groups, local and aggregated. Those that have to be made are made on a thread for heavy work.
    pub async fn of(
        &self,
        served: &Arc<Served>,
        extensions: &Extensions,
        context: &Context,
    ) -> Result<Arc<Documents>> {
        let here = served.clone();
        let is_ours = move |known: &ApiService| {
            let (group, version) = (&*known.gv.group, &*known.gv.version);
            let places = (known.group_priority, known.version_priority);
            here.serves(group, version) && places == usual_places(group, version)
        };
        let state = extensions.state(is_ours).await;
        let here = served.clone();
        let Some(state) = state.filter(|state| !state.is_plain) else {
            return match served.made_documents() {
                Some(made) => Ok(made.clone()),
                None => context.compute_aside(move || here.documents().clone()).await,
            };
        };
        if let Some(known) = self.known(served, state) {
            return Ok(known);
        }
        let others = extensions.all().await.unwrap_or_default();
        let documents = Arc::new(context.compute_aside(move || here.documents_with(&others)).await?);
        let written = Written { of: served.clone(), state, documents: documents.clone() };
        *self.0.lock() = Some(written);
        Ok(documents)
    }

    fn known(&self, served: &Arc<Served>, state: State) -> Option<Arc<Documents>> {
        let known = self.0.lock();
        let known = known.as_ref().filter(|known| Arc::ptr_eq(&known.of, served) && known.state == state);
        known.map(|known| known.documents.clone())
    }
}
