//! deletecollection: every object that matches, one deletion each.

use std::rc::Rc;

use crate::api::options::{ListOptions, no_force_of_many};
use crate::api::status::Status;

use super::delete::{delete_object, warn_of_dependents};
use super::list::{Listing, filter};
use super::paging::select_page;
use super::{Answered, Backend, Call, Reply};

/// Deletes what matches and answers the list of what it was.
pub async fn delete_collection(backend: &Rc<Backend>, call: &Call<'_>) -> Answered {
    let list = ListOptions::parse(call.query)?;
    list.validate(false)?;
    let options = backend.delete_options(call)?;
    if options.unreadable {
        return Err(no_force_of_many());
    }
    warn_of_dependents(call, &options);
    let filter = filter(call, &list)?;
    let snapshot = backend.stores.snapshot(&call.stored.store, &call.permit).await;
    let snapshot = snapshot.map_err(|error| Status::from_store(&error, call.of(), ""))?;
    let limit = usize::try_from(list.limit).ok().filter(|limit| *limit > 0);
    let page = select_page(&snapshot, &filter, None, limit);
    page.check(call.of())?;
    for object in &page.items {
        match delete_object(backend, call, object.clone(), &options).await {
            Ok(_) => {}
            // Somebody else was faster: what should be gone is gone.
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    let listing =
        Listing::page(backend, call, snapshot.revision, page, filter.is_selective(), Vec::new()).await?;
    Ok(Reply::List(listing))
}
