//! Lists and watches over HTTP/2.

use super::*;

#[tokio::test]
async fn unread_http2_list_is_reset_after_timeout() {
    let server_thread = tokio::task::spawn_blocking(|| {
        let (server, mut admin) = start(|_| ());
        for number in 0..20 {
            let mut large = map(&format!("large{number}"));
            large["data"] = json!({"text": "x".repeat(500_000)});
            admin.post(MAPS, &large).ok();
        }
        (server, admin)
    });
    let (server, mut admin) = server_thread.await.unwrap();
    let identity = server.admin().clone();
    let mut client = edge::Client::connect(&server, Some(&identity)).await;
    let response = client.send(edge::get(&format!("{MAPS}?timeout=2s"))).await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    tokio::task::spawn_blocking(move || {
        poll(TIMEOUT, || (metric(&mut admin, "pilothouse_list_bytes_inflight") == 0.0).then_some(()))
            .expect("the list is given up");
    })
    .await
    .unwrap();
    let end = loop {
        match body.data().await.expect("what came does not look complete") {
            Ok(chunk) => drop(chunk),
            Err(error) => break error,
        }
    };
    assert_eq!(end.reason(), Some(h2::Reason::INTERNAL_ERROR));
    assert_eq!(client.send(edge::get("/api/v1/namespaces/default")).await.status(), 200, "others go on");
}

/// Reads a watch over HTTP/2 up to a version. Returns the number of events and of frames.
async fn read_until(mut body: h2::RecvStream, head: u64) -> (h2::RecvStream, u64, u64) {
    let (mut rest, mut last, mut events, mut frames) = (Vec::new(), 0, 0, 0);
    while last < head {
        let chunk = tokio::time::timeout(TIMEOUT, body.data()).await.expect("events come");
        let chunk = chunk.expect("the watch goes on").unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        frames += 1;
        rest.extend_from_slice(&chunk);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let version = revision(&serde_json::from_slice::<Value>(&line).unwrap()["object"]);
            assert!(version > last, "{version} after {last}");
            last = version;
            events += 1;
        }
    }
    assert!(rest.is_empty());
    (body, events, frames)
}

#[tokio::test]
async fn hundreds_of_watches_on_one_connection_are_fair_and_cleaned_up() {
    const WATCHES: usize = 300;
    const WRITES: u64 = 40;
    let server_thread = tokio::task::spawn_blocking(|| {
        let (server, mut admin) = start(|config| config.serving.http2_max_streams_per_connection = 1_000);
        let head = revision(&admin.get(MAPS).ok()) + WRITES;
        (server, admin, head)
    });
    let (server, mut admin, head) = server_thread.await.unwrap();
    let identity = server.admin().clone();
    let mut client = edge::Client::connect(&server, Some(&identity)).await;
    // On a separate connection, because unread streams use up the connection window.
    let mut unread_client = edge::Client::connect(&server, Some(&identity)).await;
    let (mut watches, mut unread_watches) = (Vec::new(), Vec::new());
    for _ in 0..WATCHES {
        let response = client.send(edge::get(&format!("{MAPS}?watch=1"))).await;
        watches.push(response.into_body());
    }
    for _ in 0..WATCHES / 10 {
        unread_watches.push(unread_client.send(edge::get(&format!("{MAPS}?watch=1"))).await.into_body());
    }
    let writer = tokio::task::spawn_blocking(move || {
        for number in 0..WRITES {
            admin.post(MAPS, &map(&format!("m{number}"))).ok();
        }
        admin
    });
    let reader: Vec<_> = watches.into_iter().map(|body| tokio::spawn(read_until(body, head))).collect();
    // GETs are answered beside the events.
    for _ in 0..20 {
        assert_eq!(client.send(edge::get("/api/v1/namespaces/default")).await.status(), 200);
    }
    let mut admin = writer.await.unwrap();
    let mut watches = Vec::new();
    for reader in reader {
        let (body, events, frames) = reader.await.unwrap();
        assert_eq!(events, WRITES, "every watch gets every event once");
        assert!(frames <= 2 * events, "events are not split into many frames: {frames}");
        watches.push(body);
    }
    // Half of the streams are reset, as by a client that watches again; the others end with the connection.
    let rest = watches.split_off(watches.len() / 2);
    drop(watches);
    let remaining = (rest.len() + unread_watches.len()) as f64;
    let mut admin = tokio::task::spawn_blocking(move || {
        let sessions = |admin: &mut Client| metric(admin, "apiserver_longrunning_requests");
        poll(TIMEOUT, || (sessions(&mut admin) == remaining).then_some(())).expect("a reset ends a session");
        admin
    })
    .await
    .unwrap();
    client.abort().await;
    unread_client.abort().await;
    tokio::task::spawn_blocking(move || {
        let sessions = |admin: &mut Client| metric(admin, "apiserver_longrunning_requests");
        poll(TIMEOUT, || (sessions(&mut admin) == 0.0).then_some(()))
            .expect("a lost connection ends its sessions");
        let event_count = metric(&mut admin, "apiserver_watch_events_total");
        assert!(event_count >= (WRITES * WATCHES as u64) as f64, "{event_count} events were counted");
        assert_eq!(metric(&mut admin, "pilothouse_watch_stalled_sessions"), 0.0);
    })
    .await
    .unwrap();
    drop((rest, unread_watches));
    assert_eq!(server.stop_async().await, pilothouse::server::Exit::Stopped);
}

#[tokio::test]
async fn unauthenticated_http2_connection_gets_one_request() {
    for (gate_setting, ends) in [(None, true), (Some("UnauthenticatedHTTP2DOSMitigation=false"), false)] {
        let server_thread = tokio::task::spawn_blocking(move || {
            start(|config| gate_setting.into_iter().for_each(|setting| gate(config, setting)))
        });
        let (server, _) = server_thread.await.unwrap();
        let identity = server.admin().clone();
        let mut known = edge::Client::connect(&server, Some(&identity)).await;
        let mut unknown = edge::Client::connect(&server, None).await;
        assert_eq!(unknown.send(edge::get("/readyz")).await.status(), 200);
        for _ in 0..3 {
            assert_eq!(known.send(edge::get("/readyz")).await.status(), 200);
        }
        if ends {
            let mut labels = 0;
            while unknown.try_send(edge::get("/readyz")).await.is_ok() {
                labels += 1;
                assert!(labels < 1_000, "the connection goes on");
            }
        } else {
            assert_eq!(unknown.send(edge::get("/readyz")).await.status(), 200);
        }
        server.stop_async().await;
    }
}
