//! A fake webhook: a small HTTPS server in a thread, which keeps its connections alive.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use openssl::ssl::{SslAcceptor, SslMethod, SslStream};
use pilothouse_types::lock::Lock;
use serde_json::{Value, json};

use super::kubelet::TlsIdentity;
use super::wait::TIMEOUT;

/// How the webhook replies to a request.
pub enum Reply {
    /// Sends a review with this response; the uid is filled in.
    Review(Value),
    /// Sends this status and body.
    Raw(&'static str, String),
    /// Never responds.
    Hang,
    /// Closes the connection.
    Close,
}

type ReplyFunction = dyn Fn(&str, &Value) -> Reply + Send + Sync;

/// A running webhook.
pub struct HookServer {
    pub port: u16,
    pub ca_pem: Vec<u8>,
    received: Arc<Lock<Vec<(String, Value)>>>,
    connections: Arc<AtomicUsize>,
    dead: Arc<AtomicBool>,
}

impl HookServer {
    /// A webhook whose certificate is for this machine and for `name`. `reply` receives the path and the request of the review, or the
    /// whole review if it is of a kind without a request.
    pub fn start(name: &str, reply: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> HookServer {
        HookServer::with_identity(&TlsIdentity::new(name, &["127.0.0.1"]), reply)
    }

    /// A webhook with this certificate.
    pub fn with_identity(
        identity: &TlsIdentity,
        reply: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static,
    ) -> HookServer {
        let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
        acceptor.set_certificate(&identity.certificate).unwrap();
        acceptor.set_private_key(&identity.key).unwrap();
        let acceptor = Arc::new(acceptor.build());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = HookServer {
            port: listener.local_addr().unwrap().port(),
            ca_pem: identity.certificate.to_pem().unwrap(),
            received: Arc::default(),
            connections: Arc::default(),
            dead: Arc::default(),
        };
        let (received, connections, dead) =
            (server.received.clone(), server.connections.clone(), server.dead.clone());
        let reply: Arc<ReplyFunction> = Arc::new(reply);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if dead.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { return };
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                let (acceptor, received, reply, dead) =
                    (acceptor.clone(), received.clone(), reply.clone(), dead.clone());
                thread::spawn(move || {
                    if let Ok(stream) = acceptor.accept(stream) {
                        serve(stream, &received, &*reply, &dead);
                    }
                });
            }
        });
        server
    }

    /// Closes all connections and stops listening.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for a connection.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    /// The requests of all reviews so far.
    pub fn requests(&self) -> Vec<Value> {
        self.received.lock().iter().map(|(_, review)| request(review).clone()).collect()
    }

    /// The request targets of all requests so far.
    pub fn targets(&self) -> Vec<String> {
        let received = self.received.lock();
        received.iter().map(|(head, _)| target(head).to_owned()).collect()
    }

    /// The head of the last request, in lower case.
    pub fn last_head(&self) -> String {
        self.received.lock().last().unwrap().0.clone()
    }

    /// The heads of all requests so far, in lower case.
    pub fn heads(&self) -> Vec<String> {
        self.received.lock().iter().map(|(head, _)| head.clone()).collect()
    }

    pub fn clear_requests(&self) {
        self.received.lock().clear();
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(
    mut stream: SslStream<TcpStream>,
    received: &Lock<Vec<(String, Value)>>,
    reply: &ReplyFunction,
    dead: &AtomicBool,
) {
    while let Some((head, body)) = read_request(&mut stream) {
        if dead.load(Ordering::SeqCst) {
            return;
        }
        let review: Value = serde_json::from_slice(&body).unwrap();
        received.lock().push((head.clone(), review.clone()));
        let path = target(&head).split('?').next().unwrap_or_default();
        let (status, text) = match reply(path, request(&review)) {
            Reply::Review(mut response) => {
                if response["uid"].is_null() {
                    response["uid"] = review["request"]["uid"].clone();
                }
                let (kind, version) = (&review["kind"], &review["apiVersion"]);
                let review_response = json!({"kind": kind, "apiVersion": version, "response": response});
                ("200 OK", review_response.to_string())
            }
            Reply::Raw(status, text) => (status, text),
            Reply::Hang => {
                thread::sleep(TIMEOUT);
                return;
            }
            Reply::Close => return,
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", text.len());
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes())).is_err() {
            return;
        }
    }
}

fn read_request(stream: &mut SslStream<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    let mut byte = [0; 1];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn request(review: &Value) -> &Value {
    review.get("request").unwrap_or(review)
}

fn target(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}
