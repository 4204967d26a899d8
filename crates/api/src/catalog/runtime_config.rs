//! `--runtime-config`: enables and disables built-in versions and resources.

use std::collections::{BTreeMap, HashMap};

use pilothouse_apimachinery::field::quoted;
use pilothouse_apimachinery::version::{self, GroupVersion, Level};

use super::resource::Resource;

/// The keys for many versions, in order of precedence: later ones win.
const LEVELS: [(&str, Option<Level>); 4] = [
    ("api/all", None),
    ("api/ga", Some(Level::Stable)),
    ("api/beta", Some(Level::Beta)),
    ("api/alpha", Some(Level::Alpha)),
];

/// The reason that the flag is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeConfigError {
    /// Nothing would be served.
    #[error("invalid key with only api/all=false")]
    NothingLeft,
    /// The key is neither a level, a version nor a resource.
    #[error("runtime-config invalid key {0}")]
    Key(String),
    /// The value of a level is no boolean.
    #[error("invalid value {0}={1}")]
    LevelValue(String, String),
    /// The value of a version or resource is no boolean.
    #[error("invalid value of {0}: {1}, err: strconv.ParseBool: parsing {text}: invalid syntax", text = quoted(.1))]
    Value(String, String),
    /// No such group is built in.
    #[error("unknown api groups {0}")]
    Groups(String),
    /// The group exists, but not this version of it.
    #[error("group version {0} that has not been registered")]
    Version(String),
    /// A resource must be a lower-case plural.
    #[error("invalid key {0}: group/version/resource and resource is always lowercase plural, not {text}", text = quoted(.1))]
    Resource(String, String),
    /// The emulated release does not have the resource.
    #[error(
        "cannot enable resource {resource} in runtime-config because it is introduced at {introduced} after the current version \
         {release}. Consider setting --runtime-config-emulation-forward-compatible=true"
    )]
    ResourceOfLaterRelease {
        /// The resource.
        resource: String,
        /// The release that introduced it.
        introduced: String,
        /// The emulated release.
        release: String,
    },
    /// The emulated release has no resource of the version.
    #[error(
        "cannot enable version {version} in runtime-config because all the resources have been introduced after the current \
         version {release}. Consider setting --runtime-config-emulation-forward-compatible=true"
    )]
    VersionOfLaterRelease {
        /// The version.
        version: String,
        /// The emulated release.
        release: String,
    },
}

/// The parsed flag: keys and values, the last value of a key wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig(BTreeMap<String, String>);

/// The version or resource that a key names.
struct RuntimeConfigKey {
    gv: GroupVersion,
    resource: Option<String>,
}

/// The versions and resources that the flag enables or disables.
#[derive(Debug, Default)]
pub struct Switches {
    levels: Vec<(Option<Level>, bool)>,
    versions: HashMap<GroupVersion, bool>,
    resources: HashMap<(GroupVersion, String), bool>,
}

impl RuntimeConfig {
    /// Parses comma-separated `key[=value]` pairs; a missing value means true.
    pub fn parse(text: &str) -> Result<RuntimeConfig, RuntimeConfigError> {
        let pairs = text.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key.trim().to_owned(), value.trim().to_owned())
        });
        let config = RuntimeConfig(pairs.collect());
        if config.0.len() == 1 && config.0.get("api/all").is_some_and(|value| value == "false") {
            return Err(RuntimeConfigError::NothingLeft);
        }
        for key in config.0.keys().filter(|key| !is_level(key)) {
            parse_key(key)?;
        }
        Ok(config)
    }

    /// Checks the keys against the known versions. A removed version has no effect, as in the reference.
    pub fn resolve(&self, known: &[GroupVersion]) -> Result<Switches, RuntimeConfigError> {
        let mut switches = Switches::default();
        for (key, level) in LEVELS {
            if let Some(value) = self.0.get(key) {
                let on = match value.as_str() {
                    "" | "true" => true,
                    "false" => false,
                    _ => return Err(RuntimeConfigError::LevelValue(key.to_owned(), value.clone())),
                };
                switches.levels.push((level, on));
            }
        }
        let mut unknown = Vec::new();
        for (key, value) in self.0.iter().filter(|(key, _)| !is_level(key)) {
            let parsed = parse_key(key)?;
            if !known.iter().any(|gv| gv.group == parsed.gv.group) {
                unknown.push(parsed.gv.group.to_string());
                continue;
            }
            if !known.contains(&parsed.gv) {
                return Err(RuntimeConfigError::Version(parsed.gv.to_string()));
            }
            let on =
                parse_bool(value).ok_or_else(|| RuntimeConfigError::Value(key.clone(), value.clone()))?;
            match parsed.resource {
                None => switches.versions.insert(parsed.gv, on),
                Some(resource) if resource.to_lowercase() != resource => {
                    return Err(RuntimeConfigError::Resource(key.clone(), resource));
                }
                Some(resource) => switches.resources.insert((parsed.gv, resource), on),
            };
        }
        if unknown.is_empty() { Ok(switches) } else { Err(RuntimeConfigError::Groups(unknown.join(","))) }
    }
}

impl Switches {
    /// Whether the flag enables this very resource.
    pub fn enables_resource(&self, resource: &Resource) -> bool {
        self.resources.get(&(resource.gv.clone(), resource.plural.to_string())) == Some(&true)
    }

    /// Whether the flag enables this very version.
    pub fn enables_version(&self, version: &GroupVersion) -> bool {
        self.versions.get(version) == Some(&true)
    }

    /// Whether the flag disables the version or the resource by its name.
    pub fn disables(&self, resource: &Resource) -> bool {
        let by_name = self.resources.get(&(resource.gv.clone(), resource.plural.to_string()));
        by_name.or_else(|| self.versions.get(&resource.gv)) == Some(&false)
    }

    /// The setting for a resource; `None` if there is none. The most specific key wins.
    pub fn setting_for(&self, resource: &Resource) -> Option<bool> {
        let level = version::level(&resource.gv.version);
        let by_level = || {
            let applies = |switched: &Option<Level>| switched.is_none() || *switched == level;
            self.levels.iter().rev().find(|(switched, _)| applies(switched)).map(|(_, on)| *on)
        };
        self.resources
            .get(&(resource.gv.clone(), resource.plural.to_string()))
            .or_else(|| self.versions.get(&resource.gv))
            .copied()
            .or_else(by_level)
    }
}

fn is_level(key: &str) -> bool {
    LEVELS.iter().any(|(level, _)| *level == key)
}

/// Parses a key. The core group is written `v1` or `api/v1`.
fn parse_key(key: &str) -> Result<RuntimeConfigKey, RuntimeConfigError> {
    let tokens: Vec<&str> = key.split('/').collect();
    let (group, version, resource) = match tokens.as_slice() {
        [version] if version::level(version).is_some() => ("", *version, None),
        ["api", version] => ("", *version, None),
        ["api", version, resource] => ("", *version, Some(*resource)),
        [group, version] => (*group, *version, None),
        [group, version, resource] => (*group, *version, Some(*resource)),
        _ => return Err(RuntimeConfigError::Key(key.to_owned())),
    };
    Ok(RuntimeConfigKey { gv: GroupVersion::new(group, version), resource: resource.map(str::to_owned) })
}

fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::catalog::build::Builtin;

    fn serve(text: &str) -> Result<Catalog, String> {
        let config = RuntimeConfig::parse(text).map_err(|error| error.to_string())?;
        Builtin::load().unwrap().serve(&config).map_err(|error| error.to_string())
    }

    fn has(text: &str, group: &str, version: &str, plural: &str) -> bool {
        serve(text).unwrap().find(group, version, plural).is_some()
    }

    #[test]
    fn runtime_config_enables_and_disables_versions_and_resources() {
        let claims = ("resource.k8s.io", "v1beta1", "resourceclaims");
        for (text, expected) in [
            ("", false),
            ("api/beta=true", true),
            ("api/beta", true),
            ("api/all=true", true),
            ("api/alpha=true", false),
            ("resource.k8s.io/v1beta1", true),
            ("resource.k8s.io/v1beta1=1", true),
            ("resource.k8s.io/v1beta1/resourceclaims=true", true),
            ("resource.k8s.io/v1beta1/deviceclasses=true", false),
            ("api/all=true,api/beta=false", false),
            ("api/beta=true,resource.k8s.io/v1beta1=false", false),
            ("api/beta=true, resource.k8s.io/v1beta1/resourceclaims = false ", false),
            ("resource.k8s.io/v1beta1=false,resource.k8s.io/v1beta1/resourceclaims=true", true),
        ] {
            assert_eq!(has(text, claims.0, claims.1, claims.2), expected, "{text}");
        }
    }

    #[test]
    fn core_group_key_has_three_spellings() {
        for text in ["v1=false", "api/v1=false", "/v1=false"] {
            assert!(!has(text, "", "v1", "pods"), "{text}");
            assert!(has(text, "apps", "v1", "deployments"), "{text}");
        }
        assert!(!has("api/v1/pods=false", "", "v1", "pods"));
        assert!(has("api/v1/pods=false", "", "v1", "nodes"));
    }

    #[test]
    fn group_without_enabled_version_is_not_served() {
        assert!(serve("policy/v1=false").unwrap().group("policy").is_none());
    }

    #[test]
    fn removed_version_is_accepted_and_not_served() {
        for (group, version) in [
            ("authentication.k8s.io", "v1alpha1"),
            ("authentication.k8s.io", "v1beta1"),
            ("batch", "v1beta1"),
            ("extensions", "v1beta1"),
            ("apiregistration.k8s.io", "v1beta1"),
        ] {
            for rest in ["", "=true", "=false", "/selfsubjectreviews=true"] {
                let catalog = serve(&format!("{group}/{version}{rest}")).unwrap();
                let served = catalog
                    .resources()
                    .any(|resource| *resource.gv.group == *group && *resource.gv.version == *version);
                assert!(!served, "{group}/{version}{rest}");
            }
        }
        assert!(has("authentication.k8s.io/v1beta1", "authentication.k8s.io", "v1", "selfsubjectreviews"));
    }

    #[test]
    fn invalid_runtime_config_is_refused() {
        for (text, expected) in [
            ("api/all=false", "invalid key with only api/all=false"),
            ("pods", "runtime-config invalid key pods"),
            ("a/b/c/d", "runtime-config invalid key a/b/c/d"),
            ("api/ga=maybe", "invalid value api/ga=maybe"),
            ("zoo/v1,farm/v1=false", "unknown api groups farm,zoo"),
            ("batch/v1beta3", "group version batch/v1beta3 that has not been registered"),
            ("meta.k8s.io/v1", "unknown api groups meta.k8s.io"),
            (
                "apps/v1=on",
                r#"invalid value of apps/v1: on, err: strconv.ParseBool: parsing "on": invalid syntax"#,
            ),
            (
                "apps/v1/Deployments",
                r#"invalid key apps/v1/Deployments: group/version/resource and resource is always lowercase plural, not "Deployments""#,
            ),
        ] {
            assert_eq!(serve(text).unwrap_err(), expected, "{text}");
        }
    }
}
