//! Questions to other servers: one JSON object out, one back; or just a document that they publish. One connection per
//! question: they are few, because answers are remembered, and whoever answers may have moved.

pub mod kept;
#[cfg(test)]
pub mod testing;
mod tunnel;

use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Body as _;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use openssl::pkey::PKey;
use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode};
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_openssl::SslStream;

use crate::kubeconfig::{Access, IdentityPem, Shown};
use crate::limits::{WEBHOOK_ANSWER_BYTES, WEBHOOK_QUESTION, WEBHOOK_QUESTIONS};

/// How often a question is asked.
const ATTEMPTS: u32 = 5;
/// The pause before the second attempt; each later one is half as long again. The reference server's values.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum Failure {
    /// Where to ask makes no sense.
    #[error("{0}")]
    Settings(String),
    /// It took too long.
    #[error("no answer within {0:?}")]
    Slow(Duration),
    /// The connection could not be made, or broke.
    #[error("{0}")]
    Broken(String),
    /// The answer is longer than any answer can be.
    #[error("the answer is too long")]
    TooLong,
    /// The other server refused, with this status.
    #[error("the server answered {0}")]
    Refused(u16),
}

impl Failure {
    /// Whether asking again may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, Failure::Refused(429 | 500 | 504))
    }
}

/// Asks again and again where that may help, with growing pauses.
pub async fn patiently<T, E, F>(ask: impl FnMut() -> F, may_pass: impl Fn(&E) -> bool) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    pausing(FIRST_PAUSE, ask, may_pass).await
}

/// The same with another first pause.
pub async fn pausing<T, E, F>(
    first: Duration,
    mut ask: impl FnMut() -> F,
    may_pass: impl Fn(&E) -> bool,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut pause = first;
    for attempt in 1..ATTEMPTS {
        match ask().await {
            Err(failure) if may_pass(&failure) => {
                tracing::debug!(attempt, "a question to another server is asked again");
                tokio::time::sleep(pause).await;
                pause = pause * 3 / 2;
            }
            settled => return settled,
        }
    }
    ask().await
}

/// Another server that answers questions.
pub struct Service {
    uri: Uri,
    tls: Option<SslConnector>,
    access: Access,
    places: Arc<Semaphore>,
}

/// Where systems keep the authorities that they believe. OpenSSL may be part of this binary, and then does not know that; what
/// the variables SSL_CERT_FILE and SSL_CERT_DIR say it knows always.
const HOST_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How connections become private. `identity_pem` is the certificate and the key that are shown.
fn connector(
    access: &Access,
    identity_pem: Option<&IdentityPem>,
) -> Result<SslConnector, Box<dyn std::error::Error>> {
    let mut builder = SslConnector::builder(SslMethod::tls_client())?;
    if let Some(pem) = &access.authority_pem {
        let mut store = X509StoreBuilder::new()?;
        for certificate in X509::stack_from_pem(pem)? {
            store.add_cert(certificate)?;
        }
        builder.set_cert_store(store.build());
    } else if let Some(file) = HOST_AUTHORITIES.iter().find(|file| Path::new(file).is_file()) {
        builder.set_ca_file(file)?;
    }
    if access.insecure {
        builder.set_verify(SslVerifyMode::NONE);
    }
    if let Some((certificates, key)) = identity_pem {
        let mut chain = X509::stack_from_pem(certificates)?.into_iter();
        let own = chain.next().ok_or("the client certificate is empty")?;
        builder.set_certificate(&own)?;
        for certificate in chain {
            builder.add_extra_chain_cert(certificate)?;
        }
        builder.set_private_key(&*PKey::private_key_from_pem(key)?)?;
    }
    Ok(builder.build())
}

impl Service {
    /// The server that this access is for.
    pub fn new(access: &Access) -> Result<Service, Failure> {
        let uri: Uri = access
            .server
            .parse()
            .map_err(|error| Failure::Settings(format!("{}: {error}", access.server)))?;
        let tls = match uri.scheme_str() {
            Some("https") => {
                let tls = connector(access, access.identity_pem.as_ref());
                Some(tls.map_err(|error| Failure::Settings(error.to_string()))?)
            }
            Some("http") => None,
            _ => return Err(Failure::Settings(format!("{}: neither http nor https", access.server))),
        };
        if uri.host().is_none() {
            return Err(Failure::Settings(format!("{}: no host", access.server)));
        }
        Ok(Service { uri, tls, access: access.clone(), places: Arc::new(Semaphore::new(WEBHOOK_QUESTIONS)) })
    }

    /// Sends an object and answers the one that comes back.
    pub async fn ask(&self, question: String) -> Result<Vec<u8>, Failure> {
        self.within(WEBHOOK_QUESTION, WEBHOOK_ANSWER_BYTES, Some(question)).await
    }

    /// Answers the document that is published there, if it has at most so many bytes.
    pub async fn get(&self, most: usize, within: Duration) -> Result<Vec<u8>, Failure> {
        self.within(within, most, None).await
    }

    /// The same, again and again where asking again may help.
    pub async fn ask_patiently(&self, question: &str) -> Result<Vec<u8>, Failure> {
        patiently(|| self.ask(question.to_owned()), Failure::may_pass).await
    }

    async fn within(
        &self,
        within: Duration,
        most: usize,
        question: Option<String>,
    ) -> Result<Vec<u8>, Failure> {
        // Whoever finds no place waits for one: a refusal here would be taken for one of the other server, and where others
        // decide then, whoever asks enough questions at once would get around its answers.
        let asked = async {
            let _place = self.places.acquire().await.map_err(|error| broken(&error))?;
            self.exchange(question, most).await
        };
        timeout(within, asked).await.map_err(|_| Failure::Slow(within))?
    }

    async fn exchange(&self, question: Option<String>, most: usize) -> Result<Vec<u8>, Failure> {
        let credentials = &self.access.credentials;
        let shown = credentials.show().await.map_err(Failure::Settings)?;
        let answer = self.connected(question, most, &shown).await;
        if matches!(answer, Err(Failure::Refused(401))) {
            credentials.refused(&shown).await;
        }
        answer
    }

    async fn connected(
        &self,
        question: Option<String>,
        most: usize,
        shown: &Shown,
    ) -> Result<Vec<u8>, Failure> {
        let host = self.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = self.uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let proxy = self.access.proxy.as_ref();
        let tcp = tunnel::connect(host, port, proxy).await.map_err(|error| broken(&error))?;
        let Some(tls) = &self.tls else { return self.speak(tcp, question, most, shown).await };
        // A certificate that was made for this connection replaces the one of the file.
        let made = shown.made.as_ref().and_then(|made| made.identity_pem.as_ref());
        let own = made.map(|identity| connector(&self.access, Some(identity))).transpose();
        let own = own.map_err(|error| Failure::Settings(error.to_string()))?;
        let (tls, name) = (own.as_ref().unwrap_or(tls), self.access.server_name.as_deref().unwrap_or(host));
        let ssl = tls.configure().and_then(|setup| setup.into_ssl(name)).map_err(|error| broken(&error))?;
        let mut stream = SslStream::new(ssl, tcp).map_err(|error| broken(&error))?;
        std::pin::Pin::new(&mut stream).connect().await.map_err(|error| broken(&error))?;
        self.speak(stream, question, most, shown).await
    }

    async fn speak(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        question: Option<String>,
        most: usize,
        shown: &Shown,
    ) -> Result<Vec<u8>, Failure> {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
        let place = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let request = match question {
            Some(_) => Request::post(place).header(CONTENT_TYPE, "application/json"),
            None => Request::get(place),
        };
        let mut request = request
            .header(HOST, self.uri.authority().map_or("", |authority| authority.as_str()))
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "kube-apiserver");
        if let Some(header) = &shown.header {
            request = request.header(AUTHORIZATION, header);
        }
        for (name, value) in self.access.acting_as.headers() {
            request = request.header(name, value);
        }
        let request = request
            .body(question.unwrap_or_default())
            .map_err(|error| Failure::Settings(error.to_string()))?;
        let exchange = pin!(async move {
            let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
            let status = response.status();
            let mut body = pin!(response.into_body());
            let mut answer = Vec::new();
            while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
                if let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() {
                    if answer.len() + data.len() > most {
                        return Err(Failure::TooLong);
                    }
                    answer.extend_from_slice(&data);
                }
            }
            if status.is_success() { Ok(answer) } else { Err(Failure::Refused(status.as_u16())) }
        });
        // The connection works only while somebody looks after it.
        match futures::future::select(exchange, pin!(connection)).await {
            futures::future::Either::Left((answer, _)) => answer,
            // It has ended, with all that came before.
            futures::future::Either::Right((_, exchange)) => exchange.await,
        }
    }
}

fn broken(error: &dyn std::fmt::Display) -> Failure {
    Failure::Broken(error.to_string())
}

#[cfg(test)]
mod tests;
