//! deletecollection: every object that matches, one deletion each, several at a time.

use std::rc::Rc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use pilothouse_apimachinery::options::{ListOptions, no_force_of_many};

use crate::limits::DELETIONS_IN_FLIGHT;

use super::converted_selection;
use super::delete::{delete_object, warn_of_dependents};
use super::list::{Chosen, at_version, filter, open, page_limit};
use super::listing::Listing;
use super::paging::select_page;
use super::{Reply, VerbResult};
use crate::backend::{Backend, Call};

/// The page size of the reference if the client gives none.
const PAGE: i64 = 10_000;

/// Deletes the matching objects and answers their list.
pub async fn delete_collection(backend: &Rc<Backend>, call: &Call<'_>) -> VerbResult {
    let list = ListOptions::parse(call.query)?;
    list.validate(false)?;
    let filter = filter(call, &list)?;
    let options = backend.objects.delete_options(call)?;
    if options.unreadable {
        return Err(no_force_of_many());
    }
    warn_of_dependents(call, &options);
    let position = open(backend, call).await?;
    // The reference always reads in pages, so a given resourceVersion is matched exactly.
    let mut paged = list.clone();
    if paged.limit == 0 {
        paged.limit = PAGE;
    }
    let Chosen { snapshot, start, mut held } = at_version(backend, call, &paged, &position).await?;
    let view = converted_selection::view(backend, call, &snapshot, &filter, &start, &mut held).await?;
    let page = select_page(&view, &filter, start, page_limit(&list)).await;
    page.check(call.of())?;
    // Several are decoded in one turn. Before the first is deleted: a call that gives up begins again.
    call.work.check_bytes(page.items.iter().map(|object| object.bytes.len()).sum())?;
    let stored: Vec<_> =
        page.items.iter().filter_map(|object| snapshot.get(object.key.as_str())).cloned().collect();
    // Made before anything is deleted: a client that were refused its list afterwards would delete again.
    let listing = Listing::page(backend, call, snapshot.revision, page, filter.is_selective(), held).await?;
    call.work.commit();
    let deletions = stored.into_iter().map(async |object| {
        match delete_object(backend, call, object, &options).await {
            // A concurrent deletion came first, with the same result.
            Err(status) if status.code != 404 => Err(status),
            _ => Ok(()),
        }
    });
    // Several at once, so that they share syncs of the disk, begun in the order of the list; the first that fails ends it.
    stream::iter(deletions).buffered(DELETIONS_IN_FLIGHT).try_collect::<()>().await?;
    Ok(Reply::List(listing))
}
