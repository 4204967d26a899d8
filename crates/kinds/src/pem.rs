//! Certificates and certificate requests in objects: PEM around DER. Only the parts that rules need are parsed; parsing implies
//! no trust.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";

/// One block of a PEM text.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// What it is said to be, for example `CERTIFICATE`.
    pub kind: String,
    /// Whether there are headers before the content.
    pub has_headers: bool,
    /// The content.
    pub bytes: Vec<u8>,
}

/// The first good block of a text, and what follows it. Anything else in the text is passed over.
pub fn decode(text: &str) -> Option<(Block, &str)> {
    let mut rest = text;
    loop {
        let start = match rest.starts_with(BEGIN) {
            true => 0,
            false => rest.find("\n-----BEGIN ").map(|at| at + 1)?,
        };
        let body = rest.get(start + BEGIN.len()..)?;
        match read_block(body) {
            Some(found) => return Some(found),
            None => rest = body,
        }
    }
}

/// Reads a block whose first line begins behind its opening word.
fn read_block(text: &str) -> Option<(Block, &str)> {
    let (first, rest) = text.split_once('\n')?;
    let kind = first.trim_end().strip_suffix(DASHES)?;
    let (mut has_headers, mut content, mut lines) = (false, String::new(), rest);
    loop {
        let (line, after) = lines.split_once('\n').unwrap_or((lines, ""));
        if let Some(end) = line.trim_end().strip_prefix(END) {
            if end.strip_suffix(DASHES) != Some(kind) {
                return None;
            }
            let bytes = STANDARD.decode(&content).ok()?;
            return Some((Block { kind: kind.to_owned(), has_headers, bytes }, after));
        }
        // No content begins like this. To read on would be to read all of the rest again for each such line.
        if line.starts_with(BEGIN) {
            return None;
        }
        if content.is_empty() && line.contains(':') {
            has_headers = true;
        } else {
            content.extend(line.chars().filter(|c| !c.is_ascii_whitespace()));
        }
        if after.is_empty() {
            return None;
        }
        lines = after;
    }
}

/// Why there is no certificate in a bundle of authorities. None are none, which is no mistake.
pub fn no_authority(bundle: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bundle);
    let is_certificate = |block: &Block| block.kind == "CERTIFICATE" && !block.has_headers;
    let (mut rest, mut broken) = (&*text, false);
    while let Some((block, after)) = decode(rest) {
        if is_certificate(&block) && certificate(&block.bytes).is_some() {
            return None;
        }
        broken |= is_certificate(&block);
        rest = after;
    }
    match (broken, rest.is_empty()) {
        _ if bundle.is_empty() => None,
        (true, _) => Some("failed to parse certificate: x509: malformed certificate".to_owned()),
        (false, true) => Some("no valid certificate authority data seen".to_owned()),
        (false, false) => Some("unable to parse bytes as PEM block".to_owned()),
    }
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT_ID: u8 = 0x06;
const BOOLEAN: u8 = 0x01;
const OCTET_STRING: u8 = 0x04;
/// The extensions of a certificate.
const EXTENSIONS: u8 = 0xa3;
/// The version of a certificate.
const VERSION: u8 = 0xa0;
/// The attributes of a request.
const ATTRIBUTES: u8 = 0xa0;
/// The identifiers of a certificate's issuer and subject, which hardly anything has.
const UNIQUE_IDS: [u8; 2] = [0x81, 0x82];
/// Whether its subject may sign other certificates: 2.5.29.19.
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];

/// A part of DER: what it is, and its content.
#[derive(Clone, Copy, Debug)]
struct Part<'a> {
    tag: u8,
    content: &'a [u8],
}

/// The first part of some bytes, and the bytes behind it.
fn part(bytes: &[u8]) -> Option<(Part<'_>, &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (length, mut rest) = rest.split_first()?;
    let length = match length {
        short @ 0..=0x7f => usize::from(*short),
        long => {
            let digits = usize::from(long & 0x7f);
            if !(1..=4).contains(&digits) {
                return None;
            }
            let (number, after) = rest.split_at_checked(digits)?;
            rest = after;
            number.iter().fold(0usize, |sum, digit| (sum << 8) | usize::from(*digit))
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((Part { tag: *tag, content }, rest))
}

/// All parts of some bytes; `None` if they cannot all be read.
fn parts(mut bytes: &[u8]) -> Option<Vec<Part<'_>>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (one, rest) = part(bytes)?;
        all.push(one);
        bytes = rest;
    }
    Some(all)
}

/// The parts of a structure that is all there is.
fn whole(bytes: &[u8]) -> Option<Vec<Part<'_>>> {
    let (one, rest) = part(bytes)?;
    (one.tag == SEQUENCE && rest.is_empty()).then(|| parts(one.content))?
}

/// What stands between a signature and what it signs: three parts, of which the first is the signed structure.
fn signed(bytes: &[u8]) -> Option<Vec<Part<'_>>> {
    match whole(bytes)?.as_slice() {
        [body, algorithm, signature]
            if (body.tag, algorithm.tag, signature.tag) == (SEQUENCE, SEQUENCE, BIT_STRING) =>
        {
            parts(body.content)
        }
        _ => None,
    }
}

/// Why bytes are no structure of three parts, in the words of the reference as far as its outermost layer tells.
pub fn what_is_wrong(bytes: &[u8]) -> &'static str {
    const TRUNCATED: &str = "asn1: syntax error: sequence truncated";
    match (bytes, part(bytes)) {
        ([], _) => TRUNCATED,
        ([_], _) => "asn1: syntax error: truncated tag or length",
        (_, None) => "asn1: syntax error: data truncated",
        (_, Some((_, [_, ..]))) => "asn1: syntax error: trailing data",
        (_, Some((whole, []))) if whole.tag == SEQUENCE && whole.content.is_empty() => TRUNCATED,
        _ => "asn1: structure error: tags don't match",
    }
}

/// What a request for a certificate says of its subject.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The common names of the subject, of which there is one at best.
    pub common_names: Vec<String>,
    /// The organizations of the subject, which become groups.
    pub organizations: Vec<String>,
}

/// Reads a request for a certificate; `None` if it is none.
pub fn request(bytes: &[u8]) -> Option<Request> {
    let fields = signed(bytes)?;
    let [version, subject, key, attributes @ ..] = fields.as_slice() else { return None };
    let good = (version.tag, subject.tag, key.tag) == (INTEGER, SEQUENCE, SEQUENCE)
        && attributes.iter().all(|part| part.tag == ATTRIBUTES);
    if !good || attributes.len() > 1 {
        return None;
    }
    let mut found = Request::default();
    for set in parts(subject.content)? {
        for pair in parts(set.content)? {
            let pair = parts(pair.content)?;
            let [kind, value] = pair.as_slice() else { return None };
            let text = || String::from_utf8_lossy(value.content).into_owned();
            match kind.content {
                [0x55, 0x04, 0x03] => found.common_names.push(text()),
                [0x55, 0x04, 0x0a] => found.organizations.push(text()),
                _ => {}
            }
        }
    }
    Some(found)
}

/// What a certificate says of its right to sign others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Whether it says anything of it.
    pub has_constraints: bool,
    /// Whether it may.
    pub is_authority: bool,
}

/// Reads a certificate; `None` if it is none.
pub fn certificate(bytes: &[u8]) -> Option<Certificate> {
    let mut fields = signed(bytes)?;
    if fields.first().is_some_and(|first| first.tag == VERSION) {
        fields.remove(0);
    }
    // Serial number, algorithm, issuer, validity, subject, key.
    let (fixed, rest) = fields.split_at_checked(6)?;
    if fixed.first()?.tag != INTEGER || fixed.iter().skip(1).any(|part| part.tag != SEQUENCE) {
        return None;
    }
    let mut found = Certificate { has_constraints: false, is_authority: false };
    for field in rest {
        if field.tag == EXTENSIONS {
            for extension in whole(field.content)? {
                extension_of(&mut found, extension.content)?;
            }
        } else if !UNIQUE_IDS.contains(&(field.tag & !0x20)) {
            return None;
        }
    }
    Some(found)
}

fn extension_of(found: &mut Certificate, bytes: &[u8]) -> Option<()> {
    let all = parts(bytes)?;
    let (kind, value) = (all.first()?, all.last()?);
    if kind.tag != OBJECT_ID || value.tag != OCTET_STRING {
        return None;
    }
    if kind.content == BASIC_CONSTRAINTS {
        found.has_constraints = true;
        let first = whole(value.content)?.first().copied();
        found.is_authority = first
            .is_some_and(|part| part.tag == BOOLEAN && part.content.first().is_some_and(|byte| *byte != 0));
    }
    Some(())
}

#[cfg(test)]
pub mod samples {
    /// A request of `CN=jane,O=dev` with an elliptic key.
    pub const REQUEST: &str = include_str!("testdata/request.pem");
    /// A certificate that may sign others.
    pub const AUTHORITY: &str = include_str!("testdata/authority.pem");
    /// One that may not.
    pub const LEAF: &str = include_str!("testdata/leaf.pem");
}

#[cfg(test)]
mod tests {
    use super::samples::{AUTHORITY, LEAF, REQUEST};
    use super::*;

    #[test]
    fn blocks_are_found_among_other_text() {
        let text = format!("hello\n{REQUEST}\nmore\n{AUTHORITY}");
        let (first, rest) = decode(&text).unwrap();
        assert_eq!(first.kind, "CERTIFICATE REQUEST");
        let (second, rest) = decode(rest).unwrap();
        assert_eq!((second.kind.as_str(), second.has_headers), ("CERTIFICATE", false));
        assert_eq!(decode(rest), None);
        for bad in [
            "",
            "-----BEGIN X-----\n",
            "-----BEGIN X-----\nAA==\n-----END Y-----\n",
            "-----BEGIN X-----\n%\n-----END X-----\n",
        ] {
            assert_eq!(decode(bad), None, "{bad}");
        }
        let (block, _) = decode("-----BEGIN X-----\nA: b\n\nAA==\n-----END X-----\n").unwrap();
        assert_eq!((block.has_headers, block.bytes), (true, vec![0]));
    }

    #[test]
    fn requests_and_certificates_are_read() {
        let bytes = decode(REQUEST).unwrap().0.bytes;
        let wanted = Request { common_names: vec!["jane".into()], organizations: vec!["dev".into()] };
        assert_eq!(request(&bytes), Some(wanted));
        assert_eq!(certificate(&bytes), None);
        let ca = decode(AUTHORITY).unwrap().0.bytes;
        assert_eq!(certificate(&ca), Some(Certificate { has_constraints: true, is_authority: true }));
        let leaf = decode(LEAF).unwrap().0.bytes;
        assert!(certificate(&leaf).is_some_and(|leaf| !leaf.is_authority));
        assert_eq!(request(&ca), None);
    }

    #[test]
    fn what_is_no_structure_is_told_apart() {
        let request = decode(REQUEST).unwrap().0.bytes;
        let more = [request.as_slice(), b"x"].concat();
        let table: [(&[u8], &str); 6] = [
            (b"", "sequence truncated"),
            (b"\0", "truncated tag or length"),
            (request.get(..request.len() - 5).unwrap(), "data truncated"),
            (&more, "trailing data"),
            (b"0\0", "sequence truncated"),
            (b"\x04\x01x", "tags don't match"),
        ];
        for (bytes, wanted) in table {
            assert!(what_is_wrong(bytes).ends_with(wanted), "{bytes:?}: {}", what_is_wrong(bytes));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_crash(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = (request(&bytes), certificate(&bytes));
            let _ = decode(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn a_damaged_request_is_no_crash(at in 0usize..300, byte in proptest::num::u8::ANY) {
            let mut bytes = decode(REQUEST).unwrap().0.bytes;
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            let _ = (request(&bytes), certificate(&bytes));
        }
    }
}
