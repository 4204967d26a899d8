//! Requests of a command to an API server, which a kubeconfig or flags describe.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Uri};
use pilothouse_types::clock::Clock;
use tokio::time::timeout;

use crate::kubeconfig::{Access, PresentedCredentials};
use crate::limits::{API_REQUEST_TIMEOUT, API_RESPONSE_BYTES};
use crate::upstream::RequestBody;
use crate::upstream::pool::{ExchangeError, Pool, Purpose};
use crate::webhook::Failure;
use crate::webhook::connector::{Connector, server_address};

/// An API server.
pub struct ApiServer {
    uri: Uri,
    access: Access,
    connector: Connector,
    pool: Arc<Pool>,
    user_agent: &'static str,
}

/// A request.
pub struct ApiRequest<'a> {
    /// The HTTP method.
    pub method: Method,
    /// The path with its query, below the path of the server.
    pub path: &'a str,
    /// The media types that the client accepts.
    pub accept: &'a str,
    /// The media type of the body and the body itself, if there is one.
    pub body: Option<(&'a str, Vec<u8>)>,
}

/// A response with any status.
#[derive(Debug)]
pub struct ApiResponse {
    /// The status code.
    pub status: u16,
    /// The pause that the server asks for.
    pub retry_after: Option<Duration>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl ApiServer {
    /// The server of this kubeconfig.
    pub fn new(access: Access, user_agent: &'static str) -> Result<ApiServer, Failure> {
        let (uri, address) = server_address(&access).map_err(Failure::Settings)?;
        let secure = uri.scheme_str() == Some("https");
        let connector =
            Connector::new(Purpose::ApiServer, secure, address, &access).map_err(Failure::Settings)?;
        Ok(ApiServer { uri, access, connector, pool: Pool::new(Clock::system()), user_agent })
    }

    /// Sends a request and reads the whole response.
    pub async fn send(&self, request: ApiRequest<'_>) -> Result<ApiResponse, Failure> {
        let credentials = &self.access.credentials;
        let presented = credentials.present().await.map_err(Failure::Settings)?;
        let limit = API_REQUEST_TIMEOUT;
        let response = timeout(limit, self.exchange(request, &presented)).await;
        let response = response.map_err(|_| Failure::Slow(limit))??;
        if response.status == 401 {
            credentials.invalidate(&presented).await;
        }
        Ok(response)
    }

    async fn exchange(
        &self,
        ApiRequest { method, path, accept, body }: ApiRequest<'_>,
        presented: &PresentedCredentials,
    ) -> Result<ApiResponse, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.uri.path().trim_end_matches('/')))
            .header(HOST, self.uri.authority().map_or("", |authority| authority.as_str()))
            .header(ACCEPT, accept)
            .header(USER_AGENT, self.user_agent);
        if let Some(header) = &presented.header {
            request = request.header(AUTHORIZATION, header);
        }
        for (name, value) in self.access.impersonation.headers() {
            request = request.header(name, value);
        }
        let body = match body {
            Some((media_type, bytes)) => {
                request = request.header(CONTENT_TYPE, media_type);
                RequestBody::Whole(Some(bytes.into()))
            }
            None => RequestBody::Empty,
        };
        let request = request.body(body).map_err(|error| Failure::Settings(error.to_string()))?;
        let (origin, connection) = self.connector.prepare(&self.access, presented, None);
        let response = self.pool.send(&origin, request, API_RESPONSE_BYTES, connection).await;
        let response = response.map_err(|error| match error {
            ExchangeError::Connect(reason) => Failure::Broken(reason),
            ExchangeError::Broken(error) | ExchangeError::Cut(error) => Failure::Broken(error.to_string()),
            ExchangeError::TooLong => Failure::TooLong,
        })?;
        let retry_after = response.head.headers.get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(ApiResponse {
            status: response.head.status.as_u16(),
            retry_after: retry_after.map(Duration::from_secs),
            body: response.body,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[actix_rt::test]
    async fn request_is_sent_below_the_path_of_the_server() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}/base/", listener.local_addr().unwrap());
        let received = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4_096];
            let length = stream.read(&mut request).unwrap();
            stream
                .write_all(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\nno")
                .unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        });
        let server = ApiServer::new(Access::to_server(server), "tester").unwrap();
        let request =
            ApiRequest { method: Method::GET, path: "/api?limit=1", accept: "application/json", body: None };
        let response = server.send(request).await.unwrap();
        assert_eq!((response.status, response.body.as_slice()), (429, b"no".as_slice()));
        assert_eq!(response.retry_after, Some(Duration::from_secs(3)));
        let received = received.join().unwrap();
        assert!(received.starts_with("GET /base/api?limit=1 HTTP/1.1\r\n"), "{received}");
        assert!(received.contains("User-Agent: tester\r\n"), "{received}");
    }

    #[test]
    fn server_must_be_an_http_url() {
        for url in ["ftp://host", "host", "https://"] {
            assert!(ApiServer::new(Access::to_server(url), "tester").is_err(), "{url}");
        }
    }
}
