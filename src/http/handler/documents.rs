//! The documents that describe the server: version and discovery, made once per catalog and shared.

use actix_web::http::Method;
use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpRequest, HttpResponse};

use crate::api::catalog::{Catalog, Group};
use crate::api::discovery::{Document, Documents};
use crate::api::media::{self, Agreed, Encoding, Offer};
use crate::api::status::{Result, Status};
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
pub async fn answer(
    worker: &Worker,
    request: &HttpRequest,
    path: &str,
    context: &Context,
) -> Result<HttpResponse> {
    let served = worker.shared.served.load_full();
    served.is_written().await;
    let documents = worker.shared.merged.of(&served, &worker.shared.extensions).await;
    if matches!(path, "/" | "/index.html") {
        return Ok(index(worker, &documents));
    }
    let any_method = speaks_of_groups(path) || is_of_defined(&served.catalog, path);
    if !any_method && *request.method() != Method::GET && is_document(worker, &documents, path) {
        return Err(Status::method_not_allowed());
    }
    if matches!(path, "/version" | "/version/") {
        media::routed(&context.accept, Offer::JSON_ONLY)?;
        return render::document(context, Agreed::DEFAULT, 200, &worker.shared.release.document());
    }
    if path.starts_with("/version/") {
        return Err(Status::no_such_resource());
    }
    if let Some(response) = about_tokens(worker, path, context)? {
        return Ok(response);
    }
    let Some(document) = documents.at(path) else {
        // Below a known group a missing document is a missing resource; elsewhere it is just no page.
        let mut parts = path.trim_matches('/').split('/');
        return match (parts.next(), parts.next()) {
            (Some("api"), _) => Err(Status::no_such_resource()),
            // Of groups that were defined the reference knows nothing but what is in them.
            (Some("apis"), Some(group)) if served.catalog.group(group).is_some_and(Group::is_builtin) => {
                Err(Status::no_such_resource())
            }
            _ => Ok(render::page_not_found()),
        };
    };
    if is_of_version(path) && !is_of_defined(&served.catalog, path) {
        context.arrive();
    }
    // Nobody looks for everything at once behind this path with a slash.
    let aggregated = documents.aggregated_at(path).filter(|_| path != "/apis/");
    let agreed = match aggregated.and_then(|_| everything(&context.accept, context.offer())) {
        Some(agreed) => agreed,
        None if any_method => media::agree(&context.accept, context.offer(), |_, _| false)?,
        None => media::negotiate(&context.accept, context.offer(), |_, _| false)?,
    };
    let told = aggregated.filter(|_| agreed.transform.is_some()).unwrap_or(document);
    context.told(Encoding::Json, &told.json);
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
            label(&mut response, aggregated);
            Ok(response)
        }
        _ => render::document(context, agreed, 200, &document.json),
    }
}

/// The encoding of the aggregated form, if a client takes that at all: whoever knows it gets it, whatever else is wanted more.
fn everything(accept: &str, offer: Offer) -> Option<Agreed<'_>> {
    media::transformed(accept, offer, |_, asked| {
        asked.group == DISCOVERY_GROUP && asked.version == "v2" && asked.kind == "APIGroupDiscoveryList"
    })
}

/// Every path that somebody answers at, for those who look around.
fn index(worker: &Worker, documents: &Documents) -> HttpResponse {
    const OTHERS: [&str; 6] =
        ["/metrics", "/metrics/slis", "/openapi/v2", "/openapi/v3", "/openapi/v3/", "/version"];
    let others = OTHERS.into_iter().chain(documents.paths()).map(str::to_owned);
    let about_tokens = worker.shared.token_metadata.iter().flat_map(|_| [CONFIGURATION_PATH, KEYS_PATH]);
    let mut paths: Vec<String> =
        others.chain(about_tokens.map(str::to_owned)).chain(health::paths(worker)).collect();
    paths.sort_unstable();
    let all = serde_json::json!({ "paths": paths });
    HttpResponse::Ok().content_type(JSON).body(format!("{all:#}"))
}

/// Whether the document is one about groups. Those are told by somebody who looks neither at the method nor, at first, at what
/// is accepted, but for the group of whoever tells them.
fn speaks_of_groups(path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    parts.next() == Some("apis") && parts.next() != Some("apiregistration.k8s.io") && parts.next().is_none()
}

/// Whether the document tells what is in a version of a group.
fn is_of_version(path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    let root = parts.next();
    parts.count() == if root == Some("api") { 1 } else { 2 }
}

/// Whether the document is about a version of a group that was defined: nobody looks at the method there either.
fn is_of_defined(catalog: &Catalog, path: &str) -> bool {
    let mut parts = path.trim_matches('/').split('/');
    let group = parts.next().filter(|root| *root == "apis").and_then(|_| parts.next());
    group.and_then(|group| catalog.group(group)).is_some_and(|group| !group.is_builtin())
}

fn is_document(worker: &Worker, documents: &Documents, path: &str) -> bool {
    let short = path.strip_suffix('/').unwrap_or(path);
    let about_tokens =
        worker.shared.token_metadata.is_some() && [CONFIGURATION_PATH, KEYS_PATH].contains(&short);
    about_tokens || short == "/version" || (!short.is_empty() && documents.at(path).is_some())
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
    label(&mut response, document);
    response
}

/// Says by which tag the document can be asked for again. Everybody on the way may keep it.
fn label(response: &mut HttpResponse, document: &Document) {
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::try_from(document.etag.as_deref().unwrap_or_default()) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
}
