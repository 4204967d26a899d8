//! Flags of kube-apiserver without effect here. They are accepted, so that start scripts work, and logged, so that operators
//! notice. Flags whose absence would make the server less secure than requested are refused. A flag that gains an effect moves to
//! `flag_groups.rs`.

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

const HEADING: &str = "Accepted for compatibility, without effect";

/// The flags without effect.
const INEFFECTIVE: &[(&str, ValueKind)] = &[
    ("allow-metric-labels", Text),
    ("allow-metric-labels-manifest", Text),
    ("contention-profiling", Bool),
    ("coordinated-leadership-lease-duration", Text),
    ("coordinated-leadership-renew-deadline", Text),
    ("coordinated-leadership-retry-period", Text),
    ("debug-socket-path", Text),
    ("default-watch-cache-size", Text),
    ("delete-collection-workers", Text),
    ("disabled-metrics", Text),
    ("emulated-version", Text),
    ("emulation-forward-compatible", Bool),
    ("enable-garbage-collector", Bool),
    ("enable-logs-handler", Bool),
    ("kubelet-read-only-port", Text),
    ("kubernetes-service-node-port", Text),
    ("log-flush-frequency", Text),
    ("log-json-info-buffer-size", Text),
    ("log-json-split-stream", Bool),
    ("log-text-info-buffer-size", Text),
    ("log-text-split-stream", Bool),
    ("max-connection-bytes-per-sec", Text),
    ("permit-address-sharing", Bool),
    ("permit-port-sharing", Bool),
    ("runtime-config-emulation-forward-compatible", Bool),
    ("show-hidden-metrics-for-version", Text),
    ("shutdown-send-retry-after", Bool),
    ("shutdown-watch-termination-grace-period", Text),
    ("tracing-config-file", Text),
    ("watch-cache", Bool),
    ("watch-cache-sizes", Text),
];

/// Flags of [`INEFFECTIVE`] that would restrict something, with the log message about what stays unrestricted.
const INEFFECTIVE_RESTRICTIONS: &[(&str, &str)] = &[
    ("allow-metric-labels", "metrics have all values of their labels"),
    ("allow-metric-labels-manifest", "metrics have all values of their labels"),
    ("disabled-metrics", "all metrics are shown"),
    ("emulated-version", "features and kinds of later releases stay on"),
    ("max-connection-bytes-per-sec", "connections are not throttled"),
];

/// Security flags that are not supported here. They are refused, because ignoring them would be unsafe.
const REFUSED: &[(&str, &str)] = &[
    ("egress-selector-config-file", "this server connects directly and would bypass the proxy"),
    ("service-account-signing-endpoint", "this server signs tokens only with its own keys"),
];

/// Adds the flags to a command.
pub(super) fn extend(command: Command) -> Command {
    let flag = |&(name, kind): &(&'static str, ValueKind)| {
        let arg = Arg::new(name).long(name).help("Accepted for compatibility");
        let arg = arg.help_heading(HEADING).hide_short_help(true);
        match kind {
            Bool => arg.action(ArgAction::Set).value_parser(clap::value_parser!(bool)),
            Text => arg.action(ArgAction::Append).allow_hyphen_values(true).value_name("VALUE"),
        }
    };
    command.args(INEFFECTIVE.iter().map(flag)).args(REFUSED.iter().map(|(name, reason)| {
        let only_empty = |text: &str| if text.is_empty() { Ok(String::new()) } else { Err(*reason) };
        let arg = Arg::new(*name).long(*name).value_name("VALUE").value_parser(only_empty);
        arg.help(format!("Refused: {reason}")).help_heading("Refused").hide_short_help(true)
    }))
}

/// Log messages about the ineffective flags on the command line.
pub(super) fn ignored_flags(matches: &ArgMatches) -> Vec<String> {
    let is_set = |name: &str| matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine);
    let given = INEFFECTIVE.iter().filter(|(name, _)| is_set(name));
    given
        .map(|(name, _)| {
            let unrestricted = INEFFECTIVE_RESTRICTIONS.iter().find(|(flag, _)| flag == name);
            let unrestricted = unrestricted.map(|(_, effect)| format!(": {effect}")).unwrap_or_default();
            format!("--{name} is accepted for compatibility and has no effect{unrestricted}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatibility_flags_are_unique() {
        let refused = REFUSED.iter().map(|(name, _)| name);
        let mut names: Vec<_> = INEFFECTIVE.iter().map(|(name, _)| name).chain(refused).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn ineffective_restrictions_are_logged() {
        for (name, unrestricted) in INEFFECTIVE_RESTRICTIONS {
            assert!(INEFFECTIVE.iter().any(|(flag, _)| flag == name), "{name}");
            let line = ["pilothouse".to_owned(), format!("--{name}=1")];
            let warnings = super::super::Config::parse(line).unwrap().warnings;
            assert!(
                matches!(warnings.as_slice(), [warning] if warning.ends_with(unrestricted)),
                "{warnings:?}"
            );
        }
    }
}
