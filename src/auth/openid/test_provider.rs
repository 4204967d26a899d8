//! Shared parts of these tests: tokens, and a provider on the loopback interface with configurable responses.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;

use openssl::nid::Nid;
use openssl::ssl::{Ssl, SslAcceptor, SslMethod};
use openssl::x509::X509;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_openssl::SslStream;

use crate::auth::jwt::tests::{curve, jwk, private};
use crate::auth::jwt::{Algorithm, SigningKey, Token};
use crate::config::{Config, OpenId};
use crate::pki::testing::own;

/// The time of the tests' clocks, in seconds.
pub const NOW: u64 = 2_000_000_000;
/// The issuer of tests without a running provider.
pub const ISSUER: &str = "https://login.test/realm";

/// The flags of a server that accepts tokens of `issuer` for the client `c`.
pub fn flags(issuer: &str, more: &[&str]) -> OpenId {
    let both = [format!("--oidc-issuer-url={issuer}"), "--oidc-client-id=c".to_owned()];
    let more = more.iter().map(|flag| (*flag).to_owned());
    let config = Config::parse(std::iter::once("pilothouse".to_owned()).chain(both).chain(more)).unwrap();
    assert_eq!(config.validate(), Ok(()));
    config.openid
}

/// A key that signs tokens, and its published form.
pub struct Signer {
    key: SigningKey,
    pub published: Value,
}

impl Signer {
    pub fn new(algorithm: Algorithm) -> Signer {
        let key = private(algorithm);
        Signer::of(key, algorithm)
    }

    /// A new random key.
    pub fn fresh() -> Signer {
        Signer::of(&curve(Nid::X9_62_PRIME256V1), Algorithm::Es256)
    }

    fn of(key: &openssl::pkey::PKey<openssl::pkey::Private>, algorithm: Algorithm) -> Signer {
        let signing = SigningKey::of_algorithm(key.clone(), algorithm);
        let token = signing.sign(&json!({})).unwrap();
        let mut published = serde_json::to_value(jwk(key, None)).unwrap();
        published["kid"] = Token::parse(&token).unwrap().key_id.into();
        Signer { key: signing, published }
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
    /// A head, a part of the body, and nothing more.
    Stalls,
    /// An endless body.
    Grows,
}

/// A provider on the loopback interface.
pub struct TestProvider {
    pub issuer: String,
    pub authority_pem: Vec<u8>,
    /// Responses by path.
    pub says: RefCell<HashMap<String, TestResponse>>,
    /// How often its keys were requested.
    pub asked: Cell<usize>,
}

impl TestProvider {
    /// A provider that publishes these keys.
    pub async fn open(keys: &[&Signer]) -> Rc<TestProvider> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("https://{}", listener.local_addr().unwrap());
        let (certificate, acceptor) = certificate();
        let stage = Rc::new(TestProvider {
            authority_pem: certificate.to_pem().unwrap(),
            says: RefCell::default(),
            asked: Cell::new(0),
            issuer,
        });
        stage.publish(keys);
        let at = Rc::clone(&stage);
        tokio::task::spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let ssl = Ssl::new(acceptor.context()).unwrap();
                tokio::task::spawn_local(Rc::clone(&at).answer(SslStream::new(ssl, stream).unwrap()));
            }
        });
        stage
    }

    pub fn say(&self, path: &str, says: TestResponse) {
        self.says.borrow_mut().insert(path.to_owned(), says);
    }

    pub fn publish(&self, keys: &[&Signer]) {
        let keys: Vec<_> = keys.iter().map(|key| key.published.clone()).collect();
        let metadata = json!({"issuer": self.issuer, "jwks_uri": format!("{}/keys", self.issuer)});
        self.say("/.well-known/openid-configuration", TestResponse::Document(metadata.to_string()));
        self.say("/keys", TestResponse::Document(json!({"keys": keys}).to_string()));
    }

    async fn answer(self: Rc<TestProvider>, mut stream: SslStream<TcpStream>) {
        if Pin::new(&mut stream).accept().await.is_err() {
            return;
        }
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("GET "), "{head}");
        let path = head.split(' ').nth(1).unwrap();
        self.asked.set(self.asked.get() + usize::from(path == "/keys"));
        let says = self.says.borrow().get(path).cloned().unwrap_or(TestResponse::Status(404));
        let sent = match &says {
            TestResponse::Document(text) => {
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len())
            }
            TestResponse::Status(status) => format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"),
            TestResponse::Stalls | TestResponse::Grows => {
                "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{".to_owned()
            }
        };
        if stream.write_all(sent.as_bytes()).await.is_err() {
            return;
        }
        match says {
            TestResponse::Grows => while stream.write_all(&[b' '; 4096]).await.is_ok() {},
            TestResponse::Stalls => drop(stream.read_u8().await),
            TestResponse::Document(_) | TestResponse::Status(_) => {}
        }
    }
}

fn certificate() -> (X509, SslAcceptor) {
    let (certificate, key) = own("127.0.0.1");
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
    acceptor.set_private_key(&key).unwrap();
    acceptor.set_certificate(&certificate).unwrap();
    (certificate, acceptor.build())
}
