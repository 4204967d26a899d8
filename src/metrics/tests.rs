//! What counts, and what the page shows of it.

use std::time::Duration;

use pilothouse_actors::fair_queuing::demand::DemandStats;
use pilothouse_actors::fair_queuing::levels::LevelSnapshot;
use pilothouse_actors::fair_queuing::shares::Bounds;
use pilothouse_actors::fair_queuing::utilization::UtilizationHistogram;
use pilothouse_api::audit::Level;
use pilothouse_api::custom_resource::conversion::FailureKind;
use pilothouse_encryption::{Direction, Observer as _, Transformation};
use pilothouse_etcd_log::Observer as _;
use pilothouse_types::clock::Clock;
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

#[test]
fn levels_are_shown() {
    let level = LevelSnapshot {
        name: "l".to_owned(),
        bounds: Bounds { nominal: 10, lower: 5, upper: 20 },
        seats: 12,
        observed: DemandStats { high: 9.0, average: 4.5, deviation: 1.5, smoothed: 6.0 },
        target: 11.5,
        utilization: UtilizationHistogram::default(),
    };
    expect_lines(
        |metrics| {
            metrics.flows.update(&[level], 0.75);
            let flow = metrics.flows.series("l", "s");
            flow.begin(1);
            flow.end(1, false, 0.03);
        },
        &[
            r#"apiserver_flowcontrol_nominal_limit_seats{priority_level="l"} 10"#,
            r#"apiserver_flowcontrol_lower_limit_seats{priority_level="l"} 5"#,
            r#"apiserver_flowcontrol_upper_limit_seats{priority_level="l"} 20"#,
            r#"apiserver_flowcontrol_current_limit_seats{priority_level="l"} 12"#,
            r#"apiserver_flowcontrol_demand_seats_high_watermark{priority_level="l"} 9"#,
            r#"apiserver_flowcontrol_demand_seats_average{priority_level="l"} 4.5"#,
            r#"apiserver_flowcontrol_demand_seats_stdev{priority_level="l"} 1.5"#,
            r#"apiserver_flowcontrol_demand_seats_smoothed{priority_level="l"} 6"#,
            r#"apiserver_flowcontrol_target_seats{priority_level="l"} 11.5"#,
            "apiserver_flowcontrol_seat_fair_frac 0.75",
            r#"apiserver_flowcontrol_request_execution_seconds_bucket{flow_schema="s",priority_level="l",type="regular",le="0.05"} 1"#,
        ],
    );
}

#[test]
fn encryption_is_counted() {
    let clock = Clock::manual(Timestamp(5_000_000));
    expect_lines(
        |metrics| {
            let observer = metrics.encryption.observer(clock);
            observer.transformation(&Transformation {
                resource: "secrets",
                direction: Direction::ToStorage,
                prefix: "k8s:enc:aescbc:v1:",
                key: None,
                status: "OK",
                elapsed: Duration::from_micros(7),
            });
            observer.cache_miss();
            observer.data_key_generation(Some(Duration::from_micros(7)));
            observer.data_key_generation(None);
            observer.dek_cache_fill(0.5);
            observer.dek_cache_arrival(Direction::ToStorage, Duration::from_secs(100));
            observer.dek_source_cache_size("p", 3);
            observer.kms_call("p", "Decrypt", "OK", MILLISECONDS);
            observer.key_id_used(Direction::ToStorage, "p", "h");
            observer.key_id_from_status("p", "h");
            observer.invalid_key_id_from_status("p", "empty");
            observer.reload(true);
        },
        &[
            r#"apiserver_storage_transformation_operations_total{resource="secrets",status="OK",transformation_type="to_storage",transformer_prefix="k8s:enc:aescbc:v1:"} 1"#,
            r#"apiserver_storage_transformation_duration_seconds_bucket{transformation_type="to_storage",transformer_prefix="k8s:enc:aescbc:v1:",le="0.00001"} 1"#,
            "apiserver_storage_envelope_transformation_cache_misses_total 1",
            "apiserver_storage_data_key_generation_duration_seconds_count 1",
            "apiserver_storage_data_key_generation_failures_total 1",
            "apiserver_envelope_encryption_dek_cache_fill_percent 0.5",
            r#"apiserver_envelope_encryption_dek_cache_inter_arrival_time_seconds_bucket{transformation_type="to_storage",le="120"} 1"#,
            r#"apiserver_envelope_encryption_dek_source_cache_size{provider_name="p"} 3"#,
            r#"apiserver_envelope_encryption_kms_operations_latency_seconds_count{grpc_status_code="OK",method_name="Decrypt",provider_name="p"} 1"#,
            r#"apiserver_envelope_encryption_key_id_hash_total{apiserver_id_hash="",key_id_hash="h",provider_name="p",transformation_type="to_storage"} 1"#,
            r#"apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds{apiserver_id_hash="",key_id_hash="h",provider_name="p",transformation_type="to_storage"} 5"#,
            r#"apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds{apiserver_id_hash="",key_id_hash="h",provider_name="p"} 5"#,
            r#"apiserver_envelope_encryption_invalid_key_id_from_status_total{error="empty",provider_name="p"} 1"#,
            r#"apiserver_encryption_config_controller_automatic_reloads_total{apiserver_id_hash="",status="success"} 1"#,
            r#"apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds{apiserver_id_hash="",status="success"} 5"#,
        ],
    );
}

#[test]
fn tokens_and_their_signer_are_counted() {
    expect_lines(
        |metrics| {
            let tokens = &metrics.tokens;
            for counter in [&tokens.legacy, &tokens.listed, &tokens.manual, &tokens.valid, &tokens.stale] {
                counter.inc();
            }
            metrics.external_signer.set_fetched(Timestamp(7_000_000), 6.5);
        },
        &[
            "serviceaccount_legacy_tokens_total 1",
            "serviceaccount_legacy_auto_token_uses_total 1",
            "serviceaccount_legacy_manual_token_uses_total 1",
            "serviceaccount_invalid_legacy_auto_token_uses_total 0",
            "serviceaccount_valid_tokens_total 1",
            "serviceaccount_stale_tokens_total 1",
            "apiserver_externaljwt_fetch_keys_success_timestamp 7",
            "apiserver_externaljwt_fetch_keys_data_timestamp 6.5",
        ],
    );
}

#[test]
fn evaluations_of_pods_begin_at_zero() {
    let labels = r#"mode="enforce",policy_level="privileged",policy_version="latest",request_operation="create",resource="pod",subresource="""#;
    expect_lines(|_| {}, &[&format!(r#"pod_security_evaluations_total{{decision="allow",{labels}}} 0"#)]);
}

/// The process has some of each.
#[test]
fn process_is_measured() {
    let metrics = Metrics::new(Timestamp(0)).unwrap();
    let page = String::from_utf8(metrics.text().unwrap()).unwrap();
    for name in [
        "process_network_receive_bytes_total",
        "process_network_transmit_bytes_total",
        "process_virtual_memory_max_bytes",
    ] {
        let value = page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}"));
        assert!(value.trim().parse::<f64>().unwrap() >= 0.0, "{name}{value}");
    }
}
