//! /metrics: counters, and gauges that are read at the time of the request.

use std::collections::BTreeSet;

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use bytes::Bytes;
use futures::future::join_all;
use pilothouse_actors::directory::Types;
use pilothouse_actors::permit::Permit;
use pilothouse_actors::store::Freshness;
use pilothouse_api::custom::definition::resource_of_store;
use pilothouse_apimachinery::status::Result;
use tokio::time::timeout;

use super::gzip;
use super::render::{Context, plain};
use super::worker::{Shared, Worker};
use crate::flowcontrol::RequestLimiter;
use crate::limits::{ETCD_STATUS_TIMEOUT, HEAVY_METRICS_BYTES};
use crate::metrics::remove_stale;

/// The content type of the text format, with the reference's parameters.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// The page that Prometheus scrapes.
pub async fn page(worker: &Worker, context: &Context) -> Result<HttpResponse> {
    let (shared, metrics) = (&worker.shared, &worker.shared.metrics);
    if let RequestLimiter::Fair(flow_controller) = &shared.limits.limiter {
        flow_controller.report(metrics);
    }
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let watching = &metrics.watching;
    watching.stalled.set(number(worker.watching.live_sessions.stalled()));
    watching.list_bytes.set(number(worker.backend.lists.bytes()));
    metrics.memory.update(&shared.usage.memory, worker.watching.memory.cut());
    metrics.kept_connections.set(number(worker.shared.connect.upstream.pool().idle_count()));
    let unreadable = shared.health.indexes.unreadable().await;
    remove_stale(&metrics.unreadable, &unreadable.iter().map(|object| object.resource.as_str()).collect());
    for objects in unreadable.chunk_by(|a, b| a.resource == b.resource) {
        if let Some(first) = objects.first() {
            metrics.unreadable.with_label_values(&[&first.resource]).set(number(objects.len()));
        }
    }
    metrics.controllers.update(worker.backend.clock.moment());
    metrics.space_level.set(shared.health.space.level() as i64);
    report_connections(shared);
    let types = shared.health.directory.send(Types).await.unwrap_or_default();
    let existing: BTreeSet<&str> = types.iter().map(resource_of_store).collect();
    for numbers in
        [&watching.window_events, &watching.archived_events, &watching.window_bytes, &watching.revisions]
    {
        remove_stale(numbers, &existing);
    }
    // In etcd, they are counted once in a while.
    let counts_objects = !metrics.is_in_etcd();
    if counts_objects {
        remove_stale(&metrics.objects, &existing);
    }
    remove_stale(&watching.window_age, &existing);
    // If a store does not answer, its gauges keep their last values; the health checks report it.
    for type_name in &types {
        if let Ok(position) =
            worker.backend.stores.open_watch(type_name, Freshness::Seen, &Permit::none()).await
        {
            let (labels, extent) = ([resource_of_store(type_name)], position.window.extent());
            if counts_objects {
                metrics.objects.with_label_values(&labels).set(number(position.snapshot.len()));
            }
            let revision = i64::try_from(position.snapshot.revision.0).unwrap_or(i64::MAX);
            watching.revisions.with_label_values(&labels).set(revision);
            watching.set_appended(resource_of_store(type_name), extent.appended);
            watching.window_events.with_label_values(&labels).set(number(extent.events));
            watching.archived_events.with_label_values(&labels).set(number(extent.archived));
            watching.window_bytes.with_label_values(&labels).set(number(extent.bytes));
            let age = extent.oldest.map(|oldest| position.now.since(oldest)).unwrap_or_default();
            watching.window_age.with_label_values(&labels).set(age.as_secs_f64());
        }
    }
    measure_etcd(worker).await;
    measure_allocators(worker).await;
    // As large as the last one, about: it grows with the resources that exist.
    let is_packed = context.accepts_gzip();
    let text = match is_packed || metrics.page_bytes() > HEAVY_METRICS_BYTES {
        true => {
            let metrics = metrics.clone();
            let pack = move |text: Vec<u8>| if is_packed { gzip::compress(&text) } else { text.into() };
            context.compute_heavy(move || metrics.text().map(pack)).await?
        }
        false => metrics.text().map(Bytes::from),
    };
    let mut response = respond(text);
    if is_packed && response.status() == StatusCode::OK {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

fn report_connections(shared: &Shared) {
    let connections = &shared.usage.connections;
    let (counts, failed_handshakes) = (connections.counts(), connections.failed_handshakes());
    let (open, refused, evicted) = (counts.by_state(), counts.by_refusal(), counts.by_eviction());
    shared.metrics.connections.set(&open, &refused, &evicted, failed_handshakes);
}

/// Asks how many addresses and ports are taken.
async fn measure_allocators(worker: &Worker) {
    let (services, allocators) = (&worker.services, &worker.shared.metrics.allocators);
    // Those of records that servers share are asked of etcd: what does not answer keeps its last values.
    if let Ok(Some(ranges)) = timeout(ETCD_STATUS_TIMEOUT, services.address_use()).await {
        allocators.set_addresses(&ranges);
    }
    if let Ok(Some(ports)) = timeout(ETCD_STATUS_TIMEOUT, services.port_use()).await {
        allocators.set_ports(ports);
    }
}

/// Asks etcd for the sizes of its databases, if objects are there.
async fn measure_etcd(worker: &Worker) {
    let logs = &worker.shared.usage.etcd;
    let sizes = join_all(logs.iter().map(|log| log.database_bytes(ETCD_STATUS_TIMEOUT))).await;
    for (cluster, size) in sizes.into_iter().enumerate() {
        let size = size.inspect_err(|error| tracing::debug!(%error, "etcd does not tell its size"));
        worker.shared.metrics.set_stored_bytes(cluster, size.ok());
    }
}

/// The page of health check metrics.
pub fn slis(worker: &Worker) -> HttpResponse {
    respond(worker.shared.metrics.slis.text().map(Bytes::from))
}

fn respond(text: std::result::Result<Bytes, prometheus::Error>) -> HttpResponse {
    match text {
        Ok(text) => HttpResponse::Ok().insert_header((header::CONTENT_TYPE, TEXT)).body(text),
        Err(error) => {
            tracing::warn!(%error, "metrics cannot be encoded");
            plain(500, "internal server error\n".to_owned())
        }
    }
}
