//! /metrics: what was counted, and what can be counted now.

use actix_web::HttpResponse;
use actix_web::http::header;
use pilothouse_actors::directory::Types;
use pilothouse_actors::permit::Permit;
use tokio::sync::Semaphore;

use super::render::plain;
use super::worker::Worker;

/// The text form, with the parameters that the reference server names.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// The page that scrapers read.
pub async fn page(worker: &Worker) -> HttpResponse {
    let (shared, metrics) = (&worker.shared, &worker.shared.metrics);
    let places = &shared.places;
    let in_use = |places: &Semaphore, most: usize| {
        i64::try_from(most.saturating_sub(places.available_permits())).unwrap_or(i64::MAX)
    };
    let inflight = |kind: &str, count: i64| metrics.inflight.with_label_values(&[kind]).set(count);
    inflight("readOnly", in_use(&places.reading, places.most_reading));
    inflight("mutating", in_use(&places.writing, places.most_writing));
    metrics.watches.set(i64::try_from(worker.watching.live_sessions.count()).unwrap_or(i64::MAX));
    // A store that does not answer is told of by the health checks; here its last number stays.
    for of in shared.health.directory.send(Types).await.unwrap_or_default() {
        if let Ok(snapshot) = worker.backend.stores.snapshot(&of, &Permit::none()).await {
            let count = i64::try_from(snapshot.len()).unwrap_or(i64::MAX);
            metrics.objects.with_label_values(&[of.as_str()]).set(count);
        }
    }
    match metrics.text() {
        Ok(text) => HttpResponse::Ok().insert_header((header::CONTENT_TYPE, TEXT)).body(text),
        Err(error) => {
            tracing::warn!(%error, "the metrics cannot be written");
            plain(500, "internal server error\n".to_owned())
        }
    }
}
