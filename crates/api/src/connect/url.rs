//! Writes URLs: escapes, joined paths, parameters.

/// The characters of a path that need no escape.
fn plain_in_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte)
}

/// The characters of a parameter that need no escape.
fn plain_in_query(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)
}

fn escape(text: &str, plain: fn(u8) -> bool, space: &str, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        match byte {
            byte if plain(byte) => out.push(char::from(byte)),
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
    escape(path, plain_in_path, "%20", &mut out);
    out
}

/// Encodes parameters, sorted by name; those of one name keep their order.
pub fn encode_query(mut pairs: Vec<(&str, String)>) -> String {
    pairs.sort_by(|one, other| one.0.cmp(other.0));
    let mut out = String::new();
    for (name, value) in pairs {
        if !out.is_empty() {
            out.push('&');
        }
        escape(name, plain_in_query, "+", &mut out);
        out.push('=');
        escape(&value, plain_in_query, "+", &mut out);
    }
    out
}

/// A path without empty segments, `.` and `..`; an absolute one cannot lead above its root. A final slash stays.
pub fn clean(path: &str) -> String {
    if path.is_empty() {
        return String::new();
    }
    let rooted = path.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." if kept.last().is_some_and(|last| *last != "..") => {
                kept.pop();
            }
            ".." if rooted => {}
            other => kept.push(other),
        }
    }
    let mut out = if rooted { String::from("/") } else { String::new() };
    out.push_str(&kept.join("/"));
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
    fn paths_are_joined_and_keep_their_last_slash() {
        let table = [
            ("", "/x/proxy", ""),
            ("", "/x/proxy/", "/"),
            ("a/b", "/x/proxy/a/b", "/a/b"),
            ("a/b", "/x/proxy/a/b/", "/a/b/"),
            ("a/../../../b", "/x/proxy/a/../../../b", "/b"),
            ("a//b/./c", "/x/proxy/a//b/./c", "/a/b/c"),
            ("..", "/x/proxy/../", "/"),
        ];
        for (rest, whole, wanted) in table {
            assert_eq!(sub_path(rest, whole), wanted, "{rest} of {whole}");
        }
    }

    #[test]
    fn parameters_are_sorted_and_escaped() {
        let pairs =
            vec![("stdin", "1".to_owned()), ("command", "a b".to_owned()), ("command", "&".to_owned())];
        assert_eq!(encode_query(pairs), "command=a+b&command=%26&stdin=1");
    }

    proptest! {
        #[test]
        fn what_is_escaped_reads_back(text in "\\PC{0,24}") {
            let path = format!("/{text}");
            let escaped = escape_path(&path);
            prop_assert_eq!(&*decode_path(&escaped).unwrap(), &path);
            let query = encode_query(vec![("k", text.clone())]);
            let query = Query::parse(&query);
            prop_assert_eq!(query.get("k").unwrap(), text);
        }

        #[test]
        fn no_path_leads_above_its_root(path in "/([a.]{0,3}/){0,8}") {
            let cleaned = clean(&path);
            prop_assert!(cleaned.starts_with('/'));
            prop_assert!(cleaned.split('/').all(|segment| segment != ".." && segment != "."));
        }
    }
}
