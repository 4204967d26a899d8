//! `--version`: prints the version, or sets the one that clients are told, as in the reference server.

use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command};
use pilothouse_api::release::{OWN_VERSION, Release};

use super::values::go_bool;

const NAME: &str = "version";

#[derive(Clone)]
enum Wanted {
    /// Print it and stop.
    Printed,
    /// Start, with the usual one.
    Nothing,
    /// Start, with this one.
    Reported(Release),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        match text {
            "raw" => Ok(Wanted::Printed),
            _ if text.starts_with('v') => text.parse().map(Wanted::Reported),
            _ => go_bool(text).map(|print| if print { Wanted::Printed } else { Wanted::Nothing }),
        }
    }
}

/// The flag.
pub fn argument() -> Arg {
    Arg::new(NAME)
        .long(NAME)
        .help("Print the version, or start and report vX.Y.Z... to clients")
        .value_name("true|vX.Y.Z...")
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .value_parser(Wanted::from_str)
}

/// The release to report. What is to be printed instead of a start comes as an error that shows itself.
pub fn asked(matches: &ArgMatches) -> Result<Release, clap::Error> {
    match matches.get_one::<Wanted>(NAME) {
        Some(Wanted::Printed) => Err(printed()),
        Some(Wanted::Reported(release)) => Ok(release.clone()),
        Some(Wanted::Nothing) | None => Ok(Release::default()),
    }
}

/// The line that the reference server prints, with this server's version. Scripts take its second word.
fn printed() -> clap::Error {
    let program = Command::new("Kubernetes").version(OWN_VERSION);
    let shown = program.try_get_matches_from(["", "--version"]);
    shown.err().unwrap_or_else(|| clap::Error::new(ErrorKind::DisplayVersion))
}
