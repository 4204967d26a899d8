//! URLs.

use std::collections::BTreeMap;

use pilothouse_apimachinery::field::quoted;

/// A parsed URL: absolute, or an absolute path.
#[derive(Clone, Debug)]
pub struct Url {
    /// The original text.
    pub text: String,
    /// The scheme, in lower case.
    pub scheme: String,
    /// The host with its port.
    pub host: String,
    /// The path, escaped.
    pub path: String,
    query: String,
}

impl Url {
    /// Parses a request URI, as Go's `url.ParseRequestURI`.
    pub fn parse(text: &str) -> Result<Url, String> {
        let error = |reason: &str| format!("parse {}: {reason}", quoted(text));
        if text.is_empty() {
            return Err(error("empty url"));
        }
        if text.chars().any(|c| c.is_ascii_control()) {
            return Err(format!("parse {}: net/url: invalid control character in URL", quoted(text)));
        }
        let (scheme, rest) = split_scheme(text).map_err(error)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !rest.starts_with('/') {
            if !scheme.is_empty() {
                // A URL with an opaque part.
                return Ok(Url {
                    text: text.to_owned(),
                    scheme,
                    host: String::new(),
                    path: String::new(),
                    query: query.to_owned(),
                });
            }
            return Err(error("invalid URI for request"));
        }
        let (authority, path) = match rest.strip_prefix("//") {
            Some(remaining) if !scheme.is_empty() || !rest.starts_with("///") => {
                let end = remaining.find('/').unwrap_or(remaining.len());
                remaining.split_at(end)
            }
            _ => ("", rest),
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        check_host(host).map_err(|reason| error(&reason))?;
        check_escapes(path).map_err(|reason| error(&reason))?;
        Ok(Url {
            text: text.to_owned(),
            scheme,
            host: host.to_owned(),
            path: escape_path(path),
            query: query.to_owned(),
        })
    }

    /// The host without port and brackets.
    pub fn hostname(&self) -> &str {
        if let Some(inner) = self.host.strip_prefix('[') {
            return inner.split_once(']').map_or(inner, |(inner, _)| inner);
        }
        self.host.rsplit_once(':').map_or(&self.host, |(host, _)| host)
    }

    /// The port; empty without one.
    pub fn port(&self) -> &str {
        let after_host = self.host.rsplit_once(']').map_or(self.host.as_str(), |(_, after_host)| after_host);
        after_host.rsplit_once(':').map_or("", |(_, port)| port)
    }

    /// The decoded query parameters. Invalid ones are dropped.
    pub fn query_parameters(&self) -> BTreeMap<String, Vec<String>> {
        let mut parameters: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let (Some(key), Some(value)) = (unescape(key), unescape(value)) {
                parameters.entry(key).or_default().push(value);
            }
        }
        parameters
    }
}

fn split_scheme(text: &str) -> Result<(String, &str), &'static str> {
    for (index, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if index > 0 => {}
            ':' if index == 0 => return Err("missing protocol scheme"),
            ':' => {
                let (scheme, rest) = text.split_at(index);
                return Ok((scheme.to_ascii_lowercase(), rest.get(1..).unwrap_or_default()));
            }
            _ => break,
        }
    }
    Ok((String::new(), text))
}

fn check_host(host: &str) -> Result<(), String> {
    let port = match host.strip_prefix('[') {
        Some(inner) => match inner.split_once(']') {
            Some((_, port)) => port,
            None => return Err("missing ']' in host".to_owned()),
        },
        None => host.find(':').map_or("", |index| host.get(index..).unwrap_or_default()),
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("invalid port {} after host", quoted(port)));
    }
    let is_invalid =
        |c: &char| c.is_whitespace() || matches!(c, '"' | '<' | '>' | '^' | '`' | '{' | '}' | '|' | '\\');
    if let Some(c) = host.chars().find(is_invalid) {
        return Err(format!("invalid character {} in host name", quoted(&c.to_string())));
    }
    Ok(())
}

fn check_escapes(text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    for (index, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%') {
        let is_valid =
            bytes.get(index + 1..index + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        if !is_valid {
            let escape: String =
                text.chars().skip(text.get(..index).unwrap_or_default().chars().count()).take(3).collect();
            return Err(format!("invalid URL escape {}", quoted(&escape)));
        }
    }
    Ok(())
}

/// Escapes a path.
fn escape_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'-'
            | b'_'
            | b'.'
            | b'~'
            | b'$'
            | b'&'
            | b'+'
            | b','
            | b'/'
            | b':'
            | b';'
            | b'='
            | b'@'
            | b'!'
            | b'\''
            | b'('
            | b')'
            | b'*'
            | b'%'
            | b'['
            | b']' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn unescape(text: &str) -> Option<String> {
    check_escapes(text).ok()?;
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while let Some(byte) = bytes.get(index) {
        match byte {
            b'%' => {
                let digits = std::str::from_utf8(bytes.get(index + 1..index + 3)?).ok()?;
                out.push(u8::from_str_radix(digits, 16).ok()?);
                index += 2;
            }
            b'+' => out.push(b' '),
            byte => out.push(*byte),
        }
        index += 1;
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}
