//! The release that this server reports: at `/version`, in its metrics, and as its user agent.

use std::str::FromStr;
use std::sync::Arc;
use std::{env, fmt};

use bytes::Bytes;
use pilothouse_apimachinery::time;
use pilothouse_cel::Semver;
use serde::Serialize;

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
pub struct Release(Arc<str>);

impl Default for Release {
    fn default() -> Release {
        Release(OWN_VERSION.into())
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
        Ok(Release(text.into()))
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
    emulation_major: &'static str,
    emulation_minor: &'static str,
    min_compatibility_major: &'static str,
    min_compatibility_minor: &'static str,
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
    /// The properties of this build.
    pub fn build(&self) -> Build<'_> {
        let arch = match env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Build {
            major: "1",
            minor: "33",
            emulation_major: "1",
            emulation_minor: "33",
            min_compatibility_major: "1",
            min_compatibility_minor: "32",
            git_version: &self.0,
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
