//! The documents that describe the server: version and discovery, made once per catalog and shared.

use actix_web::http::Method;
use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpRequest, HttpResponse};

use crate::api::codec::json;
use crate::api::discovery::{Document, version_document};
use crate::api::media::{self, Agreed, Encoding, Offer};
use crate::api::status::{Result, Status};
use crate::api::value::Value;
use crate::api::words::{DISCOVERY_GROUP, JSON};
use crate::auth::service_account::metadata::{CONFIGURATION_PATH, KEYS_PATH};

use super::health;
use super::render::{self, Context, text};
use super::worker::Worker;

/// The media type of the aggregated form; the parameters are part of the answer's name.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Its parameters, which other encodings have too.
const AGGREGATED_FORM: &str = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The media type of a set of keys.
const KEY_SET: &str = "application/jwk-set+json";

/// Answers a path that names a document.
pub fn answer(worker: &Worker, request: &HttpRequest, path: &str, context: &Context) -> Result<HttpResponse> {
    let served = worker.served();
    if path == "/" {
        return Ok(index(worker));
    }
    if let Some(rest) = path.strip_prefix("/version").filter(|rest| rest.is_empty() || rest.starts_with('/'))
    {
        if !matches!(rest, "" | "/") {
            return Err(Status::no_such_resource());
        }
        only_read(request)?;
        // It has one form, whatever is asked of it.
        let agreed = media::negotiate(&context.accept, Offer::JSON_ONLY, |_, _| true)?;
        return render::document(context, Agreed { transform: None, ..agreed }, 200, &version_document());
    }
    if let Some(response) = about_tokens(worker, path, context)? {
        return Ok(response);
    }
    let Some(document) = served.documents().at(path) else {
        // Below a known group a missing document is a missing resource; elsewhere it is just no page.
        let mut parts = path.trim_matches('/').split('/');
        return match (parts.next(), parts.next()) {
            (Some("api"), _) => Err(Status::no_such_resource()),
            (Some("apis"), Some(group)) if served.catalog.group(group).is_some() => {
                Err(Status::no_such_resource())
            }
            _ => Ok(render::page_not_found()),
        };
    };
    let is_plain = is_read_only(worker, path);
    if is_plain {
        only_read(request)?;
    }
    let aggregated = served.documents().aggregated_at(path);
    let agreed = media::negotiate(&context.accept, context.offer, |_, asked| {
        aggregated.is_some()
            && asked.group == DISCOVERY_GROUP
            && asked.version == "v2"
            && asked.kind == "APIGroupDiscoveryList"
    });
    // What is put together of several servers has no door to turn anybody away at.
    let agreed = agreed
        .map_err(|refused| if is_plain { refused } else { Status::not_acceptable(&context.offer.names()) })?;
    match aggregated {
        Some(aggregated) if agreed.transform.is_some() && agreed.encoding == Encoding::Json => {
            Ok(tagged(request, aggregated, context))
        }
        Some(aggregated) if agreed.transform.is_some() => {
            let media = format!("{};{AGGREGATED_FORM}", agreed.encoding.media_type());
            let mut response = render::document(context, agreed, 200, &aggregated.json)?;
            if let Ok(media) = HeaderValue::try_from(media) {
                response.headers_mut().insert(header::CONTENT_TYPE, media);
            }
            Ok(response)
        }
        _ => render::document(context, agreed, 200, &document.json),
    }
}

/// Refuses methods that a document has no use for.
fn only_read(request: &HttpRequest) -> Result<()> {
    if *request.method() == Method::GET { Ok(()) } else { Err(Status::method_not_allowed()) }
}

/// Whether a document answers to GET alone: that of the core, and those of built-in versions. The others are told to whoever comes.
fn is_read_only(worker: &Worker, path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("api"), _, _) => true,
        (Some("apis"), Some(group), Some(version)) => {
            let served = worker.served();
            let group = served.catalog.group(group);
            let mut versions = group.iter().flat_map(|group| &group.versions);
            versions.any(|one| *one.name == *version && one.resources.iter().any(|one| one.custom.is_none()))
        }
        _ => false,
    }
}

/// The paths that lead somewhere.
fn index(worker: &Worker) -> HttpResponse {
    let served = worker.served();
    let mut paths: Vec<String> =
        ["/api", "/apis", "/apis/", "/metrics", "/openapi/v2", "/openapi/v3", "/openapi/v3/", "/version"]
            .map(str::to_owned)
            .into();
    if worker.shared.token_metadata.is_some() {
        paths.extend([CONFIGURATION_PATH.to_owned(), KEYS_PATH.to_owned()]);
    }
    for group in served.catalog.groups() {
        let root = if group.name.is_empty() { "/api".to_owned() } else { format!("/apis/{}", group.name) };
        paths.extend(group.versions.iter().map(|version| format!("{root}/{}", version.name)));
        paths.push(root);
    }
    paths.extend(health::paths(worker));
    paths.sort_unstable();
    paths.dedup();
    let mut document = Value::object();
    document.set("paths", paths.into_iter().map(Value::from).collect::<Vec<_>>());
    HttpResponse::Ok().content_type(JSON).body(render::json_text(true, &json::to_json(&document)))
}

/// The documents that others verify tokens of service accounts with. They may be kept by everybody on the way.
fn about_tokens(worker: &Worker, path: &str, context: &Context) -> Result<Option<HttpResponse>> {
    let Some(metadata) = &worker.shared.token_metadata else { return Ok(None) };
    let (media, document) = match path.strip_suffix('/').unwrap_or(path) {
        CONFIGURATION_PATH => (JSON, &metadata.configuration),
        KEYS_PATH => (KEY_SET, &metadata.keys),
        _ => return Ok(None),
    };
    let accepted = context.accept.is_empty()
        || context.accept.split(',').any(|wanted| {
            let wanted = wanted.split(';').next().unwrap_or_default().trim();
            wanted == "*/*" || wanted == media
        });
    if !accepted {
        return Err(Status::no_representation(media));
    }
    let mut response = HttpResponse::Ok().content_type(media).body(document.clone());
    let kept = HeaderValue::from_static("public, max-age=3600");
    response.headers_mut().insert(header::CACHE_CONTROL, kept);
    Ok(Some(response))
}

/// A document that clients keep and ask for again by its tag.
fn tagged(request: &HttpRequest, document: &Document, context: &Context) -> HttpResponse {
    let tag = document.etag.as_deref().unwrap_or_default();
    let known = !tag.is_empty() && text(request.headers(), header::IF_NONE_MATCH) == tag;
    let mut response = if known {
        HttpResponse::NotModified().finish()
    } else {
        HttpResponse::Ok()
            .content_type(AGGREGATED)
            .body(render::json_text(context.is_pretty(), &document.json))
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}
