//! Calls to remote servers that the operator configures: one JSON object out, one back; or fetching a document. Connections are
//! kept in the server's pool.

pub mod cluster_webhooks;
mod connector;
#[cfg(test)]
pub mod testing;
mod tunnel;

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Uri};
use pilothouse_apimachinery::well_known::SERVER_NAME;
use pilothouse_types::clock::Clock;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::connector::Connector;
use crate::kubeconfig::{Access, PresentedCredentials};
use crate::limits::{QUESTION_ATTEMPTS, WEBHOOK_ANSWER_BYTES, WEBHOOK_QUESTIONS, WEBHOOK_TIMEOUT};
use crate::upstream::RequestBody;
use crate::upstream::pool::{ExchangeError, Pool, Purpose};

/// The pause before the second attempt; each later one is half as long again. The reference's values.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Why a call failed.
#[derive(Debug, Error)]
pub enum Failure {
    /// The configuration is invalid.
    #[error("{0}")]
    Settings(String),
    /// The call timed out.
    #[error("no answer within {0:?}")]
    Slow(Duration),
    /// The connection failed.
    #[error("{0}")]
    Broken(String),
    /// The response exceeds the limit.
    #[error("the answer is too long")]
    TooLong,
    /// The server answered with this status.
    #[error("the server answered {0}")]
    Refused(u16),
}

impl Failure {
    /// Whether a retry may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, Failure::Refused(429 | 500 | 504))
    }
}

/// Retries with growing pauses as long as that may help.
pub async fn patiently<T, E, F>(ask: impl FnMut() -> F, may_pass: impl Fn(&E) -> bool) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    pausing(FIRST_PAUSE, ask, may_pass).await
}

/// [`patiently`] with another first pause.
pub async fn pausing<T, E, F>(
    first: Duration,
    mut ask: impl FnMut() -> F,
    may_pass: impl Fn(&E) -> bool,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut pause = first;
    for attempt in 1..QUESTION_ATTEMPTS {
        match ask().await {
            Err(failure) if may_pass(&failure) => {
                tracing::debug!(attempt, "an outgoing request is retried");
                tokio::time::sleep(pause).await;
                pause = pause * 3 / 2;
            }
            settled => return settled,
        }
    }
    ask().await
}

/// A remote server.
pub struct Service {
    uri: Uri,
    access: Access,
    reach: Connector,
    places: Arc<Semaphore>,
    pool: Arc<Pool>,
}

impl Service {
    /// The server of this kubeconfig. Connections are kept in this pool.
    pub fn new(access: &Access, pool: &Arc<Pool>) -> Result<Service, Failure> {
        let uri: Uri = access
            .server
            .parse()
            .map_err(|error| Failure::Settings(format!("{}: {error}", access.server)))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(Failure::Settings(format!("{}: neither http nor https", access.server))),
        };
        let Some(host) = uri.host().map(|host| host.trim_matches(['[', ']']).to_owned()) else {
            return Err(Failure::Settings(format!("{}: no host", access.server)));
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let reach =
            Connector::new(Purpose::Service, secure, (host, port), access).map_err(Failure::Settings)?;
        let places = Arc::new(Semaphore::new(WEBHOOK_QUESTIONS));
        Ok(Service { uri, access: access.clone(), reach, places, pool: pool.clone() })
    }

    /// A server that is called so rarely that it needs no shared pool.
    pub fn alone(access: &Access) -> Result<Service, Failure> {
        Service::new(access, &Pool::new(Clock::system()))
    }

    /// Sends an object and answers the response.
    pub async fn ask(&self, question: String) -> Result<Vec<u8>, Failure> {
        self.within(WEBHOOK_TIMEOUT, WEBHOOK_ANSWER_BYTES, Some(question)).await
    }

    /// Fetches a document, up to a limit.
    pub async fn get(&self, most: usize, within: Duration) -> Result<Vec<u8>, Failure> {
        self.within(within, most, None).await
    }

    /// [`Service::ask`] with retries.
    pub async fn ask_patiently(&self, question: &str) -> Result<Vec<u8>, Failure> {
        patiently(|| self.ask(question.to_owned()), Failure::may_pass).await
    }

    async fn within(
        &self,
        within: Duration,
        most: usize,
        question: Option<String>,
    ) -> Result<Vec<u8>, Failure> {
        // Without a free place the call waits. A refusal here would look like one of the remote server, and if other authorizers
        // decide then, a client could bypass it by many concurrent requests.
        let asked = async {
            let _place = self.places.acquire().await.map_err(|error| broken(&error))?;
            self.exchange(question, most).await
        };
        timeout(within, asked).await.map_err(|_| Failure::Slow(within))?
    }

    async fn exchange(&self, question: Option<String>, most: usize) -> Result<Vec<u8>, Failure> {
        let credentials = &self.access.credentials;
        let shown = credentials.show().await.map_err(Failure::Settings)?;
        let answer = self.answered(question, most, &shown).await;
        if matches!(answer, Err(Failure::Refused(401))) {
            credentials.refused(&shown).await;
        }
        answer
    }

    async fn answered(
        &self,
        question: Option<String>,
        most: usize,
        shown: &PresentedCredentials,
    ) -> Result<Vec<u8>, Failure> {
        let place = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let request = match question {
            Some(_) => Request::post(place).header(CONTENT_TYPE, "application/json"),
            None => Request::get(place),
        };
        let mut request = request
            .header(HOST, self.uri.authority().map_or("", |authority| authority.as_str()))
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, SERVER_NAME);
        if let Some(header) = &shown.header {
            request = request.header(AUTHORIZATION, header);
        }
        for (name, value) in self.access.acting_as.headers() {
            request = request.header(name, value);
        }
        let body = question.map_or(RequestBody::Empty, |question| RequestBody::Whole(Some(question.into())));
        let request = request.body(body).map_err(|error| Failure::Settings(error.to_string()))?;
        let (origin, connecting) = self.reach.to(&self.access, shown, None);
        let answer = self.pool.ask(&origin, request, most, connecting).await;
        let answer = answer.map_err(|unanswered| match unanswered {
            ExchangeError::Unreached(why) => Failure::Broken(why),
            ExchangeError::Broken(error) | ExchangeError::Cut(error) => broken(&error),
            ExchangeError::TooLong => Failure::TooLong,
        })?;
        let status = answer.head.status;
        if status.is_success() { Ok(answer.body) } else { Err(Failure::Refused(status.as_u16())) }
    }
}

fn broken(error: &dyn std::fmt::Display) -> Failure {
    Failure::Broken(error.to_string())
}

#[cfg(test)]
mod tests;
