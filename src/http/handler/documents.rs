//! Discovery and version documents, made once per catalog and shared.

use actix_web::http::Method;
use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpRequest, HttpResponse};
use pilothouse_api::catalog::{Catalog, Group};
use pilothouse_api::discovery::{Document, Documents};
use pilothouse_apimachinery::media::{self, Encoding, Negotiated, OfferedEncodings};
use pilothouse_apimachinery::status::{Result, Status};
use pilothouse_apimachinery::well_known::{DISCOVERY_GROUP, JSON};

use crate::auth::service_account::metadata::{CONFIGURATION_PATH, KEYS_PATH, PublishedMetadata};

use super::render::{self, Context, text};
use super::streamed_body::StreamedBody;
use super::worker::Worker;
use super::{established, health, logs};

/// The version of aggregated discovery.
const AGGREGATED_VERSION: &str = "v2";
/// The version of aggregated discovery that a feature gate removes.
const BETA_VERSION: &str = "v2beta1";

/// The media type of a JSON Web Key Set.
const KEY_SET: &str = "application/jwk-set+json";

/// Serves discovery, version and index paths.
pub async fn respond(
    worker: &Worker,
    request: &HttpRequest,
    path: &str,
    context: &Context,
) -> Result<HttpResponse> {
    let path = trim_slashes(path);
    if path.starts_with("/apis") {
        Box::pin(established::wait_until_all_served(worker)).await;
    }
    let served = worker.shared.served.load_full();
    served.wait_for_definitions().await;
    let extensions = &worker.shared.aggregation.extensions;
    let documents = worker.shared.documents.merged.get(&served, extensions, context).await?;
    if matches!(path, "/" | "/index.html") {
        return Ok(index(worker, &documents));
    }
    let any_method = lists_groups(path) || is_custom_group(&served.catalog, path);
    if !any_method && *request.method() != Method::GET && is_document(worker, &documents, path) {
        return Err(Status::method_not_allowed());
    }
    if matches!(path, "/version" | "/version/") {
        media::check_acceptable(&context.accept, OfferedEncodings::JSON_ONLY)?;
        return Ok(HttpResponse::Ok()
            .content_type("application/json")
            .body(worker.shared.documents.release.document()));
    }
    if path.starts_with("/version/") {
        return Err(Status::no_such_resource());
    }
    if let Some(response) = token_metadata_response(worker, path, context)? {
        return Ok(response);
    }
    let Some(document) = documents.get(path) else { return missing_document(&served.catalog, path) };
    if lists_resources(path) && !is_custom_group(&served.catalog, path) {
        context.allow_cbor();
    }
    // The reference serves no aggregated discovery at this path with a slash.
    let serves_beta = worker.shared.documents.serves_beta_discovery;
    let is_aggregated = path != "/apis/" && documents.aggregated_at(path).is_some();
    let aggregated = || negotiate_aggregated(&context.accept, context.offer(), serves_beta);
    let negotiated = match is_aggregated.then(aggregated).flatten() {
        Some(negotiated) => negotiated,
        None if any_method => media::negotiate_encoding(&context.accept, context.offer(), |_, _| false)?,
        None => media::negotiate(&context.accept, context.offer(), |_, _| false)?,
    };
    let aggregated = match negotiated.transform {
        Some(transform) if transform.version == BETA_VERSION => documents.beta_aggregated_at(path),
        Some(_) => documents.aggregated_at(path),
        None => None,
    };
    let (Some(aggregated), Some(transform)) = (aggregated, negotiated.transform) else {
        context.record_body(Encoding::Json, &document.json);
        return render::shared_document(context, negotiated, document).await;
    };
    context.record_body(Encoding::Json, &aggregated.json);
    let parameters = format!("g={DISCOVERY_GROUP};v={};as=APIGroupDiscoveryList", transform.version);
    let media = format!("{};{parameters}", negotiated.encoding.media_type());
    if negotiated.encoding == Encoding::Json {
        return Ok(with_etag(request, aggregated, &media, context));
    }
    let mut response = render::shared_document(context, negotiated, aggregated).await?;
    if let Ok(media) = HeaderValue::try_from(media) {
        response.headers_mut().insert(header::CONTENT_TYPE, media);
    }
    add_cache_headers(&mut response, aggregated);
    Ok(response)
}

/// Below a known group a missing document is a missing resource; elsewhere it is an unknown path.
fn missing_document(catalog: &Catalog, path: &str) -> Result<HttpResponse> {
    let mut parts = path.strip_prefix('/').unwrap_or(path).split('/');
    match (parts.next(), parts.next().filter(|part| !part.is_empty())) {
        (Some("api"), _) => Err(Status::no_such_resource()),
        (Some("apis"), Some(group)) if catalog.has_unreadable(group) => {
            let reason = "a CustomResourceDefinition of this group cannot be read";
            Err(Status::unavailable(format!("{group}: {reason}")))
        }
        // Below groups of custom resources the reference answers with an unknown path.
        (Some("apis"), Some(group)) if catalog.group(group).is_some_and(Group::is_builtin) => {
            Err(Status::no_such_resource())
        }
        _ => Ok(render::page_not_found()),
    }
}

/// The path with only one of the slashes at its end. The reference does not count them, except after /apis itself.
fn trim_slashes(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" | "/apis" => path,
        trimmed => path.get(..=trimmed.len()).unwrap_or(path),
    }
}

/// The encoding of aggregated discovery if the client accepts it at all: it wins over media types with a higher weight.
fn negotiate_aggregated(accept: &str, offer: OfferedEncodings, serves_beta: bool) -> Option<Negotiated<'_>> {
    let is_served = |version: &str| version == AGGREGATED_VERSION || (serves_beta && version == BETA_VERSION);
    media::negotiate_transform(accept, offer, |_, requested| {
        requested.group == DISCOVERY_GROUP
            && is_served(requested.version)
            && requested.kind == "APIGroupDiscoveryList"
    })
}

/// The index of all paths.
fn index(worker: &Worker, documents: &Documents) -> HttpResponse {
    const OTHERS: [&str; 6] =
        ["/metrics", "/metrics/slis", "/openapi/v2", "/openapi/v3", "/openapi/v3/", "/version"];
    let others = OTHERS.into_iter().chain(documents.paths()).map(str::to_owned);
    let token_paths =
        worker.shared.documents.token_metadata.iter().flat_map(|_| [CONFIGURATION_PATH, KEYS_PATH]);
    let mut paths: Vec<String> =
        others.chain(token_paths.map(str::to_owned)).chain(health::paths(worker)).collect();
    paths.extend(worker.shared.debug.pages.paths().map(str::to_owned));
    paths.extend(worker.shared.debug.logs.as_ref().map(|_| logs::PATH.to_owned()));
    paths.sort_unstable();
    let body = serde_json::json!({ "paths": paths });
    HttpResponse::Ok().content_type(JSON).body(format!("{body:#}"))
}

/// Whether this document lists groups. In the reference the aggregator serves it: it ignores the method and at first the Accept
/// header, except for its own group.
fn lists_groups(path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    parts.next() == Some("apis") && parts.next() != Some("apiregistration.k8s.io") && parts.next().is_none()
}

/// Whether this document lists the resources of a group version.
fn lists_resources(path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    let root = parts.next();
    parts.count() == if root == Some("api") { 1 } else { 2 }
}

/// Whether this document describes a custom group version: its method is not checked, either.
fn is_custom_group(catalog: &Catalog, path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    let group = parts.next().filter(|root| *root == "apis").and_then(|_| parts.next());
    group.and_then(|group| catalog.group(group)).is_some_and(|group| !group.is_builtin())
}

fn is_document(worker: &Worker, documents: &Documents, path: &str) -> bool {
    let trimmed = path.strip_suffix('/').unwrap_or(path);
    let is_token_metadata = worker.shared.documents.token_metadata.is_some()
        && [CONFIGURATION_PATH, KEYS_PATH].contains(&trimmed);
    is_token_metadata || trimmed == "/version" || (!trimmed.is_empty() && documents.get(path).is_some())
}

/// The issuer's metadata and keys for verifying service account tokens. Caches may keep them.
fn token_metadata_response(worker: &Worker, path: &str, context: &Context) -> Result<Option<HttpResponse>> {
    let published = worker.shared.documents.token_metadata.as_ref();
    let Some((metadata, max_age)) = published.and_then(PublishedMetadata::current) else { return Ok(None) };
    let (media, document) = match path.strip_suffix('/').unwrap_or(path) {
        CONFIGURATION_PATH => (JSON, &metadata.configuration),
        KEYS_PATH => (KEY_SET, &metadata.keys),
        _ => return Ok(None),
    };
    let is_accepted = context.accept.is_empty()
        || context.accept.split(',').any(|range| {
            let range = range.split(';').next().unwrap_or_default().trim();
            range == "*/*" || range == media
        });
    if !is_accepted {
        return Err(Status::no_representation(media));
    }
    let mut response = HttpResponse::Ok().content_type(media).body(document.clone());
    if let Ok(cache_control) = HeaderValue::try_from(format!("public, max-age={}", max_age.as_secs())) {
        response.headers_mut().insert(header::CACHE_CONTROL, cache_control);
    }
    Ok(Some(response))
}

/// A document with an ETag, or 304 if the client has it.
fn with_etag(request: &HttpRequest, document: &Document, media: &str, context: &Context) -> HttpResponse {
    let tag = document.etag.as_deref().unwrap_or_default();
    let is_unchanged = !tag.is_empty() && text(request.headers(), header::IF_NONE_MATCH) == tag;
    let mut response = if is_unchanged {
        HttpResponse::NotModified().finish()
    } else {
        let mut builder = HttpResponse::Ok();
        builder.content_type(media);
        if context.is_pretty() {
            builder.body(StreamedBody::object(document.json.clone(), Encoding::Json, context.heavy_pool()))
        } else {
            builder.body(document.line.clone())
        }
    };
    add_cache_headers(&mut response, document);
    response
}

/// Adds the ETag and lets caches keep the document.
fn add_cache_headers(response: &mut HttpResponse, document: &Document) {
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::try_from(document.etag.as_deref().unwrap_or_default()) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
}
