//! The prefix of all keys: `--etcd-prefix`.

use std::fmt;

/// The default of `--etcd-prefix`.
pub const DEFAULT_PREFIX: &str = "/registry";

/// The normalized prefix of all keys: it begins and ends with a slash.
///
/// Servers that share an etcd must agree on it to the byte, however their flags spell it. So it is normalized as the reference
/// does: a leading slash is added, repeated slashes, `.` and `..` are resolved as in a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EtcdPrefix(Box<str>);

impl EtcdPrefix {
    /// Normalizes the value of the flag.
    pub fn new(flag: &str) -> EtcdPrefix {
        let mut segments: Vec<&str> = Vec::new();
        for segment in flag.split('/') {
            match segment {
                "" | "." => {}
                ".." => drop(segments.pop()),
                segment => segments.push(segment),
            }
        }
        let mut prefix = String::with_capacity(flag.len() + 2);
        prefix.push('/');
        for segment in segments {
            prefix.push_str(segment);
            prefix.push('/');
        }
        EtcdPrefix(prefix.into())
    }

    /// The prefix, with both slashes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for EtcdPrefix {
    fn default() -> EtcdPrefix {
        EtcdPrefix::new(DEFAULT_PREFIX)
    }
}

impl fmt::Display for EtcdPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_is_normalized_like_a_path() {
        for (flag, expected) in [
            ("/registry", "/registry/"),
            ("registry", "/registry/"),
            ("/registry/", "/registry/"),
            ("//registry//main///", "/registry/main/"),
            ("/registry/./main/../other", "/registry/other/"),
            ("../../x", "/x/"),
            ("", "/"),
            ("/", "/"),
            ("..", "/"),
        ] {
            assert_eq!(EtcdPrefix::new(flag).as_str(), expected, "{flag}");
        }
        assert_eq!(EtcdPrefix::default().to_string(), "/registry/");
    }
}
