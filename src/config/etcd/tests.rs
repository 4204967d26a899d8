use std::path::Path;

use pilothouse_etcd_layout::media::MediaType;

use super::*;

const SERVER: &str = "--etcd-servers=http://a:2379";
const NONE: &[&str] = &[];

fn parse(line: &str) -> Result<Config, clap::Error> {
    Config::parse(std::iter::once("pilothouse").chain(line.split_whitespace()))
}

#[test]
fn defaults_are_those_of_the_reference() {
    let config = Config::default();
    assert!(config.etcd().is_none());
    let flags = &config.etcd_flags;
    assert_eq!(flags.prefix().as_str(), "/registry/");
    assert_eq!(flags.access.storage_media_type, MediaType::Protobuf);
    assert_eq!(flags.lease_reuse(), Duration::from_secs(60));
    for (name, seconds) in [
        ("etcd-healthcheck-timeout", "2s"),
        ("etcd-readycheck-timeout", "2s"),
        ("etcd-count-metric-poll-period", "1m0s"),
        ("etcd-db-metric-poll-interval", "30s"),
        ("storage-initialization-timeout", "1m0s"),
    ] {
        assert_eq!(config.flags[name], seconds, "{name}");
    }
    let settings = flags.client_settings();
    assert!(settings.endpoints.is_empty() && settings.tls.authority.is_none());
}

/// For each line: the servers that are used, and the warnings.
#[test]
fn etcd_is_used_with_servers_and_without_engine() {
    let unused = "is not used: no server of etcd is given, so objects are stored in the engine redb";
    for (line, servers, warnings) in [
        (String::new(), NONE, vec![]),
        (SERVER.to_owned(), &["http://a:2379"], vec![]),
        (
            format!("{SERVER},https://b:2379 --etcd-servers=unix:///c"),
            &["http://a:2379", "https://b:2379", "unix:///c"],
            vec![],
        ),
        (format!("{SERVER} --storage-backend=etcd3 --etcd-prefix=/x"), &["http://a:2379"], vec![]),
        (
            format!("{SERVER} --engine=redb"),
            NONE,
            vec!["--etcd-servers is not used: --engine=redb was requested".to_owned()],
        ),
        (
            format!("{SERVER} --storage-backend=memory --etcd-cafile=x"),
            NONE,
            vec![
                "--etcd-servers is not used: --storage-backend=memory was requested".to_owned(),
                "--etcd-cafile is not used: --storage-backend=memory was requested".to_owned(),
            ],
        ),
        (
            format!("{SERVER} --engine=memory --storage-backend=etcd3"),
            NONE,
            vec![
                "--storage-backend=etcd3 is not used: the engine is memory".to_owned(),
                "--etcd-servers is not used: --engine=memory was requested".to_owned(),
            ],
        ),
        ("--etcd-servers=".to_owned(), NONE, vec![format!("--etcd-servers {unused}")]),
        (
            "--storage-initialization-timeout=5s --etcd-prefix=/x".to_owned(),
            NONE,
            vec![format!("--etcd-prefix {unused}"), format!("--storage-initialization-timeout {unused}")],
        ),
        (
            "--storage-backend=etcd3".to_owned(),
            NONE,
            vec!["--storage-backend=etcd3 is not used: the engine is redb".to_owned()],
        ),
        (
            format!("{SERVER} --quota-backend-bytes=1Gi --history-bytes=1Gi"),
            &["http://a:2379"],
            vec![
                "--quota-backend-bytes is not used: objects are stored in etcd, which has a quota of its own"
                    .to_owned(),
                "--history-bytes is not used: objects are stored in etcd, whose history is bounded by \
                 --etcd-compaction-interval"
                    .to_owned(),
            ],
        ),
        ("--quota-backend-bytes=1Gi --history-bytes=1Gi".to_owned(), NONE, vec![]),
    ] {
        let config = parse(&line).unwrap();
        assert_eq!(config.etcd().map(EtcdFlags::servers).unwrap_or_default(), servers, "{line}");
        assert_eq!(config.warnings, warnings, "{line}");
        assert_eq!(config.validate(), Ok(()), "{line}");
    }
}

#[test]
fn etcd_needs_no_data_directory() {
    let mut config = parse(SERVER).unwrap();
    config.storage.data_dir = None;
    assert_eq!(config.validate(), Ok(()));
}

#[test]
fn inconsistent_flags_are_refused_if_etcd_is_used() {
    let missing_file = "KeyFile and CertFile must both be present";
    for (flags, expected) in [
        ("--etcd-certfile=c", format!("{missing_file}[key: , cert: c]")),
        ("--etcd-keyfile=k", format!("{missing_file}[key: k, cert: ]")),
        ("--etcd-keyfile=k --etcd-certfile=", format!("{missing_file}[key: k, cert: ]")),
        ("--backup-dir=b", "etcdctl snapshot save".to_owned()),
        ("--etcd-servers=b:2379", "--etcd-servers \"b:2379\" invalid: it has no scheme".to_owned()),
        ("--etcd-servers=http://b:2379,", "--etcd-servers \"\" invalid: it has no scheme".to_owned()),
        ("--etcd-servers=ftp://b:2379", "its scheme is none of".to_owned()),
        ("--etcd-servers=unix://", "no path".to_owned()),
        ("--etcd-servers=http://b", "not a host and a port".to_owned()),
        ("--etcd-servers=http://:2379", "not a host and a port".to_owned()),
        ("--etcd-servers=http://b:2379/path", "not a host and a port".to_owned()),
        ("--etcd-servers=https://u@b:2379", "not a host and a port".to_owned()),
        ("--etcd-servers-overrides=/events#b", "--etcd-servers-overrides \"b\" invalid".to_owned()),
    ] {
        let error = parse(&format!("{SERVER} {flags}")).unwrap().validate().expect_err(flags).to_string();
        assert!(error.contains(&expected), "{flags}: {error}");
        // Those that do not use etcd have nothing to be inconsistent with.
        let with_engine = parse(&format!("{SERVER} --engine=redb {flags}")).unwrap();
        assert_eq!(with_engine.validate(), Ok(()), "{flags}");
    }
    for server in ["https://b:2379/", "http://[::1]:2379", "unixs://b.sock:0"] {
        assert_eq!(parse(&format!("--etcd-servers={server}")).unwrap().validate(), Ok(()), "{server}");
    }
}

#[test]
fn overrides_name_the_servers_of_one_resource() {
    let line = "--etcd-servers-overrides=/events#http://b:2379;http://c:2379,apps/*#http://d:2379 \
                --etcd-servers-overrides=coordination.k8s.io/leases#http://e:2379";
    let config = parse(&format!("{SERVER} {line}")).unwrap();
    assert_eq!(config.validate(), Ok(()));
    let entry = |group: &str, resource: &str, servers: &[&str]| ServersOverride {
        group: group.to_owned(),
        resource: resource.to_owned(),
        servers: servers.iter().map(|server| (*server).to_owned()).collect(),
    };
    let expected = vec![
        entry("", "events", &["http://b:2379", "http://c:2379"]),
        entry("apps", "*", &["http://d:2379"]),
        entry("coordination.k8s.io", "leases", &["http://e:2379"]),
    ];
    assert_eq!(config.etcd_flags.overrides(), Ok(expected));
    assert_eq!(parse("--etcd-servers-overrides=").unwrap().etcd_flags.overrides(), Ok(vec![]));
    for text in ["x", "/events", "events#http://b:1", "/events/http://b:1", "a/b/c#x", "/e#x#y", "/e#x;"] {
        let config = parse(&format!("--etcd-servers-overrides={text}")).unwrap();
        assert_eq!(
            config.validate().expect_err(text).to_string(),
            "--etcd-servers-overrides invalid, must be of format: group/resource#servers, where servers are \
             URLs, semicolon separated"
        );
    }
}

#[test]
fn checks_of_etcd_have_a_timeout_each() {
    for (line, expected) in [
        ("", [2_000, 2_000]),
        ("--etcd-healthcheck-timeout=300ms --etcd-readycheck-timeout=1m", [300, 60_000]),
        ("--etcd-healthcheck-timeout=0s --etcd-readycheck-timeout=0", [2_000, 2_000]),
    ] {
        let expected = expected.map(Duration::from_millis);
        assert_eq!(parse(line).unwrap().etcd_flags.check_timeouts(), expected, "{line}");
    }
}

#[test]
fn media_type_is_one_of_three() {
    let error = parse("--storage-media-type=application/cbor").unwrap_err().to_string();
    let words = "--storage-media-type \"application/cbor\" invalid, allowed values: application/json,";
    assert!(error.contains(words), "{error}");
    for (value, expected) in [("application/yaml", MediaType::Yaml), ("", MediaType::Json)] {
        let config = parse(&format!("--storage-media-type={value}")).unwrap();
        assert_eq!(config.etcd_flags.access.storage_media_type, expected);
    }
}

#[test]
fn client_gets_servers_and_files() {
    let line = format!("{SERVER} --etcd-cafile=ca --etcd-certfile=c --etcd-keyfile=k");
    let flags = parse(&line).unwrap().etcd_flags;
    let settings = flags.client_settings();
    assert_eq!(settings.endpoints, ["http://a:2379"]);
    assert_eq!(settings.tls.authority.as_deref(), Some(Path::new("ca")));
    assert_eq!(settings.tls.identity, Some(("c".into(), "k".into())));
    assert_eq!(flags.settings_for(vec!["http://b:2379".to_owned()]).endpoints, ["http://b:2379"]);

    let empty = parse(&format!("{SERVER} --etcd-cafile= --etcd-certfile= --etcd-keyfile=")).unwrap();
    assert_eq!(empty.validate(), Ok(()));
    let tls = empty.etcd_flags.client_settings().tls;
    assert!(tls.authority.is_none() && tls.identity.is_none());
}
