//! The debug tables of `/debug/api_priority_and_fairness`: priority levels, queues and requests. The columns are those
//! of kube-apiserver.

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
use crate::limits::{DUMP_TEXT_CHARS, DUMPED_EMPTY_QUEUES};

const ROOT: &str = "/debug/api_priority_and_fairness/";
/// The minimum width and the padding of columns.
const MIN_COLUMN_WIDTH: usize = 8;
const COLUMN_PADDING: usize = 1;
/// The start time of requests that are not executing: Go's zero time.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

const LEVEL_COLUMNS: [&str; 10] = [
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
const QUEUE_COLUMNS: [&str; 9] = [
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
/// One is misspelled, as in kube-apiserver.
const REQUEST_COLUMNS: [&str; 10] = [
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
const DETAIL_COLUMNS: [&str; 8] =
    ["UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource"];

/// A request in a priority level. Keeps only what the rest can be computed from, because the tables are rarely read.
#[derive(Clone)]
pub struct RequestRecord {
    /// Its FlowSchema and priority level.
    pub flow: Arc<Flow>,
    /// The authenticated user.
    pub user: Arc<Identity>,
    /// The verb.
    pub verb: Verb,
    /// Its path.
    pub path: Box<str>,
    /// The name of the object, which the path may lack.
    pub name: Box<str>,
}

/// Renders the table of this path; `None` for other paths.
pub fn render(levels: &Levels<RequestRecord>, path: &str, query: &Query<'_>) -> Option<String> {
    match path.strip_prefix(ROOT)? {
        "dump_priority_levels" => Some(levels_table(levels)),
        "dump_queues" => Some(queues_table(levels)),
        "dump_requests" => {
            let with_details = query.get("includeRequestDetails").is_some_and(|value| !value.is_empty());
            Some(requests_table(levels, with_details))
        }
        _ => None,
    }
}

fn levels_table(levels: &Levels<RequestRecord>) -> String {
    let mut rows = vec![LEVEL_COLUMNS.map(str::to_owned).to_vec()];
    for (name, is_wanted, level) in levels.list() {
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
            // kube-apiserver counts timed out requests as cancelled.
            "0".to_owned(),
            counts.cancelled.to_string(),
        ]);
    }
    align(&rows)
}

fn queues_table(levels: &Levels<RequestRecord>) -> String {
    let mut rows = vec![QUEUE_COLUMNS.map(str::to_owned).to_vec()];
    for (name, _, level) in levels.list() {
        let (queue_count, used) = level.queues();
        // Empty queues have nothing but their index.
        let empty = (0..queue_count).take_while(|_| queue_count <= DUMPED_EMPTY_QUEUES);
        let is_used = |index: &u32| used.binary_search_by_key(index, |queue| queue.index).is_ok();
        let empty = empty
            .filter(|index| !is_used(index))
            .map(|index| QueueSnapshot { index, ..QueueSnapshot::EMPTY });
        let mut queues: Vec<QueueSnapshot> = used.iter().copied().chain(empty).collect();
        queues.sort_by_key(|queue| queue.index);
        for queue in queues {
            let [first, max] = queue.waiting_seats;
            rows.push(vec![
                name.clone(),
                queue.index.to_string(),
                queue.waiting.to_string(),
                queue.executing.to_string(),
                queue.seats.to_string(),
                seat_seconds(queue.next_start),
                first.to_string(),
                max.to_string(),
                seat_seconds(queue.queued_work as f64),
            ]);
        }
    }
    align(&rows)
}

fn requests_table(levels: &Levels<RequestRecord>, with_details: bool) -> String {
    let head = REQUEST_COLUMNS.iter().chain(DETAIL_COLUMNS.iter().filter(|_| with_details));
    let mut rows = vec![head.map(|name| (*name).to_owned()).collect()];
    for (name, _, level) in levels.list() {
        rows.extend(level.requests().iter().map(|position| request_row(&name, position, with_details)));
    }
    align(&rows)
}

fn request_row(
    level: &str,
    RequestPosition { entry, position }: &RequestPosition<RequestRecord>,
    with_details: bool,
) -> Vec<String> {
    let RequestRecord { flow, user, verb, path, name } = &entry.record;
    let no_index = "-1".to_owned();
    let query = Query::parse("");
    // The path has been parsed before, so this cannot fail; the verb is the stored one.
    let parsed = Request::parse("GET", path, &query).ok();
    let distinguisher = parsed.as_ref().map_or("", |parsed| flow.schema.distinguisher.value(user, parsed));
    let mut row = vec![
        level.to_owned(),
        flow.name.clone(),
        entry.queue.map_or_else(|| no_index.clone(), |queue| queue.to_string()),
        position.map_or_else(|| no_index.clone(), |position| position.to_string()),
        cell_text(distinguisher),
        format_time(entry.arrival),
        entry.work.seats.to_string(),
        entry.work.final_seats.to_string(),
        format_duration(entry.work.linger),
        entry.start.map_or_else(|| ZERO_TIME.to_owned(), format_time),
    ];
    if with_details {
        let no_resource = ResourcePath::default();
        let resource = parsed.as_ref().and_then(Request::resource).unwrap_or(&no_resource);
        let group = if resource.group.is_empty() { String::new() } else { format!("{}/", resource.group) };
        let version = group + resource.version;
        let parts = [&user.name, verb.as_str(), path, resource.namespace, name];
        row.extend(parts.map(cell_text));
        row.extend([version.as_str(), resource.resource, resource.subresource].map(cell_text));
    }
    row
}

/// A client-provided string as a cell: on one line, and truncated.
fn cell_text(text: &str) -> String {
    let plain = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    plain.take(DUMP_TEXT_CHARS).collect()
}

/// A timestamp in Go's RFC3339Nano format: without trailing zeros in the fraction.
fn format_time(time: Timestamp) -> String {
    let (seconds, micros) = (time.0 / 1_000_000, time.0 % 1_000_000);
    let text = time::format_micros(i64::try_from(seconds).unwrap_or(i64::MAX), micros as u32);
    let text = text.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.');
    format!("{text}Z")
}

/// A duration of less than a minute in Go's format.
fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
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
fn align(rows: &[Vec<String>]) -> String {
    let mut widths = Vec::new();
    for row in rows {
        widths.resize(row.len(), MIN_COLUMN_WIDTH);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count() + 1 + COLUMN_PADDING);
        }
    }
    let mut out = String::new();
    for row in rows {
        for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
            out.push_str(cell);
            if index + 1 < row.len() {
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
