//! Commands that do not start a server, selected by the first argument.

mod convert;
mod healthcheck;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;

/// A command that does not start a server.
trait Command: Parser {
    /// The first argument that selects it.
    const WORD: &str;
    /// Why it failed.
    type Failure: std::fmt::Display;

    fn run(&self) -> Result<(), Self::Failure>;
}

/// Runs the selected command, if there is one; answers its exit code.
pub fn run_if_asked(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    let word = arguments.next()?;
    if word == healthcheck::Options::WORD {
        return Some(run::<healthcheck::Options>(arguments));
    }
    (word == convert::Options::WORD).then(|| run::<convert::Options>(arguments))
}

fn run<C: Command>(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let command = match C::try_parse_from(arguments) {
        Ok(command) => command,
        Err(error) => {
            // Nothing can be done about an error output that is closed. Docker reserves exit code 2, which clap uses.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(io::stderr(), "pilothouse {}: {why}", C::WORD);
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_command_line_for_the_server_is_left_to_it() {
        let asked =
            |line: &str| run_if_asked(line.split(' ').map(OsString::from)).map(|code| format!("{code:?}"));
        for line in ["pilothouse", "pilothouse --data-dir healthcheck", "pilothouse --data-dir convert"] {
            assert_eq!(asked(line), None, "{line}");
        }
        let failure = Some(format!("{:?}", ExitCode::FAILURE));
        for line in [
            "pilothouse healthcheck --no-such-flag",
            "pilothouse healthcheck --client-key=alone",
            "pilothouse healthcheck --ca-file=no-such-file",
            "pilothouse convert --from json",
            "pilothouse convert --from json --to xml",
        ] {
            assert_eq!(asked(line), failure, "{line}");
        }
    }

    #[test]
    fn the_help_names_every_command() {
        let help = Config::parse(["pilothouse", "--help"]).unwrap_err().to_string();
        for word in [healthcheck::Options::WORD, convert::Options::WORD] {
            assert!(help.contains(&format!("\n  {word} ")), "{help}");
        }
    }
}
