//! Feature gates: their names, stages and defaults, and how flags change them.

use std::collections::BTreeMap;
use std::str::FromStr;

use pilothouse_api::gates::{AUTHORIZE_NODE_WITH_SELECTORS, AUTHORIZE_WITH_SELECTORS};

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
    /// The stage in this release.
    pub stage: Stage,
    /// Whether it is on by default.
    pub default: bool,
    /// Whether it can no longer be changed.
    pub locked: bool,
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
    pub fn warning(&self) -> Option<String> {
        let Subject::Gate(gate) = self.subject else { return None };
        if let Some(reason) = gates_without_effect::reason(gate) {
            return Some(format!("feature gate {} has no effect: {reason}", gate.name));
        }
        let stage = match gate.stage {
            Stage::Deprecated => "deprecated",
            Stage::Stable => "generally available",
            Stage::Alpha | Stage::Beta => return None,
        };
        let Gate { name, .. } = gate;
        Some(format!("feature gate {name} is {stage}: it will be removed in a future release"))
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
        if let Subject::Gate(Gate { locked: true, default, .. }) = subject
            && enabled != *default
        {
            return Err(format!(
                "cannot set feature gate {name} to {enabled}, feature is locked to {default}"
            ));
        }
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
#[derive(Clone, Debug, Default)]
pub struct FeatureGates(BTreeMap<&'static str, bool>);

impl FeatureGates {
    /// The defaults with `settings` applied. A gate's own entry takes precedence over `AllAlpha` and `AllBeta`, and a later entry
    /// over an earlier one.
    pub fn new(settings: &[GateSetting]) -> FeatureGates {
        let mut gates = BTreeMap::new();
        for setting in settings {
            if let Subject::Stage(stage) = setting.subject {
                gates.insert(stage_gate(stage), setting.enabled);
                let of_stage = GATES.iter().filter(|gate| gate.stage == stage && !gate.locked);
                gates.extend(of_stage.map(|gate| (gate.name, setting.enabled)));
            }
        }
        for setting in settings {
            if let Subject::Gate(gate) = setting.subject {
                gates.insert(gate.name, setting.enabled);
            }
        }
        FeatureGates(gates)
    }

    /// Refuses a gate whose required gate is off.
    pub fn validate(&self) -> Result<(), String> {
        let (gate, required) = (AUTHORIZE_NODE_WITH_SELECTORS, AUTHORIZE_WITH_SELECTORS);
        match self.enabled(gate) && !self.enabled(required) {
            true => Err(format!("{gate} feature requires {required} feature to be enabled")),
            false => Ok(()),
        }
    }

    /// Every gate with its stage and state, including `AllAlpha` and `AllBeta`.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        let stage_gates = [Stage::Alpha, Stage::Beta].map(|stage| (stage_gate(stage), stage));
        let all_gates = stage_gates.into_iter().chain(GATES.iter().map(|gate| (gate.name, gate.stage)));
        all_gates.map(|(name, stage)| (name, stage, self.enabled(name)))
    }

    /// Whether the feature is on. An unknown name is off.
    pub fn enabled(&self, name: &str) -> bool {
        self.0.get(name).copied().unwrap_or_else(|| find(name).is_some_and(|gate| gate.default))
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::features::{EnabledFeatures, Feature};

    use super::*;

    fn gates(text: &str) -> FeatureGates {
        let settings: Vec<GateSetting> = text.split(',').map(|entry| entry.parse().unwrap()).collect();
        FeatureGates::new(&settings)
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
        assert_eq!(parse_error("SidecarContainers=false"), expected);
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
        assert_eq!(gates("AuthorizeWithSelectors=false").validate(), Err(expected.to_owned()));
        assert_eq!(gates("AllBeta=false").validate(), Ok(()));
        assert_eq!(FeatureGates::default().validate(), Ok(()));
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
            assert_eq!((gate.default, gate.locked), (default, false), "{feature:?}");
        }
        let release = FeatureGates::default();
        assert_eq!(EnabledFeatures::new(|name| release.enabled(name), false), EnabledFeatures::RELEASE);
    }

    #[test]
    fn deprecated_feature_gate_warns() {
        let gate = GATES
            .iter()
            .filter(|gate| gate.stage == Stage::Deprecated && !gate.locked)
            .find(|gate| gates_without_effect::reason(gate).is_none())
            .unwrap();
        let setting: GateSetting = format!("{}=true", gate.name).parse().unwrap();
        assert!(setting.warning().unwrap().contains("deprecated"));
        assert_eq!("WatchList=true".parse::<GateSetting>().unwrap().warning(), None);
    }
}
