//! Heads of HTTP/1.1 requests, on their way to the driver.
//!
//! The driver accepts 96 headers, and in a URL only what the standard allows, and refuses everything else without a word. Clients send
//! one header for each group of a user that they impersonate, and URLs with `>` or with letters that are not ASCII. So bytes that are
//! not allowed in a URL are escaped here, headers beyond the driver's number travel in one header, which [`restore`] unfolds, and a head
//! that is too large becomes a request that [`restore`] answers with a Status.
//!
//! Nothing is changed where this code and the driver could disagree about where a request ends: after such a head everything passes
//! as it comes. The name of the header is random, so that no client can send it.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::LazyLock;

use actix_http::Request;
use actix_http::header::{HeaderName, HeaderValue};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use pilothouse_apimachinery::status::Status;

use crate::limits::{REQUEST_HEAD_BYTES, REQUEST_HEADERS};
use crate::pki::random;

const HEAD_END: &[u8] = b"\r\n\r\n";
/// Headers that the driver accepts.
const DRIVER_HEADERS: usize = 96;
/// Headers that the driver itself reads. They are never folded.
const DRIVERS_OWN: [&str; 6] =
    ["host", "connection", "content-length", "transfer-encoding", "upgrade", "expect"];

/// The header that holds further headers, or a refusal.
static FOLDED: LazyLock<String> = LazyLock::new(|| format!("x-folded-{}", random::uuid()));

/// What becomes of a request head.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It passes as it is.
    Unchanged,
    /// Another head takes its place.
    Rewritten(Vec<u8>),
    /// It is refused with this status.
    Refused(Refusal),
}

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is larger than the bound.
    TooLarge,
    /// Its first line is not that of a request.
    Malformed,
}

impl Refusal {
    const ALL: [Refusal; 2] = [Refusal::TooLarge, Refusal::Malformed];

    fn code(self) -> u16 {
        match self {
            Refusal::TooLarge => 431,
            Refusal::Malformed => 400,
        }
    }

    pub(super) fn status(self) -> Box<Status> {
        let message = match self {
            Refusal::TooLarge => {
                format!(
                    "the request has more than {REQUEST_HEAD_BYTES} bytes or {REQUEST_HEADERS} lines of headers"
                )
            }
            Refusal::Malformed => "malformed HTTP request".to_owned(),
        };
        match self {
            Refusal::TooLarge => Status::bare(431, "RequestHeaderFieldsTooLarge", message),
            Refusal::Malformed => Status::bad_request(message),
        }
    }
}

/// What follows a head, as the driver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Following {
    /// The next head after so many bytes.
    HeadAfter(u64),
    /// Something else, or something that the driver may see differently.
    Unknown,
}

/// The heads of one connection.
#[derive(Debug, Default)]
pub(super) struct RequestHeads {
    /// Bytes of a head that has not ended.
    held: Vec<u8>,
    /// How many bytes of [`RequestHeads::held`] were searched for the end.
    searched: usize,
    following: Position,
    /// How many bytes of incomplete heads were looked at.
    #[cfg(test)]
    work: usize,
}

/// Where in the input the next byte is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// In a head.
    #[default]
    Head,
    /// In a body, so many bytes before its end.
    Body(u64),
    /// Where nothing is changed any more.
    PassThrough,
    /// After a refused request: nothing is passed on.
    Refused,
}

impl RequestHeads {
    /// Whether a part of a head was kept back.
    pub(super) fn holds_bytes(&self) -> bool {
        !self.held.is_empty()
    }

    /// How many of these bytes pass as they are, without being copied. The rest goes to [`RequestHeads::push`].
    pub(super) fn passing(&mut self, input: &[u8]) -> usize {
        if !self.held.is_empty() {
            return 0;
        }
        let mut passed = 0;
        while let Some(rest) = input.get(passed..).filter(|rest| !rest.is_empty()) {
            match self.following {
                Position::PassThrough => return input.len(),
                Position::Refused => return passed,
                Position::Body(left) => passed += self.pass_body(left, rest.len()),
                Position::Head if matches!(rest[0], b'\r' | b'\n') => passed += 1,
                Position::Head => {
                    let Some(end) = memchr::memmem::find(rest, HEAD_END) else { return passed };
                    let head = &rest[..end + HEAD_END.len()];
                    if examine(head) != Verdict::Unchanged {
                        return passed;
                    }
                    passed += head.len();
                    self.follow(head);
                }
            }
        }
        passed
    }

    /// Takes input and adds to `out` what the driver is to read.
    pub(super) fn push(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            match self.following {
                Position::PassThrough => return out.extend_from_slice(input),
                Position::Refused => return,
                Position::Body(left) => {
                    let (body, rest) = input.split_at(self.pass_body(left, input.len()));
                    out.extend_from_slice(body);
                    input = rest;
                }
                Position::Head if self.held.is_empty() && matches!(input[0], b'\r' | b'\n') => {
                    out.push(input[0]);
                    input = &input[1..];
                }
                Position::Head => {
                    let before = self.held.len();
                    self.held.extend_from_slice(input);
                    let Some(end) = self.find_end() else { return self.hold(out) };
                    input = &input[end - before..];
                    self.held.truncate(end);
                    let head = std::mem::take(&mut self.held);
                    self.searched = 0;
                    self.pass_head(&head, out);
                }
            }
        }
    }

    /// Where the head that is held ends. Only what is new is searched: a client may send a head byte by byte.
    fn find_end(&mut self) -> Option<usize> {
        let from = self.searched.saturating_sub(HEAD_END.len() - 1);
        let unsearched = self.held.get(from..).unwrap_or_default();
        #[cfg(test)]
        {
            self.work += unsearched.len();
        }
        memchr::memmem::find(unsearched, HEAD_END).map(|index| from + index + HEAD_END.len())
    }

    /// Keeps an incomplete head, unless it cannot become one that this code changes.
    fn hold(&mut self, out: &mut Vec<u8>) {
        let from = self.searched;
        #[cfg(test)]
        {
            self.work += self.held.len() - from;
        }
        let is_bare = has_bare_line_feed_after(&self.held, from);
        self.searched = self.held.len();
        if is_bare {
            self.following = Position::PassThrough;
            out.append(&mut std::mem::take(&mut self.held));
        } else if self.held.len() > REQUEST_HEAD_BYTES {
            self.held = Vec::new();
            self.refuse(Refusal::TooLarge, out);
        }
    }

    fn pass_head(&mut self, head: &[u8], out: &mut Vec<u8>) {
        match examine(head) {
            Verdict::Unchanged => out.extend_from_slice(head),
            Verdict::Rewritten(rewritten) => out.extend_from_slice(&rewritten),
            Verdict::Refused(refusal) => return self.refuse(refusal, out),
        }
        self.follow(head);
    }

    fn refuse(&mut self, refusal: Refusal, out: &mut Vec<u8>) {
        self.following = Position::Refused;
        let code = refusal.code();
        let request =
            format!("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}: {code}\r\n\r\n", *FOLDED);
        out.extend_from_slice(request.as_bytes());
    }

    fn follow(&mut self, head: &[u8]) {
        self.following = match following(head) {
            Following::HeadAfter(0) => Position::Head,
            Following::HeadAfter(length) => Position::Body(length),
            Following::Unknown => Position::PassThrough,
        };
    }

    /// Passes the part of a body that is among so many bytes.
    fn pass_body(&mut self, left: u64, available: usize) -> usize {
        let part = usize::try_from(left).map_or(available, |left| left.min(available));
        let left = left - part as u64;
        self.following = if left == 0 { Position::Head } else { Position::Body(left) };
        part
    }
}

/// Some servers take a line feed alone for the end of a line.
fn has_bare_line_feed(head: &[u8]) -> bool {
    has_bare_line_feed_after(head, 0)
}

/// The same for what follows this index.
fn has_bare_line_feed_after(head: &[u8], start: usize) -> bool {
    let new = head.get(start..).unwrap_or_default();
    memchr::memchr_iter(b'\n', new)
        .map(|index| start + index)
        .any(|index| index == 0 || head[index - 1] != b'\r')
}

/// The lines of a head without their ends: that of the request, and those of the headers.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = head.strip_suffix(HEAD_END).unwrap_or(head);
    text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

fn header(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr::memchr(b':', line)?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

fn is_named(line: &[u8], name: &str) -> bool {
    header(line).is_some_and(|(own, _)| own.eq_ignore_ascii_case(name.as_bytes()))
}

fn following(head: &[u8]) -> Following {
    if has_bare_line_feed(head) || !lines(head).next().is_some_and(|line| line.ends_with(b" HTTP/1.1")) {
        return Following::Unknown;
    }
    let has = |name: &str| lines(head).skip(1).any(|line| is_named(line, name));
    if head.starts_with(b"CONNECT ") || has("transfer-encoding") || has("upgrade") {
        return Following::Unknown;
    }
    let mut lengths = lines(head).skip(1).filter(|line| is_named(line, "content-length")).filter_map(header);
    let digits = match (lengths.next(), lengths.next()) {
        (None, _) => return Following::HeadAfter(0),
        (Some((_, digits)), None) => std::str::from_utf8(digits).ok(),
        (Some(_), Some(_)) => None,
    };
    let length = digits.filter(|digits| !digits.starts_with('+')).and_then(|digits| digits.parse().ok());
    length.map_or(Following::Unknown, Following::HeadAfter)
}

fn examine(head: &[u8]) -> Verdict {
    if has_bare_line_feed(head) {
        return Verdict::Unchanged;
    }
    let headers = memchr::memchr_iter(b'\n', head).count().saturating_sub(2);
    if head.len() > REQUEST_HEAD_BYTES || headers > REQUEST_HEADERS {
        return Verdict::Refused(Refusal::TooLarge);
    }
    let first = lines(head).next().unwrap_or_default();
    let Some(target) = target(first) else { return Verdict::Refused(Refusal::Malformed) };
    let is_escaped = !first[target.clone()].iter().any(|byte| must_be_escaped(*byte));
    if is_escaped && headers <= DRIVER_HEADERS {
        return Verdict::Unchanged;
    }
    let mut rewritten = Vec::with_capacity(head.len());
    rewritten.extend_from_slice(&first[..target.start]);
    rewritten.extend_from_slice(escape(&first[target.clone()]).as_bytes());
    rewritten.extend_from_slice(&first[target.end..]);
    rewritten.extend_from_slice(b"\r\n");
    match fold(lines(head).skip(1).collect(), &mut rewritten) {
        true if rewritten.len() <= REQUEST_HEAD_BYTES => Verdict::Rewritten(rewritten),
        _ => Verdict::Refused(Refusal::TooLarge),
    }
}

/// Where the target is in the line of a request.
fn target(line: &[u8]) -> Option<Range<usize>> {
    let start = memchr::memchr(b' ', line)? + 1;
    let end = start + memchr::memchr(b' ', line.get(start..)?)?;
    let version = line.get(end + 1..)?;
    let is_request = start > 1 && end > start && version.starts_with(b"HTTP/") && !version.contains(&b' ');
    is_request.then_some(start..end)
}

/// Whether a byte may not be in a URL, although clients send it.
fn must_be_escaped(byte: u8) -> bool {
    matches!(byte, b'"' | b'<' | b'>' | b'`' | 0x80..)
}

fn escape(target: &[u8]) -> String {
    let mut text = String::with_capacity(target.len() + 16);
    for byte in target {
        match must_be_escaped(*byte) {
            true => {
                // Writing to a String cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
            false => text.push(char::from(*byte)),
        }
    }
    text
}

/// Writes headers and the end of the head, those that are too many for the driver in one. `false` if too many of them are the driver's.
fn fold(headers: Vec<&[u8]>, out: &mut Vec<u8>) -> bool {
    let is_own = |line: &&[u8]| DRIVERS_OWN.iter().any(|name| is_named(line, name));
    let own = headers.iter().filter(|line| is_own(line)).count();
    let mut places = match headers.len() <= DRIVER_HEADERS {
        true => headers.len(),
        false if own < DRIVER_HEADERS => DRIVER_HEADERS - 1 - own,
        false => return false,
    };
    let mut folded = Vec::new();
    for line in headers {
        if !is_own(&line) {
            if places == 0 {
                folded.extend_from_slice(line);
                folded.push(b'\n');
                continue;
            }
            places -= 1;
        }
        out.extend_from_slice(line);
        out.extend_from_slice(b"\r\n");
    }
    if !folded.is_empty() {
        out.extend_from_slice(format!("{}: {}\r\n", *FOLDED, BASE64.encode(folded)).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    true
}

/// Unfolds the headers of a request. An error if it stands for one that was refused.
pub(super) fn restore(request: &mut Request) -> Result<(), Refusal> {
    let name = HeaderName::from_static(FOLDED.as_str());
    let headers = request.headers_mut();
    let Some(value) = headers.remove(&name).next() else { return Ok(()) };
    let value = value.as_bytes();
    if let Some(refusal) =
        Refusal::ALL.into_iter().find(|refusal| refusal.code().to_string().as_bytes() == value)
    {
        return Err(refusal);
    }
    let folded = BASE64.decode(value).map_err(|_| Refusal::Malformed)?;
    for line in folded.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let (name, value) = header(line).ok_or(Refusal::Malformed)?;
        let name = HeaderName::from_bytes(name).map_err(|_| Refusal::Malformed)?;
        let value = HeaderValue::from_bytes(value).map_err(|_| Refusal::Malformed)?;
        headers.append(name, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
