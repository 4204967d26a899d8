use std::time::Duration;

use pilothouse_api::release::Release;

use super::*;

fn parse(line: &str) -> Result<Config, clap::Error> {
    Config::parse(std::iter::once("pilothouse").chain(line.split_whitespace()))
}

fn refused(line: &str) -> String {
    parse(line).expect_err(line).to_string()
}

#[test]
fn no_flag_gives_the_documented_defaults() {
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
    assert!(config.remarks.is_empty());
}

#[test]
fn what_would_make_the_server_safer_and_cannot_be_done_is_refused() {
    for (flag, why) in [
        ("--encryption-provider-config", "does not encrypt"),
        ("--egress-selector-config-file", "directly"),
        ("--service-account-signing-endpoint", "keys of its own"),
    ] {
        let said = refused(&format!("{flag}=/etc/file"));
        assert!(said.contains(flag) && said.contains(why), "{said}");
        assert!(parse(&format!("{flag}=")).is_ok(), "nothing is asked for");
    }
}

#[test]
fn an_ephemeral_server_writes_nothing() {
    let config = Config::ephemeral();
    assert_eq!(config.validate(), Ok(()));
    assert_eq!((config.cert_dir(), config.serving.secure_port), (None, 0));
}

#[test]
fn flags_are_spelled_as_in_go() {
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
    assert_eq!(config.api.controllers, ["-*"]);
    for spelling in ["--v=6", "-v6", "-v=6", "--v 6"] {
        assert_eq!(parse(spelling).unwrap().logging.verbosity, 6, "{spelling}");
    }
}

#[test]
fn nobody_is_anonymous_where_a_flag_lets_everybody_do_everything() {
    let admits = |line: &str| parse(line).unwrap().admits_anonymous();
    assert!(admits("") && admits("--authorization-mode=RBAC,AlwaysDeny"));
    assert!(!admits("--anonymous-auth=false") && !admits("--authorization-mode=AlwaysAllow"));
    assert!(!admits("--anonymous-auth=true --authorization-mode=RBAC,AlwaysAllow"));
    // A file may say so too, and as in the reference nobody minds: whoever writes it knows what it says.
    assert!(admits("--authorization-config=file"));
    let given = |line: &str| parse(line).unwrap().authentication.anonymous_auth_given;
    assert!(given("--anonymous-auth=true") && given("--anonymous-auth=false") && !given(""));
}

#[test]
fn lists_may_be_repeated_or_joined_and_the_last_single_value_wins() {
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
fn the_arguments_of_common_harnesses_are_accepted() {
    let envtest = "--advertise-address=127.0.0.1 --allow-privileged=true --authorization-mode=RBAC \
        --bind-address=127.0.0.1 --cert-dir=certs --client-ca-file=ca.crt \
        --disable-admission-plugins=ServiceAccount --etcd-servers=http://127.0.0.1:2379 --secure-port=40001 \
        --service-account-issuer=https://127.0.0.1:40001/ --service-account-key-file=sa.crt \
        --service-account-signing-key-file=sa.key --service-cluster-ip-range=10.0.0.0/24";
    let config = parse(envtest).unwrap();
    assert_eq!(config.validate(), Ok(()));
    assert_eq!(config.service_accounts.service_account_issuer, ["https://127.0.0.1:40001/"]);
    assert_eq!(config.remarks.len(), 1);
    assert!(config.remarks[0].starts_with("--etcd-servers is not used"));

    let kubeadm = "--enable-aggregator-routing --etcd-cafile=x --kubelet-preferred-address-types=InternalIP \
        --proxy-client-cert-file=x --requestheader-allowed-names=front-proxy-client --profiling=false \
        --audit-log-path - --storage-backend=etcd3 --watch-cache=false";
    let remarks = parse(kubeadm).unwrap().remarks;
    assert_eq!(remarks.len(), 4, "{remarks:?}");
}

#[test]
fn an_unknown_flag_is_refused_with_the_nearest_known_one() {
    let message = refused("--secur-port=1");
    assert!(message.contains("--secur-port") && message.contains("'--secure-port'"), "{message}");
    assert!(refused("--etcd-server=x").contains("'--etcd-servers'"));
    assert_ne!(parse("--nonsense").unwrap_err().exit_code(), 0);
    assert!(parse("stray").is_err());
}

#[test]
fn bad_values_say_what_was_expected() {
    for (line, part) in [
        ("--secure-port=70000", "70000"),
        ("--bind-address=nowhere", "nowhere"),
        ("--anonymous-auth=maybe", "neither true nor false"),
        ("--request-timeout=5", "1m30s"),
        ("--feature-gates=Nonsense=true", "unrecognized feature gate: Nonsense"),
        ("--tls-min-version=VersionSSL3", "VersionTLS12"),
        ("--authorization-mode=Nobody", "AlwaysDeny"),
        ("--service-node-port-range=9-1", "30000-32767"),
        ("--engine=floppy", "memory"),
    ] {
        let message = refused(line);
        assert!(message.contains(part), "{line}: {message}");
    }
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    for (line, part) in [
        ("--tls-cert-file=x", "needs --tls-private-key-file"),
        ("--tls-private-key-file=x", "needs --tls-cert-file"),
        ("--goaway-chance=0.5", "0.02"),
        ("--service-cluster-ip-range=10.0.0.0/24,10.1.0.0/24", "address family"),
        ("--authorization-mode=RBAC,RBAC", "more than once"),
        ("--request-timeout=0", "--request-timeout"),
        ("--workers=1000", "512"),
        ("--max-requests-inflight=0 --max-mutating-requests-inflight=0", "something positive"),
        ("--bind-address=0.0.0.0 --advertise-address=0.0.0.0", "reach"),
    ] {
        let error = parse(line).unwrap().validate().expect_err(line).to_string();
        assert!(error.contains(part), "{line}: {error}");
    }
    let mut config = Config::default();
    config.storage.data_dir = None;
    assert!(config.validate().is_err());
}

#[test]
fn help_is_grouped_by_theme() {
    let help = refused("--help");
    for heading in ["Secure serving:", "Storage:", "Authentication:", "Limits:", "Logging:", "Accepted for"] {
        assert!(help.contains(heading), "{heading} in\n{help}");
    }
    assert_eq!(parse("--help").unwrap_err().exit_code(), 0);
    assert!(refused("--version").contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn kubelets_are_reached_as_the_flags_say() {
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
    assert!(config.validate().is_ok() && config.remarks.is_empty());
    for half in ["--kubelet-client-certificate=x", "--kubelet-client-key=x", "--kubelet-timeout=0"] {
        assert!(parse(half).unwrap().validate().is_err(), "{half}");
    }
}

#[test]
fn an_empty_audience_is_none() {
    for (line, audiences) in [
        ("--service-account-issuer=i", &["i"][..]),
        ("--service-account-issuer=i --api-audiences=", &["i"]),
        ("--service-account-issuer=i --api-audiences=a,b", &["a", "b"]),
    ] {
        assert_eq!(parse(line).unwrap().audiences(), audiences, "{line}");
    }
}

#[test]
fn kubelets_that_are_not_verified_are_told_of_where_there_can_be_some() {
    let identity = "--kubelet-client-certificate=x --kubelet-client-key=x";
    let authority = "--kubelet-certificate-authority=x";
    for (line, is_told) in [
        (String::new(), false),
        ("--bind-address=::1".to_owned(), false),
        ("--bind-address=0.0.0.0".to_owned(), true),
        ("--bind-address=192.0.2.1".to_owned(), true),
        (identity.to_owned(), true),
        (format!("--bind-address=0.0.0.0 {authority}"), false),
        (format!("{identity} {authority}"), false),
    ] {
        let remarks = parse(&line).unwrap().remarks;
        let about = remarks.iter().filter(|remark| remark.contains("kubelets are not verified")).count();
        assert_eq!(about, usize::from(is_told), "{line}: {remarks:?}");
    }
    assert!(parse("--kubelet-certificate-authority=").is_err(), "an empty name is no file");
}

#[test]
fn the_version_is_printed_or_set() {
    let printed = |line: &str| {
        let error = parse(line).expect_err(line);
        assert_eq!(error.exit_code(), 0, "{line}");
        error.to_string()
    };
    let usual = Release::default().to_string();
    assert_eq!(printed("--version"), format!("Kubernetes {usual}\n"));
    assert_eq!(printed("--version=true"), printed("--version"));
    assert_eq!(printed("--version=raw"), printed("--version"));
    let reported = |line: &str| parse(line).unwrap().api.release.to_string();
    assert_eq!(reported("--version=false"), usual);
    assert_eq!(reported("--version=v1.33.12-mine"), "v1.33.12-mine");
    assert!(refused("--version=v1.32.0").contains("must match major/minor/patch"));
    assert_ne!(parse("--version=nonsense").unwrap_err().exit_code(), 0);
}

#[test]
fn under_the_name_of_the_reference_two_defaults_are_its_own() {
    let started = |line: &str| Config::parse(line.split_whitespace()).unwrap();
    let stand_in =
        started("/assets/kube-apiserver --cert-dir=/tmp/harness --etcd-servers=http://127.0.0.1:2379");
    assert_eq!(stand_in.storage.data_dir, Some("/tmp/harness/pilothouse-data".into()));
    assert_eq!(stand_in.api.controllers, ["-*"]);
    let told = started("kube-apiserver --cert-dir=/tmp/harness --data-dir=/data --controllers=namespace");
    assert_eq!(told.storage.data_dir, Some("/data".into()));
    assert_eq!(told.api.controllers, ["namespace"]);
    assert_eq!(started("kube-apiserver").storage.data_dir, Some("./pilothouse-data".into()));
    let own = started("/usr/bin/pilothouse --cert-dir=/tmp/harness");
    assert_eq!(
        (own.storage.data_dir, own.api.controllers),
        (Some("./pilothouse-data".into()), vec!["*".to_owned()])
    );
}
