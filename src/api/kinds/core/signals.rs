//! The signals that end containers.

use std::sync::LazyLock;

use crate::api::kinds::Errors;
use crate::api::kinds::check::Node;

/// What Linux knows, but for the signals that have numbers.
const PLAIN: [&str; 36] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGRTMIN",
    "SIGRTMAX",
];

/// Those that are counted from the first, and those that are counted from the last.
static LINUX: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut all: Vec<String> = PLAIN.iter().map(|name| (*name).to_owned()).collect();
    all.extend((1..=15).map(|number| format!("SIGRTMIN+{number}")));
    all.extend((1..=14).map(|number| format!("SIGRTMAX-{number}")));
    all.sort_unstable();
    all
});

/// Checks the signal that ends a container of a pod for this operating system.
pub fn validate(signal: &Node<'_>, os: Option<&str>, errors: &mut Errors) {
    match os {
        None => signal.forbidden(errors, "may not be set for containers with empty `spec.os.name`"),
        Some("windows") => signal.one_of(errors, &["SIGKILL", "SIGTERM"]),
        Some("linux") => {
            let known: Vec<&str> = LINUX.iter().map(String::as_str).collect();
            signal.one_of(errors, &known);
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{object, said};
    use super::*;

    #[test]
    fn signals_are_those_of_the_operating_system() {
        let wrong = |signal: &str, os: Option<&str>| {
            let (value, mut errors) = (object(&format!(r#"{{"s":"{signal}"}}"#)), Errors::new());
            validate(&Node::of(&value, "s"), os, &mut errors);
            said(&errors).concat()
        };
        assert_eq!(
            wrong("SIGTERM", None),
            "s: Forbidden: may not be set for containers with empty `spec.os.name`"
        );
        assert_eq!(
            wrong("SIGHUP", Some("windows")),
            "s: Unsupported value: \"SIGHUP\": supported values: \"SIGKILL\", \"SIGTERM\""
        );
        for good in ["SIGHUP", "SIGRTMIN+15", "SIGRTMAX-14", "SIGRTMAX"] {
            assert_eq!(wrong(good, Some("linux")), "");
        }
        assert!(
            wrong("SIGRTMAX-15", Some("linux"))
                .contains("\"SIGPWR\", \"SIGQUIT\", \"SIGRTMAX\", \"SIGRTMAX-1\", \"SIGRTMAX-10\"")
        );
    }
}
