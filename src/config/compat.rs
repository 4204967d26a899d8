//! Flags of kube-apiserver that have no meaning here. They are accepted, so that start scripts work, and logged with the reason, so that
//! operators notice. A flag that gains an effect moves to its group.

use clap::{Arg, ArgAction, ArgMatches, Command};

/// The value of a flag.
#[derive(Clone, Copy)]
enum ValueKind {
    /// None, or `=true`, or `=false`.
    Bool,
    /// Any text.
    Text,
}
use ValueKind::{Bool, Text};

/// A flag without effect.
struct Ineffective {
    name: &'static str,
    kind: ValueKind,
    /// Why, as the end of a sentence.
    reason: &'static str,
}

const HEADING: &str = "Accepted for compatibility, without effect";

const fn ineffective(name: &'static str, kind: ValueKind, reason: &'static str) -> Ineffective {
    Ineffective { name, kind, reason }
}

/// The flags without effect.
const INEFFECTIVE: &[Ineffective] = &[
    ineffective("kubelet-read-only-port", Text, "no request goes to that port, in the reference either"),
    ineffective("permit-address-sharing", Bool, "the socket always has SO_REUSEADDR"),
    ineffective("watch-cache", Bool, "objects are always served from memory"),
];

/// Adds the flags to a command.
pub(super) fn extend(command: Command) -> Command {
    let flag = |flag: &Ineffective| {
        let arg =
            Arg::new(flag.name).long(flag.name).help(format!("Accepted for compatibility: {}", flag.reason));
        let arg = arg.help_heading(HEADING).hide_short_help(true);
        match flag.kind {
            Bool => arg.action(ArgAction::Set).value_parser(clap::value_parser!(bool)),
            Text => arg.action(ArgAction::Append).allow_hyphen_values(true).value_name("VALUE"),
        }
    };
    command.args(INEFFECTIVE.iter().map(flag))
}

/// Log messages about the ineffective flags on the command line.
pub(super) fn ignored_flags(matches: &ArgMatches) -> Vec<String> {
    let is_set = |name: &str| matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine);
    let given = INEFFECTIVE.iter().filter(|flag| is_set(flag.name));
    let describe = |Ineffective { name, reason, .. }: &Ineffective| {
        format!("--{name} is accepted for compatibility and has no effect: {reason}")
    };
    given.map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatibility_flags_are_unique() {
        let mut names: Vec<_> = INEFFECTIVE.iter().map(|flag| &flag.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn ineffective_flags_are_logged_with_their_reason() {
        for Ineffective { name, kind, reason } in INEFFECTIVE {
            let value = if matches!(kind, Bool) { "true" } else { "1" };
            let line = ["pilothouse".to_owned(), format!("--{name}={value}")];
            let warnings = super::super::Config::parse(line).unwrap().warnings;
            assert!(matches!(warnings.as_slice(), [warning] if warning.ends_with(reason)), "{warnings:?}");
        }
    }
}
