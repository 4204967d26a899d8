//! How much a metric may change, as the reference says it in the help of each. It has no class for those about the process, nor for the
//! metrics that only this server has: docs/upgrades.md promises of them what BETA promises.

/// The class of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stability {
    /// It may change or go at any time.
    Alpha,
    /// Its labels only grow.
    Beta,
    /// It stays.
    Stable,
}

impl Stability {
    /// The name in help texts and labels.
    pub(super) fn word(self) -> &'static str {
        match self {
            Stability::Alpha => "ALPHA",
            Stability::Beta => "BETA",
            Stability::Stable => "STABLE",
        }
    }
}

const STABLE: [&str; 13] = [
    "apiserver_admission_controller_admission_duration_seconds",
    "apiserver_admission_step_admission_duration_seconds",
    "apiserver_admission_webhook_admission_duration_seconds",
    "apiserver_current_inflight_requests",
    "apiserver_longrunning_requests",
    "apiserver_request_duration_seconds",
    "apiserver_request_total",
    "apiserver_requested_deprecated_apis",
    "apiserver_response_sizes",
    "apiserver_storage_objects",
    "apiserver_storage_size_bytes",
    "kubernetes_healthcheck",
    "kubernetes_healthchecks_total",
];

const BETA: [&str; 15] = [
    "apiserver_cel_compilation_duration_seconds",
    "apiserver_cel_evaluation_duration_seconds",
    "apiserver_flowcontrol_current_executing_requests",
    "apiserver_flowcontrol_current_executing_seats",
    "apiserver_flowcontrol_current_inqueue_requests",
    "apiserver_flowcontrol_dispatched_requests_total",
    "apiserver_flowcontrol_nominal_limit_seats",
    "apiserver_flowcontrol_rejected_requests_total",
    "apiserver_flowcontrol_request_wait_duration_seconds",
    "apiserver_validating_admission_policy_check_duration_seconds",
    "apiserver_validating_admission_policy_check_total",
    "disabled_metrics_total",
    "hidden_metrics_total",
    "kubernetes_feature_enabled",
    "registered_metrics_total",
];

const WITHOUT_CLASS: [&str; 2] = ["pilothouse_", "process_"];
const START_TIME: &str = "process_start_time_seconds";

/// The class of a metric; `None` if it has none.
pub(super) fn stability(name: &str) -> Option<Stability> {
    if WITHOUT_CLASS.iter().any(|prefix| name.starts_with(prefix)) && name != START_TIME {
        None
    } else if STABLE.contains(&name) {
        Some(Stability::Stable)
    } else if BETA.contains(&name) {
        Some(Stability::Beta)
    } else {
        Some(Stability::Alpha)
    }
}

/// The help of a metric, with its class.
pub(super) fn help(name: &str, help: &str) -> String {
    match stability(name) {
        Some(stability) => format!("[{}] {help}", stability.word()),
        None => help.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_begins_with_the_class() {
        for (name, expected) in [
            ("apiserver_request_total", "[STABLE] h"),
            ("kubernetes_feature_enabled", "[BETA] h"),
            ("apiserver_watch_events_total", "[ALPHA] h"),
            ("process_start_time_seconds", "[ALPHA] h"),
            ("process_open_fds", "h"),
            ("pilothouse_watch_lag_seconds", "h"),
        ] {
            assert_eq!(help(name, "h"), expected, "{name}");
        }
    }
}
