//! The release that this server reports: at `/version`, in its metrics, and as its user agent.

use std::str::FromStr;
use std::sync::Arc;
use std::{env, fmt};

use bytes::Bytes;
use pilothouse_apimachinery::semver::Semver;
use pilothouse_apimachinery::time;
use pilothouse_apimachinery::version::{MinorVersion, RELEASE as CURRENT};
use serde::Serialize;

use crate::emulation::min_compatibility;

/// The release whose API is served, down to the patch that its behaviour was compared with.
pub const RELEASE: &str = "v1.33.12";

/// The default version of this server: the release, with the build of this server. Without a dash: some tools take what is behind one for
/// a mark of a prerelease, and cut there.
pub const OWN_VERSION: &str = concat!("v1.33.12+pilothouse.", env!("CARGO_PKG_VERSION"));

/// The commit that was built, if the builder names it.
const COMMIT: Option<&str> = option_env!("PILOTHOUSE_COMMIT");

/// When it was built, in seconds, if the builder says so: the usual variable of reproducible builds.
const BUILT_AT: Option<&str> = option_env!("SOURCE_DATE_EPOCH");

/// The version that a server tells its clients. Some of them insist on their own (`kubectl --match-server-version`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    version: Arc<str>,
    /// The release that is emulated.
    emulated: MinorVersion,
}

impl Default for Release {
    fn default() -> Release {
        Release { version: OWN_VERSION.into(), emulated: CURRENT }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.version)
    }
}

impl FromStr for Release {
    type Err = String;

    /// Accepts only versions of the same release: clients infer supported features from the numbers.
    fn from_str(text: &str) -> Result<Release, String> {
        let numbers =
            |text: &str| Semver::parse(text.strip_prefix('v').unwrap_or(text)).map(|semver| semver.numbers);
        let version = numbers(text)
            .map_err(|error| format!("\"{text}\" is no version such as {RELEASE}-mine: {error}"))?;
        if numbers(RELEASE) != Ok(version) {
            return Err(format!(
                "version \"{text}\" must match major/minor/patch of default version \"{RELEASE}\""
            ));
        }
        Ok(Release { version: text.into(), ..Release::default() })
    }
}

/// The properties of a build, named as in `/version` and in metrics.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Build<'a> {
    /// The first number of the release.
    pub major: &'static str,
    /// The second number of the release.
    pub minor: &'static str,
    /// The first number of the emulated release.
    pub emulation_major: String,
    /// The second number of the emulated release.
    pub emulation_minor: String,
    min_compatibility_major: String,
    min_compatibility_minor: String,
    /// The whole version.
    pub git_version: &'a str,
    /// The commit that was built; empty if the builder did not name it.
    pub git_commit: &'static str,
    /// `clean`, because uncommitted changes are not detected.
    pub git_tree_state: &'static str,
    /// The time of `SOURCE_DATE_EPOCH` during the build, so that builds are reproducible; without it the Unix epoch.
    pub build_date: String,
    /// Printed by clients. There is no Go here.
    pub go_version: &'static str,
    /// Printed by clients.
    pub compiler: &'static str,
    /// Operating system and architecture, in Go's names.
    pub platform: String,
}

impl Release {
    /// The same, emulating an earlier release.
    #[must_use]
    pub fn emulating(self, emulated: MinorVersion) -> Release {
        Release { emulated, ..self }
    }

    /// The properties of this build.
    pub fn build(&self) -> Build<'_> {
        let arch = match env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let compatibility = min_compatibility(self.emulated);
        Build {
            major: "1",
            minor: "33",
            emulation_major: self.emulated.0.to_string(),
            emulation_minor: self.emulated.1.to_string(),
            min_compatibility_major: compatibility.0.to_string(),
            min_compatibility_minor: compatibility.1.to_string(),
            git_version: &self.version,
            git_commit: COMMIT.unwrap_or_default(),
            git_tree_state: "clean",
            build_date: time::format_seconds(BUILT_AT.and_then(|seconds| seconds.parse().ok()).unwrap_or(0)),
            go_version: "none",
            compiler: "rustc",
            platform: format!("{}/{arch}", env::consts::OS),
        }
    }

    /// The document at `/version`, indented.
    pub fn document(&self) -> Bytes {
        #[expect(clippy::expect_used, reason = "serializing a struct of strings cannot fail")]
        serde_json::to_vec_pretty(&self.build()).expect("a struct of strings").into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn version_document_has_all_fields() {
        let version: Value = serde_json::from_slice(&Release::default().document()).unwrap();
        assert_eq!((&version["major"], &version["minor"]), (&Value::from("1"), &Value::from("33")));
        assert!(version["gitVersion"].as_str().unwrap().starts_with(&format!("{RELEASE}+")));
        assert_eq!(version.as_object().unwrap().len(), 13);
    }

    #[test]
    fn version_document_tells_the_emulated_release() {
        for (minor, compatibility) in [(31, "31"), (32, "31"), (33, "32")] {
            let document = Release::default().emulating((1, minor)).document();
            let version: Value = serde_json::from_slice(&document).unwrap();
            assert_eq!(version["minor"], "33");
            assert_eq!(version["emulationMajor"], "1");
            assert_eq!(version["emulationMinor"], minor.to_string());
            assert_eq!(version["minCompatibilityMinor"], compatibility);
        }
    }

    #[test]
    fn only_versions_of_the_same_release_are_accepted() {
        for accepted in [RELEASE, "v1.33.12-mine", "v1.33.12+pilothouse-0.1.0-mine", "1.33.12"] {
            assert_eq!(
                accepted.parse::<Release>().map(|release| release.to_string()),
                Ok(accepted.to_owned())
            );
        }
        for refused in ["", "v", "v1.33", "v1.33.11", "v1.34.12", "v2.33.12", "v1.33.12 ", "x", "v1.33.12+"] {
            assert!(refused.parse::<Release>().is_err(), "{refused}");
        }
    }
}
