//! A remote server for tests of webhooks.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected fails")]

use serde_json::Value as Json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A server that sends these responses, a status and a body each, one per connection. Returns its address and the received
/// requests.
pub async fn server(responses: Vec<(u16, String)>) -> (String, JoinHandle<Vec<Json>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = tokio::task::spawn_local(async move {
        let mut requests = Vec::new();
        for (status, body) in responses {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = String::new();
            let mut piece = [0; 4096];
            let request = loop {
                let read = stream.read(&mut piece).await.unwrap();
                assert!(read > 0, "{text}");
                text.push_str(std::str::from_utf8(&piece[..read]).unwrap());
                let Some((_, body)) = text.split_once("\r\n\r\n") else { continue };
                if let Ok(request) = serde_json::from_str(body) {
                    break request;
                }
            };
            requests.push(request);
            let response = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(response.as_bytes()).await.unwrap();
        }
        requests
    });
    (format!("http://{address}"), requests)
}
