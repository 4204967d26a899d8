//! Connections and their streams: floods that cost their own connection and nobody else.

use serde_json::json;

use super::http2::{
    CONTINUATION, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, RST_STREAM, frame, get, literal,
};
use super::support::client::JSON;
use super::support::wait::{CAP, Deadline};
use super::support::{ADMIN_TOKEN, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Frames of one write.
const BATCH: usize = 200;

/// Sends until the server has had enough of this connection; says how many batches it took.
fn until_cut(connection: &mut Http2, most: usize, mut batch: impl FnMut(usize) -> Vec<u8>) -> Option<usize> {
    (0..most).find(|turn| connection.send_raw(&batch(*turn)).is_err())
}

/// How a connection ends that the server does not want: what it received before it was closed.
fn goes_away(connection: &mut Http2) -> bool {
    let mut said = false;
    while let Ok(frame) = connection.receive() {
        said |= frame.kind == GOAWAY;
    }
    said
}

/// CVE-2023-44487: streams that are reset as soon as they are opened.
#[test]
fn rapid_resets_end_their_connection() {
    let mut server = Server::with(&["--engine=memory"]);
    let mut admin = server.admin();
    let block = get(&format!("{MAPS}?watch=true"), Some(ADMIN_TOKEN));
    let mut connection = Http2::connect(&server);
    let mut batch = |turn: usize| {
        let reset = |at: usize| {
            let stream = 1 + 2 * (turn * BATCH + at) as u32;
            let mut frames = frame(HEADERS, END_STREAM | END_HEADERS, stream, &block);
            frames.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
            frames
        };
        (0..BATCH).flat_map(reset).collect::<Vec<u8>>()
    };
    // A client that resets what it asked for is no attacker: few resets are answered like any others.
    connection.send_raw(&batch(0)[..block.len() + 9]).unwrap();
    admin.get(MAPS).ok();
    let mut connection = Http2::connect(&server);
    let cut = until_cut(&mut connection, 200, &mut batch);
    assert!(cut.is_some() || goes_away(&mut connection), "the connection goes on after 40,000 resets");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    admin.post(MAPS, &map).ok();
    server.unharmed();
}

/// CVE-2023-45288: headers that never end, in frames that the decoder has to keep or at least to read.
#[test]
fn endless_continuations_end_their_connection() {
    let mut server = Server::with(&["--engine=memory"]);
    let before = server.memory_kib("VmRSS");
    for part in [literal("x-part", &"x".repeat(8_000)), literal("x", "y"), Vec::new()] {
        let mut connection = Http2::connect(&server);
        connection.send(HEADERS, END_STREAM, 1, &get("/api", Some(ADMIN_TOKEN))).unwrap();
        let cut = until_cut(&mut connection, 2_000, |_| {
            (0..BATCH).flat_map(|_| frame(CONTINUATION, 0, 1, &part)).collect()
        });
        assert!(cut.is_some() || goes_away(&mut connection), "{} bytes a frame go on for ever", part.len());
        server.admin().get("/api").ok();
    }
    let after = server.memory_kib("VmRSS");
    assert!(after < before + (64 << 10), "{before} KiB before, {after} KiB after");
    server.unharmed();
}

/// Request smuggling: where a body ends must not be a matter of opinion. Two servers that disagree take a part of one client's
/// body for a request of the next client.
#[test]
fn bodies_of_doubtful_length_are_not_followed_by_requests() {
    let mut server = Server::with(&["--engine=memory"]);
    let admin = server.admin();
    let hidden = "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let length = format!("Content-Length: {}\r\n", hidden.len());
    let longer = format!("Content-Length: {}\r\n", hidden.len() + 5);
    let chunked = "Transfer-Encoding: chunked\r\n";
    for (what, framing, before) in [
        ("a length and chunks", format!("{longer}{chunked}"), "0\r\n\r\n"),
        ("chunks and a length", format!("{chunked}{longer}"), "0\r\n\r\n"),
        ("two lengths", format!("Content-Length: 0\r\n{length}"), ""),
        ("two lengths, the other way", format!("{length}Content-Length: 0\r\n"), ""),
        ("a list of lengths", format!("Content-Length: 0, {}\r\n", hidden.len()), ""),
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
        let request = format!("{head}{framing}\r\n{before}{hidden}");
        let _ = connection.send(request.as_bytes());
        connection.close_writing();
        let said = connection.rest_to_end(Deadline::after(CAP)).unwrap();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(!said.contains("gitVersion"), "{what}: {said}");
    }
    server.unharmed();
}
