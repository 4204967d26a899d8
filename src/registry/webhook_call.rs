//! Calls of webhooks that objects of the cluster configure: those of admission and of conversion.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilothouse_actors::permit::Permit;
use pilothouse_admission::webhooks::ClientConfig;
use pilothouse_admission::webhooks::response::{InvalidResponse, from_http_error};
use pilothouse_apimachinery::field::quoted;
use pilothouse_client::kubeconfig::users::Users;
use pilothouse_client::webhook::cluster_webhooks::{
    WebhookClients, WebhookRequest, WebhookResponse, seconds,
};
use pilothouse_types::trace::OpenSpan;
use pilothouse_types::trace::span::{Attribute, client_span_name};
use tokio::sync::Semaphore;
use tokio::time;

use crate::limits::HOOK_RESPONSE_BYTES;

use super::Backend;
use super::webhook_address::{WebhookTarget, connect_address};

/// Calls the webhooks of one purpose. One per worker.
pub struct WebhookCaller {
    clients: WebhookClients,
    users: Arc<Users>,
    slots: Semaphore,
    to_endpoints: bool,
}

/// A review for a webhook.
pub struct ReviewCall<'a> {
    /// The configuration of the webhook.
    pub config: &'a ClientConfig,
    /// Its address.
    pub target: &'a WebhookTarget,
    /// The encoded review.
    pub body: Vec<u8>,
    /// How long the call may take. That includes the wait for a slot and for the address of a service.
    pub timeout: Duration,
}

impl WebhookCaller {
    /// A caller that makes at most `concurrent_calls` at a time. `to_endpoints`: a service is called at one of its endpoints
    /// instead of its cluster IP.
    pub fn new(
        clients: WebhookClients,
        users: Arc<Users>,
        concurrent_calls: usize,
        to_endpoints: bool,
    ) -> WebhookCaller {
        WebhookCaller { clients, users, slots: Semaphore::new(concurrent_calls), to_endpoints }
    }

    /// Sends a review and returns the response, whatever its status. Errors are in the reference's words.
    pub async fn post(
        &self,
        backend: &Backend,
        permit: &Permit,
        call: ReviewCall<'_>,
    ) -> Result<WebhookResponse, String> {
        let ReviewCall { config, target, body, timeout } = call;
        let parameter = format!("timeout={}", seconds(timeout));
        let mut span = client_span(permit, target, &parameter, body.len());
        let headers = permit.trace().headers(&span);
        let exchange = async {
            let _slot = self.slots.acquire().await.map_err(|error| error.to_string())?;
            let address = connect_address(backend, permit, self.to_endpoints, config).await?;
            let request = WebhookRequest {
                target: format!("{}?{parameter}", target.path),
                body: Bytes::from(body),
                includes_port: target.includes_port,
                headers,
                max_response_bytes: HOOK_RESPONSE_BYTES,
            };
            let access = || self.users.for_server(&target.credentials_name);
            self.clients.send(&target.server, access, address, &request).await
        };
        let response = time::timeout(timeout, span.run(pin!(exchange))).await;
        let response = response.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()));
        let code = response.as_ref().ok().map(|response| response.status);
        span.describe(|| code.map(|code| Attribute::number("http.status_code", code)).into_iter().collect());
        if code.is_none_or(|code| code >= 400) {
            span.fail();
        }
        span.end();
        response
            .map_err(|reason| format!("Post {}: {reason}", quoted(&format!("{}?{parameter}", target.url))))
    }
}

/// Begins the span of a call.
fn client_span(permit: &Permit, target: &WebhookTarget, parameter: &str, body_bytes: usize) -> OpenSpan {
    let mut span = permit.trace().open(client_span_name("POST"));
    span.set_client();
    span.describe(|| {
        vec![
            Attribute::text("http.method", "POST"),
            Attribute::text("http.url", format!("{}?{parameter}", target.url)),
            Attribute::text("net.peer.name", target.server.address.host.clone()),
            Attribute::number("net.peer.port", target.server.address.port),
            Attribute::number("http.request_content_length", body_bytes as u64),
        ]
    });
    span
}

/// The error of a response with a failure code.
pub fn check_status(response: &WebhookResponse) -> Result<(), InvalidResponse> {
    if (200..=206).contains(&response.status) {
        return Ok(());
    }
    let is_text = response.content_type.is_empty() || response.content_type.starts_with("text/");
    Err(from_http_error(response.status, is_text, &response.body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_failure_is_explained_by_its_body_only_if_that_is_text() {
        let response = |status, content_type: &str| WebhookResponse {
            status,
            content_type: content_type.to_owned(),
            body: b"no".to_vec(),
        };
        let error = |status, content_type| check_status(&response(status, content_type)).unwrap_err();
        assert_eq!(check_status(&response(200, "")).and(check_status(&response(206, ""))), Ok(()));
        assert_eq!(error(403, "text/plain"), InvalidResponse { message: "no".to_owned(), code: 403 });
        assert_eq!(error(403, ""), error(403, "text/plain"));
        assert_eq!(error(403, "image/png").message, "unknown");
        assert_eq!(error(207, "").code, 207);
    }
}
