//! What clients are told while the server ends, with `--shutdown-send-retry-after`: to try another one.

use std::sync::atomic::{AtomicBool, Ordering};

use actix_web::http::{ConnectionType, header};
use actix_web::{HttpRequest, HttpResponse};

use super::render::{AUDIT_ID, Context, PLAIN_TEXT, text};
use crate::http::drain::{Counted, Tally};

/// Requests to such paths are served to the end: somebody may be watching how the server ends.
const ALWAYS_SERVED: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];
/// And those of such clients: servers ask themselves under this name.
const SERVER_AGENT: &str = "kube-apiserver/";
/// When clients shall come again, in seconds; the reference's value.
const RETRY_AFTER: &str = "5";
const MESSAGE: &str = "The apiserver is shutting down, please try again later.\n";

/// Whether requests are refused, and how many of those before are not answered yet.
#[derive(Debug, Default)]
pub struct Shutdown {
    refuses: AtomicBool,
    in_flight: Tally,
}

impl Shutdown {
    /// Counts a request until its guard is dropped.
    pub fn enter(&self) -> Counted {
        self.in_flight.enter()
    }

    /// The answer to a request, if it is refused. Called once it is counted: [`Shutdown::refuse_requests`] sets the flag and then waits for the
    /// count, so every request is either refused or waited for.
    pub fn refusal(&self, request: &HttpRequest, context: &Context) -> Option<HttpResponse> {
        let is_refused = self.refuses.load(Ordering::SeqCst) && !is_always_served(request);
        is_refused.then(|| refusal(context))
    }

    /// Refuses requests from now on, and waits until those before are answered.
    pub async fn refuse_requests(&self) {
        self.refuses.store(true, Ordering::SeqCst);
        self.in_flight.until(|count| count == 0).await;
    }
}

fn is_always_served(request: &HttpRequest) -> bool {
    let path = request.path();
    ALWAYS_SERVED.iter().any(|served| path.starts_with(served))
        || text(request.headers(), header::USER_AGENT).starts_with(SERVER_AGENT)
}

fn refusal(context: &Context) -> HttpResponse {
    let mut response = HttpResponse::TooManyRequests();
    response.insert_header((AUDIT_ID, context.audit_id().clone()));
    response.insert_header((header::RETRY_AFTER, RETRY_AFTER));
    response.insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"));
    let mut response = response.content_type(PLAIN_TEXT).body(MESSAGE);
    response.head_mut().set_camel_case_headers(true);
    // The client shall connect to another server.
    response.head_mut().set_connection_type(ConnectionType::Close);
    response
}
