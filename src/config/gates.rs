//! Feature gates: their names, stages and defaults, and how flags change them.

use std::collections::BTreeMap;
use std::str::FromStr;

use pilothouse_api::emulation::OLDEST;
use pilothouse_api::gates::{AUTHORIZE_NODE_WITH_SELECTORS, AUTHORIZE_WITH_SELECTORS};
use pilothouse_apimachinery::version::{MinorVersion, RELEASE};

use super::gates_table::GATES;
use super::gates_without_effect;
use super::values::go_bool;

/// The stage of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// New, off by default.
    Alpha,
    /// Tested, usually on by default.
    Beta,
    /// Permanent.
    Stable,
    /// To be removed.
    Deprecated,
}

impl Stage {
    /// The label in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Stable => "",
            Stage::Deprecated => "DEPRECATED",
        }
    }
}

/// One feature gate.
#[derive(Debug, PartialEq, Eq)]
pub struct Gate {
    /// The name on the command line.
    pub name: &'static str,
    /// What it was in each release that can be emulated, and is in this one; `None` before it was introduced.
    pub history: [Option<GateForm>; 3],
}

/// What a gate is in one release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateForm {
    /// The stage.
    pub stage: Stage,
    /// Whether it is on by default.
    pub default: bool,
    /// Whether it can no longer be changed.
    pub locked: bool,
}

impl Gate {
    /// The gate in a release.
    pub fn at(&self, release: MinorVersion) -> Option<GateForm> {
        let index = usize::try_from(release.1.checked_sub(OLDEST.1)?).ok()?;
        self.history.get(index).copied().flatten()
    }

    /// The state that it has in every emulated release, because this server cannot do without what it switches.
    fn constant(&self) -> Option<bool> {
        let now = self.at(RELEASE).filter(|now| now.locked)?;
        (!gates_without_effect::is_listed(self.name)).then_some(now.default)
    }
}

/// The subject of an entry of `--feature-gates`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Gate(&'static Gate),
    Stage(Stage),
    /// An empty entry.
    Empty,
}

/// The component prefix of entries: there is no other component here.
const COMPONENT: &str = "kube";

/// One valid entry of `--feature-gates`, parsed from `Name=true`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateSetting {
    subject: Subject,
    enabled: bool,
}

impl GateSetting {
    /// A warning about this entry for the operator, if any.
    pub fn warning(&self, release: MinorVersion) -> Option<String> {
        let Subject::Gate(gate) = self.subject else { return None };
        if let Some(reason) = gates_without_effect::reason(gate, release) {
            return Some(format!("feature gate {} has no effect: {reason}", gate.name));
        }
        let stage = match gate.at(release)?.stage {
            Stage::Deprecated => "deprecated",
            Stage::Stable => "generally available",
            Stage::Alpha | Stage::Beta => return None,
        };
        let Gate { name, .. } = gate;
        Some(format!("feature gate {name} is {stage}: it will be removed in a future release"))
    }

    /// Refuses what a release does not allow.
    fn validate(&self, release: MinorVersion) -> Result<(), String> {
        let Subject::Gate(gate) = self.subject else { return Ok(()) };
        let refusal = format!("cannot set feature gate {} to {}", gate.name, self.enabled);
        let Some(form) = gate.at(release) else {
            let (major, minor) = release;
            return Err(format!("{refusal}, feature is PreAlpha at emulated version {major}.{minor}"));
        };
        match gate.constant() {
            _ if form.locked && form.default != self.enabled => {
                Err(format!("{refusal}, feature is locked to {}", form.default))
            }
            Some(constant) if constant != self.enabled => {
                Err(format!("{refusal}: this server always has it {}", if constant { "on" } else { "off" }))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for GateSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<GateSetting, String> {
        let text = match text.split_once(':') {
            Some((component, rest)) if component.trim() == COMPONENT => rest,
            Some((component, _)) => return Err(format!("component not registered: {}", component.trim())),
            None => text,
        };
        if text.is_empty() {
            return Ok(GateSetting { subject: Subject::Empty, enabled: false });
        }
        let missing = || format!("missing bool value for {}", text.trim());
        let (name, value) = text.split_once('=').ok_or_else(missing)?;
        let (name, value) = (name.trim(), value.trim());
        let enabled = go_bool(value).map_err(|error| format!("invalid value of {name}={value}: {error}"))?;
        let subject = match name {
            "AllAlpha" => Subject::Stage(Stage::Alpha),
            "AllBeta" => Subject::Stage(Stage::Beta),
            _ => Subject::Gate(find(name).ok_or_else(|| format!("unrecognized feature gate: {name}"))?),
        };
        Ok(GateSetting { subject, enabled })
    }
}

/// The gate for all features of a stage.
fn stage_gate(stage: Stage) -> &'static str {
    if stage == Stage::Alpha { "AllAlpha" } else { "AllBeta" }
}

fn find(name: &str) -> Option<&'static Gate> {
    let index = GATES.binary_search_by(|gate| gate.name.cmp(name)).ok()?;
    GATES.get(index)
}

/// The gates of a server.
#[derive(Clone, Debug)]
pub struct FeatureGates {
    /// The release that decides which gates there are, and their defaults.
    release: MinorVersion,
    /// The gates that were set.
    set: BTreeMap<&'static str, bool>,
}

impl Default for FeatureGates {
    fn default() -> FeatureGates {
        FeatureGates::new(&[], RELEASE)
    }
}

impl FeatureGates {
    /// The defaults of a release with `settings` applied. A gate's own entry takes precedence over `AllAlpha` and `AllBeta`, and a
    /// later entry over an earlier one.
    pub fn new(settings: &[GateSetting], release: MinorVersion) -> FeatureGates {
        let mut set = BTreeMap::new();
        for setting in settings {
            if let Subject::Stage(stage) = setting.subject {
                set.insert(stage_gate(stage), setting.enabled);
                let is_of_stage =
                    |gate: &&Gate| gate.at(release).is_some_and(|form| form.stage == stage && !form.locked);
                set.extend(GATES.iter().filter(is_of_stage).map(|gate| (gate.name, setting.enabled)));
            }
        }
        for setting in settings {
            if let Subject::Gate(gate) = setting.subject {
                set.insert(gate.name, setting.enabled);
            }
        }
        FeatureGates { release, set }
    }

    /// Refuses settings that the release does not allow, and a gate whose required gate is off.
    pub fn validate(&self, settings: &[GateSetting]) -> Result<(), String> {
        settings.iter().try_for_each(|setting| setting.validate(self.release))?;
        let (gate, required) = (AUTHORIZE_NODE_WITH_SELECTORS, AUTHORIZE_WITH_SELECTORS);
        match self.enabled(gate) && !self.enabled(required) {
            true => Err(format!("{gate} feature requires {required} feature to be enabled")),
            false => Ok(()),
        }
    }

    /// Every gate of the release with its stage and state, including `AllAlpha` and `AllBeta`.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        let stage_gates = [Stage::Alpha, Stage::Beta].map(|stage| (stage_gate(stage), stage));
        let gates = GATES.iter().filter_map(|gate| Some((gate.name, gate.at(self.release)?.stage)));
        let all_gates = stage_gates.into_iter().chain(gates);
        all_gates.map(|(name, stage)| (name, stage, self.enabled(name)))
    }

    /// Whether the feature is on. An unknown name is off, and so is what this server does not have.
    pub fn enabled(&self, name: &str) -> bool {
        let Some(gate) = find(name) else { return self.set.get(name).copied().unwrap_or(false) };
        let Some(form) = gate.at(self.release) else {
            return false;
        };
        let chosen = || self.set.get(name).copied().unwrap_or(form.default);
        gate.constant().unwrap_or_else(chosen)
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::features::{EnabledFeatures, Feature};

    use super::*;

    fn gates(text: &str) -> FeatureGates {
        let settings: Vec<GateSetting> = text.split(',').map(|entry| entry.parse().unwrap()).collect();
        FeatureGates::new(&settings, RELEASE)
    }

    /// The gates of an emulated release, and whether they can be set so.
    fn emulated(minor: u32, text: &str) -> (FeatureGates, Result<(), String>) {
        let settings: Vec<GateSetting> = text.split(',').map(|entry| entry.parse().unwrap()).collect();
        let gates = FeatureGates::new(&settings, (1, minor));
        let result = gates.validate(&settings);
        (gates, result)
    }

    #[test]
    fn all_used_feature_gates_are_in_the_table() {
        for name in pilothouse_api::gates::ALL {
            assert!(find(name).is_some(), "{name}");
        }
    }

    #[test]
    fn feature_gate_table_is_sorted() {
        assert!(GATES.is_sorted_by(|a, b| a.name < b.name));
        assert!(GATES.iter().all(|gate| find(gate.name) == Some(gate)));
    }

    #[test]
    fn feature_gate_defaults_match_the_release() {
        let gates = FeatureGates::default();
        for (name, expected) in [
            ("CBORServingAndStorage", false),
            ("AllowUnsafeMalformedObjectDeletion", false),
            ("WatchList", false),
            ("APIResponseCompression", true),
            ("DeclarativeValidation", true),
            ("DeclarativeValidationTakeover", false),
            ("StructuredAuthenticationConfiguration", true),
        ] {
            assert_eq!(gates.enabled(name), expected, "{name}");
        }
        assert!(!gates.enabled("NoSuchGate"));
    }

    #[test]
    fn single_feature_gate_overrides_stage_gate() {
        let gates = gates("CBORServingAndStorage=false,AllAlpha=true,AllBeta=false,WatchList=true");
        assert!(!gates.enabled("CBORServingAndStorage"));
        assert!(gates.enabled("AllowUnsafeMalformedObjectDeletion"));
        assert!(!gates.enabled("APIResponseCompression"));
        assert!(gates.enabled("WatchList"));
    }

    #[test]
    fn invalid_feature_gates_are_refused() {
        let parse_error = |text: &str| text.parse::<GateSetting>().unwrap_err();
        assert_eq!(parse_error("Nonsense=true"), "unrecognized feature gate: Nonsense");
        assert_eq!(parse_error("WatchList"), "missing bool value for WatchList");
        assert!(parse_error("WatchList=perhaps").starts_with("invalid value of WatchList=perhaps"));
        let expected = "cannot set feature gate SidecarContainers to false, feature is locked to true";
        assert_eq!(emulated(33, "SidecarContainers=false").1, Err(expected.to_owned()));
        assert_eq!(parse_error("wardle:WatchList=true"), "component not registered: wardle");
    }

    #[test]
    fn valid_feature_gates_are_parsed() {
        for (text, name) in [
            ("SidecarContainers=true", "SidecarContainers"),
            ("kube:WatchList=true", "WatchList"),
            (" WatchList = 1 ", "WatchList"),
            ("CustomCPUCFSQuotaPeriod=true", "CustomCPUCFSQuotaPeriod"),
            ("RuntimeClassInImageCriApi=true", "RuntimeClassInImageCriApi"),
            ("ClientsPreferCBOR=true", "ClientsPreferCBOR"),
            ("WatchListClient=true", "WatchListClient"),
        ] {
            assert!(gates(text).enabled(name), "{text}");
        }
        assert!(!gates("ExecProbeTimeout=false").enabled("ExecProbeTimeout"), "stable, but not locked");
        assert!(!gates(",WatchList=true,,WatchList=false,").enabled("WatchList"), "the last entry wins");
    }

    #[test]
    fn feature_gate_without_required_gate_is_refused() {
        let expected =
            "AuthorizeNodeWithSelectors feature requires AuthorizeWithSelectors feature to be enabled";
        assert_eq!(emulated(33, "AuthorizeWithSelectors=false").1, Err(expected.to_owned()));
        assert_eq!(emulated(33, "AllBeta=false").1, Ok(()));
        assert_eq!(FeatureGates::default().validate(&[]), Ok(()));
    }

    #[test]
    fn all_lists_every_feature_gate() {
        let enabled_alpha = gates("AllAlpha=true");
        assert!(enabled_alpha.all().any(|entry| entry == ("AllAlpha", Stage::Alpha, true)));
        assert!(enabled_alpha.all().any(|entry| entry == ("AllBeta", Stage::Beta, false)));
        assert!(enabled_alpha.all().any(|entry| entry == ("CBORServingAndStorage", Stage::Alpha, true)));
        assert_eq!(enabled_alpha.all().count(), GATES.len() + 2);
    }

    #[test]
    fn validation_features_have_gates_with_same_defaults() {
        for (feature, default) in Feature::all() {
            let gate = find(&format!("{feature:?}")).unwrap_or_else(|| panic!("{feature:?}"));
            let form = gate.at(RELEASE).unwrap();
            assert_eq!((form.default, form.locked), (default, false), "{feature:?}");
        }
        let release = FeatureGates::default();
        assert_eq!(EnabledFeatures::new(|name| release.enabled(name), false), EnabledFeatures::RELEASE);
    }

    #[test]
    fn deprecated_feature_gate_warns() {
        let gate = GATES
            .iter()
            .filter(|gate| {
                gate.at(RELEASE).is_some_and(|form| form.stage == Stage::Deprecated && !form.locked)
            })
            .find(|gate| gates_without_effect::reason(gate, RELEASE).is_none())
            .unwrap();
        let setting: GateSetting = format!("{}=true", gate.name).parse().unwrap();
        assert!(setting.warning(RELEASE).unwrap().contains("deprecated"));
        assert_eq!("WatchList=true".parse::<GateSetting>().unwrap().warning(RELEASE), None);
    }

    #[test]
    fn emulated_release_has_its_own_gates_and_defaults() {
        for (minor, name, expected) in [
            (31, "AuthorizeWithSelectors", false),
            (32, "AuthorizeWithSelectors", true),
            (31, "WatchList", false),
            (32, "WatchList", true),
            (33, "WatchList", false),
            (32, "InPlacePodVerticalScaling", false),
            (32, "GitRepoVolumeDriver", true),
            (32, "MultiCIDRServiceAllocator", false),
            (31, "MutatingAdmissionPolicy", false),
        ] {
            assert_eq!(FeatureGates::new(&[], (1, minor)).enabled(name), expected, "{name} in 1.{minor}");
        }
        let names =
            |minor| FeatureGates::new(&[], (1, minor)).all().map(|(name, ..)| name).collect::<Vec<_>>();
        assert!(names(31).len() < names(32).len() && names(32).len() < names(33).len());
        assert!(
            !names(31).contains(&"MutatingAdmissionPolicy") && names(32).contains(&"MutatingAdmissionPolicy")
        );
        let (gates, _) = emulated(31, "AllAlpha=true");
        assert!(gates.enabled("AuthorizeWithSelectors") && !gates.enabled("MutatingAdmissionPolicy"));
    }

    #[test]
    fn settings_must_fit_the_emulated_release() {
        let refused = |minor, text| emulated(minor, text).1.unwrap_err();
        assert_eq!(
            refused(31, "MutatingAdmissionPolicy=true"),
            "cannot set feature gate MutatingAdmissionPolicy to true, feature is PreAlpha at emulated version 1.31"
        );
        assert_eq!(
            refused(32, "SidecarContainers=false"),
            "cannot set feature gate SidecarContainers to false: this server always has it on"
        );
        assert_eq!(
            refused(31, "AllowServiceLBStatusOnNonLB=true"),
            "cannot set feature gate AllowServiceLBStatusOnNonLB to true: this server always has it off"
        );
        assert_eq!(
            refused(32, "RetryGenerateName=false"),
            "cannot set feature gate RetryGenerateName to false, feature is locked to true"
        );
        for (minor, text) in
            [(32, "SidecarContainers=true"), (32, "BtreeWatchCache=false"), (32, "AllBeta=false")]
        {
            assert_eq!(emulated(minor, text).1, Ok(()), "{text}");
        }
        assert!(
            emulated(32, "AllBeta=false").0.enabled("SidecarContainers"),
            "there is no server without it"
        );
    }
}
