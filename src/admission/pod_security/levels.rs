//! The standards of a namespace: its labels, and the defaults.

use std::fmt;

use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};

/// A Pod Security Standard. Each level is stricter than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No restrictions.
    Privileged,
    /// Prevents known privilege escalations.
    Baseline,
    /// Requires hardened pods.
    Restricted,
}

impl Level {
    const ALL: [Level; 3] = [Level::Privileged, Level::Baseline, Level::Restricted];

    /// The name, as in labels.
    pub fn name(self) -> &'static str {
        match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        }
    }

    /// Parses a level; the error is the reference's.
    pub fn parse(text: &str) -> Result<Level, &'static str> {
        let level = Level::ALL.into_iter().find(|level| level.name() == text);
        level.ok_or("must be one of privileged, baseline, restricted")
    }
}

/// The minor version of this server's release.
const OWN_MINOR: i64 = 33;

/// The release whose definition of a level applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Release 1 with this minor version.
    Minor(i64),
    /// The newest definition.
    Latest,
}

impl Version {
    /// Parses `latest` or `v1.7`; the error is the reference's.
    pub fn parse(text: &str) -> Result<Version, &'static str> {
        const INVALID: &str = "must be \"latest\" or \"v1.x\"";
        if text == "latest" {
            return Ok(Version::Latest);
        }
        let minor = text.strip_prefix("v1.").ok_or(INVALID)?;
        let is_canonical =
            minor.bytes().all(|byte| byte.is_ascii_digit()) && (minor == "0" || !minor.starts_with('0'));
        minor.parse().ok().filter(|_| is_canonical).map(Version::Minor).ok_or(INVALID)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Minor(minor) => write!(f, "v1.{minor}"),
            Version::Latest => f.write_str("latest"),
        }
    }
}

/// A level as of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standard {
    /// The level.
    pub level: Level,
    /// The release.
    pub version: Version,
}

impl Standard {
    /// No restrictions.
    pub const PRIVILEGED: Standard = Standard { level: Level::Privileged, version: Version::Latest };

    /// The version label of metrics, with few distinct values.
    pub fn metric_version(self) -> String {
        match self.version {
            Version::Minor(minor) if self.level != Level::Privileged && minor > OWN_MINOR => {
                "future".to_owned()
            }
            Version::Minor(_) if self.level != Level::Privileged => self.version.to_string(),
            // Privileged is the same in all releases.
            Version::Minor(_) | Version::Latest => "latest".to_owned(),
        }
    }

    /// Whether both are the same. The version of privileged does not matter.
    fn is_equivalent(self, other: Standard) -> bool {
        self == other || (self.level == Level::Privileged && other.level == Level::Privileged)
    }
}

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level.name(), self.version)
    }
}

/// What happens to a pod that violates a standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The pod is refused.
    Enforce,
    /// An audit annotation is added.
    Audit,
    /// The client gets a warning.
    Warn,
}

impl Mode {
    /// In the order in which labels are read.
    pub const ALL: [Mode; 3] = [Mode::Enforce, Mode::Audit, Mode::Warn];

    /// The name, as in labels and in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Audit => "audit",
            Mode::Warn => "warn",
        }
    }

    fn level_label(self) -> &'static str {
        match self {
            Mode::Enforce => "pod-security.kubernetes.io/enforce",
            Mode::Audit => "pod-security.kubernetes.io/audit",
            Mode::Warn => "pod-security.kubernetes.io/warn",
        }
    }

    fn version_label(self) -> &'static str {
        match self {
            Mode::Enforce => "pod-security.kubernetes.io/enforce-version",
            Mode::Audit => "pod-security.kubernetes.io/audit-version",
            Mode::Warn => "pod-security.kubernetes.io/warn-version",
        }
    }
}

/// The standards of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Violations are refused.
    pub enforce: Standard,
    /// Violations are annotated in the audit log.
    pub audit: Standard,
    /// Violations cause warnings.
    pub warn: Standard,
}

impl Policy {
    /// No restrictions in any mode.
    pub const PRIVILEGED: Policy =
        Policy { enforce: Standard::PRIVILEGED, audit: Standard::PRIVILEGED, warn: Standard::PRIVILEGED };

    /// The standard of a mode.
    pub fn standard(&self, mode: Mode) -> Standard {
        match mode {
            Mode::Enforce => self.enforce,
            Mode::Audit => self.audit,
            Mode::Warn => self.warn,
        }
    }

    /// The standard of a mode, to change it.
    pub fn standard_mut(&mut self, mode: Mode) -> &mut Standard {
        match mode {
            Mode::Enforce => &mut self.enforce,
            Mode::Audit => &mut self.audit,
            Mode::Warn => &mut self.warn,
        }
    }

    /// Whether all modes are privileged.
    pub fn allows_all(&self) -> bool {
        Mode::ALL.into_iter().all(|mode| self.standard(mode).level == Level::Privileged)
    }

    fn is_equivalent(&self, other: &Policy) -> bool {
        Mode::ALL.into_iter().all(|mode| self.standard(mode).is_equivalent(other.standard(mode)))
    }
}

/// The standards that labels ask for, and the errors in the labels. An invalid level is enforced as restricted, and as privileged
/// for audit and warn.
pub fn read<'a>(label: impl Fn(&str) -> Option<&'a str>, defaults: &Policy) -> (Policy, Vec<FieldError>) {
    let mut policy = *defaults;
    let mut errors = Vec::new();
    let labels = FieldPath::new("metadata").child("labels");
    let mut report_error = |label: &str, text: &str, reason: &str| {
        errors.push(FieldError::invalid(&labels.key(label), &quoted(text), reason));
    };
    let mut has_enforce_label = false;
    for mode in Mode::ALL {
        let standard = policy.standard_mut(mode);
        if let Some(text) = label(mode.level_label()) {
            let fallback = if mode == Mode::Enforce { Level::Restricted } else { Level::Privileged };
            let parsed = Level::parse(text);
            has_enforce_label |= mode == Mode::Enforce && parsed.is_ok();
            standard.level = parsed.unwrap_or_else(|reason| {
                report_error(mode.level_label(), text, reason);
                fallback
            });
        }
        if let Some(text) = label(mode.version_label()) {
            standard.version = Version::parse(text).unwrap_or_else(|reason| {
                report_error(mode.version_label(), text, reason);
                Version::Latest
            });
        }
    }
    // With an enforce label and no warn label, warnings follow the enforced level: workloads warn about pods that will be
    // refused.
    if has_enforce_label
        && label(Mode::Warn.level_label()).is_none()
        && policy.enforce.level > policy.warn.level
    {
        policy.warn.level = policy.enforce.level;
        if label(Mode::Warn.version_label()).is_none() {
            policy.warn.version = policy.enforce.version;
        }
    }
    (policy, errors)
}

/// A warning for labels that have no effect, because the namespace is exempt.
pub fn ignored_warning<'a>(
    namespace: &str,
    label: impl Fn(&str) -> Option<&'a str>,
    policy: &Policy,
    defaults: &Policy,
) -> Option<String> {
    if policy.allows_all() || policy.is_equivalent(defaults) {
        return None;
    }
    let policies = Mode::ALL.into_iter().filter(|mode| {
        policy.standard(*mode).level != Level::Privileged
            && (label(mode.level_label()).is_some() || label(mode.version_label()).is_some())
    });
    let policies: Vec<String> =
        policies.map(|mode| format!("{}={}", mode.name(), policy.standard(mode))).collect();
    Some(format!(
        "namespace {} is exempt from Pod Security, and the policy ({}) will be ignored",
        quoted(namespace),
        policies.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(list: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<&'static str> {
        move |label| {
            let key = label.strip_prefix("pod-security.kubernetes.io/").unwrap();
            list.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
        }
    }

    fn read_rendered(list: &'static [(&'static str, &'static str)]) -> (String, Vec<String>) {
        let (policy, errors) = read(labels(list), &Policy::PRIVILEGED);
        let policy = Mode::ALL.map(|mode| policy.standard(mode).to_string()).join(" ");
        (policy, errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn namespace_labels_override_default_policy_per_mode() {
        for (list, expected) in [
            (&[][..], "privileged:latest privileged:latest privileged:latest"),
            (&[("enforce", "baseline")], "baseline:latest privileged:latest baseline:latest"),
            (
                &[("enforce", "restricted"), ("enforce-version", "v1.7")],
                "restricted:v1.7 privileged:latest restricted:v1.7",
            ),
            (
                &[("enforce", "restricted"), ("enforce-version", "v1.7"), ("warn-version", "v1.20")],
                "restricted:v1.7 privileged:latest restricted:v1.20",
            ),
            (
                &[("enforce", "restricted"), ("warn", "baseline")],
                "restricted:latest privileged:latest baseline:latest",
            ),
            (
                &[("audit", "restricted"), ("audit-version", "v1.0")],
                "privileged:latest restricted:v1.0 privileged:latest",
            ),
            // A version without a level changes only the version.
            (&[("enforce-version", "v1.3")], "privileged:v1.3 privileged:latest privileged:latest"),
        ] {
            assert_eq!(read_rendered(list), (expected.to_owned(), Vec::new()), "{list:?}");
        }
    }

    #[test]
    fn invalid_labels_enforce_restricted() {
        let (policy, errors) = read_rendered(&[
            ("enforce", "none"),
            ("enforce-version", "1.2"),
            ("audit", "Baseline"),
            ("audit-version", "v1.01"),
            ("warn", ""),
            ("warn-version", "v2.0"),
        ]);
        assert_eq!(policy, "restricted:latest privileged:latest privileged:latest");
        assert_eq!(errors.len(), 6);
        let path = "metadata.labels[pod-security.kubernetes.io/";
        let level = "must be one of privileged, baseline, restricted";
        assert_eq!(errors[0], format!("{path}enforce]: Invalid value: \"none\": {level}"));
        let version = "must be \"latest\" or \"v1.x\"";
        assert_eq!(errors[3], format!("{path}audit-version]: Invalid value: \"v1.01\": {version}"));
    }

    #[test]
    fn pod_security_version_parsing() {
        for (text, expected) in [
            ("latest", Some(Version::Latest)),
            ("v1.0", Some(Version::Minor(0))),
            ("v1.33", Some(Version::Minor(33))),
            ("v1.", None),
            ("v1.+3", None),
            ("v1.00", None),
            ("v1.99999999999999999999", None),
            ("v1.3\n", None),
        ] {
            assert_eq!(Version::parse(text).ok(), expected, "{text}");
        }
        assert!(Version::Minor(99) < Version::Latest && Version::Minor(2) < Version::Minor(10));
    }

    #[test]
    fn exempt_namespace_labels_cause_warning() {
        let warning = |list: &'static [(&'static str, &'static str)]| {
            let policy = read(labels(list), &Policy::PRIVILEGED).0;
            ignored_warning("n", labels(list), &policy, &Policy::PRIVILEGED)
        };
        assert_eq!(warning(&[("enforce", "privileged")]), None);
        assert_eq!(
            warning(&[("enforce", "baseline"), ("audit", "restricted"), ("audit-version", "v1.2")]).unwrap(),
            "namespace \"n\" is exempt from Pod Security, and the policy (enforce=baseline:latest, \
             audit=restricted:v1.2) will be ignored"
        );
    }
}
