//! Floods of HTTP/2 frames, which close their own connection and affect no other; and request smuggling.

use serde_json::json;

use super::http2::{
    CONTINUATION, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, RST_STREAM, frame, get, literal,
};
use crate::support::client::JSON;
use crate::support::wait::{Deadline, TIMEOUT};
use crate::support::{ADMIN_TOKEN, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Frames of one write.
const BATCH: usize = 200;

/// Sends batches until the server closes the connection. Returns the index of the failed batch.
fn send_until_closed(
    connection: &mut Http2,
    limit: usize,
    mut batch: impl FnMut(usize) -> Vec<u8>,
) -> Option<usize> {
    (0..limit).find(|batch_index| connection.send_raw(&batch(*batch_index)).is_err())
}

/// Reads to the end of the connection. Returns whether a GOAWAY was received.
fn receives_goaway(connection: &mut Http2) -> bool {
    let mut has_goaway = false;
    while let Ok(frame) = connection.receive() {
        has_goaway |= frame.kind == GOAWAY;
    }
    has_goaway
}

/// CVE-2023-44487: streams that are reset as soon as they are opened.
#[test]
fn rapid_resets_close_connection() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let block = get(&format!("{MAPS}?watch=true"), Some(ADMIN_TOKEN));
    let mut connection = Http2::connect(&server);
    let mut batch = |batch_index: usize| {
        let reset = |index: usize| {
            let stream = 1 + 2 * (batch_index * BATCH + index) as u32;
            let mut frames = frame(HEADERS, END_STREAM | END_HEADERS, stream, &block);
            frames.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
            frames
        };
        (0..BATCH).flat_map(reset).collect::<Vec<u8>>()
    };
    // A few resets are allowed.
    connection.send_raw(&batch(0)[..block.len() + 9]).unwrap();
    admin.get(MAPS).ok();
    let mut connection = Http2::connect(&server);
    let cut = send_until_closed(&mut connection, 200, &mut batch);
    assert!(cut.is_some() || receives_goaway(&mut connection), "the connection goes on after 40,000 resets");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    admin.post(MAPS, &map).ok();
    server.assert_healthy();
}

/// CVE-2023-45288: headers that never end, in frames that the decoder has to keep or at least to read.
#[test]
fn endless_continuation_frames_close_connection() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let before = server.memory_kib("VmRSS");
    for header in [literal("x-part", &"x".repeat(8_000)), literal("x", "y"), Vec::new()] {
        let mut connection = Http2::connect(&server);
        connection.send(HEADERS, END_STREAM, 1, &get("/api", Some(ADMIN_TOKEN))).unwrap();
        let cut = send_until_closed(&mut connection, 2_000, |_| {
            (0..BATCH).flat_map(|_| frame(CONTINUATION, 0, 1, &header)).collect()
        });
        assert!(
            cut.is_some() || receives_goaway(&mut connection),
            "{} bytes a frame go on for ever",
            header.len()
        );
        server.admin().get("/api").ok();
    }
    let after = server.memory_kib("VmRSS");
    assert!(after < before + (64 << 10), "{before} KiB before, {after} KiB after");
    server.assert_healthy();
}

/// Request smuggling: where a body ends must not be a matter of opinion. Two servers that disagree take a part of one client's
/// body for a request of the next client.
#[test]
fn ambiguous_body_length_does_not_smuggle_requests() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let admin = server.admin();
    let smuggled = "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let length = format!("Content-Length: {}\r\n", smuggled.len());
    let longer = format!("Content-Length: {}\r\n", smuggled.len() + 5);
    let chunked = "Transfer-Encoding: chunked\r\n";
    for (case, framing, before) in [
        ("a length and chunks", format!("{longer}{chunked}"), "0\r\n\r\n"),
        ("chunks and a length", format!("{chunked}{longer}"), "0\r\n\r\n"),
        ("two lengths", format!("Content-Length: 0\r\n{length}"), ""),
        ("two lengths, the other way", format!("{length}Content-Length: 0\r\n"), ""),
        ("a list of lengths", format!("Content-Length: 0, {}\r\n", smuggled.len()), ""),
        ("a signed length", "Content-Length: +0\r\n".to_owned(), ""),
        ("a negative length", "Content-Length: -0\r\n".to_owned(), ""),
        ("a length in base sixteen", "Content-Length: 0x0\r\n".to_owned(), ""),
        ("a space before the colon", format!("Transfer-Encoding : chunked\r\n{longer}"), "0\r\n\r\n"),
        ("an encoding that is none", format!("Transfer-Encoding: xchunked\r\n{longer}"), "0\r\n\r\n"),
        (
            "chunks that are not last",
            format!("Transfer-Encoding: chunked, identity\r\n{longer}"),
            "0\r\n\r\n",
        ),
        ("two encodings", format!("{chunked}Transfer-Encoding: identity\r\n{longer}"), "0\r\n\r\n"),
        ("a folded header", format!("Transfer-Encoding:\r\n chunked\r\n{longer}"), "0\r\n\r\n"),
        ("a signed chunk", chunked.to_owned(), "+0\r\n\r\n"),
        ("a chunk in base sixteen", chunked.to_owned(), "0x0\r\n\r\n"),
        ("a chunk that overflows", chunked.to_owned(), "10000000000000000\r\n\r\n0\r\n\r\n"),
    ] {
        let mut connection = admin.raw();
        let head = admin.head("POST", MAPS, &JSON);
        let request = format!("{head}{framing}\r\n{before}{smuggled}");
        let _ = connection.send(request.as_bytes());
        connection.close_writing();
        let response = connection.read_to_end(Deadline::after(TIMEOUT)).unwrap();
        let response = String::from_utf8_lossy(&response).into_owned();
        assert!(!response.contains("gitVersion"), "{case}: {response}");
    }
    server.assert_healthy();
}
