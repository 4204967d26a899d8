//! A small blocking client: one keep-alive connection, JSON in and out.

use std::io;
use std::net::SocketAddr;

use openssl::ssl::SslContext;
use serde_json::Value;

use super::compare::text;
use super::tls;
use super::wait::{Deadline, TIMEOUT};
use super::wire::{Connection, Framing, Head};

/// The address and credentials of a client.
pub struct Client {
    pub address: SocketAddr,
    context: SslContext,
    token: Option<String>,
    connection: Option<Connection>,
}

/// A response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    head: Head,
    pub body: Vec<u8>,
    request_line: String,
}

/// Why there is no response.
#[derive(Debug)]
pub enum Failure {
    /// Nothing was sent: the server cannot have processed it.
    Unsent(io::Error),
    /// Sent, but not answered: the outcome is unknown.
    Unanswered(io::Error),
}

impl Client {
    /// A client that trusts one CA, with an optional client certificate and key.
    pub fn new(address: SocketAddr, authority: &[u8], identity: Option<(&[u8], &[u8])>) -> Client {
        let context = tls::context(Some(authority), identity, &[]);
        Client { address, context, token: None, connection: None }
    }

    /// A client for the same server with another token.
    pub fn with_token(&self, token: Option<&str>) -> Client {
        Client {
            address: self.address,
            context: self.context.clone(),
            token: token.map(str::to_owned),
            connection: None,
        }
    }

    /// A client of the same user that opens its own connection.
    pub fn new_connection(&self) -> Client {
        self.with_token(self.token.as_deref())
    }

    /// A raw connection.
    pub fn raw(&self) -> Connection {
        self.try_raw().expect("a connection")
    }

    pub fn try_raw(&self) -> io::Result<Connection> {
        Connection::open(self.address, &self.context)
    }

    /// The head of a request as this client sends it.
    pub fn head(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address);
        if let Some(token) = &self.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head
    }

    fn connect(&mut self) -> Result<Connection, Failure> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => Connection::open(self.address, &self.context).map_err(Failure::Unsent),
        }
    }

    /// Sends a request and reads the whole response.
    pub fn attempt(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response, Failure> {
        let mut connection = self.connect()?;
        let mut message = self.head(method, path, headers).into_bytes();
        if !body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH") {
            message.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        message.extend_from_slice(b"\r\n");
        message.extend_from_slice(body);
        let deadline = Deadline::after(TIMEOUT);
        // A server may answer and close before it has read everything: then the response counts, not the failed write.
        let sent = connection.send(&message);
        let head =
            connection.head(deadline).map_err(|error| Failure::Unanswered(sent.err().unwrap_or(error)))?;
        let framing = Connection::framing(&head, method);
        let body = connection.body(framing, deadline).map_err(Failure::Unanswered)?;
        let closes = head.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if !closes && framing != Framing::Open {
            self.connection = Some(connection);
        }
        Ok(Response { status: head.status, head, body, request_line: format!("{method} {path}") })
    }

    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        self.attempt(method, path, headers, body)
            .unwrap_or_else(|failure| panic!("{method} {path} was not answered: {failure:?}"))
    }

    pub fn get(&mut self, path: &str) -> Response {
        self.request("GET", path, &[], b"")
    }

    pub fn post(&mut self, path: &str, object: &Value) -> Response {
        self.request("POST", path, &JSON, object.to_string().as_bytes())
    }

    pub fn put(&mut self, path: &str, object: &Value) -> Response {
        self.request("PUT", path, &JSON, object.to_string().as_bytes())
    }

    /// Sends a patch; `language` is the part of the media type before `-patch+json`.
    pub fn patch(&mut self, path: &str, language: &str, patch: &Value) -> Response {
        let media = format!("application/{language}-patch+json");
        self.request("PATCH", path, &[("Content-Type", &media)], patch.to_string().as_bytes())
    }

    pub fn delete(&mut self, path: &str) -> Response {
        self.request("DELETE", path, &[], b"")
    }

    /// Deletes with background propagation and no grace period, so that the object is gone without a controller.
    pub fn delete_background(&mut self, path: &str) -> Response {
        let options =
            br#"{"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"Background","gracePeriodSeconds":0}"#;
        self.request("DELETE", path, &JSON, options)
    }

    /// Opens a watch on a collection.
    pub fn watch(&self, collection: &str, query: &str) -> Watch {
        self.try_watch(collection, query).unwrap_or_else(|error| panic!("watch of {collection}: {error}"))
    }

    pub fn try_watch(&self, collection: &str, query: &str) -> io::Result<Watch> {
        let mut connection = Connection::open(self.address, &self.context)?;
        let path = format!("{collection}?watch=true&{query}");
        connection.send(format!("{}\r\n", self.head("GET", &path, &[])).as_bytes())?;
        let deadline = Deadline::after(TIMEOUT);
        let head = connection.head(deadline)?;
        let framing = Connection::framing(&head, "GET");
        if head.status != 200 || framing != Framing::Chunked {
            let body = connection.body(framing, deadline)?;
            let body = String::from_utf8_lossy(&body).into_owned();
            return Err(io::Error::other(format!("{path}: {} {body}", head.status)));
        }
        Ok(Watch { connection, line: Vec::new() })
    }
}

/// Headers of a JSON body.
pub const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// The texts of the Warning headers, without code and quotes.
    pub fn warnings(&self) -> Vec<String> {
        let all = self.head.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("warning"));
        let text =
            |value: &str| Some(value.strip_prefix("299 - \"")?.strip_suffix('"')?.replace("\\\"", "\""));
        all.map(|(_, value)| text(value).unwrap_or_else(|| panic!("not a warning header: {value}"))).collect()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("{}: {} is not JSON ({error}): {}", self.request_line, self.status, self.text())
        })
    }

    /// The body of a response that must be 2xx.
    pub fn ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "{}: {} {}", self.request_line, self.status, self.text());
        self.json()
    }

    /// The Status of a response that must have this code and reason.
    pub fn expect_error(&self, code: u16, reason: &str) -> Value {
        assert_eq!(self.status, code, "{}: {}", self.request_line, self.text());
        let status = self.json();
        assert_eq!(text(&status, "/kind"), "Status", "{}: {status}", self.request_line);
        assert_eq!(text(&status, "/apiVersion"), "v1", "{}: {status}", self.request_line);
        assert_eq!(text(&status, "/status"), "Failure", "{}: {status}", self.request_line);
        assert_eq!(text(&status, "/reason"), reason, "{}: {status}", self.request_line);
        assert_eq!(status["code"], code, "{}: {status}", self.request_line);
        assert!(!text(&status, "/message").is_empty(), "{}: {status}", self.request_line);
        status
    }
}

/// A stream of events.
pub struct Watch {
    connection: Connection,
    line: Vec<u8>,
}

impl Watch {
    /// The next event; `Ok(None)` when the stream ended cleanly, with its last chunk.
    pub fn attempt(&mut self, deadline: Deadline) -> io::Result<Option<Value>> {
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).map_err(io::Error::other);
            }
            match self.connection.chunk(deadline)? {
                Some(chunk) => self.line.extend_from_slice(&chunk),
                None if self.line.is_empty() => return Ok(None),
                None => return Err(io::Error::other("the stream ended inside an event")),
            }
        }
    }

    pub fn next(&mut self) -> Value {
        let event = self.attempt(Deadline::after(TIMEOUT)).expect("an event");
        event.expect("the watch goes on")
    }

    /// The next event about an object of this name; other events are skipped.
    pub fn next_for(&mut self, name: &str) -> Value {
        loop {
            let event = self.next();
            assert_ne!(event["type"], "ERROR", "{event}");
            if text(&event, "/object/metadata/name") == name {
                return event;
            }
        }
    }
}
