//! list: the matching objects of a snapshot. `listing.rs` encodes them.

use std::rc::Rc;
use std::time::Duration;

use pilothouse_actors::point_in_time::{PointInTimeError, state_at};
use pilothouse_actors::snapshot::Snapshot;
use pilothouse_actors::store::Position;
use pilothouse_api::select;
use pilothouse_apimachinery::options::{self, ListOptions, VersionMatch};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_types::clock::Timestamp;
use pilothouse_types::filter::Filter;
use pilothouse_types::memory::{OutOfMemory, Reservation};
use pilothouse_types::object::Revision;

use crate::limits::LIST_BYTES;

use super::converted_selection;
use super::listing::Listing;
use super::paging::{Continue, Start, select_page};
use super::{Reply, VerbResult};
use crate::backend::{Backend, Call};

/// How long to wait for a resourceVersion in the future: 3 s in steps, as in the reference.
const FUTURE_TURNS: u32 = 60;
const FUTURE_TURN: Duration = Duration::from_millis(50);

/// Answers the objects that match.
pub async fn list(backend: &Rc<Backend>, call: &Call<'_>) -> VerbResult {
    let options = ListOptions::parse(call.query)?;
    options.validate(false)?;
    let filter = filter(call, &options)?;
    let position = open(backend, call).await?;
    let Chosen { snapshot, start, mut held } = at_version(backend, call, &options, &position).await?;
    let view = converted_selection::view(backend, call, &snapshot, &filter, &start, &mut held).await?;
    let page = select_page(&view, &filter, start, page_limit(&options)).await;
    page.check(call.of())?;
    let revision = snapshot.revision;
    if page.next.is_some() && revision == position.snapshot.revision {
        // Keeps this snapshot for the next chunk. A past state is already kept where it was made, if it is small enough.
        position.window.checkpoints().keep(snapshot, None);
    }
    let listing = Listing::page(backend, call, revision, page, filter.is_selective(), held).await?;
    Ok(Reply::List(listing))
}

/// The maximum number of items.
pub(super) fn page_limit(options: &ListOptions) -> Option<usize> {
    // With resourceVersion 0 the reference answers from its cache and ignores the limit.
    let any = options.resource_version == "0" && options.continue_token.is_empty();
    usize::try_from(options.limit).ok().filter(|limit| *limit > 0 && !any)
}

/// The current snapshot of the resource, and its history.
pub(super) async fn open(backend: &Backend, call: &Call<'_>) -> Result<Position> {
    let position = backend.stores.open_watch(&call.stored.store, &call.permit).await;
    let position = position.map_err(|error| Status::from_store(&error, call.of(), ""))?;
    backend.load.note(&call.stored.store, position.snapshot.len());
    Ok(position)
}

/// Waits for a snapshot that is not older than `requested`. A version in the future may come from another server: it is awaited,
/// but not for long.
pub(super) async fn not_older(
    backend: &Backend,
    call: &Call<'_>,
    position: Position,
    requested: u64,
) -> Result<Position> {
    if requested <= position.snapshot.revision.0 {
        return Ok(position);
    }
    for _ in 0..FUTURE_TURNS {
        tokio::time::sleep(FUTURE_TURN).await;
        if requested <= position.window.head().0 {
            return open(backend, call).await;
        }
    }
    Err(Status::future_version(requested, position.window.head().0))
}

/// The filter of a list or watch.
pub fn filter(call: &Call<'_>, options: &ListOptions) -> Result<Filter> {
    let name = if options.watch { call.name } else { "" };
    select::filter(call.resource, options, call.namespace, name)
}

/// The snapshot that a list shows.
pub(super) struct Chosen {
    pub(super) snapshot: Snapshot,
    /// Where the chunk begins.
    pub(super) start: Start,
    /// Its shares of the list budget, beside objects that are in memory anyway.
    pub(super) held: Vec<Reservation>,
}

impl Chosen {
    fn present(snapshot: Snapshot, now: Timestamp) -> Chosen {
        Chosen { snapshot, start: Start::first(now), held: Vec::new() }
    }
}

/// The snapshot that the options ask for.
pub(super) async fn at_version(
    backend: &Backend,
    call: &Call<'_>,
    options: &ListOptions,
    position: &Position,
) -> Result<Chosen> {
    let token = Some(&options.continue_token).filter(|token| !token.is_empty());
    let token = token.map(|token| Continue::decode(token)).transpose()?;
    if token.is_some() && !matches!(options.resource_version.as_str(), "" | "0") {
        let why = "specifying resource version is not allowed when using continue";
        return Err(Status::bad_request(why));
    }
    let requested = options::read_revision(&options.resource_version)?;
    let requested = requested.filter(|requested| *requested > 0);
    let now = backend.clock.now();
    if let Some(token) = token {
        let Some(revision) = token.revision else {
            let present = newer(backend, call, position, token.expired).await?;
            return Ok(Chosen { start: Start::at(token, now), ..Chosen::present(present, now) });
        };
        let found = if token.is_over(now, position.history) {
            None
        } else {
            past(backend, position, revision).await?
        };
        return match found {
            Some(chosen) => Ok(Chosen { start: Start::at(token, now), ..chosen }),
            None => Err(Status::continue_expired(token.inconsistent().encode())),
        };
    }
    let Some(requested) = requested else { return Ok(Chosen::present(position.snapshot.clone(), now)) };
    let position = not_older(backend, call, position.clone(), requested).await?;
    let exact = match options.resource_version_match {
        Some(how) => how == VersionMatch::Exact,
        None => options.limit > 0,
    };
    if !exact {
        return Ok(Chosen::present(position.snapshot, now));
    }
    past(backend, &position, requested).await?.ok_or_else(Status::list_expired)
}

/// The present state, at another version than the one that has expired: clients take two lists of one version for one list. Where
/// nothing was written since, the type goes on by a version at which nothing happens.
async fn newer(
    backend: &Backend,
    call: &Call<'_>,
    position: &Position,
    expired: Option<u64>,
) -> Result<Snapshot> {
    let present = &position.snapshot;
    let Some(expired) = expired.filter(|expired| *expired >= present.revision.0) else {
        return Ok(present.clone());
    };
    match backend.stores.step(&call.stored.store, Revision(expired), &call.permit).await {
        Ok(()) => Ok(open(backend, call).await?.snapshot),
        // A read does not fail because nothing can be written.
        Err(_) => Ok(present.clone()),
    }
}

/// The state at an older version; `None` if it is compacted. Its memory counts against the list budget.
async fn past(backend: &Backend, position: &Position, revision: u64) -> Result<Option<Chosen>> {
    let mut held: Vec<Reservation> = Vec::new();
    let mut refused = None;
    let room = |bytes| {
        // A state that exceeds the whole budget counts as compacted. If others use up the budget, the client may retry.
        if held.iter().map(Reservation::bytes).sum::<usize>() + bytes > LIST_BYTES {
            return false;
        }
        match backend.lists.take_more(bytes, &held) {
            Ok(room) => held.push(room),
            Err(status) => refused = Some(status),
        }
        refused.is_none()
    };
    match state_at(position, Revision(revision), room).await {
        Ok(snapshot) => Ok(Some(Chosen { held, ..Chosen::present(snapshot, backend.clock.now()) })),
        Err(PointInTimeError::Gone) => Ok(None),
        Err(PointInTimeError::TooLarge) => {
            refused.map_or(Ok(None), |refused: OutOfMemory| Err(refused.into()))
        }
        Err(PointInTimeError::Broken(why)) => {
            tracing::error!(%why, "an older state cannot be read");
            Err(Status::internal(why))
        }
    }
}
