//! list: the matching objects of a snapshot. `listing.rs` encodes them.

use std::rc::Rc;
use std::time::Duration;

use pilothouse_actors::checkpoints::Origin;
use pilothouse_actors::point_in_time::{PointInTimeError, snapshot_at};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::{Freshness, Position};
use pilothouse_api::select;
use pilothouse_apimachinery::options::{self, ListOptions, VersionMatch};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::clock::Timestamp;
use pilothouse_types::error::StoreError;
use pilothouse_types::filter::Filter;
use pilothouse_types::memory::{OutOfMemory, Reservation};
use pilothouse_types::object::Revision;

use crate::limits::LIST_BYTES;
use crate::metrics::lists::ListSource;

use super::converted_selection;
use super::listing::Listing;
use super::paging::{Continue, Start, select_page};
use super::{Reply, VerbResult};
use crate::registry::{Backend, Call};

/// How often and how long to wait for a resourceVersion in the future: 3 s in total, as in the reference.
const FUTURE_ATTEMPTS: u32 = 60;
const FUTURE_PAUSE: Duration = Duration::from_millis(50);

/// Returns the matching objects.
pub async fn list(backend: &Rc<Backend>, call: &Call<'_>) -> VerbResult {
    let options = ListOptions::parse(call.query)?;
    options.validate(false)?;
    let filter = filter(call, &options)?;
    let position = open_counted(backend, call, list_freshness(&options)?).await?;
    let ListState { snapshot, start, mut reservations } =
        choose_state(backend, call, &options, &position).await?;
    let candidates =
        converted_selection::candidate_snapshot(backend, call, &snapshot, &filter, &start, &mut reservations)
            .await?;
    let page = select_page(&candidates, &filter, start, page_limit(&options)).await;
    page.check(call.group_resource())?;
    let revision = snapshot.revision;
    let source =
        if revision < position.snapshot.revision { ListSource::History } else { ListSource::Present };
    let metrics = &backend.loopback.metrics.lists;
    metrics.count(source, call.resource(), page.scanned, page.items.len());
    if page.next.is_some() && revision == position.snapshot.revision {
        // Keeps this snapshot for the next chunk. An older state is already kept where it was restored, if it is small enough.
        position.window.checkpoints().keep(snapshot, Origin::Window);
    }
    let listing = Listing::page(backend, call, revision, page, filter.is_selective(), reservations).await?;
    Ok(Reply::List(listing))
}

/// How recent the state must be. Another server may have begun the list that a token continues.
fn list_freshness(options: &ListOptions) -> Result<Freshness> {
    Ok(freshness(match options.continue_token.as_str() {
        "" => options::read_revision(&options.resource_version)?,
        token => Continue::decode(token)?.revision,
    }))
}

/// The maximum number of items.
pub(super) fn page_limit(options: &ListOptions) -> Option<usize> {
    // With resourceVersion 0 the reference lists from its cache and ignores the limit.
    let is_from_cache = options.resource_version == "0" && options.continue_token.is_empty();
    usize::try_from(options.limit).ok().filter(|limit| *limit > 0 && !is_from_cache)
}

/// How recent the state must be from which a list or watch with this resourceVersion is answered.
pub(super) fn freshness(requested: Option<u64>) -> Freshness {
    match requested {
        None => Freshness::Latest,
        Some(0) => Freshness::Seen,
        Some(revision) => Freshness::AtLeast(Revision(revision)),
    }
}

/// [`open`] for a list, whose metrics tell how long it waited for a state that is recent enough.
async fn open_counted(backend: &Backend, call: &Call<'_>, freshness: Freshness) -> Result<Position> {
    let (clock, metrics) = (&backend.clock, &backend.loopback.metrics.lists);
    let began = clock.moment();
    let opened = open(backend, call, freshness).await;
    if freshness != Freshness::Seen {
        metrics.count_wait(call.resource(), clock.elapsed(began));
    }
    if freshness == Freshness::Latest {
        metrics.count_consistent(call.resource(), opened.is_ok());
    }
    opened
}

/// A snapshot of the resource that is recent enough, and its history.
pub(super) async fn open(backend: &Backend, call: &Call<'_>, freshness: Freshness) -> Result<Position> {
    let position = backend.stores.open_watch(&call.stored().store, freshness, call.permit()).await;
    let position = position.map_err(|error| Status::from_store(&error, call.group_resource(), ""))?;
    backend.load.set_objects(&call.stored().store, position.snapshot.len());
    Ok(position)
}

/// Waits for a snapshot that is not older than `requested`. A version in the future may come from another server: it is awaited,
/// but not for long.
pub(super) async fn wait_for_revision(
    backend: &Backend,
    call: &Call<'_>,
    position: Position,
    requested: u64,
) -> Result<Position> {
    if requested <= position.snapshot.revision.0 {
        return Ok(position);
    }
    for _ in 0..FUTURE_ATTEMPTS {
        tokio::time::sleep(FUTURE_PAUSE).await;
        if requested <= position.window.seen().0 {
            return open(backend, call, Freshness::Seen).await;
        }
    }
    Err(Status::future_version(requested, position.window.seen().0))
}

/// The filter of a list or watch.
pub fn filter(call: &Call<'_>, options: &ListOptions) -> Result<Filter> {
    let name = if options.watch { call.name() } else { "" };
    select::filter(call.resource(), options, call.namespace(), name)
}

/// The state that a list is made from.
pub(super) struct ListState {
    pub(super) snapshot: Snapshot,
    /// Where the chunk begins.
    pub(super) start: Start,
    /// Reservations of the list budget for objects that are not in memory anyway.
    pub(super) reservations: Vec<Reservation>,
}

impl ListState {
    fn current(snapshot: Snapshot, now: Timestamp) -> ListState {
        ListState { snapshot, start: Start::first(now), reservations: Vec::new() }
    }
}

/// The state that the options ask for.
pub(super) async fn choose_state(
    backend: &Backend,
    call: &Call<'_>,
    options: &ListOptions,
    position: &Position,
) -> Result<ListState> {
    let token = Some(&options.continue_token).filter(|token| !token.is_empty());
    let token = token.map(|token| Continue::decode(token)).transpose()?;
    if token.is_some() && !matches!(options.resource_version.as_str(), "" | "0") {
        let message = "specifying resource version is not allowed when using continue";
        return Err(Status::bad_request(message));
    }
    let requested = options::read_revision(&options.resource_version)?;
    let requested = requested.filter(|requested| *requested > 0);
    let now = backend.clock.now();
    if let Some(token) = token {
        let Some(revision) = token.revision else {
            let current = current_after(backend, call, position, token.expired_revision).await?;
            return Ok(ListState {
                start: Start::from_token(token, now),
                ..ListState::current(current, now)
            });
        };
        let state = if token.is_expired(now, position.history) {
            None
        } else {
            state_at_revision(backend, call, position, revision).await?
        };
        return match state {
            Some(state) => Ok(ListState { start: Start::from_token(token, now), ..state }),
            None => Err(Status::continue_expired(token.continue_with_latest().encode())),
        };
    }
    let Some(requested) = requested else { return Ok(ListState::current(position.snapshot.clone(), now)) };
    let position = wait_for_revision(backend, call, position.clone(), requested).await?;
    let is_exact = match options.resource_version_match {
        Some(version_match) => version_match == VersionMatch::Exact,
        None => options.limit > 0,
    };
    if !is_exact {
        return Ok(ListState::current(position.snapshot, now));
    }
    state_at_revision(backend, call, &position, requested).await?.ok_or_else(Status::list_expired)
}

/// The current state, at a later revision than the expired one: clients take two lists of one resourceVersion for one list. If
/// nothing was written since, the revision of the type is advanced without a change.
async fn current_after(
    backend: &Backend,
    call: &Call<'_>,
    position: &Position,
    expired: Option<u64>,
) -> Result<Snapshot> {
    let current = &position.snapshot;
    let Some(expired) = expired.filter(|expired| *expired >= current.revision.0) else {
        return Ok(current.clone());
    };
    match backend.stores.advance_revision(&call.stored().store, Revision(expired), call.permit()).await {
        Ok(()) => Ok(open(backend, call, Freshness::AtLeast(Revision(expired))).await?.snapshot),
        // A read must not fail because the store cannot write.
        Err(_) => Ok(current.clone()),
    }
}

/// The state at an older revision; `None` if it is compacted. Its memory counts against the list budget.
async fn state_at_revision(
    backend: &Backend,
    call: &Call<'_>,
    position: &Position,
    revision: u64,
) -> Result<Option<ListState>> {
    let mut reservations: Vec<Reservation> = Vec::new();
    let mut out_of_memory = None;
    let reserve = |bytes| {
        // A state larger than the whole budget counts as compacted. If other lists use up the budget, the client may retry.
        if reservations.iter().map(Reservation::bytes).sum::<usize>() + bytes > LIST_BYTES {
            return false;
        }
        match backend.lists.take_more(bytes, &reservations) {
            Ok(reservation) => reservations.push(reservation),
            Err(error) => out_of_memory = Some(error),
        }
        out_of_memory.is_none()
    };
    match snapshot_at(position, Revision(revision), reserve).await {
        Ok(snapshot) => {
            Ok(Some(ListState { reservations, ..ListState::current(snapshot, backend.clock.now()) }))
        }
        Err(PointInTimeError::Gone) => Ok(None),
        Err(PointInTimeError::TooLarge) => {
            out_of_memory.map_or(Ok(None), |error: OutOfMemory| Err(error.into()))
        }
        Err(PointInTimeError::Unavailable(error)) => {
            Err(Status::from_store(&StoreError::from(error), call.group_resource(), ""))
        }
        Err(PointInTimeError::Broken(error)) => {
            tracing::error!(%error, "an older state cannot be restored");
            Err(Status::internal(error))
        }
    }
}
