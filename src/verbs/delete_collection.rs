//! deletecollection: deletes every matching object, several concurrently.

use std::rc::Rc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use pilothouse_actors::store::Freshness;
use pilothouse_apimachinery::options::{ListOptions, refuse_force_of_collection};

use super::converted_selection;
use super::delete::{delete_object, warn_of_dependents};
use super::list::{ListState, choose_state, filter, open, page_limit};
use super::listing::Listing;
use super::paging::select_page;
use super::{Reply, VerbResult};
use crate::registry::{Backend, Call};

/// The page size of the reference if the client gives none.
const DEFAULT_LIMIT: i64 = 10_000;

/// Deletes the matching objects and returns their list.
pub async fn delete_collection(backend: &Rc<Backend>, call: &Call<'_>) -> VerbResult {
    let list_options = ListOptions::parse(call.query)?;
    list_options.validate(false)?;
    let filter = filter(call, &list_options)?;
    let options = backend.objects.delete_options(call)?;
    if options.unreadable {
        return Err(refuse_force_of_collection());
    }
    warn_of_dependents(call, &options);
    let position = open(backend, call, Freshness::Latest).await?;
    // The reference always reads in pages, so a given resourceVersion is matched exactly.
    let mut paged_options = list_options.clone();
    if paged_options.limit == 0 {
        paged_options.limit = DEFAULT_LIMIT;
    }
    let ListState { snapshot, start, mut reservations } =
        choose_state(backend, call, &paged_options, &position).await?;
    let candidates =
        converted_selection::candidate_snapshot(backend, call, &snapshot, &filter, &start, &mut reservations)
            .await?;
    let page = select_page(&candidates, &filter, start, page_limit(&list_options)).await;
    page.check(call.group_resource())?;
    // Several are decoded at once. Checked before the first is deleted, because a call over the limit is repeated.
    call.work().check_bytes(page.items.iter().map(|object| object.bytes.len()).sum())?;
    let stored: Vec<_> =
        page.items.iter().filter_map(|object| snapshot.get(object.key.as_str())).cloned().collect();
    // Encoded before anything is deleted: a client that gets an error for its list would delete again.
    let listing =
        Listing::page(backend, call, snapshot.revision, page, filter.is_selective(), reservations).await?;
    call.work().commit();
    let deletions = stored.into_iter().map(async |object| {
        match delete_object(backend, call, object, &options).await {
            // A concurrent deletion came first, with the same result.
            Err(status) if status.code != 404 => Err(status),
            _ => Ok(()),
        }
    });
    // Concurrent, so that they share syncs of the disk, and started in the order of the list; the first failure ends it.
    stream::iter(deletions).buffered(backend.deletions.concurrent).try_collect::<()>().await?;
    Ok(Reply::List(listing))
}
