//! A webhook that the tests play: a little HTTPS server in a thread, which keeps its connections.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use openssl::ssl::{SslAcceptor, SslMethod, SslStream};
use pilothouse_types::lock::Lock;
use serde_json::{Value, json};

use super::support::kubelet::Papers;
use super::support::wait::CAP;

/// What the webhook does with a question.
pub enum Deed {
    /// Answers with a review whose response is this; the uid is filled in.
    Says(Value),
    /// Answers with a status and a text.
    Raw(&'static str, String),
    /// Never answers.
    Hangs,
    /// Hangs up.
    Cuts,
}

type Deeds = dyn Fn(&str, &Value) -> Deed + Send + Sync;

/// The webhook.
pub struct HookServer {
    pub port: u16,
    pub authority_pem: Vec<u8>,
    asked: Arc<Lock<Vec<(String, Value)>>>,
    connections: Arc<AtomicUsize>,
    dead: Arc<AtomicBool>,
}

impl HookServer {
    /// One whose certificate is for this machine and for `name`. It is told the path and the review.
    pub fn start(name: &str, deed: impl Fn(&str, &Value) -> Deed + Send + Sync + 'static) -> HookServer {
        HookServer::with(&Papers::new(name, &["127.0.0.1"]), deed)
    }

    /// One that shows this certificate.
    pub fn with(papers: &Papers, deed: impl Fn(&str, &Value) -> Deed + Send + Sync + 'static) -> HookServer {
        let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
        acceptor.set_certificate(&papers.certificate).unwrap();
        acceptor.set_private_key(&papers.key).unwrap();
        let acceptor = Arc::new(acceptor.build());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = HookServer {
            port: listener.local_addr().unwrap().port(),
            authority_pem: papers.certificate.to_pem().unwrap(),
            asked: Arc::default(),
            connections: Arc::default(),
            dead: Arc::default(),
        };
        let (asked, connections, dead) =
            (server.asked.clone(), server.connections.clone(), server.dead.clone());
        let deed: Arc<Deeds> = Arc::new(deed);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if dead.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { return };
                stream.set_read_timeout(Some(CAP)).unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                let (acceptor, asked, deed, dead) =
                    (acceptor.clone(), asked.clone(), deed.clone(), dead.clone());
                thread::spawn(move || {
                    if let Ok(stream) = acceptor.accept(stream) {
                        serve(stream, &asked, &*deed, &dead);
                    }
                });
            }
        });
        server
    }

    /// Ends it: it hangs up and listens no more.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        // Whoever waits for a connection gets one, and looks.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    /// The requests of all reviews so far.
    pub fn asked(&self) -> Vec<Value> {
        self.asked.lock().iter().map(|(_, review)| review["request"].clone()).collect()
    }

    /// What stood in the first lines.
    pub fn targets(&self) -> Vec<String> {
        let asked = self.asked.lock();
        asked.iter().map(|(head, _)| target(head).to_owned()).collect()
    }

    /// The head of the last question, in small letters.
    pub fn last_head(&self) -> String {
        self.asked.lock().last().unwrap().0.clone()
    }

    pub fn forget(&self) {
        self.asked.lock().clear();
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(
    mut stream: SslStream<TcpStream>,
    asked: &Lock<Vec<(String, Value)>>,
    deed: &Deeds,
    dead: &AtomicBool,
) {
    while let Some((head, body)) = question(&mut stream) {
        if dead.load(Ordering::SeqCst) {
            return;
        }
        let review: Value = serde_json::from_slice(&body).unwrap();
        asked.lock().push((head.clone(), review.clone()));
        let path = target(&head).split('?').next().unwrap_or_default();
        let (status, text) = match deed(path, &review["request"]) {
            Deed::Says(mut response) => {
                if response["uid"].is_null() {
                    response["uid"] = review["request"]["uid"].clone();
                }
                let (kind, version) = (&review["kind"], &review["apiVersion"]);
                let answer = json!({"kind": kind, "apiVersion": version, "response": response});
                ("200 OK", answer.to_string())
            }
            Deed::Raw(status, text) => (status, text),
            Deed::Hangs => {
                thread::sleep(CAP);
                return;
            }
            Deed::Cuts => return,
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", text.len());
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes())).is_err() {
            return;
        }
    }
}

fn question(stream: &mut SslStream<TcpStream>) -> Option<(String, Vec<u8>)> {
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

fn target(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}
