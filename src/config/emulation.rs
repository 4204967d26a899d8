//! `--emulated-version` and its neighbours: the release whose gates, resources and functions of expressions are served.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use clap::Args;
use pilothouse_api::emulation::{Emulation, OLDEST};
use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::version::{MinorVersion, RELEASE};

/// The component that this server is, and the default of an entry.
const COMPONENT: &str = "kube";

/// The release that is emulated.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "API and admission")]
pub struct EmulationFlags {
    /// Emulate the gates, resources and CEL functions of an earlier release, 1.31 or 1.32.
    #[arg(long, value_delimiter = ',', value_name = "[kube=]MAJOR.MINOR")]
    pub emulated_version: Vec<ComponentVersion>,
    /// Serve later versions of the resources of beta and stable versions too, although the emulated release did not have them.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub emulation_forward_compatible: bool,
    /// Let --runtime-config enable versions and resources that the emulated release did not have.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub runtime_config_emulation_forward_compatible: bool,
}

/// An entry of `--emulated-version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentVersion {
    component: String,
    /// The numbers of the version: at least two.
    numbers: Vec<u32>,
}

impl ComponentVersion {
    fn minor_version(&self) -> MinorVersion {
        let number = |index: usize| self.numbers.get(index).copied().unwrap_or_default();
        (number(0), number(1))
    }
}

impl fmt::Display for ComponentVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.numbers.iter().map(u32::to_string).collect();
        write!(f, "{}={}", self.component, numbers.join("."))
    }
}

impl FromStr for ComponentVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<ComponentVersion, String> {
        let (component, version) = text
            .split_once('=')
            .map_or((COMPONENT, text), |(component, version)| (component.trim(), version.trim()));
        let numbers = parse_numbers(version)?;
        let entry = ComponentVersion { component: component.to_owned(), numbers };
        if entry.numbers.get(2).is_some_and(|patch| *patch != 0) {
            return Err(format!("patch version not allowed, got: {entry}"));
        }
        if component != COMPONENT {
            return Err(format!("component not registered: {component}"));
        }
        Ok(entry)
    }
}

/// The numbers that a version begins with. What follows them is ignored, as in the reference.
fn parse_numbers(text: &str) -> Result<Vec<u32>, String> {
    let unparsable = || format!("could not parse {} as version", quoted(text));
    let start = text.trim_start();
    let start = start.strip_prefix('v').unwrap_or(start);
    let mut numbers = Vec::new();
    let mut rest = Some(start);
    while let Some(text_left) = rest {
        let digits = text_left.bytes().take_while(u8::is_ascii_digit).count();
        let Some((number, after)) =
            text_left.split_at_checked(digits).filter(|(number, _)| !number.is_empty())
        else {
            break;
        };
        if numbers.is_empty() && number.len() > 1 && number.starts_with('0') {
            return Err(format!(
                "illegal zero-prefixed version component {} in {}",
                quoted(number),
                quoted(text)
            ));
        }
        numbers.push(number.parse().map_err(|_| unparsable())?);
        rest = after.strip_prefix('.');
    }
    match numbers.len() {
        0 => Err(unparsable()),
        1 => Err(format!("illegal version string {}", quoted(text))),
        _ => Ok(numbers),
    }
}

impl EmulationFlags {
    /// The emulated release; by default that of this server.
    pub fn release(&self) -> MinorVersion {
        self.emulated_version.last().map_or(RELEASE, ComponentVersion::minor_version)
    }

    /// What decides about served resources.
    pub fn emulation(&self) -> Emulation {
        Emulation {
            release: self.release(),
            forward_compatible: self.emulation_forward_compatible,
            runtime_config_forward_compatible: self.runtime_config_emulation_forward_compatible,
        }
    }

    /// Refuses a release that cannot be emulated, and the other flags without an emulated release.
    pub(super) fn validate(&self) -> Result<(), String> {
        let mut seen: BTreeMap<&str, &ComponentVersion> = BTreeMap::new();
        for entry in &self.emulated_version {
            if let Some(earlier) = seen.insert(&entry.component, entry) {
                return Err(format!("duplicate version flag, {earlier} and {entry}"));
            }
        }
        let (release, (major, minor)) = (self.release(), RELEASE);
        if release > RELEASE || release < OLDEST {
            return Err(format!(
                "emulation version {}.{} is not between [{}.{}, {major}.{minor}.0]",
                release.0, release.1, OLDEST.0, OLDEST.1
            ));
        }
        let needs_emulation = [
            (self.emulation_forward_compatible, "EmulationForwardCompatible"),
            (self.runtime_config_emulation_forward_compatible, "RuntimeConfigEmulationForwardCompatible"),
        ];
        match needs_emulation.iter().find(|(is_set, _)| *is_set && release == RELEASE) {
            Some((_, name)) => Err(format!(
                "ServerRunOptions.{name} cannot be set to true if the emulation version is the same as the binary version"
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &str) -> Result<EmulationFlags, String> {
        let entries: Result<Vec<ComponentVersion>, String> = text.split(',').map(str::parse).collect();
        Ok(EmulationFlags { emulated_version: entries?, ..EmulationFlags::default() })
    }

    #[test]
    fn emulated_version_has_two_forms() {
        for text in ["1.32", "kube=1.32", " v1.32", "kube = 1.32.0", "1.32-alpha"] {
            let flags = flags(text).unwrap();
            assert_eq!((flags.release(), flags.validate()), ((1, 32), Ok(())), "{text}");
        }
        assert_eq!(EmulationFlags::default().release(), RELEASE);
    }

    #[test]
    fn other_versions_are_refused_in_the_words_of_the_reference() {
        for (text, expected) in [
            ("", r#"could not parse "" as version"#),
            ("1", r#"illegal version string "1""#),
            ("new", r#"could not parse "new" as version"#),
            ("01.32", r#"illegal zero-prefixed version component "01" in "01.32""#),
            ("1.32.4", "patch version not allowed, got: kube=1.32.4"),
            ("wardle=1.2", "component not registered: wardle"),
            ("1.32,kube=1.31", "duplicate version flag, kube=1.32 and kube=1.31"),
            ("1.30", "emulation version 1.30 is not between [1.31, 1.33.0]"),
            ("1.34", "emulation version 1.34 is not between [1.31, 1.33.0]"),
            ("2.32", "emulation version 2.32 is not between [1.31, 1.33.0]"),
        ] {
            let result = flags(text).and_then(|flags| flags.validate());
            assert_eq!(result, Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn forward_compatibility_needs_an_emulated_release() {
        for (text, is_valid) in [("1.31", true), ("1.33", false)] {
            for (all, by_flag) in [(true, false), (false, true)] {
                let flags = EmulationFlags {
                    emulation_forward_compatible: all,
                    runtime_config_emulation_forward_compatible: by_flag,
                    ..flags(text).unwrap()
                };
                assert_eq!(flags.validate().is_ok(), is_valid, "{text}");
            }
        }
    }
}
