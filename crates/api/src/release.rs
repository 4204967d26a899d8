//! Which release this server says it is: at `/version`, in its metrics, and to the servers that it asks.

use std::str::FromStr;
use std::sync::Arc;
use std::{env, fmt};

use bytes::Bytes;
use pilothouse_cel::Semver;
use serde::Serialize;

/// The release whose API is served, down to the patch that its behaviour was compared with.
pub const RELEASE: &str = "v1.33.12";

/// The version of this server: that release, and of what.
pub const OWN_VERSION: &str = concat!("v1.33.12+pilothouse-", env!("CARGO_PKG_VERSION"));

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

    /// Takes a version of the same release: clients conclude from the numbers what they can ask for.
    fn from_str(text: &str) -> Result<Release, String> {
        let numbers =
            |text: &str| Semver::parse(text.strip_prefix('v').unwrap_or(text)).map(|version| version.numbers);
        let asked =
            numbers(text).map_err(|why| format!("\"{text}\" is no version such as {RELEASE}-mine: {why}"))?;
        if numbers(RELEASE) != Ok(asked) {
            return Err(format!(
                "version \"{text}\" must match major/minor/patch of default version \"{RELEASE}\""
            ));
        }
        Ok(Release(text.into()))
    }
}

/// What is known of a build, under the names that `/version` and the metrics have for it.
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
    /// Nothing: builds do not depend on where their source lay.
    pub git_commit: &'static str,
    /// Whether the source was changed.
    pub git_tree_state: &'static str,
    /// The beginning of time: builds can be repeated.
    pub build_date: &'static str,
    /// Clients print this and the compiler; there is no Go here, so they say what there is instead.
    pub go_version: &'static str,
    /// What translated the source.
    pub compiler: &'static str,
    /// The system and the processor.
    pub platform: String,
}

impl Release {
    /// What is known of this build.
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
            git_commit: "",
            git_tree_state: "clean",
            build_date: "1970-01-01T00:00:00Z",
            go_version: "none",
            compiler: "rustc",
            platform: format!("{}/{arch}", env::consts::OS),
        }
    }

    /// The document at `/version`, laid out for people.
    pub fn document(&self) -> Bytes {
        #[expect(clippy::expect_used, reason = "a struct of texts has no form that cannot be written")]
        serde_json::to_vec_pretty(&self.build()).expect("a struct of texts").into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_document_has_every_field() {
        let version: Value = serde_json::from_slice(&Release::default().document()).unwrap();
        assert_eq!((&version["major"], &version["minor"]), (&Value::from("1"), &Value::from("33")));
        assert!(version["gitVersion"].as_str().unwrap().starts_with(&format!("{RELEASE}+")));
        assert_eq!(version.as_object().unwrap().len(), 13);
    }

    #[test]
    fn only_versions_of_the_same_release_are_taken() {
        for taken in [RELEASE, "v1.33.12-mine", "v1.33.12+pilothouse-0.1.0-mine", "1.33.12"] {
            assert_eq!(taken.parse::<Release>().map(|release| release.to_string()), Ok(taken.to_owned()));
        }
        for refused in ["", "v", "v1.33", "v1.33.11", "v1.34.12", "v2.33.12", "v1.33.12 ", "x", "v1.33.12+"] {
            assert!(refused.parse::<Release>().is_err(), "{refused}");
        }
    }
}
