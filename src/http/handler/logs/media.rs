//! The media type of a file: by the extension of its name, or else by how it begins. The types are those of Go's file server, without
//! those that are installed on a machine, and without sound, films and fonts.

/// How many bytes of the beginning decide.
pub(super) const SNIFFED_BYTES: u64 = 512;
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const XML: &str = "text/xml; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const BINARY: &str = "application/octet-stream";

const BY_EXTENSION: [(&str, &str); 16] = [
    ("avif", "image/avif"),
    ("css", "text/css; charset=utf-8"),
    ("gif", "image/gif"),
    ("htm", HTML),
    ("html", HTML),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", SCRIPT),
    ("json", "application/json"),
    ("mjs", SCRIPT),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("wasm", "application/wasm"),
    ("webp", "image/webp"),
    ("xml", XML),
];

/// Beginnings of HTML, in any case and after white space; a space or `>` follows.
const TAGS: [&str; 17] = [
    "<!DOCTYPE HTML",
    "<HTML",
    "<HEAD",
    "<SCRIPT",
    "<IFRAME",
    "<H1",
    "<DIV",
    "<FONT",
    "<TABLE",
    "<A",
    "<STYLE",
    "<TITLE",
    "<B",
    "<BODY",
    "<BR",
    "<P",
    "<!--",
];

/// Beginnings of other types.
const BEGINNINGS: [(&[u8], &str); 17] = [
    (b"%PDF-", "application/pdf"),
    (b"%!PS-Adobe-", "application/postscript"),
    (b"\xFE\xFF", "text/plain; charset=utf-16be"),
    (b"\xFF\xFE", "text/plain; charset=utf-16le"),
    (b"\xEF\xBB\xBF", TEXT),
    (b"\0\0\x01\0", "image/x-icon"),
    (b"\0\0\x02\0", "image/x-icon"),
    (b"BM", "image/bmp"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"\x89PNG\r\n\x1A\n", "image/png"),
    (b"\xFF\xD8\xFF", "image/jpeg"),
    (b"\x1F\x8B\x08", "application/x-gzip"),
    (b"PK\x03\x04", "application/zip"),
    (b"Rar!\x1A\x07\0", "application/x-rar-compressed"),
    (b"Rar!\x1A\x07\x01\0", "application/x-rar-compressed"),
    (b"\0asm", "application/wasm"),
];

/// The type by the extension of a name.
pub(super) fn by_name(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    let mut types = BY_EXTENSION.iter();
    types.find(|(known, _)| known.eq_ignore_ascii_case(extension)).map(|(_, media)| *media)
}

/// The type by the beginning of the content.
pub(super) fn by_content(beginning: &[u8]) -> &'static str {
    let is_space = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\x0C' | b'\r' | b' ');
    let first = beginning.iter().position(|byte| !is_space(byte)).unwrap_or(beginning.len());
    let trimmed = beginning.get(first..).unwrap_or_default();
    let begins_with_tag = |tag: &str| {
        let start = trimmed.get(..tag.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(tag.as_bytes()))
            && matches!(trimmed.get(tag.len()), Some(b' ' | b'>'))
    };
    if TAGS.iter().any(|tag| begins_with_tag(tag)) {
        return HTML;
    }
    if trimmed.starts_with(b"<?xml") {
        return XML;
    }
    if let Some((_, media)) = BEGINNINGS.iter().find(|(start, _)| beginning.starts_with(start)) {
        return media;
    }
    let is_binary = |byte: &u8| matches!(byte, 0..=8 | 0x0B | 0x0E..=0x1A | 0x1C..=0x1F);
    if trimmed.iter().any(is_binary) { BINARY } else { TEXT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_type_is_that_of_the_extension_or_the_content() {
        assert_eq!(by_name("index.HTML"), Some(HTML));
        assert_eq!((by_name("a.log"), by_name("syslog")), (None, None));
        for (content, expected) in [
            (&b""[..], TEXT),
            (b"Jan 1 host kernel: \x1B[0m", TEXT),
            (b"  \n<!doctype html>", HTML),
            (b"<pre>", TEXT),
            (b"<p>", HTML),
            (b"<!DOCTYPE HTML", TEXT),
            (b"\n<?xml version", XML),
            (b"\x1F\x8B\x08\0", "application/x-gzip"),
            (b"LPKSHHRH\0", BINARY),
        ] {
            assert_eq!(by_content(content), expected, "{content:?}");
        }
    }
}
