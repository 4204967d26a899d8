//! Estimates the width of a request in seats. Expensive requests take more, so that fewer of them run at once.

use std::time::Duration;

use pilothouse_actors::fair_queuing::queues::WorkEstimate;
use pilothouse_api::path::ResourcePath;
use pilothouse_apimachinery::verb::Verb;

use super::RequestInfo;
use crate::flowcontrol::load_stats::LoadStats;

/// The number of listed objects per seat; kube-apiserver's value.
const OBJECTS_PER_SEAT: usize = 100;
/// The number of notified watchers per seat; kube-apiserver's value.
const WATCHERS_PER_SEAT: usize = 10;
/// The time to notify these watchers. A tenth of kube-apiserver's value, because events take a tenth of its time here
/// (docs/numbers.md).
const NOTIFICATION_TIME: Duration = Duration::from_micros(500);

/// The width of a request in a priority level where requests have at most `widest` seats.
pub fn estimate(info: &RequestInfo<'_>, load: &LoadStats, widest: u32) -> WorkEstimate {
    let (Some(path), Some(stored)) =
        (info.request.resource(), info.resource.and_then(|resource| resource.stored()))
    else {
        return WorkEstimate::ONE;
    };
    match info.request.verb {
        Verb::List => list(info, path, load.objects(&stored.store), widest),
        Verb::Watch if info.query.flag("sendInitialEvents") == Some(true) => {
            list(info, path, load.objects(&stored.store), widest)
        }
        // Creating a token does not change the service account.
        Verb::Create if path.subresource == "token" => WorkEstimate::ONE,
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => {
            let watchers = load.watchers(&stored.store, path.namespace, path.name, WATCHERS_PER_SEAT);
            write(watchers, widest)
        }
        _ => WorkEstimate::ONE,
    }
}

/// The width of a list, by the number of objects that are examined. If the number is unknown, the type was never listed.
fn list(
    info: &RequestInfo<'_>,
    path: &ResourcePath<'_>,
    objects: Option<usize>,
    widest: u32,
) -> WorkEstimate {
    if !path.authorized_name.is_empty() {
        return WorkEstimate::ONE;
    }
    let objects = objects.unwrap_or_default();
    let is_set = |name: &str| info.query.get(name).is_some_and(|value| !value.is_empty());
    // A page of a filtered list may have to examine everything.
    let is_filtered = is_set("labelSelector") || is_set("fieldSelector");
    let limit = info.query.get("limit").and_then(|limit| limit.parse().ok()).filter(|limit| *limit > 0);
    let examined =
        if is_filtered { objects } else { limit.map_or(objects, |limit: usize| limit.min(objects)) };
    WorkEstimate { seats: seats(examined, OBJECTS_PER_SEAT).clamp(1, widest.max(1)), ..WorkEstimate::ONE }
}

/// A write takes one seat, and afterwards the seats of its watch events, while they are delivered. Work that is too wide takes
/// longer instead.
fn write(watchers: usize, widest: u32) -> WorkEstimate {
    if watchers < WATCHERS_PER_SEAT {
        return WorkEstimate::ONE;
    }
    let seats_needed = seats(watchers, WATCHERS_PER_SEAT);
    let final_seats = seats_needed.clamp(1, widest.max(1));
    WorkEstimate { seats: 1, final_seats, linger: NOTIFICATION_TIME * seats_needed / final_seats }
}

fn seats(count: usize, per_seat: usize) -> u32 {
    u32::try_from(count.div_ceil(per_seat)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilothouse_api::catalog::build::Builtin;
    use pilothouse_api::catalog::runtime_config::RuntimeConfig;
    use pilothouse_api::path::Request;
    use pilothouse_apimachinery::query::Query;
    use pilothouse_types::identity::Identity;

    use super::*;

    #[test]
    fn expensive_requests_take_more_seats() {
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let load = Arc::new(LoadStats::default());
        let estimate_for = |method: &str, path: &str, query: &str| {
            let (query, user) = (Query::parse(query), Arc::new(Identity::default()));
            let request = Request::parse(method, path, &query).unwrap();
            let resource = request.resource().and_then(|path| catalog.resource_at(path));
            let info = RequestInfo {
                user: &user,
                path,
                request: &request,
                resource: resource.map(|resource| &**resource),
                query: &query,
            };
            let WorkEstimate { seats, final_seats, linger } = estimate(&info, &load, 10);
            (seats, final_seats, linger.as_micros())
        };
        let pods = "/api/v1/namespaces/n/pods";
        let minimal = (1, 0, 0);
        assert_eq!(estimate_for("GET", pods, ""), minimal, "unknown number of objects");
        let store = catalog.find("", "v1", "pods").unwrap().stored().unwrap().store.clone();
        load.set_objects(&store, 730);
        assert_eq!(estimate_for("GET", pods, ""), (8, 0, 0));
        assert_eq!(estimate_for("GET", pods, "limit=250"), (3, 0, 0));
        assert_eq!(estimate_for("GET", pods, "limit=250&labelSelector=a"), (8, 0, 0));
        assert_eq!(estimate_for("GET", pods, "fieldSelector=metadata.name%3Da"), minimal);
        assert_eq!(estimate_for("GET", pods, "watch=1"), minimal);
        assert_eq!(estimate_for("GET", pods, "watch=1&sendInitialEvents=true"), (8, 0, 0));
        assert_eq!(estimate_for("GET", "/api/v1/namespaces/n/pods/a", ""), minimal);
        assert_eq!(estimate_for("GET", "/api/v1/nodes", ""), minimal);
        assert_eq!(estimate_for("GET", "/healthz", ""), minimal);
        load.set_objects(&store, 1_000_000);
        assert_eq!(estimate_for("GET", pods, ""), (10, 0, 0));
        assert_eq!(estimate_for("POST", pods, ""), minimal);
        let few: Vec<_> = (0..9).map(|_| load.watch(&store, "", "")).collect();
        assert_eq!(estimate_for("POST", pods, ""), minimal);
        let more: Vec<_> = (0..16).map(|_| load.watch(&store, "n", "")).collect();
        assert_eq!(estimate_for("POST", pods, ""), (1, 3, 500));
        assert_eq!(estimate_for("POST", "/api/v1/namespaces/m/pods", ""), minimal);
        let many: Vec<_> = (0..175).map(|_| load.watch(&store, "n", "a")).collect();
        assert_eq!(estimate_for("PUT", "/api/v1/namespaces/n/pods/a", ""), (1, 10, 1_000));
        drop((few, more, many));
        assert_eq!(estimate_for("PUT", "/api/v1/namespaces/n/pods/a", ""), minimal);
    }
}
