//! URL encoding: escaping, path cleaning, queries.

/// Whether a byte needs no escape in a path.
fn is_plain_in_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte)
}

/// Whether a byte needs no escape in a query.
fn is_plain_in_query(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)
}

fn escape(text: &str, is_plain: fn(u8) -> bool, space: &str, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        match byte {
            byte if is_plain(byte) => out.push(char::from(byte)),
            b' ' => out.push_str(space),
            byte => {
                out.push('%');
                out.push(char::from(DIGITS[usize::from(byte >> 4)]));
                out.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
        }
    }
}

/// Escapes a path.
pub fn escape_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    escape(path, is_plain_in_path, "%20", &mut out);
    out
}

/// Encodes parameters, sorted by name; those of one name keep their order.
pub fn encode_query(mut pairs: Vec<(&str, String)>) -> String {
    pairs.sort_by(|a, b| a.0.cmp(b.0));
    let mut out = String::new();
    for (name, value) in pairs {
        if !out.is_empty() {
            out.push('&');
        }
        escape(name, is_plain_in_query, "+", &mut out);
        out.push('=');
        escape(&value, is_plain_in_query, "+", &mut out);
    }
    out
}

/// A path without empty segments, `.` and `..`; an absolute one cannot lead above its root. A final slash stays.
pub fn clean(path: &str) -> String {
    if path.is_empty() {
        return String::new();
    }
    let rooted = path.starts_with('/');
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." if segments.last().is_some_and(|last| *last != "..") => {
                segments.pop();
            }
            ".." if rooted => {}
            other => segments.push(other),
        }
    }
    let mut out = if rooted { String::from("/") } else { String::new() };
    out.push_str(&segments.join("/"));
    if out.is_empty() {
        out.push('.');
    }
    if path.ends_with('/') && !out.ends_with('/') {
        out.push('/');
    }
    out
}

/// The path after a proxy's name, as the backend gets it: `rest` is that path without the slashes around it.
pub fn sub_path(rest: &str, whole: &str) -> String {
    let mut path = String::with_capacity(rest.len() + 2);
    if !rest.is_empty() && !rest.starts_with('/') {
        path.push('/');
    }
    path.push_str(rest);
    if whole.ends_with('/') && !path.ends_with('/') {
        path.push('/');
    }
    clean(&path)
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::query::{Query, decode_path};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn proxied_path_is_cleaned_and_keeps_final_slash() {
        let table = [
            ("", "/x/proxy", ""),
            ("", "/x/proxy/", "/"),
            ("a/b", "/x/proxy/a/b", "/a/b"),
            ("a/b", "/x/proxy/a/b/", "/a/b/"),
            ("a/../../../b", "/x/proxy/a/../../../b", "/b"),
            ("a//b/./c", "/x/proxy/a//b/./c", "/a/b/c"),
            ("..", "/x/proxy/../", "/"),
        ];
        for (rest, whole, expected) in table {
            assert_eq!(sub_path(rest, whole), expected, "{rest} of {whole}");
        }
    }

    #[test]
    fn query_is_sorted_and_escaped() {
        let pairs =
            vec![("stdin", "1".to_owned()), ("command", "a b".to_owned()), ("command", "&".to_owned())];
        assert_eq!(encode_query(pairs), "command=a+b&command=%26&stdin=1");
    }

    proptest! {
        #[test]
        fn escaped_text_decodes_to_itself(text in "\\PC{0,24}") {
            let path = format!("/{text}");
            let escaped = escape_path(&path);
            prop_assert_eq!(&*decode_path(&escaped).unwrap(), &path);
            let query = encode_query(vec![("k", text.clone())]);
            let query = Query::parse(&query);
            prop_assert_eq!(query.get("k").unwrap(), text);
        }

        #[test]
        fn cleaned_path_does_not_leave_its_root(path in "/([a.]{0,3}/){0,8}") {
            let cleaned = clean(&path);
            prop_assert!(cleaned.starts_with('/'));
            prop_assert!(cleaned.split('/').all(|segment| segment != ".." && segment != "."));
        }
    }
}
