//! Groups and versions: syntax, stability and order.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// A minor release of Kubernetes, as (major, minor).
pub type MinorVersion = (u32, u32);

/// The release whose API this server serves.
pub const RELEASE: MinorVersion = (1, 33);

/// A group and one of its versions: an apiVersion.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// The group, empty for the core group.
    pub group: Arc<str>,
    /// The version.
    pub version: Arc<str>,
}

impl GroupVersion {
    /// The version `version` of `group`, which is empty for the core group.
    pub fn new(group: &str, version: &str) -> GroupVersion {
        GroupVersion { group: group.into(), version: version.into() }
    }

    /// Parses an apiVersion. `None` if it has more than one slash.
    pub fn parse(api_version: &str) -> Option<GroupVersion> {
        match api_version.split_once('/') {
            None => Some(GroupVersion::new("", api_version)),
            Some((_, version)) if version.contains('/') => None,
            Some((group, version)) => Some(GroupVersion::new(group, version)),
        }
    }

    /// Whether this is version `version` of `group`.
    pub fn is(&self, group: &str, version: &str) -> bool {
        *self.group == *group && *self.version == *version
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.group.is_empty() {
            write!(f, "{}/", self.group)?;
        }
        f.write_str(&self.version)
    }
}

/// The stability of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// May change or be removed at any time.
    Alpha,
    /// May change, with notice.
    Beta,
    /// Does not change.
    Stable,
}

/// The parts of a version name: `v2beta3` is (2, Beta, 3). `None` for other names, which custom resources may have.
fn parse_parts(version: &str) -> Option<(u64, Level, u64)> {
    let rest = version.strip_prefix('v')?;
    for (word, level) in [("alpha", Level::Alpha), ("beta", Level::Beta)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((number(major)?, level, number(minor)?));
        }
    }
    Some((number(rest)?, Level::Stable, 0))
}

fn number(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// The stability of a version; `None` if its name has another form.
pub fn level(version: &str) -> Option<Level> {
    parse_parts(version).map(|(_, level, _)| level)
}

/// The order of preference: stable before beta before alpha, newer before older, and other names last, alphabetically.
pub fn preferred_first(a: &str, b: &str) -> Ordering {
    match (parse_parts(a), parse_parts(b)) {
        (Some((major_a, level_a, minor_a)), Some((major_b, level_b, minor_b))) => {
            (level_b, major_b, minor_b).cmp(&(level_a, major_a, minor_a))
        }
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_by_stability_and_number() {
        let mut versions =
            ["foo10", "v1alpha2", "v2", "v11beta2", "v10", "v1", "foo1", "v3beta1", "v2alpha1"];
        versions.sort_by(|a, b| preferred_first(a, b));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v11beta2", "v3beta1", "v2alpha1", "v1alpha2", "foo1", "foo10"]
        );
    }

    #[test]
    fn other_version_names_have_no_level() {
        assert_eq!(level("v1"), Some(Level::Stable));
        assert_eq!(level("v1beta1"), Some(Level::Beta));
        for name in ["1", "v", "vbeta1", "v1beta", "v1gamma1", "v+1", ""] {
            assert_eq!(level(name), None, "{name}");
        }
    }

    #[test]
    fn group_version_round_trips() {
        for text in ["v1", "apps/v1", "resource.k8s.io/v1beta2"] {
            assert_eq!(GroupVersion::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(GroupVersion::parse("a/b/c"), None);
    }
}
