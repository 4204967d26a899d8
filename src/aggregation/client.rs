//! Calls to extension API servers: addresses, identity headers, and reading responses.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use hyper::Method;
use hyper::header::{
    ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HOST, HeaderMap, HeaderValue, IF_NONE_MATCH, USER_AGENT,
};
use pilothouse_actors::permit::Permit;
use pilothouse_admission::webhooks::ClientConfig;
use pilothouse_api::aggregation::Service;
use pilothouse_api::connect::{AllowedAddresses, Destination, Egress, Location, Trust};
use pilothouse_api::release::RELEASE;
use pilothouse_apimachinery::field::quoted;
use pilothouse_client::kubeconfig::user::escape_header_key;
use pilothouse_client::upstream::{RequestBody, Upstream, UpstreamRequest, UpstreamResponse, header};
use pilothouse_types::host_port::HostPort;
use pilothouse_types::identity::Identity;
use pilothouse_types::memory::{OutOfMemory, Reservation};
use thiserror::Error;
use tokio::time::timeout;

use super::Extensions;
use crate::limits::EXTENSION_DOCUMENT_BYTES;
use crate::registry::{Backend, webhook_address};

/// Bytes for which there is room before the first byte of such a response.
const EXTENSION_READ_BYTES: usize = 16 << 10;

/// A request that this server makes on its own behalf.
pub struct ExtensionRequest<'a> {
    /// The HTTP method.
    pub method: Method,
    /// The path.
    pub path: &'a str,
    /// The query string.
    pub query: &'a str,
    /// A JSON body; empty for none.
    pub body: &'static [u8],
    /// The user in the identity headers.
    pub user: &'a Identity,
    /// The Accept header; empty for none.
    pub accept: &'a str,
    /// The If-None-Match header: the ETag of a cached version; empty for none.
    pub if_none_match: &'a str,
    /// The timeout of the whole exchange.
    pub within: Duration,
    /// The limit on the size of the response.
    pub max_bytes: usize,
    /// Whether the certificate is verified. Availability checks need not verify it.
    pub verifies: bool,
}

impl<'a> ExtensionRequest<'a> {
    /// A GET request that accepts any encoding and verifies the certificate.
    pub fn get(path: &'a str, user: &'a Identity, within: Duration) -> ExtensionRequest<'a> {
        ExtensionRequest {
            method: Method::GET,
            path,
            query: "",
            body: &[],
            user,
            accept: "",
            if_none_match: "",
            within,
            max_bytes: EXTENSION_DOCUMENT_BYTES,
            verifies: true,
        }
    }
}

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtensionResponse {
    /// The status code.
    pub status: u16,
    /// The Content-Type; empty if absent.
    pub content_type: String,
    /// The ETag; empty if absent.
    pub etag: String,
    /// The body, up to the limit of the request.
    pub body: Vec<u8>,
    /// The URL of the request.
    pub url: String,
}

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FetchError {
    /// The exchange failed. In the reference's words, with the URL.
    #[error("{0}")]
    Failed(String),
    /// The body is larger than the request allows.
    #[error("the response has more than {limit} bytes")]
    TooLarge {
        /// The limit of the request.
        limit: usize,
        /// The ETag of the response; empty if absent.
        etag: String,
    },
    /// There is no memory for the body at the moment.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}

impl Extensions {
    /// The address of a service for a request to `path` with this query. Errors are in the reference's words.
    pub async fn resolve(
        &self,
        backend: &Backend,
        permit: &Permit,
        service: &Service,
        path: &str,
        query: &str,
    ) -> Result<Destination, String> {
        let Service { namespace, name, port, peer } = service;
        let config = ClientConfig::Service {
            namespace: namespace.clone(),
            name: name.clone(),
            path: String::new(),
            port: *port,
        };
        let address = webhook_address::connect_address(backend, permit, self.to_endpoints, &config).await?;
        let HostPort { host, port } = address.ok_or_else(|| "no such service".to_owned())?;
        let (path, query) = (path.to_owned(), query.to_owned());
        Ok(Destination {
            location: Location { secure: true, host, port, path, query },
            trust: Trust::Extension(peer.clone()),
            // As in the reference: users who may create APIServices and Services may direct this server anywhere.
            reach: AllowedAddresses::Any,
            egress: Some(Egress::Cluster),
            has_no_deadline: false,
            user: String::new(),
        })
    }

    /// The connections to extension API servers.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Sends a request. Errors are in the reference's words and contain the URL.
    pub async fn send(
        &self,
        backend: &Backend,
        service: &Service,
        request: &ExtensionRequest<'_>,
    ) -> Result<ExtensionResponse, String> {
        let mut destination =
            self.resolve(backend, &Permit::none(), service, request.path, request.query).await?;
        if !request.verifies {
            let mut peer = (*service.peer).clone();
            (peer.verifies, peer.authority_pem) = (false, Vec::new());
            destination.trust = Trust::Extension(peer.into());
        }
        fetch(&self.upstream, &destination, request).await
    }

    /// Fetches a document that may be large: `reservation` grows with its body, before the body does.
    pub async fn fetch_large(
        &self,
        backend: &Backend,
        service: &Service,
        request: &ExtensionRequest<'_>,
        reservation: &mut Reservation,
    ) -> Result<ExtensionResponse, FetchError> {
        let destination = self.resolve(backend, &Permit::none(), service, request.path, request.query).await;
        let destination = destination.map_err(FetchError::Failed)?;
        exchange(&self.upstream, &destination, request, Some(reservation)).await
    }
}

/// Sends a request to this destination and reads the response. Errors are in the reference's words and contain the URL.
pub async fn fetch(
    upstream: &Upstream,
    destination: &Destination,
    request: &ExtensionRequest<'_>,
) -> Result<ExtensionResponse, String> {
    exchange(upstream, destination, request, None).await.map_err(|error| match error {
        FetchError::Failed(reason) => reason,
        error => failure_message(destination, request, &error),
    })
}

fn failure_message(
    destination: &Destination,
    request: &ExtensionRequest<'_>,
    reason: &dyn std::fmt::Display,
) -> String {
    let url = destination.location.url();
    let verb = if request.method == Method::DELETE { "Delete" } else { "Get" };
    format!("failing or missing response from {url}: {verb} \"{url}\": {reason}")
}

async fn exchange(
    upstream: &Upstream,
    destination: &Destination,
    request: &ExtensionRequest<'_>,
    reservation: Option<&mut Reservation>,
) -> Result<ExtensionResponse, FetchError> {
    let mut headers = identity_headers(request.user, true).map_err(FetchError::Failed)?;
    let values =
        [(ACCEPT, request.accept), (IF_NONE_MATCH, request.if_none_match), (USER_AGENT, &user_agent())];
    for (name, value) in values.into_iter().filter(|(_, value)| !value.is_empty()) {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    if let Ok(host) = HeaderValue::try_from(destination.location.authority()) {
        headers.insert(HOST, host);
    }
    let body = match request.body {
        [] => RequestBody::Empty,
        body => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            RequestBody::Whole(Some(Bytes::from_static(body)))
        }
    };
    let upstream_request = UpstreamRequest { method: request.method.clone(), headers, body };
    let failed =
        |reason: &dyn std::fmt::Display| FetchError::Failed(failure_message(destination, request, reason));
    let exchange = async {
        let response =
            upstream.send(destination, upstream_request).await.map_err(|failure| failed(&failure))?;
        // The body of a successful deletion is not needed.
        let is_done = request.method == Method::DELETE && response.status.is_success();
        let limit = if is_done { 0 } else { request.max_bytes };
        read(response, limit, reservation, |error| failed(error)).await
    };
    let response = timeout(request.within, exchange).await.map_err(|_| {
        failed(&"context deadline exceeded (Client.Timeout exceeded while awaiting headers)")
    })??;
    Ok(ExtensionResponse { url: destination.location.url(), ..response })
}

/// The User-Agent header.
fn user_agent() -> String {
    format!("kube-apiserver/{RELEASE}")
}

/// Reads a response; with `limit` 0 only its head.
async fn read(
    upstream: UpstreamResponse,
    limit: usize,
    mut reservation: Option<&mut Reservation>,
    failed: impl Fn(&dyn std::fmt::Display) -> FetchError,
) -> Result<ExtensionResponse, FetchError> {
    let text = |name| upstream.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let (content_type, etag) = (text(CONTENT_TYPE).unwrap_or_default(), text(ETAG).unwrap_or_default());
    let announced = text(CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok());
    let mut response = ExtensionResponse {
        status: upstream.status.as_u16(),
        content_type: content_type.to_owned(),
        etag: etag.to_owned(),
        ..ExtensionResponse::default()
    };
    if limit == 0 {
        return Ok(response);
    }
    let too_large = || FetchError::TooLarge { limit, etag: etag.to_owned() };
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let largest = announced.unwrap_or(limit);
    let mut chunks = upstream.body;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| failed(&error))?;
        let length = response.body.len() + chunk.len();
        if length > limit {
            return Err(too_large());
        }
        if length > response.body.capacity() {
            // What was announced is not reserved at once: a server that then sends nothing would hold it.
            let doubled = (2 * response.body.capacity()).max(EXTENSION_READ_BYTES).min(largest).max(length);
            grow(&mut response.body, doubled, reservation.as_deref_mut())?;
        }
        response.body.extend_from_slice(&chunk);
    }
    Ok(response)
}

/// Makes room for this many bytes, after reserving them. The old memory counts until its content has moved.
fn grow(
    body: &mut Vec<u8>,
    capacity: usize,
    reservation: Option<&mut Reservation>,
) -> Result<(), OutOfMemory> {
    let additional = capacity - body.len();
    let Some(reservation) = reservation else {
        body.reserve_exact(additional);
        return Ok(());
    };
    reservation.set(body.capacity() + capacity)?;
    body.reserve_exact(additional);
    reservation.set(body.capacity())
}

/// The request headers that carry the user to an extension API server. Fails if the identity does not fit into headers: without
/// them the extension server would take this server itself for the user. Errors are in the reference's words.
pub fn identity_headers(user: &Identity, with_uid: bool) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &str| -> Result<(), String> {
        let (name, value) = header(name, value.as_bytes())
            .ok_or_else(|| format!("net/http: invalid header field value for {}", quoted(name)))?;
        headers.append(name, value);
        Ok(())
    };
    add("X-Remote-User", &user.name)?;
    if with_uid && !user.uid.is_empty() {
        add("X-Remote-Uid", &user.uid)?;
    }
    for group in &user.groups {
        add("X-Remote-Group", group)?;
    }
    for (key, values) in &user.extra {
        let name = format!("X-Remote-Extra-{}", escape_header_key(key));
        for value in values {
            add(&name, value)?;
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn identity_headers_carry_user() {
        let user = Identity {
            name: "ann".to_owned(),
            uid: "7".to_owned(),
            groups: vec!["a".to_owned(), "b".to_owned()],
            extra: BTreeMap::from([("example.com/k".to_owned(), vec!["1".to_owned(), "2".to_owned()])]),
        };
        let headers = identity_headers(&user, true).unwrap();
        let header_values = |name: &str| {
            headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!((header_values("x-remote-user"), header_values("x-remote-uid")), (vec!["ann"], vec!["7"]));
        assert_eq!(header_values("x-remote-group"), ["a", "b"]);
        assert_eq!(header_values("x-remote-extra-example.com%2fk"), ["1", "2"]);
        assert!(!identity_headers(&user, false).unwrap().contains_key("x-remote-uid"));
        let bare = identity_headers(&Identity { name: "x".to_owned(), ..Identity::default() }, true);
        assert_eq!(bare.unwrap().len(), 1);
    }

    #[test]
    fn identity_headers_refuse_invalid_values() {
        let named = |name: &str| Identity { name: name.to_owned(), ..Identity::default() };
        assert_eq!(
            identity_headers(&named("a\nb"), true).unwrap_err(),
            "net/http: invalid header field value for \"X-Remote-User\""
        );
        let user = Identity { groups: vec!["a".to_owned(), "b\r".to_owned()], ..named("a") };
        assert!(identity_headers(&user, true).is_err());
        let extra = BTreeMap::from([("k\n".to_owned(), vec!["\0".to_owned()])]);
        assert!(identity_headers(&Identity { extra, ..named("a") }, true).is_err());
        assert!(identity_headers(&named("jos\u{e9}"), true).is_ok());
    }
}
