//! What counts, and what the page shows of it.

use std::time::Duration;

use pilothouse_api::audit::Level;
use pilothouse_api::custom_resource::conversion::FailureKind;
use pilothouse_etcd_log::Observer as _;
use pilothouse_types::memory::MemoryLedger;

use super::admission_webhooks::{Fault, WebhookLabels};
use super::authentication::Attempt;
use super::authorization_webhooks::{AuthorizationResult, CallResult};
use super::conversion::ConversionLabels;
use super::*;

/// The page after `count`, which has these lines.
fn expect_lines(count: impl FnOnce(&Metrics), lines: &[&str]) {
    let metrics = Metrics::new(Timestamp(0)).unwrap();
    count(&metrics);
    let page = String::from_utf8(metrics.text().unwrap()).unwrap();
    for line in lines {
        assert!(page.contains(&format!("\n{line}\n")), "{line} in\n{page}");
    }
}

const MILLISECONDS: Duration = Duration::from_millis(30);

#[test]
fn webhooks_are_counted() {
    let labels = WebhookLabels { name: "h", sort: "admit", operation: "CREATE" };
    expect_lines(
        |metrics| {
            metrics.hooks.count_call(labels, 0.03, 200, None);
            metrics.hooks.count_call(labels, 0.03, 400, Some(Fault::Calling));
            metrics.hooks.count_fail_open(labels);
            let webhook = metrics.authorization.webhook("a");
            webhook.count_call(CallResult::Timeout, 0.03);
            webhook.count_fail_open(CallResult::Timeout);
            webhook.count_match(0.03, true, true);
        },
        &[
            r#"apiserver_admission_webhook_admission_duration_seconds_bucket{name="h",operation="CREATE",rejected="false",type="admit",le="0.1"} 1"#,
            r#"apiserver_admission_webhook_request_total{code="200",name="h",operation="CREATE",rejected="false",type="admit"} 1"#,
            r#"apiserver_admission_webhook_rejection_count{error_type="calling_webhook_error",name="h",operation="CREATE",rejection_code="400",type="admit"} 1"#,
            r#"apiserver_admission_webhook_fail_open_count{name="h",type="admit"} 1"#,
            r#"apiserver_authorization_webhook_evaluations_total{name="a",result="timeout"} 1"#,
            r#"apiserver_authorization_webhook_duration_seconds_count{name="a",result="timeout"} 1"#,
            r#"apiserver_authorization_webhook_evaluations_fail_open_total{name="a",result="timeout"} 1"#,
            r#"apiserver_authorization_match_condition_evaluation_errors_total{name="a",type="Webhook"} 1"#,
            r#"apiserver_authorization_match_condition_evaluation_seconds_count{name="a",type="Webhook"} 1"#,
            r#"apiserver_authorization_match_condition_exclusions_total{name="a",type="Webhook"} 1"#,
        ],
    );
}

#[test]
fn conversions_are_counted() {
    let labels = ConversionLabels { definition: "kites.toys.example", from: "v1", to: "v2" };
    expect_lines(
        |metrics| {
            metrics.conversions.count_call(labels, 0.03, None);
            metrics.conversions.count_call(labels, 0.03, Some(FailureKind::Partial));
        },
        &[
            r#"apiserver_conversion_webhook_request_total{failure_type="",result="success"} 1"#,
            r#"apiserver_conversion_webhook_duration_seconds_bucket{failure_type="",result="success",le="0.05"} 1"#,
            r#"apiserver_crd_conversion_webhook_duration_seconds_count{crd_name="kites.toys.example",from_version="v1",succeeded="false",to_version="v2"} 1"#,
        ],
    );
}

#[test]
fn audit_events_are_counted() {
    expect_lines(
        |metrics| {
            metrics.audit.count_level(Level::Request);
            metrics.audit.count_lost("buffered", 3, "full");
            metrics.audit.count_event();
            metrics.audit.count_rejected();
        },
        &[
            r#"apiserver_audit_level_total{level="Request"} 1"#,
            r#"apiserver_audit_error_total{plugin="buffered"} 3"#,
            "apiserver_audit_event_total 1",
            "apiserver_audit_requests_rejected_total 1",
        ],
    );
}

#[test]
fn authentication_and_authorization_are_counted() {
    expect_lines(
        |metrics| {
            metrics.authentication.count_cache_lookup(false, MILLISECONDS);
            metrics.authentication.count_attempt(Attempt::Success, None, MILLISECONDS);
            metrics.authentication.certificate_left.observe(86_000.0);
            metrics.authentication.count_reload(true, Timestamp(5_000_000));
            metrics.authentication.latency("https://issuer").count(true, MILLISECONDS);
            metrics.authorization.count_reload(false, Timestamp(6_000_000));
            metrics.authorization.count_authorized(AuthorizationResult::Denied, 0.03);
            metrics.authorization.decisions("RBAC", "rbac").iter().for_each(IntCounter::inc);
        },
        &[
            r#"authentication_token_cache_request_duration_seconds_count{status="miss"} 1"#,
            r#"apiserver_client_certificate_expiration_seconds_bucket{le="86400"} 1"#,
            r#"apiserver_authentication_config_controller_automatic_reloads_total{apiserver_id_hash="",status="success"} 1"#,
            r#"apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds{apiserver_id_hash="",status="success"} 5"#,
            r#"apiserver_authorization_config_controller_automatic_reloads_total{apiserver_id_hash="",status="failure"} 1"#,
            r#"apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds{apiserver_id_hash="",status="failure"} 6"#,
            r#"authorization_attempts_total{result="denied"} 1"#,
            r#"authorization_duration_seconds_bucket{result="denied",le="0.032"} 1"#,
            r#"apiserver_authorization_decisions_total{decision="denied",name="rbac",type="RBAC"} 1"#,
        ],
    );
}

#[test]
fn policies_and_rules_are_counted() {
    expect_lines(
        |metrics| {
            metrics.policies.count("p", "b", "no_error", "deny", 0.03);
            metrics.cel.count_compilation(MILLISECONDS);
            metrics.cel.count_evaluation(MILLISECONDS);
            metrics.count_mismatches(4);
        },
        &[
            r#"apiserver_validating_admission_policy_check_total{enforcement_action="deny",error_type="no_error",policy="p",policy_binding="b"} 1"#,
            r#"apiserver_validating_admission_policy_check_duration_seconds_count{enforcement_action="deny",error_type="no_error",policy="p",policy_binding="b"} 1"#,
            r#"apiserver_cel_compilation_duration_seconds_bucket{le="0.05"} 1"#,
            r#"apiserver_cel_evaluation_duration_seconds_bucket{le="0.025"} 0"#,
            "apiserver_validation_declarative_validation_mismatch_total 4",
        ],
    );
}

#[test]
fn flows_are_counted() {
    expect_lines(
        |metrics| {
            let flow = metrics.flows.series("l", "s");
            flow.begin(2);
            flow.wait(true, 0.03);
            flow.waiting.set(5);
            flow.seats_wanted.set(6);
            flow.lengths.observe(3.0);
            flow.widths.observe(2.0);
        },
        &[
            r#"apiserver_flowcontrol_dispatched_requests_total{flow_schema="s",priority_level="l"} 1"#,
            r#"apiserver_flowcontrol_current_executing_requests{flow_schema="s",priority_level="l"} 1"#,
            r#"apiserver_flowcontrol_current_executing_seats{flow_schema="s",priority_level="l"} 2"#,
            r#"apiserver_flowcontrol_current_inqueue_requests{flow_schema="s",priority_level="l"} 5"#,
            r#"apiserver_flowcontrol_current_inqueue_seats{flow_schema="s",priority_level="l"} 6"#,
            r#"apiserver_flowcontrol_request_wait_duration_seconds_bucket{execute="true",flow_schema="s",priority_level="l",le="0.05"} 1"#,
            r#"apiserver_flowcontrol_request_queue_length_after_enqueue_bucket{flow_schema="s",priority_level="l",le="10"} 1"#,
            r#"apiserver_flowcontrol_work_estimated_seats_bucket{flow_schema="s",priority_level="l",le="2"} 1"#,
        ],
    );
}

#[test]
fn storage_and_backups_are_shown() {
    expect_lines(
        |metrics| {
            metrics.etcd.progress();
            metrics.etcd.events("pods", 3);
            metrics.etcd.decode_error("pods");
            metrics.etcd.lease_objects(20);
            metrics.space_level.set(2);
            metrics.backups.last_success.set(7.5);
            metrics.backups.interval.set(3_600.0);
            metrics.backups.failures.inc();
            metrics.peers.count_rerouted(404);
        },
        &[
            r#"etcd_bookmark_counts{resource=""} 1"#,
            r#"apiserver_storage_events_received_total{resource="pods"} 3"#,
            r#"apiserver_storage_decode_errors_total{resource="pods"} 1"#,
            r#"etcd_lease_object_counts_bucket{le="50"} 1"#,
            "pilothouse_storage_space_level 2",
            "pilothouse_backup_last_success_timestamp_seconds 7.5",
            "pilothouse_backup_interval_seconds 3600",
            "pilothouse_backup_failures_total 1",
            r#"apiserver_rerouted_request_total{code="404"} 1"#,
        ],
    );
}

#[test]
fn heavy_work_and_memory_are_shown() {
    let ledger = MemoryLedger::new(Some(1_000_000));
    let lists = ledger.budget("lists", 100);
    let _taken = lists.take(60).unwrap();
    assert!(lists.take(60).is_err());
    expect_lines(
        |metrics| {
            let lane = metrics.heavy.lane("l");
            lane.waiting(3);
            lane.begin(0.03);
            lane.refuse();
            metrics.memory.update(&ledger, 4);
            metrics.watching.window_bytes.with_label_values(&["pods"]).set(70);
            metrics.watching.archived_events.with_label_values(&["pods"]).set(8);
            metrics.watching.window_events.with_label_values(&["pods"]).set(9);
            metrics.watching.window_age.with_label_values(&["pods"]).set(1.5);
        },
        &[
            r#"pilothouse_heavy_work_waiting{lane="l"} 3"#,
            r#"pilothouse_heavy_work_running{lane="l"} 1"#,
            r#"pilothouse_heavy_work_refused_total{lane="l"} 1"#,
            r#"pilothouse_heavy_work_wait_seconds_bucket{lane="l",le="0.05"} 1"#,
            "pilothouse_memory_limit_bytes 1000000",
            "pilothouse_memory_unreserved_bytes 0",
            r#"pilothouse_memory_reserved_bytes{budget="lists"} 60"#,
            r#"pilothouse_memory_refusals_total{budget="lists"} 1"#,
            "pilothouse_watches_cut_total 4",
            r#"pilothouse_watch_window_bytes{resource="pods"} 70"#,
            r#"pilothouse_watch_window_archived_events{resource="pods"} 8"#,
            r#"pilothouse_watch_window_events{resource="pods"} 9"#,
            r#"pilothouse_watch_window_age_seconds{resource="pods"} 1.5"#,
        ],
    );
}
