use std::time::Duration;

use pilothouse_api::release::Release;
use pilothouse_types::clock::Clock;

use super::*;

fn parse(line: &str) -> Result<Config, clap::Error> {
    Config::parse(std::iter::once("pilothouse").chain(line.split_whitespace()))
}

fn parse_error(line: &str) -> String {
    parse(line).expect_err(line).to_string()
}

#[test]
fn config_defaults_match_documentation() {
    let config = Config::default();
    assert_eq!(config.validate(), Ok(()));
    assert_eq!(config.serving.bind_address.to_string(), "127.0.0.1");
    assert_eq!(config.serving.secure_port, 6443);
    assert_eq!(config.storage.engine, Engine::Redb);
    assert_eq!(config.cert_dir(), Some("./pilothouse-data/pki".into()));
    assert_eq!(config.streams_per_connection(), 100);
    assert_eq!(config.limits.request_timeout, Duration::from_secs(60));
    assert_eq!(config.authorization.authorization_mode, [AuthorizationMode::Rbac]);
    assert!(config.authentication.anonymous_auth);
    assert!(!config.api.allow_privileged);
    assert_eq!(config.audiences(), ["https://kubernetes.default.svc"]);
    assert!(config.workers() > 0);
    assert!(config.warnings.is_empty());
}

#[test]
fn egress_selector_needs_its_file() {
    let selector = |line: &str| parse(line).unwrap().egress.selector(&Clock::system()).map(drop);
    let error = selector("--egress-selector-config-file=/nowhere/egress.yaml").unwrap_err();
    assert_eq!(error, "egress-selector-config-file /nowhere/egress.yaml does not exist");
    assert_eq!(selector("--egress-selector-config-file="), Ok(()), "an empty value is none");
}

#[test]
fn empty_path_counts_as_none() {
    let command = command();
    let flags: Vec<&str> =
        command.get_arguments().filter(|flag| is_path(flag)).filter_map(Arg::get_long).collect();
    assert!(flags.contains(&"tracing-config-file") && flags.contains(&"client-ca-file"), "{flags:?}");
    for flag in flags {
        // The last one wins.
        let config = parse(&format!("--{flag}=/nowhere --{flag}=")).unwrap_or_else(|error| panic!("{error}"));
        let mut without = Config::default();
        if flag == "data-dir" {
            // The only one with a default.
            (without.storage.data_dir, without.flags) = (None, config.flags.clone());
        }
        assert_eq!(format!("{config:?}"), format!("{without:?}"), "--{flag}");
    }
}

#[test]
fn ephemeral_config_writes_no_files() {
    let config = Config::ephemeral();
    assert_eq!(config.validate(), Ok(()));
    assert_eq!((config.cert_dir(), config.serving.secure_port), (None, 0));
}

#[test]
fn flags_accept_go_spellings() {
    let config = parse(
        "--secure-port 7443 --bind_address=0.0.0.0 --anonymous-auth=false --allow-privileged \
         --shutdown-delay-duration=1m30s -v 4 --enable-bootstrap-token-auth=T --controllers -*",
    )
    .unwrap();
    assert_eq!(config.serving.secure_port, 7443);
    assert!(config.serving.bind_address.is_unspecified());
    assert!(!config.authentication.anonymous_auth);
    assert!(config.api.allow_privileged);
    assert!(config.authentication.enable_bootstrap_token_auth);
    assert_eq!(config.lifecycle.shutdown_delay_duration, Duration::from_secs(90));
    assert_eq!(config.logging.verbosity, 4);
    assert_eq!(config.controllers.controllers, ["-*"]);
    for spelling in ["--v=6", "-v6", "-v=6", "--v 6"] {
        assert_eq!(parse(spelling).unwrap().logging.verbosity, 6, "{spelling}");
    }
}

#[test]
fn anonymous_access_is_off_with_always_allow_flag() {
    let admits = |line: &str| parse(line).unwrap().admits_anonymous();
    assert!(admits("") && admits("--authorization-mode=RBAC,AlwaysDeny"));
    assert!(!admits("--anonymous-auth=false") && !admits("--authorization-mode=AlwaysAllow"));
    assert!(!admits("--anonymous-auth=true --authorization-mode=RBAC,AlwaysAllow"));
    // As in kube-apiserver, AlwaysAllow in an authorization file does not disable anonymous access.
    assert!(admits("--authorization-config=file"));
    let is_set = |line: &str| parse(line).unwrap().authentication.anonymous_auth_given;
    assert!(is_set("--anonymous-auth=true") && is_set("--anonymous-auth=false") && !is_set(""));
}

#[test]
fn list_flags_accumulate_and_last_single_value_wins() {
    let config = parse(
        "--secure-port=1 --secure-port=2 --disable-admission-plugins=Priority,RuntimeClass --disable-admission-plugins=LimitRanger \
         --feature-gates=WatchList=true,AllAlpha=false --feature-gates=CBORServingAndStorage=true \
         --runtime-config=api/beta=true,batch/v1 --authorization-mode=Node,RBAC \
         --service-cluster-ip-range=10.96.0.0/16,fd00::/108",
    )
    .unwrap();
    assert_eq!(config.validate(), Ok(()));
    assert_eq!(config.serving.secure_port, 2);
    assert_eq!(config.api.disable_admission_plugins, ["Priority", "RuntimeClass", "LimitRanger"]);
    assert!(config.gates().enabled("WatchList") && config.gates().enabled("CBORServingAndStorage"));
    assert_eq!(config.api.runtime_config.len(), 2);
    assert_eq!(config.authorization.authorization_mode, [AuthorizationMode::Node, AuthorizationMode::Rbac]);
}

#[test]
fn envtest_and_kubeadm_flags_are_accepted() {
    let envtest = "--advertise-address=127.0.0.1 --allow-privileged=true --authorization-mode=RBAC \
        --bind-address=127.0.0.1 --cert-dir=certs --client-ca-file=ca.crt \
        --disable-admission-plugins=ServiceAccount --etcd-servers=http://127.0.0.1:2379 --secure-port=40001 \
        --service-account-issuer=https://127.0.0.1:40001/ --service-account-key-file=sa.crt \
        --service-account-signing-key-file=sa.key --service-cluster-ip-range=10.0.0.0/24";
    let config = parse(envtest).unwrap();
    assert_eq!(config.validate(), Ok(()));
    assert_eq!(config.service_accounts.service_account_issuer, ["https://127.0.0.1:40001/"]);
    assert!(config.etcd().is_some() && config.warnings.is_empty(), "{:?}", config.warnings);

    let kubeadm = "--enable-aggregator-routing --etcd-cafile=x --kubelet-preferred-address-types=InternalIP \
        --proxy-client-cert-file=x --requestheader-allowed-names=front-proxy-client --profiling=false \
        --audit-log-path - --storage-backend=etcd3 --watch-cache=false";
    let warnings = parse(kubeadm).unwrap().warnings;
    assert_eq!(warnings.len(), 4, "{warnings:?}");
}

#[test]
fn unknown_flag_is_refused_with_suggestion() {
    let message = parse_error("--secur-port=1");
    assert!(message.contains("--secur-port") && message.contains("'--secure-port'"), "{message}");
    assert!(parse_error("--etcd-server=x").contains("'--etcd-servers'"));
    assert_ne!(parse("--nonsense").unwrap_err().exit_code(), 0);
    assert!(parse("stray").is_err());
}

#[test]
fn invalid_flag_values_name_expected_values() {
    for (line, expected) in [
        ("--secure-port=70000", "70000"),
        ("--bind-address=nowhere", "nowhere"),
        ("--anonymous-auth=maybe", "neither true nor false"),
        ("--request-timeout=5", "1m30s"),
        ("--feature-gates=Nonsense=true", "unrecognized feature gate: Nonsense"),
        ("--tls-min-version=VersionSSL3", "VersionTLS12"),
        ("--authorization-mode=Nobody", "AlwaysDeny"),
        ("--service-node-port-range=9-1", "30000-32767"),
        ("--engine=floppy", "memory"),
        ("--endpoint-reconciler-type=nobody", "master-count"),
    ] {
        let message = parse_error(line);
        assert!(message.contains(expected), "{line}: {message}");
    }
}

#[test]
fn inconsistent_flags_are_refused() {
    for (line, expected) in [
        ("--tls-cert-file=x", "needs --tls-private-key-file"),
        ("--tls-private-key-file=x", "needs --tls-cert-file"),
        ("--goaway-chance=0.5", "0.02"),
        ("--service-cluster-ip-range=10.0.0.0/24,10.1.0.0/24", "address family"),
        ("--authorization-mode=RBAC,RBAC", "more than once"),
        ("--request-timeout=0", "--request-timeout"),
        ("--workers=1000", "512"),
        ("--apiserver-count=0", "--apiserver-count should be a positive number, but value '0' provided"),
        ("--apiserver-count=-2", "value '-2' provided"),
        ("--max-requests-inflight=0 --max-mutating-requests-inflight=0", "must not both be 0"),
        ("--bind-address=0.0.0.0 --advertise-address=0.0.0.0", "reach"),
    ] {
        let error = parse(line).unwrap().validate().expect_err(line).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    let mut config = Config::default();
    config.storage.data_dir = None;
    assert!(config.validate().is_err());
}

#[test]
fn help_is_grouped_by_topic() {
    let help = parse_error("--help");
    let topics = ["Secure serving:", "Storage:", "etcd:", "Authentication:", "Limits:", "Logging:"];
    for heading in topics.into_iter().chain(["Accepted for"]) {
        assert!(help.contains(heading), "{heading} in\n{help}");
    }
    assert_eq!(parse("--help").unwrap_err().exit_code(), 0);
    assert!(parse_error("--version").contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn endpoint_reconciler_is_one_of_three() {
    for (line, expected) in [
        ("", EndpointReconcilerType::Lease),
        ("--endpoint-reconciler-type=", EndpointReconcilerType::Lease),
        ("--endpoint-reconciler-type=lease", EndpointReconcilerType::Lease),
        ("--endpoint-reconciler-type=master-count", EndpointReconcilerType::MasterCount),
        ("--endpoint-reconciler-type=none", EndpointReconcilerType::None),
    ] {
        let config = parse(line).unwrap();
        assert_eq!(config.api.endpoint_reconciler_type, expected, "{line}");
        assert!(config.warnings.is_empty() && config.validate().is_ok(), "{line}: {:?}", config.warnings);
    }
}

#[test]
fn kubelet_flags_are_parsed_and_validated() {
    let kubelets = Config::default().kubelets;
    assert_eq!(
        kubelets.kubelet_preferred_address_types,
        ["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"]
    );
    assert_eq!((kubelets.kubelet_port, kubelets.kubelet_timeout), (10_250, Duration::from_secs(5)));
    let config = parse(
        "--kubelet-preferred-address-types=InternalIP,Hostname --kubelet-port 1234 --kubelet-timeout=1m",
    )
    .unwrap();
    assert_eq!(config.kubelets.kubelet_preferred_address_types, ["InternalIP", "Hostname"]);
    assert!(config.validate().is_ok() && config.warnings.is_empty());
    for flag in ["--kubelet-client-certificate=x", "--kubelet-client-key=x", "--kubelet-timeout=0"] {
        assert!(parse(flag).unwrap().validate().is_err(), "{flag}");
    }
}

#[test]
fn empty_api_audiences_flag_counts_as_unset() {
    for (line, audiences) in [
        ("--service-account-issuer=i", &["i"][..]),
        ("--service-account-issuer=i --api-audiences=", &["i"]),
        ("--service-account-issuer=i --api-audiences=a,b", &["a", "b"]),
    ] {
        assert_eq!(parse(line).unwrap().audiences(), audiences, "{line}");
    }
}

#[test]
fn unverified_kubelets_are_logged_unless_loopback_only() {
    let identity = "--kubelet-client-certificate=x --kubelet-client-key=x";
    let authority = "--kubelet-certificate-authority=x";
    for (line, is_warned) in [
        (String::new(), false),
        ("--bind-address=::1".to_owned(), false),
        ("--bind-address=0.0.0.0".to_owned(), true),
        ("--bind-address=192.0.2.1".to_owned(), true),
        (identity.to_owned(), true),
        (format!("--bind-address=0.0.0.0 {authority}"), false),
        (format!("{identity} {authority}"), false),
        // An empty path is none.
        (format!("{identity} --kubelet-certificate-authority="), true),
    ] {
        let warnings = parse(&line).unwrap().warnings;
        let count = warnings.iter().filter(|warning| warning.contains("kubelets are not verified")).count();
        assert_eq!(count, usize::from(is_warned), "{line}: {warnings:?}");
    }
}

#[test]
fn version_flag_prints_or_sets_the_release() {
    let printed = |line: &str| {
        let error = parse(line).expect_err(line);
        assert_eq!(error.exit_code(), 0, "{line}");
        error.to_string()
    };
    let default_release = Release::default().to_string();
    assert_eq!(printed("--version"), format!("Kubernetes {default_release}\n"));
    assert_eq!(printed("--version=true"), printed("--version"));
    assert_eq!(printed("--version=raw"), printed("--version"));
    let reported = |line: &str| parse(line).unwrap().api.release.to_string();
    assert_eq!(reported("--version=false"), default_release);
    assert_eq!(reported("--version=v1.33.12-mine"), "v1.33.12-mine");
    assert!(parse_error("--version=v1.32.0").contains("must match major/minor/patch"));
    assert_ne!(parse("--version=nonsense").unwrap_err().exit_code(), 0);
}

#[test]
fn kube_apiserver_program_name_changes_two_defaults() {
    let parse_line = |line: &str| Config::parse(line.split_whitespace()).unwrap();
    let as_kube_apiserver =
        parse_line("/assets/kube-apiserver --cert-dir=/tmp/harness --etcd-servers=http://127.0.0.1:2379");
    assert_eq!(as_kube_apiserver.storage.data_dir, Some("/tmp/harness/pilothouse-data".into()));
    assert_eq!(as_kube_apiserver.controllers.controllers, ["-*"]);
    assert!(as_kube_apiserver.etcd().is_some(), "the name decides nothing about etcd");
    let with_flags =
        parse_line("kube-apiserver --cert-dir=/tmp/harness --data-dir=/data --controllers=namespace");
    assert_eq!(with_flags.storage.data_dir, Some("/data".into()));
    assert_eq!(with_flags.controllers.controllers, ["namespace"]);
    assert_eq!(parse_line("kube-apiserver").storage.data_dir, Some("./pilothouse-data".into()));
    let as_pilothouse = parse_line("/usr/bin/pilothouse --cert-dir=/tmp/harness");
    assert_eq!(
        (as_pilothouse.storage.data_dir, as_pilothouse.controllers.controllers),
        (Some("./pilothouse-data".into()), vec!["*".to_owned()])
    );
}
