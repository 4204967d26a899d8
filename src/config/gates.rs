//! Feature gates: their names, stages and defaults, and how flags change them.

use std::collections::BTreeMap;
use std::str::FromStr;

use pilothouse_api::gates::{AUTHORIZE_NODE_WITH_SELECTORS, AUTHORIZE_WITH_SELECTORS};

use super::gates_table::GATES;
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
    One(&'static Gate),
    All(Stage),
    /// An empty entry.
    Nothing,
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
        let Subject::One(gate) = self.subject else { return None };
        let what = match gate.stage {
            Stage::Deprecated => "deprecated",
            Stage::Stable => "generally available",
            Stage::Alpha | Stage::Beta => return None,
        };
        let Gate { name, .. } = gate;
        Some(format!("feature gate {name} is {what}: it will be removed in a future release"))
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
            return Ok(GateSetting { subject: Subject::Nothing, enabled: false });
        }
        let missing = || format!("missing bool value for {}", text.trim());
        let (name, value) = text.split_once('=').ok_or_else(missing)?;
        let (name, value) = (name.trim(), value.trim());
        let enabled = go_bool(value).map_err(|why| format!("invalid value of {name}={value}: {why}"))?;
        let subject = match name {
            "AllAlpha" => Subject::All(Stage::Alpha),
            "AllBeta" => Subject::All(Stage::Beta),
            _ => Subject::One(find(name).ok_or_else(|| format!("unrecognized feature gate: {name}"))?),
        };
        if let Subject::One(Gate { locked: true, default, .. }) = subject
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
fn all_of(stage: Stage) -> &'static str {
    if stage == Stage::Alpha { "AllAlpha" } else { "AllBeta" }
}

fn find(name: &str) -> Option<&'static Gate> {
    let at = GATES.binary_search_by(|gate| gate.name.cmp(name)).ok()?;
    GATES.get(at)
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
            if let Subject::All(stage) = setting.subject {
                gates.insert(all_of(stage), setting.enabled);
                let of_stage = GATES.iter().filter(|gate| gate.stage == stage && !gate.locked);
                gates.extend(of_stage.map(|gate| (gate.name, setting.enabled)));
            }
        }
        for setting in settings {
            if let Subject::One(gate) = setting.subject {
                gates.insert(gate.name, setting.enabled);
            }
        }
        FeatureGates(gates)
    }

    /// Refuses gates that depend on others.
    pub fn validate(&self) -> Result<(), String> {
        let (open, needed) = (AUTHORIZE_NODE_WITH_SELECTORS, AUTHORIZE_WITH_SELECTORS);
        match self.enabled(open) && !self.enabled(needed) {
            true => Err(format!("{open} feature requires {needed} feature to be enabled")),
            false => Ok(()),
        }
    }

    /// Every gate with its stage and state, including `AllAlpha` and `AllBeta`.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        let every = [Stage::Alpha, Stage::Beta].map(|stage| (all_of(stage), stage));
        let named = every.into_iter().chain(GATES.iter().map(|gate| (gate.name, gate.stage)));
        named.map(|(name, stage)| (name, stage, self.enabled(name)))
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
        let settings: Vec<GateSetting> = text.split(',').map(|one| one.parse().unwrap()).collect();
        FeatureGates::new(&settings)
    }

    #[test]
    fn every_gate_that_the_server_asks_for_is_known() {
        for name in pilothouse_api::gates::ALL {
            assert!(find(name).is_some(), "{name}");
        }
    }

    #[test]
    fn the_table_is_sorted_so_that_every_gate_is_found() {
        assert!(GATES.is_sorted_by(|a, b| a.name < b.name));
        assert!(GATES.iter().all(|gate| find(gate.name) == Some(gate)));
    }

    #[test]
    fn defaults_are_those_of_the_release() {
        let gates = FeatureGates::default();
        for (name, on) in [
            ("CBORServingAndStorage", false),
            ("AllowUnsafeMalformedObjectDeletion", false),
            ("WatchList", false),
            ("APIResponseCompression", true),
            ("DeclarativeValidation", true),
            ("DeclarativeValidationTakeover", false),
            ("StructuredAuthenticationConfiguration", true),
        ] {
            assert_eq!(gates.enabled(name), on, "{name}");
        }
        assert!(!gates.enabled("NoSuchGate"));
    }

    #[test]
    fn an_entry_of_its_own_wins_over_all_of_a_stage() {
        let gates = gates("CBORServingAndStorage=false,AllAlpha=true,AllBeta=false,WatchList=true");
        assert!(!gates.enabled("CBORServingAndStorage"));
        assert!(gates.enabled("AllowUnsafeMalformedObjectDeletion"));
        assert!(!gates.enabled("APIResponseCompression"));
        assert!(gates.enabled("WatchList"));
    }

    #[test]
    fn what_cannot_be_set_is_refused() {
        let refused = |text: &str| text.parse::<GateSetting>().unwrap_err();
        assert_eq!(refused("Nonsense=true"), "unrecognized feature gate: Nonsense");
        assert_eq!(refused("WatchList"), "missing bool value for WatchList");
        assert!(refused("WatchList=perhaps").starts_with("invalid value of WatchList=perhaps"));
        let wrong = "cannot set feature gate SidecarContainers to false, feature is locked to true";
        assert_eq!(refused("SidecarContainers=false"), wrong);
        assert_eq!(refused("wardle:WatchList=true"), "component not registered: wardle");
    }

    #[test]
    fn what_can_be_set_is_taken() {
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
        assert!(!gates(",WatchList=true,,WatchList=false,").enabled("WatchList"), "the last one counts");
    }

    #[test]
    fn a_gate_that_needs_another_is_refused_without_it() {
        let wrong =
            "AuthorizeNodeWithSelectors feature requires AuthorizeWithSelectors feature to be enabled";
        assert_eq!(gates("AuthorizeWithSelectors=false").validate(), Err(wrong.to_owned()));
        assert_eq!(gates("AllBeta=false").validate(), Ok(()));
        assert_eq!(FeatureGates::default().validate(), Ok(()));
    }

    #[test]
    fn all_gates_can_be_told() {
        let told = gates("AllAlpha=true");
        assert!(told.all().any(|one| one == ("AllAlpha", Stage::Alpha, true)));
        assert!(told.all().any(|one| one == ("AllBeta", Stage::Beta, false)));
        assert!(told.all().any(|one| one == ("CBORServingAndStorage", Stage::Alpha, true)));
        assert_eq!(told.all().count(), GATES.len() + 2);
    }

    #[test]
    fn what_decides_about_objects_are_gates_with_the_same_defaults() {
        for (feature, on) in Feature::all() {
            let gate = find(&format!("{feature:?}")).unwrap_or_else(|| panic!("{feature:?}"));
            assert_eq!((gate.default, gate.locked), (on, false), "{feature:?}");
        }
        let release = FeatureGates::default();
        assert_eq!(EnabledFeatures::new(|name| release.enabled(name), false), EnabledFeatures::RELEASE);
    }

    #[test]
    fn gates_on_their_way_out_warn() {
        let open = GATES.iter().find(|gate| gate.stage == Stage::Deprecated && !gate.locked).unwrap();
        let setting: GateSetting = format!("{}=true", open.name).parse().unwrap();
        assert!(setting.warning().unwrap().contains("deprecated"));
        assert_eq!("WatchList=true".parse::<GateSetting>().unwrap().warning(), None);
    }
}
