//! Certificates and certificate requests in objects: PEM and DER. Only the fields that rules need are parsed, and nothing is
//! verified.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";

/// A PEM block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// Its label, such as `CERTIFICATE`.
    pub kind: String,
    /// Whether there are headers before the content.
    pub has_headers: bool,
    /// The content.
    pub bytes: Vec<u8>,
}

/// The first valid PEM block of a text, and the rest of the text. Anything else is skipped.
pub fn decode(text: &str) -> Option<(Block, &str)> {
    let mut rest = text;
    loop {
        let start = match rest.starts_with(BEGIN) {
            true => 0,
            false => rest.find("\n-----BEGIN ").map(|index| index + 1)?,
        };
        let body = rest.get(start + BEGIN.len()..)?;
        match read_block(body) {
            Some(block) => return Some(block),
            None => rest = body,
        }
    }
}

/// Parses a block after its `-----BEGIN `.
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
        // A body never contains this. Continuing would make the search quadratic.
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

/// The error of a CA bundle without a valid certificate. An empty bundle is no error.
pub fn bundle_error(bundle: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bundle);
    let is_certificate = |block: &Block| block.kind == "CERTIFICATE" && !block.has_headers;
    let (mut rest, mut has_malformed) = (&*text, false);
    while let Some((block, after)) = decode(rest) {
        if is_certificate(&block) && parse_certificate(&block.bytes).is_some() {
            return None;
        }
        has_malformed |= is_certificate(&block);
        rest = after;
    }
    match (has_malformed, rest.is_empty()) {
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
/// The tag of the extensions of a certificate.
const EXTENSIONS: u8 = 0xa3;
/// The tag of the version of a certificate.
const VERSION: u8 = 0xa0;
/// The tag of the attributes of a request.
const ATTRIBUTES: u8 = 0xa0;
/// The tags of the unique identifiers of issuer and subject.
const UNIQUE_IDS: [u8; 2] = [0x81, 0x82];
/// The object identifier of basic constraints: 2.5.29.19.
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];

/// A DER element.
#[derive(Clone, Copy, Debug)]
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
}

/// The first DER element, and the bytes after it.
fn read_element(bytes: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (length, mut rest) = rest.split_first()?;
    let length = match length {
        short @ 0..=0x7f => usize::from(*short),
        long => {
            let length_bytes = usize::from(long & 0x7f);
            if !(1..=4).contains(&length_bytes) {
                return None;
            }
            let (number, after) = rest.split_at_checked(length_bytes)?;
            rest = after;
            number.iter().fold(0usize, |sum, byte| (sum << 8) | usize::from(*byte))
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((Element { tag: *tag, content }, rest))
}

/// All DER elements; `None` if some bytes are malformed.
fn read_elements(mut bytes: &[u8]) -> Option<Vec<Element<'_>>> {
    let mut elements = Vec::new();
    while !bytes.is_empty() {
        let (element, rest) = read_element(bytes)?;
        elements.push(element);
        bytes = rest;
    }
    Some(elements)
}

/// The elements of a SEQUENCE without trailing bytes.
fn read_sequence(bytes: &[u8]) -> Option<Vec<Element<'_>>> {
    let (element, rest) = read_element(bytes)?;
    (element.tag == SEQUENCE && rest.is_empty()).then(|| read_elements(element.content))?
}

/// The elements of the signed structure in a SEQUENCE of structure, algorithm and signature.
fn read_signed(bytes: &[u8]) -> Option<Vec<Element<'_>>> {
    match read_sequence(bytes)?.as_slice() {
        [body, algorithm, signature]
            if (body.tag, algorithm.tag, signature.tag) == (SEQUENCE, SEQUENCE, BIT_STRING) =>
        {
            read_elements(body.content)
        }
        _ => None,
    }
}

/// The error of Go's asn1 package for malformed bytes, as far as the outermost element tells.
pub fn asn1_error(bytes: &[u8]) -> &'static str {
    const TRUNCATED: &str = "asn1: syntax error: sequence truncated";
    match (bytes, read_element(bytes)) {
        ([], _) => TRUNCATED,
        ([_], _) => "asn1: syntax error: truncated tag or length",
        (_, None) => "asn1: syntax error: data truncated",
        (_, Some((_, [_, ..]))) => "asn1: syntax error: trailing data",
        (_, Some((element, []))) if element.tag == SEQUENCE && element.content.is_empty() => TRUNCATED,
        _ => "asn1: structure error: tags don't match",
    }
}

/// The subject of a certificate request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The common names of the subject, usually one.
    pub common_names: Vec<String>,
    /// The organizations of the subject, which become groups.
    pub organizations: Vec<String>,
}

/// Parses a PKCS #10 certificate request.
pub fn parse_request(bytes: &[u8]) -> Option<Request> {
    let fields = read_signed(bytes)?;
    let [version, subject, key, attributes @ ..] = fields.as_slice() else { return None };
    let has_expected_tags = (version.tag, subject.tag, key.tag) == (INTEGER, SEQUENCE, SEQUENCE)
        && attributes.iter().all(|element| element.tag == ATTRIBUTES);
    if !has_expected_tags || attributes.len() > 1 {
        return None;
    }
    let mut request = Request::default();
    for set in read_elements(subject.content)? {
        for pair in read_elements(set.content)? {
            let pair = read_elements(pair.content)?;
            let [kind, value] = pair.as_slice() else { return None };
            let text = || String::from_utf8_lossy(value.content).into_owned();
            match kind.content {
                [0x55, 0x04, 0x03] => request.common_names.push(text()),
                [0x55, 0x04, 0x0a] => request.organizations.push(text()),
                _ => {}
            }
        }
    }
    Some(request)
}

/// The basic constraints of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Whether the extension is present.
    pub has_constraints: bool,
    /// Whether the subject is a CA.
    pub is_authority: bool,
}

/// Parses an X.509 certificate.
pub fn parse_certificate(bytes: &[u8]) -> Option<Certificate> {
    let mut fields = read_signed(bytes)?;
    if fields.first().is_some_and(|first| first.tag == VERSION) {
        fields.remove(0);
    }
    // Serial number, algorithm, issuer, validity, subject, key.
    let (required, rest) = fields.split_at_checked(6)?;
    if required.first()?.tag != INTEGER || required.iter().skip(1).any(|element| element.tag != SEQUENCE) {
        return None;
    }
    let mut certificate = Certificate { has_constraints: false, is_authority: false };
    for field in rest {
        if field.tag == EXTENSIONS {
            for extension in read_sequence(field.content)? {
                read_extension(&mut certificate, extension.content)?;
            }
        } else if !UNIQUE_IDS.contains(&(field.tag & !0x20)) {
            return None;
        }
    }
    Some(certificate)
}

fn read_extension(certificate: &mut Certificate, bytes: &[u8]) -> Option<()> {
    let elements = read_elements(bytes)?;
    let (kind, value) = (elements.first()?, elements.last()?);
    if kind.tag != OBJECT_ID || value.tag != OCTET_STRING {
        return None;
    }
    if kind.content == BASIC_CONSTRAINTS {
        certificate.has_constraints = true;
        let first = read_sequence(value.content)?.first().copied();
        certificate.is_authority = first.is_some_and(|element| {
            element.tag == BOOLEAN && element.content.first().is_some_and(|byte| *byte != 0)
        });
    }
    Some(())
}

#[cfg(test)]
pub mod samples {
    /// A request of `CN=jane,O=dev` with an EC key.
    pub const REQUEST: &str = include_str!("testdata/request.pem");
    /// A CA certificate.
    pub const AUTHORITY: &str = include_str!("testdata/authority.pem");
    /// A certificate that is no CA.
    pub const LEAF: &str = include_str!("testdata/leaf.pem");
}

#[cfg(test)]
mod tests {
    use super::samples::{AUTHORITY, LEAF, REQUEST};
    use super::*;

    #[test]
    fn decode_finds_blocks_among_other_text() {
        let text = format!("hello\n{REQUEST}\nmore\n{AUTHORITY}");
        let (first, rest) = decode(&text).unwrap();
        assert_eq!(first.kind, "CERTIFICATE REQUEST");
        let (second, rest) = decode(rest).unwrap();
        assert_eq!((second.kind.as_str(), second.has_headers), ("CERTIFICATE", false));
        assert_eq!(decode(rest), None);
        for text in [
            "",
            "-----BEGIN X-----\n",
            "-----BEGIN X-----\nAA==\n-----END Y-----\n",
            "-----BEGIN X-----\n%\n-----END X-----\n",
        ] {
            assert_eq!(decode(text), None, "{text}");
        }
        let (block, _) = decode("-----BEGIN X-----\nA: b\n\nAA==\n-----END X-----\n").unwrap();
        assert_eq!((block.has_headers, block.bytes), (true, vec![0]));
    }

    #[test]
    fn requests_and_certificates_are_parsed() {
        let bytes = decode(REQUEST).unwrap().0.bytes;
        let expected = Request { common_names: vec!["jane".into()], organizations: vec!["dev".into()] };
        assert_eq!(parse_request(&bytes), Some(expected));
        assert_eq!(parse_certificate(&bytes), None);
        let ca = decode(AUTHORITY).unwrap().0.bytes;
        assert_eq!(parse_certificate(&ca), Some(Certificate { has_constraints: true, is_authority: true }));
        let leaf = decode(LEAF).unwrap().0.bytes;
        assert!(parse_certificate(&leaf).is_some_and(|leaf| !leaf.is_authority));
        assert_eq!(parse_request(&ca), None);
    }

    #[test]
    fn asn1_error_matches_go_messages() {
        let request = decode(REQUEST).unwrap().0.bytes;
        let with_trailing = [request.as_slice(), b"x"].concat();
        let table: [(&[u8], &str); 6] = [
            (b"", "sequence truncated"),
            (b"\0", "truncated tag or length"),
            (request.get(..request.len() - 5).unwrap(), "data truncated"),
            (&with_trailing, "trailing data"),
            (b"0\0", "sequence truncated"),
            (b"\x04\x01x", "tags don't match"),
        ];
        for (bytes, expected) in table {
            assert!(asn1_error(bytes).ends_with(expected), "{bytes:?}: {}", asn1_error(bytes));
        }
    }

    proptest::proptest! {
        #[test]
        fn parsers_never_panic_on_any_bytes(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = (parse_request(&bytes), parse_certificate(&bytes));
            let _ = decode(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn parsers_never_panic_on_a_damaged_request(index in 0usize..300, byte in proptest::num::u8::ANY) {
            let mut bytes = decode(REQUEST).unwrap().0.bytes;
            if let Some(target) = bytes.get_mut(index) {
                *target = byte;
            }
            let _ = (parse_request(&bytes), parse_certificate(&bytes));
        }
    }
}
