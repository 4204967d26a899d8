//! URL functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilothouse_apimachinery::field::quoted;

use super::super::eval::CallContext;
use super::super::value::{Fault, Key, Map, Outcome, Text, Val};

/// A parsed URL: absolute, or an absolute path.
#[derive(Clone, Debug)]
pub struct Url {
    /// The original text.
    pub text: String,
    scheme: String,
    host: String,
    path: String,
    query: String,
}

impl Url {
    /// Parses a request URI, as Go's `url.ParseRequestURI`.
    pub fn parse(text: &str) -> Result<Url, String> {
        let wrong = |why: &str| format!("parse {}: {why}", quoted(text));
        if text.is_empty() {
            return Err(wrong("empty url"));
        }
        if text.chars().any(|c| c.is_ascii_control()) {
            return Err(format!("parse {}: net/url: invalid control character in URL", quoted(text)));
        }
        let (scheme, rest) = scheme(text).map_err(wrong)?;
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
            return Err(wrong("invalid URI for request"));
        }
        let (authority, path) = match rest.strip_prefix("//") {
            Some(behind) if !scheme.is_empty() || !rest.starts_with("///") => {
                let end = behind.find('/').unwrap_or(behind.len());
                behind.split_at(end)
            }
            _ => ("", rest),
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        check_host(host).map_err(|why| wrong(&why))?;
        check_escapes(path).map_err(|why| wrong(&why))?;
        Ok(Url {
            text: text.to_owned(),
            scheme,
            host: host.to_owned(),
            path: escaped_path(path),
            query: query.to_owned(),
        })
    }

    /// The host without port and brackets.
    fn hostname(&self) -> &str {
        if let Some(inner) = self.host.strip_prefix('[') {
            return inner.split_once(']').map_or(inner, |(inner, _)| inner);
        }
        self.host.rsplit_once(':').map_or(&self.host, |(host, _)| host)
    }

    fn port(&self) -> &str {
        let behind = self.host.rsplit_once(']').map_or(self.host.as_str(), |(_, behind)| behind);
        behind.rsplit_once(':').map_or("", |(_, port)| port)
    }

    /// The decoded query parameters. Invalid ones are dropped.
    fn pairs(&self) -> BTreeMap<String, Vec<String>> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let (Some(key), Some(value)) = (unescaped(key), unescaped(value)) {
                all.entry(key).or_default().push(value);
            }
        }
        all
    }
}

fn scheme(text: &str) -> Result<(String, &str), &'static str> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme"),
            ':' => {
                let (scheme, rest) = text.split_at(at);
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
        None => host.find(':').map_or("", |at| host.get(at..).unwrap_or_default()),
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("invalid port {} after host", quoted(port)));
    }
    let odd =
        |c: &char| c.is_whitespace() || matches!(c, '"' | '<' | '>' | '^' | '`' | '{' | '}' | '|' | '\\');
    if let Some(c) = host.chars().find(odd) {
        return Err(format!("invalid character {} in host name", quoted(&c.to_string())));
    }
    Ok(())
}

fn check_escapes(text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%') {
        let fits = bytes.get(at + 1..at + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
        if !fits {
            let shown: String =
                text.chars().skip(text.get(..at).unwrap_or_default().chars().count()).take(3).collect();
            return Err(format!("invalid URL escape {}", quoted(&shown)));
        }
    }
    Ok(())
}

/// Escapes a path.
fn escaped_path(path: &str) -> String {
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

fn unescaped(text: &str) -> Option<String> {
    check_escapes(text).ok()?;
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'%' => {
                let two = std::str::from_utf8(bytes.get(at + 1..at + 3)?).ok()?;
                out.push(u8::from_str_radix(two, 16).ok()?);
                at += 2;
            }
            b'+' => out.push(b' '),
            byte => out.push(*byte),
        }
        at += 1;
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

/// `url('https://a/b')` and its member functions.
pub fn run<'v>(name: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    match (name, args) {
        ("url", [Val::String(text)]) => Url::parse(text)
            .map(|url| Val::Url(Arc::new(url)))
            .map_err(|why| Fault::error(format!("URL parse error during conversion from string: {why}"))),
        ("isURL", [Val::String(text)]) => Ok(Val::Bool(Url::parse(text).is_ok())),
        (name, [Val::Url(url)]) => Ok(Val::from(match name {
            "getScheme" => url.scheme.clone(),
            "getHost" => url.host.clone(),
            "getHostname" => url.hostname().to_owned(),
            "getPort" => url.port().to_owned(),
            "getEscapedPath" => url.path.clone(),
            "getQuery" => {
                let text = |text: String| Text::Owned(text.into());
                let entry = |(key, values): (String, Vec<String>)| {
                    let values: Vec<Val<'v>> = values.into_iter().map(Val::from).collect();
                    let key = text(key);
                    (Key::String(key.clone()), (Val::String(key), Val::from(values)))
                };
                return Ok(Val::Map(Map::Made(Arc::new(url.pairs().into_iter().map(entry).collect()))));
            }
            _ => return Err(Fault::no_overload()),
        })),
        _ => Err(Fault::no_overload()),
    }
}
