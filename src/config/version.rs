//! `--version`: prints the version, or sets the one that /version reports, as in kube-apiserver.

use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command};
use pilothouse_api::release::{OWN_VERSION, Release};

use super::values::go_bool;

const NAME: &str = "version";

#[derive(Clone)]
enum VersionFlag {
    /// Print the version and exit.
    Print,
    /// Start with the default release.
    Unset,
    /// Start and report this release.
    Report(Release),
}

impl FromStr for VersionFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<VersionFlag, String> {
        match text {
            "raw" => Ok(VersionFlag::Print),
            _ if text.starts_with('v') => text.parse().map(VersionFlag::Report),
            _ => go_bool(text).map(|print| if print { VersionFlag::Print } else { VersionFlag::Unset }),
        }
    }
}

/// The `--version` flag.
pub fn argument() -> Arg {
    Arg::new(NAME)
        .long(NAME)
        .help("Print the version, or start and report vX.Y.Z... to clients")
        .value_name("true|vX.Y.Z...")
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .value_parser(VersionFlag::from_str)
}

/// The release to report. A version that is printed instead is an error whose text is the version.
pub fn requested_release(matches: &ArgMatches) -> Result<Release, clap::Error> {
    match matches.get_one::<VersionFlag>(NAME) {
        Some(VersionFlag::Print) => Err(version_text()),
        Some(VersionFlag::Report(release)) => Ok(release.clone()),
        Some(VersionFlag::Unset) | None => Ok(Release::default()),
    }
}

/// The line that kube-apiserver prints, with this server's version. Scripts take its second word.
fn version_text() -> clap::Error {
    let program = Command::new("Kubernetes").version(OWN_VERSION);
    let result = program.try_get_matches_from(["", "--version"]);
    result.err().unwrap_or_else(|| clap::Error::new(ErrorKind::DisplayVersion))
}
