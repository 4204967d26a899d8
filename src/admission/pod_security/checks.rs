//! The list of checks per standard, and their evaluation.

use super::levels::{Level, Standard, Version};
use super::pod::{Pod, Violation};
use super::{baseline, restricted};

type Rule = fn(&Pod<'_>) -> Option<Violation>;

/// One check. Its rule has changed over the releases.
struct Check {
    level: Level,
    /// The rules by the minor release that introduced them, oldest first.
    since: &'static [(i64, Rule)],
    /// The index in [`CHECKS`] of a restricted check that is stricter and replaces this one at that level.
    superseded_by: Option<usize>,
}

const fn check(level: Level, since: &'static [(i64, Rule)]) -> Check {
    Check { level, since, superseded_by: None }
}

const fn superseded(index: usize, since: &'static [(i64, Rule)]) -> Check {
    Check { level: Level::Baseline, since, superseded_by: Some(index) }
}

const CAPABILITIES: usize = 12;
const VOLUMES: usize = 13;
const SECCOMP: usize = 16;

/// All checks, in the order in which messages name them.
const CHECKS: [Check; 17] = [
    check(Level::Baseline, &[(0, baseline::app_armor)]),
    superseded(CAPABILITIES, &[(0, baseline::capabilities)]),
    check(Level::Baseline, &[(0, baseline::host_namespaces)]),
    superseded(VOLUMES, &[(0, baseline::host_paths)]),
    check(Level::Baseline, &[(0, baseline::host_ports)]),
    check(Level::Baseline, &[(0, baseline::privileged)]),
    check(Level::Baseline, &[(0, baseline::proc_mount)]),
    check(Level::Baseline, &[(0, baseline::se_linux), (31, baseline::se_linux_31)]),
    superseded(SECCOMP, &[(0, baseline::seccomp_annotations), (19, baseline::seccomp_setters)]),
    check(
        Level::Baseline,
        &[
            (0, baseline::sysctls),
            (27, baseline::sysctls_27),
            (29, baseline::sysctls_29),
            (32, baseline::sysctls_32),
        ],
    ),
    check(Level::Baseline, &[(0, baseline::host_process)]),
    check(Level::Restricted, &[(8, restricted::escalation), (25, restricted::escalation_25)]),
    check(Level::Restricted, &[(22, restricted::capabilities), (25, restricted::capabilities_25)]),
    check(Level::Restricted, &[(0, restricted::volumes)]),
    check(Level::Restricted, &[(0, restricted::not_root)]),
    check(Level::Restricted, &[(23, restricted::user)]),
    check(Level::Restricted, &[(19, restricted::seccomp), (25, restricted::seccomp_25)]),
];

impl Check {
    /// The rule at a release; `None` before the check existed.
    fn rule_at(&self, version: Version) -> Option<Rule> {
        let rule = self.since.iter().rev().find(|(since, _)| Version::Minor(*since) <= version);
        rule.map(|(_, rule)| *rule)
    }

    fn applies_to(&self, standard: Standard) -> bool {
        let stricter = self.superseded_by.and_then(|index| CHECKS.get(index));
        self.level <= standard.level
            && !(standard.level == Level::Restricted
                && stricter.is_some_and(|other| other.rule_at(standard.version).is_some()))
    }
}

/// The violations of a standard; empty if the pod meets it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings(Vec<Violation>);

impl Findings {
    /// Checks a pod against a standard.
    pub fn evaluate(pod: &Pod<'_>, standard: Standard) -> Findings {
        if standard.level == Level::Privileged {
            return Findings::default();
        }
        let checks = CHECKS.iter().filter(|check| check.applies_to(standard));
        Findings(checks.filter_map(|check| check.rule_at(standard.version)?(pod)).collect())
    }

    /// Whether the pod meets the standard.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The reasons without details: the same text for all pods that fail alike.
    pub fn reasons(&self) -> String {
        self.0.iter().map(|violation| &*violation.reason).collect::<Vec<_>>().join(", ")
    }

    /// The reasons with details.
    pub fn details(&self) -> String {
        let rendered = |violation: &Violation| match violation.detail.as_str() {
            "" => violation.reason.to_string(),
            detail => format!("{} ({detail})", violation.reason),
        };
        self.0.iter().map(rendered).collect::<Vec<_>>().join(", ")
    }
}
