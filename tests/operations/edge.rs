//! The HTTP edge from outside: TLS, HTTP/2 and HTTP/1.1 clients against a small application.

mod connections;
mod requests;

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use pilothouse::config::Config;
use pilothouse::server::{Exit, Server, StartError};

use crate::support::edge::{
    self, Client, TestApplication, TestAssembly, get, h1, start, text, unknown_client_identity, wait_until,
};

#[tokio::test]
async fn stream_reset_drops_idle_watch_body() {
    let (server, application) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let mut body = client.send(get("/watch")).await.into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "{}\n");
    assert_eq!(application.count(), 1);
    drop(body);
    wait_until(|| application.count() == 0).await;
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn stream_reset_cancels_handler() {
    let (server, application) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let response = client.begin_request(get("/never"));
    client.flush().await;
    wait_until(|| application.count() == 1).await;
    drop(response);
    wait_until(|| application.count() == 0).await;
}

#[tokio::test]
async fn rapid_resets_affect_only_their_connection() {
    let (server, application) = start(Config::ephemeral());
    let mut other = Client::connect(&server, None).await;
    let mut client = Client::connect(&server, None).await;
    for number in 0..5_000 {
        // The server may refuse the stream or close the connection of such a client.
        match client.try_begin_request(get("/never")) {
            Some(response) => drop(response),
            None => break,
        }
        if number % 500 == 0 {
            assert_eq!(other.send(get("/hello")).await.status(), StatusCode::OK);
        }
        tokio::task::yield_now().await;
    }
    wait_until(|| application.count() == 0).await;
    assert_eq!(other.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn lost_connection_drops_handlers_and_bodies() {
    let (server, application) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let mut bodies = Vec::new();
    for _ in 0..99 {
        bodies.push(client.send(get("/watch")).await.into_body());
    }
    let waiting = client.begin_request(get("/never"));
    wait_until(|| application.count() == 100).await;
    client.abort().await;
    wait_until(|| application.count() == 0).await;
    drop((bodies, waiting));
}

#[tokio::test]
async fn max_streams_setting_limits_concurrent_streams() {
    let mut config = Config::ephemeral();
    config.serving.http2_max_streams_per_connection = 7;
    let (server, application) = start(config);
    let mut client = Client::connect(&server, None).await;
    client.send(get("/hello")).await;
    assert_eq!(client.max_streams(), 7);
    let mut bodies = Vec::new();
    for _ in 0..7 {
        bodies.push(client.send(get("/watch")).await.into_body());
    }
    bodies.pop();
    wait_until(|| application.count() == 6).await;
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn shutdown_finishes_requests_in_flight() {
    let (server, application) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let mut watch = client.send(get("/watch")).await.into_body();
    watch.data().await.unwrap().unwrap();
    let slow = client.begin_request(get("/gated"));
    wait_until(|| application.count() == 2).await;
    let stopping = tokio::spawn(server.stop_async());
    assert_eq!(text(watch).await, "", "the watch ends without an error");
    wait_until(|| application.stopping()).await;
    application.open_gate();
    let response = slow.await.unwrap();
    assert_eq!(text(response.into_body()).await, "gated");
    client.wait_for_close().await.expect("the connection is closed cleanly");
    assert_eq!(stopping.await.unwrap(), Exit::Stopped);
    assert_eq!(application.flushes(), 1);
}

#[tokio::test]
async fn shutdown_closes_idle_http1_connections_and_finishes_busy_ones() {
    let (server, application) = start(Config::ephemeral());
    let mut idle = h1::Client::connect(&server, None).await;
    idle.write(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(idle.read_until("hello").await.starts_with("HTTP/1.1 200"));
    let mut busy = h1::Client::connect(&server, None).await;
    busy.write(b"GET /gated HTTP/1.1\r\nhost: x\r\n\r\n").await;
    wait_until(|| application.count() == 1).await;
    let stopping = tokio::spawn(server.stop_async());
    idle.read_to_end().await;
    application.open_gate();
    assert!(busy.read_to_end().await.ends_with("gated"));
    assert_eq!(stopping.await.unwrap(), Exit::Stopped);
}

#[tokio::test]
async fn shutdown_delay_fails_readiness_while_still_serving() {
    let mut config = Config::ephemeral();
    config.lifecycle.shutdown_delay_duration = Duration::from_secs(600);
    let (server, application) = start(config);
    let mut client = Client::connect(&server, None).await;
    server.stopper().stop();
    wait_until(|| application.stopping()).await;
    // Requests and new connections are still served during the delay.
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
    let mut late = Client::connect(&server, None).await;
    assert_eq!(late.send(get("/hello")).await.status(), StatusCode::OK);
    // A second stop request does not wait for the delay.
    server.stopper().hurry();
    assert_eq!(server.wait(), Exit::Stopped);
}

#[tokio::test]
async fn upload_larger_than_flow_control_window_arrives() {
    let (server, _application) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let request = http::Request::post("https://localhost/length").body(()).unwrap();
    let body = Bytes::from(vec![7; 3 << 20]);
    assert_eq!(text(client.upload(request, body).await.into_body()).await, (3 << 20).to_string());
}

#[tokio::test]
async fn response_larger_than_flow_control_window_arrives_with_length() {
    let (server, _application) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let response = client.send(get("/large")).await;
    assert_eq!(response.headers()["content-length"], (4 << 20).to_string());
    assert!(response.headers().contains_key("date"));
    assert_eq!(text(response.into_body()).await.len(), 4 << 20);
    let head = http::Request::head("https://localhost/large").body(()).unwrap();
    let response = client.send(head).await;
    assert_eq!(response.headers()["content-length"], (4 << 20).to_string());
    assert!(response.into_body().is_end_stream());
}

#[tokio::test]
async fn handler_panic_returns_500_and_keeps_connection() {
    let (server, application) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let watch = client.send(get("/watch")).await;
    let response = client.send(get("/panic")).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(text(response.into_body()).await.contains("panic"));
    // An error in a body resets the stream, so that the client does not take the part for the whole.
    let reset = match client.try_send(get("/broken")).await {
        Err(error) => error,
        Ok(response) => {
            let mut body = response.into_body();
            loop {
                if let Err(error) = body.data().await.expect("no regular end") {
                    break error;
                }
            }
        }
    };
    assert!(reset.is_reset(), "{reset}");
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
    assert_eq!(application.count(), 1);
    drop(watch);

    let mut client = h1::Client::connect(&server, None).await;
    client.write(b"GET /panic HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(client.read_until("details.").await.starts_with("HTTP/1.1 500"));
}

#[tokio::test]
async fn oversized_headers_are_refused() {
    let (server, _application) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let mut request = get("/hello");
    for part in 0..40 {
        let name = http::header::HeaderName::try_from(format!("x-part-{part}")).unwrap();
        request.headers_mut().insert(name, "x".repeat(4_000).parse().unwrap());
    }
    let response = client.begin_request(request).await;
    assert!(
        response.map_or(true, |response| response.status() == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
    );

    let mut client = h1::Client::connect(&server, None).await;
    client.write(format!("GET /hello HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(200_000)).as_bytes()).await;
    let response = client.read_to_end().await;
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 4"), "{response}");
    let mut client = Client::connect(&server, None).await;
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn half_closed_http1_connection_cancels_watch() {
    let (server, application) = start(Config::ephemeral());
    let mut client = h1::Client::connect(&server, None).await;
    client.write(b"GET /watch HTTP/1.1\r\nhost: x\r\n\r\n").await;
    client.read_until("{}\n").await;
    assert_eq!(application.count(), 1);
    client.close_writing().await;
    wait_until(|| application.count() == 0).await;
}

#[tokio::test]
async fn client_certificate_of_any_issuer_reaches_handler() {
    let (server, _application) = start(Config::ephemeral());
    let (admin, nobody) = (server.admin().clone(), unknown_client_identity());
    for (identity, subject) in [(None, "none"), (Some(&admin), "kubernetes-admin"), (Some(&nobody), "nobody")]
    {
        let mut client = Client::connect(&server, identity).await;
        assert_eq!(text(client.send(get("/peer")).await.into_body()).await, format!("127.0.0.1 {subject}"));
        let mut client = h1::Client::connect(&server, identity).await;
        client.write(b"GET /peer HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(client.read_to_end().await.ends_with(&format!("127.0.0.1 {subject}")));
    }
}

#[tokio::test]
async fn disable_http2_flag_negotiates_http1() {
    let mut config = Config::ephemeral();
    config.serving.disable_http2_serving = true;
    let (server, _application) = start(config);
    assert_eq!(edge::negotiated_protocol(&server).await, Some(b"http/1.1".to_vec()));
    let (server, _application) = start(Config::ephemeral());
    assert_eq!(edge::negotiated_protocol(&server).await, Some(b"h2".to_vec()));
}

#[tokio::test]
async fn plain_http_request_gets_explanation() {
    let (server, _application) = start(Config::ephemeral());
    let short = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    let response = edge::send_plain(server.address(), short).await.expect("a clean end");
    assert!(response.ends_with("Client sent an HTTP request to an HTTPS server.\n"), "{response}");
    // One whose body is longer than the first read: the answer is not lost in a reset.
    let long =
        [b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n", vec![b'x'; 300_000].as_slice()]
            .concat();
    let response = edge::send_plain(server.address(), &long).await.expect("no reset");
    assert!(response.ends_with("Client sent an HTTP request to an HTTPS server.\n"), "{response}");
    // Bytes that are no request: the server closes the connection and goes on.
    let _reset = edge::send_plain(server.address(), &[0; 64]).await;
    let mut client = Client::connect(&server, None).await;
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn goaway_chance_closes_connections() {
    let mut config = Config::ephemeral();
    config.serving.goaway_chance = 0.02;
    let (server, _application) = start(config);
    let mut client = Client::connect(&server, None).await;
    // After n requests the connection still stands with a chance of 0.98^n: 3e-18 here.
    for _ in 0..2_000 {
        match client.try_send(get("/hello")).await {
            Ok(response) => assert_eq!(response.status(), StatusCode::OK),
            Err(_) => {
                // Both ends close now, so the GOAWAY may or may not be received.
                let _ = client.wait_for_close().await;
                return;
            }
        }
    }
    panic!("no GOAWAY was received");
}

#[tokio::test]
async fn dropped_server_stops_without_affecting_another() {
    let (first_server, first_application) = start(Config::ephemeral());
    let (second_server, second_application) = start(Config::ephemeral());
    let mut client = Client::connect(&first_server, None).await;
    let watch = client.send(get("/watch")).await;
    // This thread drives the client as well, which cannot close its connection while it is blocked here.
    drop(first_server);
    assert_eq!((first_application.flushes(), second_application.flushes()), (1, 0));
    drop(watch);
    let mut client = Client::connect(&second_server, None).await;
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn abandon_does_not_wait_for_flush() {
    let (server, application) = start(Config::ephemeral());
    application.hang();
    let abandoned = tokio::task::spawn_blocking(move || server.abandon());
    wait_until(|| abandoned.is_finished()).await;
    wait_until(|| application.flushes() == 1).await;
}

#[test]
fn start_error_names_used_port_and_locked_data_directory() {
    let home = tempfile::tempdir().unwrap();
    let mut config = Config::ephemeral();
    config.storage.data_dir = Some(home.path().to_owned());
    let (server, _application) = start(config.clone());

    let mut config_with_used_port = Config::ephemeral();
    config_with_used_port.serving.secure_port = server.address().port();
    let error = Server::start(config_with_used_port).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on {}: the port is in use", server.address()));

    let error = Server::start(config.clone()).unwrap_err();
    assert!(matches!(error, StartError::Locked(_)), "{error}");
    assert_eq!(server.stop(), Exit::Stopped);
    assert_eq!(Server::start(config).unwrap().stop(), Exit::Stopped);
}

#[test]
fn start_error_names_invalid_flag() {
    let missing_file = "/nonexistent/tokens.csv";
    for (flag, value, reason) in [
        ("--runtime-config", "nonsense/v9=true", "unknown api groups nonsense"),
        ("--service-cluster-ip-range", "fd00::/8", "fd00::/8 is too large"),
        (
            "--token-auth-file",
            missing_file,
            "/nonexistent/tokens.csv: No such file or directory (os error 2)",
        ),
    ] {
        let mut config = Config::parse(["pilothouse", &format!("{flag}={value}")]).unwrap();
        let ephemeral = Config::ephemeral();
        (config.serving, config.storage) = (ephemeral.serving, ephemeral.storage);
        let error = Server::start(config).unwrap_err();
        assert!(matches!(error, StartError::Flag { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("{flag}: {reason}"));
    }
}

#[test]
fn application_failure_ends_server() {
    let (server, application) = start(Config::ephemeral());
    application.fail("the disk is gone");
    assert_eq!(server.wait(), Exit::Failed("the disk is gone".to_owned()));
    assert_eq!(
        (application.flushes(), application.give_up_count()),
        (0, 1),
        "nothing is flushed, but audit records are written"
    );

    let assembly = TestAssembly { application: TestApplication::default(), refuse: true };
    let clock = pilothouse_types::clock::Clock::system();
    let error = Server::start_with(Config::ephemeral(), clock, assembly).unwrap_err();
    assert_eq!(error.to_string(), "cannot open the store: refused");
}
