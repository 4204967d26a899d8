//! Image references: registry, path, and tag or digest. Invalid ones have no tag.

const MAX_PATH_LENGTH: usize = 255;
const MAX_TAG_LENGTH: usize = 128;
/// The supported digest algorithms, and their lengths in hexadecimal digits.
const DIGESTS: [(&str, usize); 3] = [("sha256", 64), ("sha384", 96), ("sha512", 128)];

/// Whether the image has the tag `latest`, explicitly or by default.
pub fn is_latest(image: &str) -> bool {
    // A bare name of 64 hexadecimal digits is invalid, because it looks like an image ID.
    if image.len() == 64 && is_hex(image) {
        return false;
    }
    let (registry, rest) = match image.split_once('/') {
        Some((host, rest)) if names_registry(host) => (host, rest.to_owned()),
        Some(_) => ("docker.io", image.to_owned()),
        None => ("docker.io", format!("library/{image}")),
    };
    let (name_and_tag, digest) = match rest.split_once('@') {
        Some((name_and_tag, digest)) => (name_and_tag, Some(digest)),
        None => (rest.as_str(), None),
    };
    let (path, tag) = match name_and_tag.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (name_and_tag, None),
    };
    let is_valid = is_path(path)
        && path.len() <= MAX_PATH_LENGTH
        && (is_registry(registry) || is_path(registry))
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    is_valid && (tag == Some("latest") || (tag.is_none() && digest.is_none()))
}

/// Whether the part before the first slash is a registry and not part of the path.
fn names_registry(host: &str) -> bool {
    host.contains(['.', ':']) || host == "localhost" || host.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn is_registry(registry: &str) -> bool {
    let (host, port) = match registry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            let is_address =
                !address.is_empty() && address.bytes().all(|byte| byte == b':' || byte.is_ascii_hexdigit());
            return is_address && (port.is_empty() || port.strip_prefix(':').is_some_and(is_number));
        }
        None => registry.split_once(':').map_or((registry, None), |(host, port)| (host, Some(port))),
    };
    port.is_none_or(is_number)
        && host.split('.').all(|label| {
            let is_allowed = |byte: u8| byte == b'-' || byte.is_ascii_alphanumeric();
            !label.is_empty()
                && label.bytes().all(is_allowed)
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Lower-case alphanumeric components, separated by a dot, one or two underscores, or dashes.
fn is_path(path: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    path.split('/').all(|part| {
        let has_valid_ends = part.bytes().next().is_some_and(is_alphanumeric)
            && part.bytes().next_back().is_some_and(is_alphanumeric);
        has_valid_ends
            && part
                .split(|letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit())
                .all(|gap| matches!(gap, "" | "." | "_" | "__") || gap.bytes().all(|byte| byte == b'-'))
    })
}

fn is_tag(tag: &str) -> bool {
    let is_word_byte = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    tag.len() <= MAX_TAG_LENGTH
        && tag.bytes().next().is_some_and(is_word_byte)
        && tag.bytes().all(|byte| is_word_byte(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, digits)) = digest.split_once(':') else { return false };
    DIGESTS.iter().any(|(name, length)| *name == algorithm && digits.len() == *length && is_hex(digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_latest_accepts_only_valid_references_without_other_tag() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let latest = [
            "i",
            "i:latest",
            "Host/i",
            "a.b/c",
            "a:5000/c",
            "[::1]:5000/a",
            "[::1]/a",
            "localhost/c",
            "a--b",
            "a__b",
            "A/b",
            "h_x.y/a",
            "a.b:80/c/d:latest",
        ];
        for image in latest {
            assert!(is_latest(image), "{image}");
        }
        assert!(is_latest(&format!("i:latest@{digest}")));
        assert!(is_latest(&"a".repeat(247)));
        let other = [
            "",
            "i:1",
            "I",
            "a.b/I",
            "i@sha256:aa",
            "i:latest@sha256:aa",
            "a//b",
            "a/",
            "/a",
            "-a",
            "a-",
            "a___b",
            "a..b",
            "a._b",
            "a:x/c",
            "-h.x/a",
            "h-.x/a",
            "h..x/a",
            "h.x:/a",
            "i:",
            "i:-x",
            "i:LATEST",
            "a b",
            "i:latest ",
            "i@",
            "@x",
            ":x",
            "a:b:c",
            "[::1]x/a",
            "[]/a",
        ];
        for image in other {
            assert!(!is_latest(image), "{image}");
        }
        for image in
            [format!("i@{digest}"), "a".repeat(64), "a".repeat(248), format!("h.x/{}", "a".repeat(256))]
        {
            assert!(!is_latest(&image), "{image}");
        }
    }
}
