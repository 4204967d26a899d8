//! TLS: versions, cipher suites, certificates and the handshake.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use actix_rt::net::TcpStream;
use arc_swap::ArcSwap;
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::pkey::PKey;
use openssl::ssl::{
    AlpnError, NameType, SniError, Ssl, SslAcceptor, SslContext, SslContextBuilder, SslMethod, SslOptions,
    SslSessionCacheMode, SslVerifyMode, SslVersion, select_next_proto,
};
use openssl::stack::Stack;
use openssl::x509::X509;
use pilothouse_actors::yield_every::YieldEvery;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::timeout;
use tokio_openssl::SslStream;

use super::peer::{Peer, PeerCertificates};
use crate::config::{Serving, TlsVersion};
use crate::limits::{
    CONNECTION_TURN_BYTES, DISCONNECT_TIMEOUT, INPUT_DURING_WATCH_BYTES, PLAIN_REQUEST_BYTES,
};
use crate::pki::{Identity, Pki, SniCertificate};

const HTTP2_AND_HTTP1: &[u8] = b"\x02h2\x08http/1.1";
const HTTP1: &[u8] = b"\x08http/1.1";
/// Input that arrives during a watch is read in chunks of this size.
const INPUT_CHUNK_BYTES: usize = 512;
/// The reference's response to plain HTTP.
const NOT_TLS: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// The cipher suites of TLS 1.2 by their IANA and OpenSSL names.
const SUITES: &[(&str, &str)] = &[
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", "ECDHE-ECDSA-AES128-SHA"),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", "ECDHE-ECDSA-AES256-SHA"),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA"),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", "ECDHE-RSA-AES256-SHA"),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "ECDHE-RSA-CHACHA20-POLY1305"),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
    ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
    ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
    ("TLS_RSA_WITH_AES_256_CBC_SHA", "AES256-SHA"),
    ("TLS_RSA_WITH_AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
];

/// The cipher suites of TLS 1.3, which have one name.
const SUITES_13: &[&str] =
    &["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// TLS settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// `--tls-cipher-suites` names an unknown suite.
    #[error("--tls-cipher-suites: unknown or unsupported cipher suite {0}")]
    UnknownSuite(String),
    /// OpenSSL refuses the certificate, its key or the ciphers.
    #[error("cannot set up TLS: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// The TLS settings of the server. Certificates can be replaced at run time: new connections use the new ones. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    contexts: Arc<ArcSwap<Contexts>>,
    /// The OpenSSL slot in which a connection keeps its contexts until the server name is known.
    contexts_index: Index<Ssl, Arc<Contexts>>,
}

/// OpenSSL contexts by the certificate that they present.
struct Contexts {
    default: SslContext,
    /// By lower-case host name, possibly with a wildcard as the first label.
    named: HashMap<String, SslContext>,
}

impl Contexts {
    fn new(
        serving: &Serving,
        pki: &Pki,
        contexts_index: Index<Ssl, Arc<Contexts>>,
    ) -> Result<Contexts, TlsError> {
        let default = context(serving, pki, &pki.serving, contexts_index)?;
        let mut named = HashMap::new();
        // The first certificate of a name wins, so it is inserted last.
        for SniCertificate { identity, names } in pki.sni_certificates.iter().rev() {
            let context = context(serving, pki, identity, contexts_index)?;
            named.extend(names.iter().map(|name| (name.clone(), context.clone())));
        }
        Ok(Contexts { default, named })
    }

    /// The context for a host name (SNI).
    fn for_host(&self, host: &str) -> &SslContext {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let wildcard = || match host.split_once('.') {
            Some((_, rest)) => self.named.get(&format!("*.{rest}")),
            None => self.named.get("*"),
        };
        self.named.get(&host).or_else(wildcard).unwrap_or(&self.default)
    }

    /// The context for a client that sends no host name, by the address it connected to.
    fn for_address(&self, address: Option<SocketAddr>) -> &SslContext {
        let named = address.and_then(|address| self.named.get(&address.ip().to_canonical().to_string()));
        named.unwrap_or(&self.default)
    }
}

impl Tls {
    /// TLS with the certificates of `pki`.
    pub fn new(serving: &Serving, pki: &Pki) -> Result<Tls, TlsError> {
        let contexts_index = Ssl::new_ex_index()?;
        let contexts = Contexts::new(serving, pki, contexts_index)?;
        Ok(Tls { contexts: Arc::new(ArcSwap::from_pointee(contexts)), contexts_index })
    }

    /// Uses these certificates from the next connection on.
    pub fn replace(&self, serving: &Serving, pki: &Pki) -> Result<(), TlsError> {
        self.contexts.store(Arc::new(Contexts::new(serving, pki, self.contexts_index)?));
        Ok(())
    }

    /// Performs the handshake.
    pub(super) async fn accept(&self, io: TcpStream) -> io::Result<TlsStream> {
        let address = io.peer_addr().ok();
        let contexts = self.contexts.load_full();
        let ssl = if contexts.named.is_empty() {
            Ssl::new(&contexts.default)?
        } else {
            let mut ssl = Ssl::new(contexts.for_address(io.local_addr().ok()))?;
            ssl.set_ex_data(self.contexts_index, contexts);
            ssl
        };
        let mut stream = SslStream::new(ssl, io)?;
        if let Err(error) = Pin::new(&mut stream).accept().await {
            let is_plain_http = error.ssl_error().is_some_and(|stack| {
                stack.errors().iter().any(|error| error.reason() == Some("http request"))
            });
            if is_plain_http {
                refuse_plain_http(stream.get_mut()).await;
            }
            return Err(io::Error::other(error));
        }
        let peer = Peer { address, certificates: PeerCertificates::from_ssl(stream.ssl()), connection: None };
        let turn = YieldEvery::new(CONNECTION_TURN_BYTES);
        Ok(TlsStream { stream, is_drained: false, buffered_input: Vec::new(), turn, peer })
    }
}

/// Answers a client that has not begun a handshake, as well as possible: it may be gone already.
async fn refuse_plain_http(io: &mut TcpStream) {
    let answered = async {
        io.write_all(NOT_TLS).await?;
        io.shutdown().await?;
        // Bytes that nobody has read would make the close a reset, and that would overtake the answer.
        let mut rest = [0; INPUT_CHUNK_BYTES];
        let mut limit = PLAIN_REQUEST_BYTES;
        while limit > 0
            && let read @ 1.. = io.read(&mut rest).await?
        {
            limit = limit.saturating_sub(read);
        }
        io::Result::Ok(())
    };
    let _ = timeout(DISCONNECT_TIMEOUT, answered).await;
}

fn context(
    serving: &Serving,
    pki: &Pki,
    identity: &Identity,
    contexts_index: Index<Ssl, Arc<Contexts>>,
) -> Result<SslContext, TlsError> {
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls())?;
    let context: &mut SslContextBuilder = &mut acceptor;
    let min_version = match serving.tls_min_version {
        TlsVersion::Tls12 => SslVersion::TLS1_2,
        TlsVersion::Tls13 => SslVersion::TLS1_3,
    };
    context.set_min_proto_version(Some(min_version))?;
    set_suites(context, &serving.tls_cipher_suites)?;
    set_identity(context, identity)?;
    if !pki.sni_certificates.is_empty() {
        context.set_servername_callback(move |ssl, _| {
            let Some(contexts) = ssl.ex_data(contexts_index).cloned() else { return Ok(()) };
            let Some(host) = ssl.servername(NameType::HOST_NAME).map(str::to_owned) else { return Ok(()) };
            ssl.set_ssl_context(contexts.for_host(&host)).map_err(|_| SniError::ALERT_FATAL)
        });
    }

    // Request a certificate and accept any: the authenticator verifies it.
    context.set_verify_callback(SslVerifyMode::PEER, |_, _| true);
    let mut names = Stack::new()?;
    for authorities in [Some(&pki.client_ca_pem), pki.proxy_ca_pem.as_ref()].into_iter().flatten() {
        for authority in X509::stack_from_pem(authorities)? {
            names.push(authority.subject_name().to_owned()?)?;
        }
    }
    context.set_client_ca_list(names);

    // A resumed session keeps the client's certificate but loses its intermediates, so a valid client would be rejected. ECDSA
    // handshakes are cheap and connections live long: no resumption.
    context.set_session_id_context(b"pilothouse")?;
    context.set_session_cache_mode(SslSessionCacheMode::OFF);
    context.set_options(SslOptions::NO_TICKET);
    context.set_num_tickets(0)?;

    // Without it, OpenSSL asks the socket for the head of each record, then for its body, and then whether there is more: three
    // system calls for a small request instead of one.
    context.set_read_ahead(true);

    let protocols = if serving.disable_http2_serving { HTTP1 } else { HTTP2_AND_HTTP1 };
    context.set_alpn_select_callback(move |_, offered| {
        select_next_proto(protocols, offered).ok_or(AlpnError::NOACK)
    });
    Ok(acceptor.build().into_context())
}

fn set_identity(context: &mut SslContextBuilder, identity: &Identity) -> Result<(), TlsError> {
    let mut chain = X509::stack_from_pem(&identity.certificates_pem)?.into_iter();
    if let Some(certificate) = chain.next() {
        context.set_certificate(&certificate)?;
    }
    for intermediate in chain {
        context.add_extra_chain_cert(intermediate)?;
    }
    let key = PKey::private_key_from_pem(&identity.key_pem)?;
    context.set_private_key(&key)?;
    context.check_private_key()?;
    Ok(())
}

fn set_suites(context: &mut SslContextBuilder, names: &[String]) -> Result<(), TlsError> {
    let (mut tls12, mut tls13) = (Vec::new(), Vec::new());
    for name in names {
        if let Some((_, openssl)) = SUITES.iter().find(|(iana, _)| iana == name) {
            tls12.push(*openssl);
        } else if SUITES_13.contains(&name.as_str()) {
            tls13.push(name.as_str());
        } else {
            return Err(TlsError::UnknownSuite(name.clone()));
        }
    }
    if !tls12.is_empty() {
        context.set_cipher_list(&tls12.join(":"))?;
    }
    if !tls13.is_empty() {
        context.set_ciphersuites(&tls13.join(":"))?;
    }
    Ok(())
}

/// A TLS connection and its peer.
pub(super) struct TlsStream {
    stream: SslStream<TcpStream>,
    /// Whether the last read emptied the socket. HTTP drivers try to read whenever they are woken, also for writes. Without this
    /// flag every event of a watch would cost a system call that finds nothing.
    is_drained: bool,
    /// Input that arrived while a watch was being written; it is read next.
    buffered_input: Vec<u8>,
    /// Encryption takes most of the time of a large body, and writes to a client that reads fast enough are never pending.
    /// So a busy connection yields to the other tasks of the worker now and then.
    turn: YieldEvery,
    pub(super) peer: Peer,
}

impl TlsStream {
    /// Whether ALPN selected HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        self.stream.ssl().selected_alpn_protocol() == Some(b"h2")
    }

    /// Ready with `true` when there is input, which stays unread; with `false` when the client has disconnected.
    pub(super) fn poll_has_input(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if !self.buffered_input.is_empty() {
            return Poll::Ready(true);
        }
        if self.is_drained {
            match self.stream.get_ref().poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(false),
                Poll::Ready(Ok(())) => {}
            }
        }
        let peeked = Pin::new(&mut self.stream).poll_peek(cx, &mut [0]);
        self.is_drained = peeked.is_pending();
        peeked.map(|result| result.is_ok_and(|bytes| bytes > 0))
    }

    /// Detects a disconnect while a response is written. Input that arrives meanwhile is kept for the next read: if it stayed
    /// unread, the end behind it would go unnoticed. Errors if the client is gone or sends more than is kept.
    pub(super) fn check_disconnect(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.has_nothing_to_read(cx)? {
            return Ok(());
        }
        let mut chunk = [0; INPUT_CHUNK_BYTES];
        loop {
            let mut buffer = ReadBuf::new(&mut chunk);
            match self.poll_read_stream(cx, &mut buffer) {
                Poll::Pending => return Ok(()),
                Poll::Ready(result) => result?,
            }
            if buffer.filled().is_empty() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if self.buffered_input.len() + buffer.filled().len() > INPUT_DURING_WATCH_BYTES {
                return Err(io::Error::other("the client sends too much during a response"));
            }
            self.buffered_input.extend_from_slice(buffer.filled());
        }
    }

    /// Whether the socket is known to be empty. Then the task is woken when something comes.
    fn has_nothing_to_read(&self, cx: &mut Context<'_>) -> io::Result<bool> {
        Ok(self.is_drained && self.stream.get_ref().poll_read_ready(cx)?.is_pending())
    }

    fn poll_read_stream(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.has_nothing_to_read(cx)? {
            return Poll::Pending;
        }
        ready!(self.turn.poll_turn(cx));
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.is_drained = read.is_pending();
        self.turn.count(buf.filled().len() - before);
        read
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.buffered_input.is_empty() {
            return self.poll_read_stream(cx, buf);
        }
        let read = self.buffered_input.len().min(buf.remaining());
        buf.put_slice(&self.buffered_input[..read]);
        self.buffered_input.drain(..read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.turn.poll_turn(cx));
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(bytes)) = written {
            self.turn.count(bytes);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use openssl::ssl::SslConnector;
    use pilothouse_types::clock::Clock;

    use super::*;
    use crate::config::Config;
    use crate::limits::TLS_RECORD_BYTES;

    fn tls(config: &Config) -> Result<Tls, TlsError> {
        let bound = "127.0.0.1:1".parse().unwrap();
        Tls::new(&config.serving, &crate::pki::prepare(config, bound, &Clock::system()).unwrap())
    }

    #[test]
    fn every_listed_cipher_suite_is_known_to_openssl() {
        for name in SUITES.iter().map(|(iana, _)| iana).chain(SUITES_13) {
            let mut config = Config::ephemeral();
            config.serving.tls_cipher_suites = vec![(*name).to_owned()];
            assert!(tls(&config).is_ok(), "{name}");
        }
    }

    #[test]
    fn unknown_cipher_suite_is_named_in_error() {
        let mut config = Config::ephemeral();
        config.serving.tls_cipher_suites = vec!["TLS_NONSENSE".to_owned()];
        assert!(tls(&config).err().unwrap().to_string().contains("TLS_NONSENSE"));
    }

    /// Writes to a client that reads fast enough are never pending.
    #[actix_rt::test]
    async fn tls_stream_yields_after_its_turn_bytes() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reader = std::thread::spawn(move || {
            let mut connector = SslConnector::builder(SslMethod::tls()).unwrap();
            connector.set_verify(SslVerifyMode::NONE);
            let client = std::net::TcpStream::connect(address).unwrap();
            let mut client = connector.build().connect("localhost", client).unwrap();
            std::io::copy(&mut client, &mut std::io::sink()).unwrap()
        });
        let (io, _) = listener.accept().await.unwrap();
        let mut stream = tls(&Config::ephemeral()).unwrap().accept(io).await.unwrap();
        let (chunk, mut turns, mut total) = ([7; TLS_RECORD_BYTES], Vec::new(), 0);
        while total < 8 * CONNECTION_TURN_BYTES {
            let mut written = 0;
            poll_fn(|cx| {
                while let Poll::Ready(bytes) = Pin::new(&mut stream).poll_write(cx, &chunk) {
                    written += bytes.unwrap();
                }
                if written > 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            turns.push(written);
            total += written;
        }
        assert!(turns.iter().all(|bytes| *bytes <= CONNECTION_TURN_BYTES), "{turns:?}");
        stream.shutdown().await.unwrap();
        assert_eq!(reader.join().unwrap(), total as u64);
    }
}
