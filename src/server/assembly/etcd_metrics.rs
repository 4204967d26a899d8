//! What is measured once in a while if objects are in etcd, for metrics.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pilothouse_actors::directory::Stores as Storage;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::Freshness;
use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_etcd_log::EtcdLog;
use pilothouse_types::object::TypeName;
use tokio::time::sleep;

use super::ServerParts;
use crate::config::EtcdFlags;
use crate::metrics::{Metrics, remove_stale};
use crate::registry::stores::Stores;

/// The reference's count of objects that cannot be counted.
const UNKNOWN: i64 = -1;

/// Starts to measure, as often as the flags say.
pub(super) fn start(parts: &ServerParts) {
    let Some(flags) = parts.context.config.etcd() else { return };
    let metrics = &parts.shared.metrics;
    if let Some(period) = EtcdFlags::interval(flags.etcd_count_metric_poll_period) {
        actix::spawn(count_objects(parts.storage.clone(), Arc::clone(metrics), period));
    }
    if let Some(interval) = EtcdFlags::interval(flags.etcd_db_metric_poll_interval) {
        actix::spawn(measure_members(parts.shared.usage.etcd.clone(), Arc::clone(metrics), interval));
    }
}

/// Counts the objects of each resource. They are all in memory, so etcd need not be asked, as long as it is followed.
async fn count_objects(storage: Storage, metrics: Arc<Metrics>, period: Duration) {
    let stores = Stores::new(&storage);
    loop {
        let types = stores.types().await.unwrap_or_default();
        remove_stale(&metrics.objects, &types.iter().map(resource_of_store).collect::<BTreeSet<_>>());
        for type_name in &types {
            let count = count(&storage, &stores, type_name).await.unwrap_or(UNKNOWN);
            metrics.objects.with_label_values(&[resource_of_store(type_name)]).set(count);
        }
        sleep(period).await;
    }
}

/// How many objects of a type there are; `None` if this server does not know.
async fn count(storage: &Storage, stores: &Stores, type_name: &TypeName) -> Option<i64> {
    let is_followed =
        storage.follow_status_of(type_name).is_none_or(|status| status.borrow().disconnected.is_none());
    let snapshot = stores.snapshot_at(type_name, Freshness::Seen, &Permit::none()).await.ok();
    i64::try_from(snapshot.filter(|_| is_followed)?.len()).ok()
}

/// Asks every member of every cluster for the size of its database.
async fn measure_members(logs: Vec<EtcdLog>, metrics: Arc<Metrics>, interval: Duration) {
    loop {
        for log in &logs {
            metrics.etcd.set_member_bytes(&log.member_bytes().await);
        }
        sleep(interval).await;
    }
}
