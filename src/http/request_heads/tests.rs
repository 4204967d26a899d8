use actix_http::HttpMessage as _;

use super::*;

/// What the driver reads of this input, which comes in pieces of this size.
fn passed(input: &[u8], piece: usize) -> Vec<u8> {
    let (mut heads, mut out) = (RequestHeads::default(), Vec::new());
    for part in input.chunks(piece) {
        let passing = heads.passing(part);
        out.extend_from_slice(&part[..passing]);
        heads.push(&part[passing..], &mut out);
    }
    out
}

fn assert_passed(input: &str, expected: &str) {
    for piece in [1, 2, 3, 7, 1_000_000] {
        let out = String::from_utf8(passed(input.as_bytes(), piece)).unwrap();
        assert_eq!(out, expected, "in pieces of {piece}");
    }
}

fn get(target: &str, headers: &[String]) -> String {
    format!("GET {target} HTTP/1.1\r\nhost: x\r\n{}\r\n", headers.concat())
}

fn many(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("Impersonate-Group: g{index}\r\n")).collect()
}

#[test]
fn usual_requests_and_their_bodies_pass_unchanged() {
    let post = "POST /a?b=%3C HTTP/1.1\r\nhost: x\r\nContent-Length: 12\r\n\r\n<\r\n\r\nGET /> ";
    for input in [get("/a", &[]), post.to_owned(), get("/a", &many(94)), "\r\n\r\n".to_owned()] {
        assert_passed(&input.repeat(3), &input.repeat(3));
    }
}

#[test]
fn bytes_that_a_url_cannot_contain_are_escaped() {
    let input = get("/é?labelSelector=a>5,\"b\"<`", &[]);
    let escaped = get("/%C3%A9?labelSelector=a%3E5,%22b%22%3C%60", &[]);
    assert_passed(&input, &escaped);
    let post = "POST /> HTTP/1.1\r\nContent-Length: 3\r\nhost: x\r\n\r\n>>>";
    assert_passed(&format!("{post}{input}{post}"), &format!("{0}{escaped}{0}", post.replace("/>", "/%3E")));
}

#[test]
fn nothing_changes_after_a_head_that_the_driver_may_see_differently() {
    for head in [
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 3\r\ncontent-length: 3\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: three\r\n\r\n",
        "GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        "CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\nhost: x\r\n\r\n",
    ] {
        let input = format!("{head}{}", get("/>", &[]));
        assert_passed(&input, &input);
    }
}

/// The request that the driver would make of this head.
fn restored(head: &[u8]) -> Result<Vec<(String, String)>, Refusal> {
    let mut request = Request::new();
    for (name, value) in lines(head).skip(1).filter_map(header) {
        let (name, value) = (HeaderName::from_bytes(name).unwrap(), HeaderValue::from_bytes(value).unwrap());
        request.headers_mut().append(name, value);
    }
    restore(&mut request)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Ok(request.headers().iter().map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect())
}

#[test]
fn headers_beyond_the_drivers_number_are_folded_and_restored_in_order() {
    let headers = [&many(400)[..], &["Content-Length: 2\r\n".to_owned(), "X-A:  b \r\n".to_owned()]].concat();
    let input = format!("{}>>{}", get("/>", &headers), get("/<", &[]));
    let out = passed(input.as_bytes(), 11);
    let end = memchr::memmem::find(&out, HEAD_END).unwrap() + HEAD_END.len();
    let (head, rest) = out.split_at(end);
    assert_eq!(lines(head).count(), DRIVER_HEADERS + 1);
    assert!(head.starts_with(b"GET /%3E HTTP/1.1\r\nhost: x\r\n"));
    assert!(lines(head).any(|line| line == b"Content-Length: 2"), "the driver needs it");
    assert_eq!(rest, format!(">>{}", get("/%3C", &[])).as_bytes());
    let headers = restored(head).unwrap();
    let groups: Vec<&str> = headers
        .iter()
        .filter(|(name, _)| name == "impersonate-group")
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(groups, (0..400).map(|index| format!("g{index}")).collect::<Vec<_>>());
    assert!(headers.contains(&("x-a".to_owned(), "b".to_owned())));
    assert_eq!(headers.len(), 403);
}

#[test]
fn folded_lines_that_are_no_headers_are_refused() {
    for line in ["no header\r\n", " continued: x\r\n", "a b: c\r\n", "a: \u{1}\r\n"] {
        let head = passed(get("/", &[&many(200)[..], &[line.to_owned()]].concat()).as_bytes(), 100);
        assert_eq!(restored(&head), Err(Refusal::Malformed), "{line:?}");
    }
}

#[test]
fn large_or_malformed_heads_become_requests_that_are_refused() {
    let large = get("/", &[format!("X-A: {}\r\n", "a".repeat(REQUEST_HEAD_BYTES))]);
    let numerous = get("/", &vec!["a:\r\n".to_owned(); REQUEST_HEADERS + 1]);
    let own = get("/", &vec!["Connection: a\r\n".to_owned(); 200]);
    for (input, expected) in [
        (large, Refusal::TooLarge),
        (numerous, Refusal::TooLarge),
        (own, Refusal::TooLarge),
        ("A".repeat(REQUEST_HEAD_BYTES + 1), Refusal::TooLarge),
        ("GET /a b HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), Refusal::Malformed),
        ("GET  / HTTP/1.1\r\n\r\n".to_owned(), Refusal::Malformed),
        ("GET /\r\n\r\n".to_owned(), Refusal::Malformed),
    ] {
        let out = passed(format!("{input}{}", get("/next", &[])).as_bytes(), 1_000);
        assert_eq!(restored(&out), Err(expected));
        assert!(out.len() < 200 && !out.windows(5).any(|part| part == b"/next"), "nothing follows");
    }
}

#[test]
fn clients_cannot_send_the_header_of_folded_headers() {
    let guess = format!("x-folded-{}", random::uuid());
    assert_eq!(restored(format!("GET / HTTP/1.1\r\n{guess}: 431\r\n\r\n").as_bytes()).unwrap().len(), 1);
}

#[test]
fn head_that_comes_byte_by_byte_is_searched_once() {
    let head = get("/>", &[format!("X-A: {}\r\n", "a".repeat(REQUEST_HEAD_BYTES / 2))]);
    let (mut heads, mut out) = (RequestHeads::default(), Vec::new());
    for byte in head.as_bytes() {
        assert_eq!(heads.passing(&[*byte]), 0);
        heads.push(&[*byte], &mut out);
    }
    assert!(out.starts_with(b"GET /%3E HTTP/1.1\r\n"));
    // Each byte once for a line feed, and up to four times for the end, which has four bytes.
    assert!(heads.work <= 5 * head.len(), "{} of {}", heads.work, head.len());
}
