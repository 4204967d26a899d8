//! Shared fixtures of these tests: tokens, and a provider on the loopback interface with configurable responses.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;

use openssl::nid::Nid;
use openssl::ssl::{Ssl, SslAcceptor, SslMethod};
use openssl::x509::X509;
use pilothouse_client::testing::self_signed;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_openssl::SslStream;

use crate::auth::jwt::tests::{curve, jwk, private_key};
use crate::auth::jwt::{Algorithm, SigningKey, Token};
use crate::config::{Config, OpenId};

/// The time of the tests' clocks, in seconds.
pub const NOW: u64 = 2_000_000_000;
/// The issuer of tests without a running provider.
pub const ISSUER: &str = "https://login.test/realm";

/// The flags of a server that accepts tokens of `issuer` for the client `c`.
pub fn flags(issuer: &str, more: &[&str]) -> OpenId {
    let required = [format!("--oidc-issuer-url={issuer}"), "--oidc-client-id=c".to_owned()];
    let more = more.iter().map(|flag| (*flag).to_owned());
    let config = Config::parse(std::iter::once("pilothouse".to_owned()).chain(required).chain(more)).unwrap();
    assert_eq!(config.validate(), Ok(()));
    config.openid
}

/// A key that signs tokens, and its published form.
pub struct Signer {
    key: SigningKey,
    pub jwk: Value,
}

impl Signer {
    pub fn new(algorithm: Algorithm) -> Signer {
        let key = private_key(algorithm);
        Signer::from_key(key, algorithm)
    }

    /// A new random key.
    pub fn fresh() -> Signer {
        Signer::from_key(&curve(Nid::X9_62_PRIME256V1), Algorithm::Es256)
    }

    fn from_key(key: &openssl::pkey::PKey<openssl::pkey::Private>, algorithm: Algorithm) -> Signer {
        let signing = SigningKey::with_algorithm(key.clone(), algorithm);
        let token = signing.sign(&json!({})).unwrap();
        let mut jwk = serde_json::to_value(jwk(key, None)).unwrap();
        jwk["kid"] = Token::parse(&token).unwrap().key_id.into();
        Signer { key: signing, jwk }
    }

    pub fn sign(&self, claims: &Value) -> String {
        self.key.sign(claims).unwrap()
    }
}

/// The claims of a valid token, with changes; null removes one.
pub fn claims(issuer: &str, changes: &Value) -> Value {
    let mut claims =
        json!({"iss": issuer, "aud": "c", "sub": "ann", "exp": NOW + 600, "iat": NOW, "jti": "7"});
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

/// A response of the provider.
#[derive(Clone)]
pub enum TestResponse {
    Document(String),
    Status(u16),
    /// The headers and a part of the body; then the connection stalls.
    Stalls,
    /// An endless body.
    Grows,
}

/// A provider on the loopback interface.
pub struct TestProvider {
    pub issuer: String,
    pub authority_pem: Vec<u8>,
    /// Responses by path.
    pub responses: RefCell<HashMap<String, TestResponse>>,
    /// How often its keys were requested.
    pub key_requests: Cell<usize>,
    /// The paths and heads of all requests.
    heads: RefCell<Vec<(String, String)>>,
}

impl TestProvider {
    /// A provider that publishes these keys.
    pub async fn open(keys: &[&Signer]) -> Rc<TestProvider> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("https://{}", listener.local_addr().unwrap());
        let (certificate, acceptor) = certificate();
        let provider = Rc::new(TestProvider {
            authority_pem: certificate.to_pem().unwrap(),
            responses: RefCell::default(),
            key_requests: Cell::new(0),
            heads: RefCell::default(),
            issuer,
        });
        provider.publish(keys);
        let server = Rc::clone(&provider);
        tokio::task::spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let ssl = Ssl::new(acceptor.context()).unwrap();
                tokio::task::spawn_local(Rc::clone(&server).serve(SslStream::new(ssl, stream).unwrap()));
            }
        });
        provider
    }

    pub fn respond(&self, path: &str, response: TestResponse) {
        self.responses.borrow_mut().insert(path.to_owned(), response);
    }

    /// The head of the last request for this path.
    pub fn head_of(&self, path: &str) -> Option<String> {
        self.heads
            .borrow()
            .iter()
            .rev()
            .find(|(requested, _)| requested == path)
            .map(|(_, head)| head.clone())
    }

    /// How often this path was requested.
    pub fn count_of(&self, path: &str) -> usize {
        self.heads.borrow().iter().filter(|(requested, _)| requested == path).count()
    }

    pub fn publish(&self, keys: &[&Signer]) {
        let keys: Vec<_> = keys.iter().map(|key| key.jwk.clone()).collect();
        let metadata = json!({"issuer": self.issuer, "jwks_uri": format!("{}/keys", self.issuer)});
        self.respond("/.well-known/openid-configuration", TestResponse::Document(metadata.to_string()));
        self.respond("/keys", TestResponse::Document(json!({"keys": keys}).to_string()));
    }

    async fn serve(self: Rc<TestProvider>, mut stream: SslStream<TcpStream>) {
        if Pin::new(&mut stream).accept().await.is_err() {
            return;
        }
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => request.push(byte),
                Err(_) => return,
            }
        }
        let request = String::from_utf8(request).unwrap();
        assert!(request.starts_with("GET "), "{request}");
        let path = request.split(' ').nth(1).unwrap();
        self.heads.borrow_mut().push((path.to_owned(), request.clone()));
        self.key_requests.set(self.key_requests.get() + usize::from(path == "/keys"));
        let response = self.responses.borrow().get(path).cloned().unwrap_or(TestResponse::Status(404));
        let head = match &response {
            TestResponse::Document(text) => {
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len())
            }
            TestResponse::Status(status) => format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"),
            TestResponse::Stalls | TestResponse::Grows => {
                "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{".to_owned()
            }
        };
        if stream.write_all(head.as_bytes()).await.is_err() {
            return;
        }
        match response {
            TestResponse::Grows => while stream.write_all(&[b' '; 4096]).await.is_ok() {},
            TestResponse::Stalls => drop(stream.read_u8().await),
            TestResponse::Document(_) | TestResponse::Status(_) => {}
        }
    }
}

fn certificate() -> (X509, SslAcceptor) {
    let (certificate, key) = self_signed("127.0.0.1");
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
    acceptor.set_private_key(&key).unwrap();
    acceptor.set_certificate(&certificate).unwrap();
    (certificate, acceptor.build())
}
