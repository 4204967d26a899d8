//! The stop signals of containers.

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field_value::FieldValue;

use crate::allowed::core_v1;

/// Checks the stop signal of a container for this OS.
pub fn validate(signal: &FieldValue<'_>, os: Option<&str>, errors: &mut ErrorList) {
    match os {
        None => signal.forbidden(errors, "may not be set for containers with empty `spec.os.name`"),
        // The published values are those of Linux.
        Some("windows") => signal.one_of(errors, &["SIGKILL", "SIGTERM"]),
        Some("linux") => signal.one_of(errors, core_v1::Lifecycle::STOP_SIGNAL),
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{error_messages, object};

    use super::*;

    #[test]
    fn stop_signal_must_be_supported_by_the_os() {
        let messages = |signal: &str, os: Option<&str>| {
            let (value, mut errors) = (object(&format!(r#"{{"s":"{signal}"}}"#)), ErrorList::new());
            validate(&FieldValue::top_level(&value, "s"), os, &mut errors);
            error_messages(&errors).concat()
        };
        assert_eq!(
            messages("SIGTERM", None),
            "s: Forbidden: may not be set for containers with empty `spec.os.name`"
        );
        assert_eq!(
            messages("SIGHUP", Some("windows")),
            "s: Unsupported value: \"SIGHUP\": supported values: \"SIGKILL\", \"SIGTERM\""
        );
        for signal in ["SIGHUP", "SIGRTMIN+15", "SIGRTMAX-14", "SIGRTMAX"] {
            assert_eq!(messages(signal, Some("linux")), "");
        }
        assert!(
            messages("SIGRTMAX-15", Some("linux"))
                .contains("\"SIGPWR\", \"SIGQUIT\", \"SIGRTMAX\", \"SIGRTMAX-1\", \"SIGRTMAX-10\"")
        );
    }
}
