//! Commands that do not start a server, selected by the first argument.

mod api_objects;
mod backup;
mod check;
mod connection;
mod convert;
mod copy;
mod export;
mod findings;
mod healthcheck;
mod import;
mod inspect;
mod lines;
mod migrate;
mod object_stream;
mod progress;
mod repair;
mod restore;
mod share_keys;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;

use crate::config::Config;

/// A command that does not start a server.
trait Command: Parser {
    /// The first argument, which selects the command.
    const NAME: &str;
    type Failure: std::fmt::Display;

    fn run(&self) -> Result<(), Self::Failure>;

    /// The exit code of a failure. Docker reserves 2.
    fn exit_code(_: &Self::Failure) -> ExitCode {
        ExitCode::FAILURE
    }
}

/// The command that prints the help of others.
const HELP: &str = "help";

/// Runs the selected command, if there is one, and returns its exit code.
pub fn run_if_selected(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    let name = arguments.next()?;
    if name == HELP { Some(print_help(arguments.next())) } else { run_selected(&name, arguments) }
}

/// Prints the help of a command, or of all that there is.
fn print_help(command: Option<OsString>) -> ExitCode {
    let Some(command) = command.filter(|command| command != HELP) else {
        // That is an error for the parser.
        if let Err(help) = Config::parse(["pilothouse", "--help"]) {
            let _ = help.print();
        }
        return ExitCode::SUCCESS;
    };
    run_selected(&command, ["--help".into()].into_iter()).unwrap_or_else(|| {
        let _ = writeln!(io::stderr(), "pilothouse help: there is no command {}", command.display());
        ExitCode::FAILURE
    })
}

/// `None` if there is no such command.
fn run_selected(name: &OsStr, arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    Some(match name.to_str()? {
        backup::Options::NAME => run::<backup::Options>(arguments),
        check::Options::NAME => run::<check::Options>(arguments),
        convert::Options::NAME => run::<convert::Options>(arguments),
        copy::Options::NAME => run::<copy::Options>(arguments),
        export::Options::NAME => run::<export::Options>(arguments),
        healthcheck::Options::NAME => run::<healthcheck::Options>(arguments),
        import::Options::NAME => run::<import::Options>(arguments),
        inspect::Options::NAME => run::<inspect::Options>(arguments),
        migrate::Options::NAME => run::<migrate::Options>(arguments),
        repair::Options::NAME => run::<repair::Options>(arguments),
        restore::Options::NAME => run::<restore::Options>(arguments),
        share_keys::Options::NAME => run::<share_keys::Options>(arguments),
        _ => return None,
    })
}

fn run<C: Command>(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let command = match C::try_parse_from(arguments) {
        Ok(command) => command,
        Err(error) => {
            // A closed standard error is ignored. Docker reserves exit code 2, which clap uses.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "pilothouse {}: {error}", C::NAME);
            C::exit_code(&error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn server_command_line_selects_no_command() {
        let exit_code =
            |line: &str| run_if_selected(line.split(' ').map(OsString::from)).map(|code| format!("{code:?}"));
        for line in ["pilothouse", "pilothouse --data-dir healthcheck", "pilothouse --data-dir convert"] {
            assert_eq!(exit_code(line), None, "{line}");
        }
        let failure = Some(format!("{:?}", ExitCode::FAILURE));
        for line in [
            "pilothouse healthcheck --no-such-flag",
            "pilothouse healthcheck --client-key=alone",
            "pilothouse healthcheck --ca-file=no-such-file",
            "pilothouse convert --from json",
            "pilothouse convert --from json --to xml",
            "pilothouse copy",
            "pilothouse copy --from-etcd http://127.0.0.1:1 --to-etcd http://127.0.0.1:2",
            "pilothouse migrate",
            "pilothouse migrate --all --kubeconfig=no-such-file",
            "pilothouse export --kubeconfig no-such-file",
            "pilothouse import --on-conflict maybe",
            "pilothouse check no-such-file",
            "pilothouse repair",
            "pilothouse repair --to a --replace",
            "pilothouse share-keys",
            "pilothouse share-keys a --admin-kubeconfig b",
            "pilothouse share-keys a --server https://b",
        ] {
            assert_eq!(exit_code(line), failure, "{line}");
        }
    }

    #[test]
    fn help_lists_every_command() {
        let help = Config::parse(["pilothouse", "--help"]).unwrap_err().to_string();
        for name in [
            healthcheck::Options::NAME,
            convert::Options::NAME,
            backup::Options::NAME,
            copy::Options::NAME,
            export::Options::NAME,
            import::Options::NAME,
            inspect::Options::NAME,
            check::Options::NAME,
            repair::Options::NAME,
            restore::Options::NAME,
            migrate::Options::NAME,
            share_keys::Options::NAME,
        ] {
            assert!(help.contains(&format!("\n  {name} ")), "{help}");
        }
    }
}
