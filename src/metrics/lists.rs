//! Lists: from where they were served, and how many objects they looked at and returned.

use std::time::Duration;

use pilothouse_api::catalog::resource::Resource;
use pilothouse_apimachinery::status::storage_folder;
use prometheus::{HistogramVec, IntCounterVec};

use super::registration::{MetricRegistry, Result};

/// The buckets of waiting times, in seconds; the reference's.
const WAIT_SECONDS: [f64; 13] = [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0];
/// The reference tells here which index a list used. There is none: a list walks over its namespace, or over everything.
const NO_INDEX: &str = "";

/// What a list was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListSource {
    /// The objects in memory.
    Present,
    /// An older state, which the history gives.
    History,
}

/// Counters of lists.
pub struct ListMetrics {
    from_memory: IntCounterVec,
    fetched_from_memory: IntCounterVec,
    returned_from_memory: IntCounterVec,
    from_history: IntCounterVec,
    fetched_from_history: IntCounterVec,
    evaluated_from_history: IntCounterVec,
    returned_from_history: IntCounterVec,
    consistent: IntCounterVec,
    waits: HistogramVec,
}

impl ListMetrics {
    pub(super) fn new(registry: &MetricRegistry<'_>) -> Result<ListMetrics> {
        let by_prefix = ["resource_prefix", "index"];
        let by_resource = |name: &str, help: &str| {
            registry.counters(format!("apiserver_storage_list_{name}"), help, &["resource"])
        };
        Ok(ListMetrics {
            from_memory: registry.counters(
                "apiserver_cache_list_total",
                "Lists of the present objects, by the storage prefix of the resource and index.",
                &by_prefix,
            )?,
            fetched_from_memory: registry.counters(
                "apiserver_cache_list_fetched_objects_total",
                "Objects that lists of the present ones looked at, by the storage prefix of the resource and index.",
                &by_prefix,
            )?,
            returned_from_memory: registry.counters(
                "apiserver_cache_list_returned_objects_total",
                "Objects that lists of the present ones returned, by the storage prefix of the resource.",
                &["resource_prefix"],
            )?,
            from_history: by_resource("total", "Lists of older states, by resource.")?,
            fetched_from_history: by_resource(
                "fetched_objects_total",
                "Objects that lists of older states read, by resource.",
            )?,
            evaluated_from_history: by_resource(
                "evaluated_objects_total",
                "Objects that lists of older states compared with their selectors, by resource.",
            )?,
            returned_from_history: by_resource(
                "returned_objects_total",
                "Objects that lists of older states returned, by resource.",
            )?,
            consistent: registry.counters(
                "apiserver_watch_cache_consistent_read_total",
                "Lists of the latest state, by the storage prefix of the resource, success and whether etcd had to serve them.",
                &["resource", "success", "fallback"],
            )?,
            waits: registry.histograms(
                "apiserver_watch_cache_read_wait_seconds",
                "How long lists waited for a state that is recent enough, by resource.",
                &["resource"],
                &WAIT_SECONDS,
            )?,
        })
    }

    /// Counts a list that looked at so many objects and returned some of them.
    pub fn count(&self, source: ListSource, resource: &Resource, scanned: usize, returned: usize) {
        let (scanned, returned) = (scanned as u64, returned as u64);
        match source {
            ListSource::Present => {
                let prefix = prefix(resource);
                self.from_memory.with_label_values(&[&prefix, NO_INDEX]).inc();
                self.fetched_from_memory.with_label_values(&[&prefix, NO_INDEX]).inc_by(scanned);
                self.returned_from_memory.with_label_values(&[&prefix]).inc_by(returned);
            }
            ListSource::History => {
                let labels = [resource.name().to_string()];
                self.from_history.with_label_values(&labels).inc();
                self.fetched_from_history.with_label_values(&labels).inc_by(scanned);
                self.evaluated_from_history.with_label_values(&labels).inc_by(scanned);
                self.returned_from_history.with_label_values(&labels).inc_by(returned);
            }
        }
    }

    /// Counts a list of the latest state.
    pub fn count_consistent(&self, resource: &Resource, is_success: bool) {
        let success = if is_success { "true" } else { "false" };
        self.consistent.with_label_values(&[prefix(resource).as_str(), success, "false"]).inc();
    }

    /// Counts how long a list waited for its state.
    pub fn count_wait(&self, resource: &Resource, elapsed: Duration) {
        self.waits.with_label_values(&[resource.name().to_string()]).observe(elapsed.as_secs_f64());
    }
}

/// The storage prefix of a resource, below that of all.
fn prefix(resource: &Resource) -> String {
    match resource.custom {
        Some(_) => format!("/{}/{}", resource.gv.group, resource.plural),
        None => format!("/{}", storage_folder(resource.name())),
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_api::catalog::build::Builtin;
    use pilothouse_api::catalog::runtime_config::RuntimeConfig;

    use super::*;

    #[test]
    fn lists_are_counted_by_their_source() {
        let registry = prometheus::Registry::new();
        let lists = ListMetrics::new(&MetricRegistry::new(&registry)).unwrap();
        let catalog = Builtin::load().unwrap().serve(&RuntimeConfig::default()).unwrap();
        let find = |group, plural| catalog.find(group, "v1", plural).unwrap();
        let (nodes, deployments) = (find("", "nodes"), find("apps", "deployments"));
        lists.count(ListSource::Present, nodes, 9, 4);
        lists.count(ListSource::History, deployments, 7, 3);
        lists.count_consistent(nodes, true);
        lists.count_consistent(nodes, false);
        lists.count_wait(deployments, Duration::from_millis(30));
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            r#"apiserver_cache_list_total{index="",resource_prefix="/minions"} 1"#,
            r#"apiserver_cache_list_fetched_objects_total{index="",resource_prefix="/minions"} 9"#,
            r#"apiserver_cache_list_returned_objects_total{resource_prefix="/minions"} 4"#,
            r#"apiserver_storage_list_total{resource="deployments.apps"} 1"#,
            r#"apiserver_storage_list_fetched_objects_total{resource="deployments.apps"} 7"#,
            r#"apiserver_storage_list_evaluated_objects_total{resource="deployments.apps"} 7"#,
            r#"apiserver_storage_list_returned_objects_total{resource="deployments.apps"} 3"#,
            r#"apiserver_watch_cache_consistent_read_total{fallback="false",resource="/minions",success="true"} 1"#,
            r#"apiserver_watch_cache_consistent_read_total{fallback="false",resource="/minions",success="false"} 1"#,
            r#"apiserver_watch_cache_read_wait_seconds_bucket{resource="deployments.apps",le="0.025"} 0"#,
            r#"apiserver_watch_cache_read_wait_seconds_bucket{resource="deployments.apps",le="0.05"} 1"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
