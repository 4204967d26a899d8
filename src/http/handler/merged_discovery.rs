//! Discovery documents that include aggregated groups: rebuilt when the catalog, the APIServices or their servers' discovery
//! change.

use std::sync::Arc;

use pilothouse_api::aggregation::ApiService;
use pilothouse_api::discovery::{Documents, default_priorities};
use pilothouse_apimachinery::status::Result;
use pilothouse_types::lock::Lock;

use crate::aggregation::{Extensions, State};

use super::render::Context;
use super::worker::Served;

/// The last built documents, and the inputs that they were built from.
#[derive(Default)]
pub struct MergedDocuments(Lock<Option<CachedDocuments>>);

struct CachedDocuments {
    served: Arc<Served>,
    state: State,
    documents: Arc<Documents>,
}

impl MergedDocuments {
    /// The discovery documents of all groups, local and aggregated. They are built on a thread for heavy work if necessary.
    pub async fn get(
        &self,
        served: &Arc<Served>,
        extensions: &Extensions,
        context: &Context,
    ) -> Result<Arc<Documents>> {
        let own_served = served.clone();
        let is_served_here = move |api_service: &ApiService| {
            let (group, version) = (&*api_service.gv.group, &*api_service.gv.version);
            own_served.serves(group, version) && api_service.priorities == default_priorities(group, version)
        };
        let state = extensions.state(is_served_here).await;
        let own_served = served.clone();
        let Some(state) = state.filter(|state| !state.is_plain) else {
            return match served.built_documents() {
                Some(documents) => Ok(documents.clone()),
                None => context.compute_heavy(move || own_served.documents().clone()).await,
            };
        };
        if let Some(documents) = self.cached(served, state) {
            return Ok(documents);
        }
        let aggregated = extensions.all().await.unwrap_or_default();
        let documents =
            Arc::new(context.compute_heavy(move || own_served.documents_with(&aggregated)).await?);
        let entry = CachedDocuments { served: served.clone(), state, documents: documents.clone() };
        *self.0.lock() = Some(entry);
        Ok(documents)
    }

    fn cached(&self, served: &Arc<Served>, state: State) -> Option<Arc<Documents>> {
        let cached = self.0.lock();
        let cached =
            cached.as_ref().filter(|cached| Arc::ptr_eq(&cached.served, served) && cached.state == state);
        cached.map(|cached| cached.documents.clone())
    }
}
