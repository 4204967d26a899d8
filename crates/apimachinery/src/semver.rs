//! Semantic versions.

use std::cmp::Ordering;

/// A version such as `1.2.3-rc.1+build`.
///
/// Versions are ordered and equal by precedence, which build metadata does not affect. The default is 0.0.0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Semver {
    /// Major, minor and patch.
    pub numbers: [u64; 3],
    prerelease: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Number(u64),
    Text(String),
}

impl Semver {
    /// Parses a version strictly.
    pub fn parse(text: &str) -> Result<Semver, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let (rest, build) = match text.split_once('+') {
            Some((rest, build)) => (rest, Some(build)),
            None => (text, None),
        };
        let (rest, prerelease) = match rest.split_once('-') {
            Some((rest, prerelease)) => (rest, Some(prerelease)),
            None => (rest, None),
        };
        let parts: Vec<&str> = rest.split('.').collect();
        let &[major, minor, patch] = parts.as_slice() else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let numbers =
            [parse_number(major, "major")?, parse_number(minor, "minor")?, parse_number(patch, "patch")?];
        let is_identifier = |text: &str| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let mut parts = Vec::new();
        for part in prerelease.into_iter().flat_map(|text| text.split('.')) {
            if !is_identifier(part) {
                return Err(format!(
                    "Invalid character(s) found in prerelease {}",
                    crate::field::quoted(part)
                ));
            }
            parts.push(if part.bytes().all(|byte| byte.is_ascii_digit()) {
                if part.len() > 1 && part.starts_with('0') {
                    return Err(format!(
                        "Numeric PreRelease version must not contain leading zeroes {}",
                        crate::field::quoted(part)
                    ));
                }
                Part::Number(part.parse().map_err(|_| "value out of range".to_owned())?)
            } else {
                Part::Text(part.to_owned())
            });
        }
        if build.is_some_and(|build| !build.split('.').all(is_identifier)) {
            return Err("Invalid character(s) found in build meta data".to_owned());
        }
        Ok(Semver { numbers, prerelease: parts })
    }

    /// Parses a version with normalization: `v1`, `01.2`.
    pub fn parse_lenient(text: &str) -> Result<Semver, String> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(trim_leading_zeros).collect();
        if parts.len() < 3 {
            if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
                return Err("short version cannot contain PreRelease/Build meta data".to_owned());
            }
            parts.resize(3, "0".to_owned());
        }
        Semver::parse(&parts.join("."))
    }
}

impl Ord for Semver {
    fn cmp(&self, other: &Semver) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.prerelease.is_empty(), other.prerelease.is_empty()) {
                (true, true) => Ordering::Equal,
                // A pre-release precedes the release.
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => {
                    let orders = self.prerelease.iter().zip(&other.prerelease).map(|(left, right)| {
                        match (left, right) {
                            (Part::Number(left), Part::Number(right)) => left.cmp(right),
                            (Part::Number(_), Part::Text(_)) => Ordering::Less,
                            (Part::Text(_), Part::Number(_)) => Ordering::Greater,
                            (Part::Text(left), Part::Text(right)) => left.cmp(right),
                        }
                    });
                    let different = orders.into_iter().find(|order| *order != Ordering::Equal);
                    different.unwrap_or_else(|| self.prerelease.len().cmp(&other.prerelease.len()))
                }
            }
        })
    }
}

impl PartialOrd for Semver {
    fn partial_cmp(&self, other: &Semver) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Strips leading zeros.
fn trim_leading_zeros(part: &str) -> String {
    if part.len() < 2 {
        return part.to_owned();
    }
    let rest = part.trim_start_matches('0');
    if rest.starts_with(|c: char| c.is_ascii_digit()) { rest.to_owned() } else { format!("0{rest}") }
}

fn parse_number(text: &str, component: &str) -> Result<u64, String> {
    let quoted = crate::field::quoted(text);
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {component} number {quoted}"));
    }
    if text.len() > 1 && text.starts_with('0') {
        let title = format!("{}{}", component[..1].to_uppercase(), &component[1..]);
        return Err(format!("{title} number must not contain leading zeroes {quoted}"));
    }
    text.parse().map_err(|_| format!("strconv.ParseUint: parsing {quoted}: value out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semver_orders_versions_by_precedence() {
        let all = [
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.2.0",
            "1.10.0",
        ];
        for pair in all.windows(2) {
            let [left, right] = [pair[0], pair[1]].map(|text| Semver::parse(text).unwrap());
            assert_eq!(left.cmp(&right), Ordering::Less, "{pair:?}");
        }
        for bad in ["", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.x", "1.2.3+"] {
            assert!(Semver::parse(bad).is_err(), "{bad}");
        }
        for (text, expected) in [("v1", [1, 0, 0]), ("01.02", [1, 2, 0]), ("v1.0.03", [1, 0, 3])] {
            assert_eq!(Semver::parse_lenient(text).unwrap().numbers, expected);
        }
        assert!(Semver::parse_lenient("1.0-rc").is_err());
    }
}
