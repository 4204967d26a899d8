//! The HTTP edge seen from outside: real TLS, real HTTP/2 and HTTP/1.1 clients against a small application.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected fails"
)]

#[path = "edge/connections.rs"]
mod connections;
#[path = "support/edge.rs"]
mod support;

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use pilothouse::config::Config;
use pilothouse::server::{Exit, Server, StartError};
use support::{Client, Live, Toy, get, h1, identity_of_nobody, start, text, until};

#[tokio::test]
async fn a_reset_of_a_quiet_watch_drops_its_body() {
    let (server, live) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let mut body = client.send(get("/watch")).await.into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "{}\n");
    assert_eq!(live.count(), 1);
    drop(body);
    until(|| live.count() == 0).await;
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_reset_cancels_the_handler() {
    let (server, live) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let answer = client.begin(get("/never"));
    client.flush().await;
    until(|| live.count() == 1).await;
    drop(answer);
    until(|| live.count() == 0).await;
}

#[tokio::test]
async fn rapid_resets_cost_their_own_connection_and_nobody_else() {
    let (server, live) = start(Config::ephemeral());
    let mut other = Client::connect(&server, None).await;
    let mut client = Client::connect(&server, None).await;
    for turn in 0..5_000 {
        // A stream that was refused or a connection that was ended for it is what such a client has to expect.
        match client.try_begin(get("/never")) {
            Some(answer) => drop(answer),
            None => break,
        }
        if turn % 500 == 0 {
            assert_eq!(other.send(get("/hello")).await.status(), StatusCode::OK);
        }
        tokio::task::yield_now().await;
    }
    until(|| live.count() == 0).await;
    assert_eq!(other.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_lost_connection_leaves_nothing_behind() {
    let (server, live) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let mut bodies = Vec::new();
    for _ in 0..99 {
        bodies.push(client.send(get("/watch")).await.into_body());
    }
    let waiting = client.begin(get("/never"));
    until(|| live.count() == 100).await;
    client.cut().await;
    until(|| live.count() == 0).await;
    drop((bodies, waiting));
}

#[tokio::test]
async fn the_number_of_streams_is_bounded() {
    let mut config = Config::ephemeral();
    config.serving.http2_max_streams_per_connection = 7;
    let (server, live) = start(config);
    let mut client = Client::connect(&server, None).await;
    client.send(get("/hello")).await;
    assert_eq!(client.max_streams(), 7);
    let mut bodies = Vec::new();
    for _ in 0..7 {
        bodies.push(client.send(get("/watch")).await.into_body());
    }
    bodies.pop();
    until(|| live.count() == 6).await;
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_stopping_server_finishes_what_is_in_flight() {
    let (server, live) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let mut watch = client.send(get("/watch")).await.into_body();
    watch.data().await.unwrap().unwrap();
    let slow = client.begin(get("/gated"));
    until(|| live.count() == 2).await;
    let stopping = tokio::spawn(server.stop_async());
    assert_eq!(text(watch).await, "", "the watch ends without an error");
    until(|| live.stopping()).await;
    live.open_gate();
    let answer = slow.await.unwrap();
    assert_eq!(text(answer.into_body()).await, "gated");
    client.ended().await.expect("the server says goodbye");
    assert_eq!(stopping.await.unwrap(), Exit::Stopped);
    assert_eq!(live.flushes(), 1);
}

#[tokio::test]
async fn a_stop_ends_idle_http1_connections_and_finishes_busy_ones() {
    let (server, live) = start(Config::ephemeral());
    let mut idle = h1::Client::connect(&server, None).await;
    idle.write(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(idle.read_until("hello").await.starts_with("HTTP/1.1 200"));
    let mut busy = h1::Client::connect(&server, None).await;
    busy.write(b"GET /gated HTTP/1.1\r\nhost: x\r\n\r\n").await;
    until(|| live.count() == 1).await;
    let stopping = tokio::spawn(server.stop_async());
    idle.read_to_end().await;
    live.open_gate();
    assert!(busy.read_to_end().await.ends_with("gated"));
    assert_eq!(stopping.await.unwrap(), Exit::Stopped);
}

#[tokio::test]
async fn readiness_fails_before_connections_are_refused() {
    let mut config = Config::ephemeral();
    config.lifecycle.shutdown_delay_duration = Duration::from_secs(600);
    let (server, live) = start(config);
    let mut client = Client::connect(&server, None).await;
    server.stopper().stop();
    until(|| live.stopping()).await;
    // Still served, and new clients as well: the delay is there for those who have not heard yet.
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
    let mut late = Client::connect(&server, None).await;
    assert_eq!(late.send(get("/hello")).await.status(), StatusCode::OK);
    // A second, harder order does not wait for the delay.
    server.stopper().hurry();
    assert_eq!(server.wait(), Exit::Stopped);
}

#[tokio::test]
async fn uploads_larger_than_the_windows_arrive() {
    let (server, _live) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let request = http::Request::post("https://localhost/length").body(()).unwrap();
    let body = Bytes::from(vec![7; 3 << 20]);
    assert_eq!(text(client.upload(request, body).await.into_body()).await, (3 << 20).to_string());
}

#[tokio::test]
async fn answers_larger_than_the_windows_arrive_and_their_length_is_told() {
    let (server, _live) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let answer = client.send(get("/large")).await;
    assert_eq!(answer.headers()["content-length"], (4 << 20).to_string());
    assert!(answer.headers().contains_key("date"));
    assert_eq!(text(answer.into_body()).await.len(), 4 << 20);
    let head = http::Request::head("https://localhost/large").body(()).unwrap();
    let answer = client.send(head).await;
    assert_eq!(answer.headers()["content-length"], (4 << 20).to_string());
    assert!(answer.into_body().is_end_stream());
}

#[tokio::test]
async fn a_panic_is_answered_and_the_connection_lives() {
    let (server, live) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let watch = client.send(get("/watch")).await;
    let answer = client.send(get("/panic")).await;
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(text(answer.into_body()).await.contains("panic"));
    // A body that breaks resets its stream: the client must not take the part for the whole.
    let reset = match client.try_send(get("/broken")).await {
        Err(error) => error,
        Ok(answer) => {
            let mut body = answer.into_body();
            loop {
                if let Err(error) = body.data().await.expect("no regular end") {
                    break error;
                }
            }
        }
    };
    assert!(reset.is_reset(), "{reset}");
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
    assert_eq!(live.count(), 1);
    drop(watch);

    let mut client = h1::Client::connect(&server, None).await;
    client.write(b"GET /panic HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(client.read_until("details.").await.starts_with("HTTP/1.1 500"));
}

#[tokio::test]
async fn huge_headers_are_refused() {
    let (server, _live) = start(Config::ephemeral());
    let mut client = Client::connect(&server, None).await;
    let mut request = get("/hello");
    for part in 0..40 {
        let name = http::header::HeaderName::try_from(format!("x-part-{part}")).unwrap();
        request.headers_mut().insert(name, "x".repeat(4_000).parse().unwrap());
    }
    let answer = client.begin(request).await;
    assert!(answer.map_or(true, |answer| answer.status() == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));

    let mut client = h1::Client::connect(&server, None).await;
    client.write(format!("GET /hello HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(200_000)).as_bytes()).await;
    let answer = client.read_to_end().await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    let mut client = Client::connect(&server, None).await;
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_client_that_closes_its_half_is_gone() {
    let (server, live) = start(Config::ephemeral());
    let mut client = h1::Client::connect(&server, None).await;
    client.write(b"GET /watch HTTP/1.1\r\nhost: x\r\n\r\n").await;
    client.read_until("{}\n").await;
    assert_eq!(live.count(), 1);
    client.close_half().await;
    until(|| live.count() == 0).await;
}

#[tokio::test]
async fn client_certificates_arrive_whoever_issued_them() {
    let (server, _live) = start(Config::ephemeral());
    let (admin, nobody) = (server.admin().clone(), identity_of_nobody());
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
async fn http2_can_be_switched_off() {
    let mut config = Config::ephemeral();
    config.serving.disable_http2_serving = true;
    let (server, _live) = start(config);
    assert_eq!(support::negotiated(&server).await, Some(b"http/1.1".to_vec()));
    let (server, _live) = start(Config::ephemeral());
    assert_eq!(support::negotiated(&server).await, Some(b"h2".to_vec()));
}

#[tokio::test]
async fn plain_http_is_told_so() {
    let (server, _live) = start(Config::ephemeral());
    let answer = support::plain(server.address(), b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.ends_with("Client sent an HTTP request to an HTTPS server.\n"), "{answer}");
    // Noise is no request; the server closes and goes on.
    support::plain(server.address(), &[0; 64]).await;
    let mut client = Client::connect(&server, None).await;
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn with_a_chance_of_one_in_fifty_some_connection_is_asked_to_go() {
    let mut config = Config::ephemeral();
    config.serving.goaway_chance = 0.02;
    let (server, _live) = start(config);
    let mut client = Client::connect(&server, None).await;
    // After n requests the connection still stands with a chance of 0.98^n: 3e-18 here.
    for _ in 0..2_000 {
        match client.try_send(get("/hello")).await {
            Ok(answer) => assert_eq!(answer.status(), StatusCode::OK),
            Err(_) => {
                // Both ends close now, and who is first decides whether the other hears a goodbye.
                let _ = client.ended().await;
                return;
            }
        }
    }
    panic!("the connection was never asked to go");
}

#[tokio::test]
async fn servers_live_side_by_side_and_a_drop_stops_at_once() {
    let (one, first) = start(Config::ephemeral());
    let (two, second) = start(Config::ephemeral());
    let mut client = Client::connect(&one, None).await;
    let watch = client.send(get("/watch")).await;
    // This thread drives the client as well, which cannot say goodbye while it is blocked here.
    drop(one);
    assert_eq!((first.flushes(), second.flushes()), (1, 0));
    drop(watch);
    let mut client = Client::connect(&two, None).await;
    assert_eq!(client.send(get("/hello")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn whoever_abandons_a_server_does_not_wait_for_its_disk() {
    let (server, live) = start(Config::ephemeral());
    live.hang();
    let abandoned = tokio::task::spawn_blocking(move || server.abandon());
    until(|| abandoned.is_finished()).await;
    until(|| live.flushes() == 1).await;
}

#[test]
fn what_is_in_use_is_named() {
    let home = tempfile::tempdir().unwrap();
    let mut config = Config::ephemeral();
    config.storage.data_dir = Some(home.path().to_owned());
    let (server, _live) = start(config.clone());

    let mut taken = Config::ephemeral();
    taken.serving.secure_port = server.address().port();
    let error = Server::start(taken).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on {}: the port is in use", server.address()));

    let error = Server::start(config.clone()).unwrap_err();
    assert!(matches!(error, StartError::Locked(_)), "{error}");
    assert_eq!(server.stop(), Exit::Stopped);
    assert_eq!(Server::start(config).unwrap().stop(), Exit::Stopped);
}

#[test]
fn a_flag_that_is_at_fault_is_named() {
    let nobody = "/nonexistent/tokens.csv";
    for (flag, value, why) in [
        ("--runtime-config", "nonsense/v9=true", "unknown api groups nonsense"),
        ("--service-cluster-ip-range", "fd00::/8", "fd00::/8 is too large"),
        ("--token-auth-file", nobody, "/nonexistent/tokens.csv: No such file or directory (os error 2)"),
    ] {
        let mut config = Config::parse(["pilothouse", &format!("{flag}={value}")]).unwrap();
        let ephemeral = Config::ephemeral();
        (config.serving, config.storage) = (ephemeral.serving, ephemeral.storage);
        let error = Server::start(config).unwrap_err();
        assert!(matches!(error, StartError::Flag { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("{flag}: {why}"));
    }
}

#[test]
fn an_application_that_fails_ends_its_server() {
    let (server, live) = start(Config::ephemeral());
    live.fail("the disk is gone");
    assert_eq!(server.wait(), Exit::Failed("the disk is gone".to_owned()));
    assert_eq!((live.flushes(), live.given_up()), (0, 1), "nothing is flushed, but records are written");

    let toy = Toy { live: Live::default(), refuse: true };
    let clock = pilothouse_types::clock::Clock::system();
    let error = Server::start_with(Config::ephemeral(), clock, toy).unwrap_err();
    assert_eq!(error.to_string(), "cannot open the store: refused");
}
