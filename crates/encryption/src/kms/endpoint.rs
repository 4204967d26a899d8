//! The address of a plugin: `unix:///path`, or `unix:///@name` for an abstract socket of Linux.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

/// The path to connect to. That of an abstract socket begins with a zero byte, as tokio wants it.
pub fn socket_path(endpoint: &str) -> Result<PathBuf, String> {
    let invalid =
        |reason: &str| format!("invalid endpoint {endpoint:?} for remote KMS provider, error: {reason}");
    let (scheme, rest) = endpoint.split_once(':').unwrap_or(("", endpoint));
    if !scheme.eq_ignore_ascii_case("unix") {
        return Err(format!("unsupported scheme {scheme:?} for remote KMS provider"));
    }
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    // What lies between the slashes would be a host, which sockets have not.
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.find('/').map_or("", |start| &rest[start..]),
        None => rest,
    };
    let mut bytes = percent_decoded(path).ok_or_else(|| invalid("invalid URL escape"))?;
    if !bytes.starts_with(b"/") {
        return Err(invalid("it has no path"));
    }
    if bytes.starts_with(b"/@") {
        bytes.splice(..2, [0]);
    } else if bytes.contains(&0) {
        return Err(invalid("the path contains a zero byte"));
    }
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut decoded) = (text.bytes(), Vec::with_capacity(text.len()));
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_names_a_file_or_an_abstract_socket() {
        for (endpoint, path) in [
            ("unix:///run/kms.sock", "/run/kms.sock"),
            ("UNIX:///run/kms.sock", "/run/kms.sock"),
            ("unix:/run/kms.sock", "/run/kms.sock"),
            ("unix://host/run/kms.sock?x=1#y", "/run/kms.sock"),
            ("unix:///run/a%20b", "/run/a b"),
            ("unix:///@kms", "\0kms"),
        ] {
            assert_eq!(socket_path(endpoint), Ok(PathBuf::from(path)), "{endpoint}");
        }
        for endpoint in ["unix://", "unix:", "unix:run", "unix:///a%zz", "unix:///a%0", "unix:///a%00b"] {
            assert!(socket_path(endpoint).unwrap_err().starts_with("invalid endpoint"), "{endpoint}");
        }
        assert!(socket_path("tcp://127.0.0.1:1").unwrap_err().contains("unsupported scheme \"tcp\""));
        assert!(socket_path("/run/kms.sock").unwrap_err().contains("unsupported scheme \"\""));
    }
}
