//! The debug tables of `/debug/api_priority_and_fairness`: priority levels, queues and requests. The columns are the reference
//! server's.

use std::sync::Arc;
use std::time::Duration;

use pilothouse_actors::fair_queuing::levels::Levels;
use pilothouse_actors::fair_queuing::requests::{QueueSnapshot, RequestPosition};
use pilothouse_api::path::{Request, ResourcePath};
use pilothouse_apimachinery::query::Query;
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::verb::Verb;
use pilothouse_types::clock::Timestamp;
use pilothouse_types::identity::Identity;

use super::table::Flow;
use crate::limits::{EMPTY_QUEUES_TOLD, VISIT_CHARS};

const ROOT: &str = "/debug/api_priority_and_fairness/";
/// The minimum width and the padding of columns.
const NARROWEST: usize = 8;
const GAP: usize = 1;
/// The start time of requests that are not executing: Go's zero time.
const NOT_YET: &str = "0001-01-01T00:00:00Z";

const OF_LEVELS: [&str; 10] = [
    "PriorityLevelName",
    "ActiveQueues",
    "IsIdle",
    "IsQuiescing",
    "WaitingRequests",
    "ExecutingRequests",
    "DispatchedRequests",
    "RejectedRequests",
    "TimedoutRequests",
    "CancelledRequests",
];
const OF_QUEUES: [&str; 9] = [
    "PriorityLevelName",
    "Index",
    "PendingRequests",
    "ExecutingRequests",
    "SeatsInUse",
    "NextDispatchR",
    "InitialSeatsSum",
    "MaxSeatsSum",
    "TotalWorkSum",
];
/// One is misspelled, as in the reference.
const OF_REQUESTS: [&str; 10] = [
    "PriorityLevelName",
    "FlowSchemaName",
    "QueueIndex",
    "RequestIndexInQueue",
    "FlowDistingsher",
    "ArriveTime",
    "InitialSeats",
    "FinalSeats",
    "AdditionalLatency",
    "StartTime",
];
const OF_DETAILS: [&str; 8] =
    ["UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource"];

/// A request in a priority level. Keeps only what the rest can be computed from, because the tables are rarely read.
#[derive(Clone)]
pub struct RequestRecord {
    /// Its FlowSchema and priority level.
    pub flow: Arc<Flow>,
    /// Who sends it.
    pub user: Arc<Identity>,
    /// The verb.
    pub verb: Verb,
    /// Its path.
    pub path: Box<str>,
    /// The name of the object, which the path may lack.
    pub name: Box<str>,
}

/// Writes the table of this path.
pub fn answer(levels: &Levels<RequestRecord>, path: &str, query: &Query<'_>) -> Option<String> {
    match path.strip_prefix(ROOT)? {
        "dump_priority_levels" => Some(of_levels(levels)),
        "dump_queues" => Some(of_queues(levels)),
        "dump_requests" => {
            let details = query.get("includeRequestDetails").is_some_and(|given| !given.is_empty());
            Some(of_requests(levels, details))
        }
        _ => None,
    }
}

fn of_levels(levels: &Levels<RequestRecord>) -> String {
    let mut rows = vec![OF_LEVELS.map(str::to_owned).to_vec()];
    for (name, is_wanted, level) in levels.named() {
        let (load, counts, (_, queues)) = (level.load(), level.counts(), level.queues());
        let active = queues.iter().filter(|queue| queue.waiting > 0).count();
        rows.push(vec![
            name,
            active.to_string(),
            (load.executing == 0 && load.waiting == 0).to_string(),
            (!is_wanted).to_string(),
            load.waiting.to_string(),
            load.executing.to_string(),
            counts.dispatched.to_string(),
            counts.rejected.to_string(),
            // The reference counts timed out requests as cancelled.
            "0".to_owned(),
            counts.cancelled.to_string(),
        ]);
    }
    aligned(&rows)
}

fn of_queues(levels: &Levels<RequestRecord>) -> String {
    let mut rows = vec![OF_QUEUES.map(str::to_owned).to_vec()];
    for (name, _, level) in levels.named() {
        let (many, used) = level.queues();
        // Empty queues have nothing but their index.
        let empty = (0..many).take_while(|_| many <= EMPTY_QUEUES_TOLD);
        let is_used = |index: &u32| used.binary_search_by_key(index, |queue| queue.index).is_ok();
        let empty = empty
            .filter(|index| !is_used(index))
            .map(|index| QueueSnapshot { index, ..QueueSnapshot::EMPTY });
        let mut queues: Vec<QueueSnapshot> = used.iter().copied().chain(empty).collect();
        queues.sort_by_key(|queue| queue.index);
        for queue in queues {
            let [first, most] = queue.wanted;
            rows.push(vec![
                name.clone(),
                queue.index.to_string(),
                queue.waiting.to_string(),
                queue.executing.to_string(),
                queue.seats.to_string(),
                seat_seconds(queue.next),
                first.to_string(),
                most.to_string(),
                seat_seconds(queue.amount as f64),
            ]);
        }
    }
    aligned(&rows)
}

fn of_requests(levels: &Levels<RequestRecord>, details: bool) -> String {
    let head = OF_REQUESTS.iter().chain(OF_DETAILS.iter().filter(|_| details));
    let mut rows = vec![head.map(|name| (*name).to_owned()).collect()];
    for (name, _, level) in levels.named() {
        rows.extend(level.requests().iter().map(|one| request(&name, one, details)));
    }
    aligned(&rows)
}

fn request(
    level: &str,
    RequestPosition { entry, place }: &RequestPosition<RequestRecord>,
    details: bool,
) -> Vec<String> {
    let RequestRecord { flow, user, verb, path, name } = &entry.about;
    let none = "-1".to_owned();
    let query = Query::parse("");
    // The path parsed before, so it parses again; the verb is the stored one.
    let parsed = Request::parse("GET", path, &query).ok();
    let told = parsed.as_ref().map_or("", |parsed| flow.schema.distinguisher.value(user, parsed));
    let mut row = vec![
        level.to_owned(),
        flow.name.clone(),
        entry.queue.map_or_else(|| none.clone(), |queue| queue.to_string()),
        place.map_or_else(|| none.clone(), |place| place.to_string()),
        shown(told),
        instant(entry.came),
        entry.work.seats.to_string(),
        entry.work.after.to_string(),
        span(entry.work.linger),
        entry.began.map_or_else(|| NOT_YET.to_owned(), instant),
    ];
    if details {
        let nothing = ResourcePath::default();
        let found = parsed.as_ref().and_then(Request::resource).unwrap_or(&nothing);
        let of_group = if found.group.is_empty() { String::new() } else { format!("{}/", found.group) };
        let version = of_group + found.version;
        let parts = [&user.name, verb.as_str(), path, found.namespace, name];
        row.extend(parts.map(shown));
        row.extend([version.as_str(), found.resource, found.subresource].map(shown));
    }
    row
}

/// A client-provided string as a cell: on one line, and truncated.
fn shown(text: &str) -> String {
    let plain = text.chars().map(|sign| if sign.is_control() { ' ' } else { sign });
    plain.take(VISIT_CHARS).collect()
}

/// A timestamp in Go's RFC3339Nano format: without trailing zeros in the fraction.
fn instant(at: Timestamp) -> String {
    let (seconds, micros) = (at.0 / 1_000_000, at.0 % 1_000_000);
    let text = time::format_micros(i64::try_from(seconds).unwrap_or(i64::MAX), micros as u32);
    let text = text.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.');
    format!("{text}Z")
}

/// A duration of less than a minute in Go's format.
fn span(span: Duration) -> String {
    let nanos = span.as_nanos();
    let (unit, size) = match nanos {
        0 => return "0s".to_owned(),
        1..1_000 => ("ns", 1.0),
        1_000..1_000_000 => ("µs", 1e3),
        1_000_000..1_000_000_000 => ("ms", 1e6),
        _ => ("s", 1e9),
    };
    format!("{}{unit}", nanos as f64 / size)
}

/// Seat-microseconds as seat-seconds.
fn seat_seconds(work: f64) -> String {
    const PARTS: u64 = 100_000_000;
    let parts = (work * 100.0).round() as u64;
    format!("{}.{:08}ss", parts / PARTS, parts % PARTS)
}

/// Aligns the columns of rows with the same number of cells.
fn aligned(rows: &[Vec<String>]) -> String {
    let mut widths = Vec::new();
    for row in rows {
        widths.resize(row.len(), NARROWEST);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count() + 1 + GAP);
        }
    }
    let mut out = String::new();
    for row in rows {
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            out.push_str(cell);
            if at + 1 < row.len() {
                out.push(',');
                out.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count() + 1)));
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
#[path = "dump_tests.rs"]
mod tests;
