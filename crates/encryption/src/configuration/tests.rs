use super::*;

const KEY_16: &str = "MDEyMzQ1Njc4OWFiY2RlZg==";
const KEY_32: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

fn file(resources: &str) -> String {
    format!(
        "{{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: {resources}}}"
    )
}

fn parse(resources: &str) -> Result<Configuration, String> {
    Configuration::parse(file(resources).as_bytes(), false)
}

fn entry(resources: &str, providers: &str) -> String {
    format!("[{{resources: {resources}, providers: {providers}}}]")
}

#[test]
fn every_provider_is_read() {
    let text = format!(
        r"
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, configmaps, pandas.awesome.bears.example]
  providers:
  - aesgcm: {{keys: [{{name: g, secret: {KEY_16}}}, {{name: h, secret: {KEY_32}}}]}}
  - aescbc: {{keys: [{{name: c, secret: {KEY_32}}}]}}
  - secretbox: {{keys: [{{name: s, secret: {KEY_32}}}]}}
  - identity: {{}}
- resources: ['*.apps']
  providers:
  - kms: {{name: one, endpoint: unix:///one.sock}}
  - kms: {{apiVersion: v2, name: two, endpoint: 'unix:///@two', timeout: 1m30s}}
  - kms: {{apiVersion: v1, name: three, endpoint: unix:///three.sock, cachesize: -1, timeout: 10s}}
"
    );
    let configuration = Configuration::parse(text.as_bytes(), true).unwrap();
    let key = |name: &str, secret: &[u8]| NamedKey {
        name: name.to_owned(),
        secret: SecretKey::new(secret.to_vec()),
    };
    let long = b"0123456789abcdef0123456789abcdef";
    let kms = |version, name: &str, endpoint: &str, cache_size, seconds| {
        let (name, endpoint) = (name.to_owned(), endpoint.to_owned());
        let timeout = Duration::from_secs(seconds);
        ProviderConfiguration::Kms(KmsConfiguration { version, name, cache_size, endpoint, timeout })
    };
    let expected = Configuration {
        resources: vec![
            ResourceProviders {
                resources: ["secrets", "configmaps", "pandas.awesome.bears.example"]
                    .map(str::to_owned)
                    .into(),
                providers: vec![
                    ProviderConfiguration::AesGcm(vec![key("g", b"0123456789abcdef"), key("h", long)]),
                    ProviderConfiguration::AesCbc(vec![key("c", long)]),
                    ProviderConfiguration::Secretbox(vec![key("s", long)]),
                    ProviderConfiguration::Identity,
                ],
            },
            ResourceProviders {
                resources: vec!["*.apps".to_owned()],
                providers: vec![
                    kms(KmsVersion::V1, "one", "unix:///one.sock", Some(1_000), 3),
                    kms(KmsVersion::V2, "two", "unix:///@two", None, 90),
                    kms(KmsVersion::V1, "three", "unix:///three.sock", Some(-1), 10),
                ],
            },
        ],
    };
    assert_eq!(configuration, expected);
    let debug_text = format!("{configuration:?}");
    assert!(debug_text.contains("[REDACTED]") && !debug_text.contains("48, 49"), "{debug_text}");
}

#[test]
fn file_must_be_of_the_kind_and_without_unknown_fields() {
    for (text, error) in [
        ("", "encryption provider configuration file is empty"),
        ("[]", "it must be an object"),
        (
            "{apiVersion: apiserver.config.k8s.io/v2, kind: EncryptionConfiguration}",
            "no kind \"EncryptionConfiguration\" is known in version \"apiserver.config.k8s.io/v2\": an \
             EncryptionConfiguration of apiserver.config.k8s.io/v1 is needed",
        ),
        (&file("[{resource: [secrets]}]"), "unknown field \"resources[0].resource\""),
        (
            &file(&entry("[secrets]", "[{aescbc: {keys: [{name: a, secret: x, note: z}]}}]")),
            "unknown field \"resources[0].providers[0].aescbc.keys[0].note\"",
        ),
        (
            &file(&entry("[secrets]", "[{kms: {name: 1, timeout: x, cachesize: 3000000000}}]")),
            "[resources[0].providers[0].kms.cachesize: must be a number of 32 bits, \
             resources[0].providers[0].kms.timeout: time: invalid duration \"x\", \
             resources[0].providers[0].kms.name: must be a text]",
        ),
    ] {
        assert_eq!(Configuration::parse(text.as_bytes(), false), Err(error.to_owned()), "{text}");
    }
    let large = vec![b' '; CONFIGURATION_BYTES + 1];
    assert_eq!(Configuration::parse(&large, false), Err(format!("more than {CONFIGURATION_BYTES} bytes")));
}

#[test]
fn resources_and_providers_are_required() {
    for (resources, error) in [
        ("[]", "resources: Required value: at least one resources is required"),
        (
            "[{}]",
            "[resources[0].resources: Required value: at least one resources[0].resources is required, \
             resources[0].providers: Required value: at least one resources[0].providers is required]",
        ),
        (
            &entry("[secrets]", "[{}]"),
            "resources[0].providers[0]: Invalid value: {}: provider does not contain any of the expected providers: KMS, \
             AESGCM, AESCBC, Secretbox, Identity",
        ),
        (
            &entry(
                "[secrets]",
                &format!("[{{identity: {{}}, secretbox: {{keys: [{{name: a, secret: {KEY_32}}}]}}}}]"),
            ),
            "resources[0].providers[0]: Invalid value: {secretbox, identity}: more than one provider specified in a \
             single element, should split into different list elements",
        ),
    ] {
        assert_eq!(parse(resources), Err(error.to_owned()), "{resources}");
    }
}

#[test]
fn resource_names_that_nothing_matches_are_refused() {
    for (resource, reason) in [
        ("Secrets", "resource name should not contain capital letters"),
        ("*", "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"),
        ("apiserveripinfo", "resources which do not have REST API/s cannot be encrypted"),
        ("serviceipallocations", "resources which do not have REST API/s cannot be encrypted"),
        ("servicenodeportallocations", "resources which do not have REST API/s cannot be encrypted"),
        (
            "events.events.k8s.io",
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the \
             config file",
        ),
        ("deployments.extensions", "'extensions' group has been removed and cannot be used for encryption"),
        ("secrets.*", "encrypting the same resource across groups is not supported"),
    ] {
        let expected = format!("resources[0].resources[1]: Invalid value: \"{resource}\": {reason}");
        assert_eq!(parse(&entry(&format!("[jobs.batch, '{resource}']"), "[{identity: {}}]")), Err(expected));
    }
}

#[test]
fn resources_of_one_list_must_not_overlap() {
    const DUPLICATE: &str = "the same resource cannot be specified multiple times";
    const OVERLAP: &str = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not \
                           allowed as they will be masked";
    for (resources, reasons) in [
        (&["secrets", "configmaps", "*.apps", "deployments.batch"][..], &[][..]),
        (&["secrets", "secrets"], &[DUPLICATE]),
        (&["secrets", "*."], &[OVERLAP]),
        (&["deployments.apps", "*.apps"], &[OVERLAP]),
        (&["*.*", "secrets"], &[OVERLAP]),
        (&["*.apps", "*.*"], &[OVERLAP]),
        (&["*.", "*."], &[DUPLICATE, OVERLAP]),
        (&["secrets", "*.", "secrets"], &[DUPLICATE, OVERLAP]),
    ] {
        let texts: Vec<String> = resources.iter().map(|resource| format!("\"{resource}\"")).collect();
        let texts = texts.join(", ");
        let errors: Vec<String> = reasons
            .iter()
            .map(|reason| format!("resources[0].resources: Invalid value: []string{{{texts}}}: {reason}"))
            .collect();
        let expected = document::check_no_errors(&errors);
        assert_eq!(parse(&entry(&format!("[{texts}]"), "[{identity: {}}]")).map(|_| ()), expected);
    }
}

#[test]
fn keys_need_a_name_and_a_secret_of_the_right_length() {
    let path = "resources[0].providers[0].aesgcm.keys";
    for (keys, error) in [
        ("[]", format!("{path}: Required value: at least one keys is required")),
        (
            "[{}]",
            format!(
                "[{path}[0].name: Required value: name is a mandatory field for a key, {path}[0].secret: Required value: \
                 secret is a mandatory field for a key]"
            ),
        ),
        (
            "[{name: a, secret: 'no base64'}]",
            format!("{path}[0].secret: Invalid value: \"REDACTED\": secrets must be base64 encoded"),
        ),
        (
            "[{name: a, secret: YWJj}]",
            format!(
                "{path}[0].secret: Invalid value: \"REDACTED\": secret is not of the expected length, got 3, expected one \
                 of [16 24 32]"
            ),
        ),
    ] {
        assert_eq!(parse(&entry("[secrets]", &format!("[{{aesgcm: {{keys: {keys}}}}}]"))), Err(error));
    }
    let provider = format!("[{{secretbox: {{keys: [{{name: a, secret: {KEY_16}}}]}}}}]");
    let error = parse(&entry("[secrets]", &provider)).unwrap_err();
    assert!(error.ends_with("got 16, expected one of [32]"), "{error}");
    // Line ends, and unused bits of the last digit, as Go accepts them.
    let provider = r#"[{aescbc: {keys: [{name: a, secret: "MDEyMzQ1Njc4\nOWFiY2RlZh==\n"}]}}]"#;
    assert_eq!(parse(&entry("[secrets]", provider)).err(), None);
}

#[test]
fn kms_settings_are_checked() {
    let path = "resources[0].providers[0].kms";
    for (kms, error) in [
        (
            "name: a:b, apiVersion: v2, endpoint: 'tcp://host', cachesize: 5, timeout: -1s",
            format!(
                "[{path}.name: Invalid value: \"a:b\": invalid KMS provider name a:b, must not contain ':', {path}.timeout: \
                 Invalid value: -1s: timeout should be a positive value, {path}.endpoint: Invalid value: \"tcp://host\": \
                 unsupported scheme \"tcp\" for KMS provider, only unix is supported, {path}.cachesize: Invalid value: 5: \
                 cachesize is not supported in v2]"
            ),
        ),
        (
            "cachesize: 0, timeout: 0s",
            format!(
                "[{path}.name: Required value: name is a mandatory field for a provider, {path}.timeout: Invalid value: 0s: \
                 timeout should be a positive value, {path}.endpoint: Invalid value: \"\": endpoint is a mandatory field \
                 for a kms, {path}.cachesize: Invalid value: 0: cachesize should be a positive value, or negative to \
                 disable]"
            ),
        ),
        (
            "name: a, apiVersion: v3, endpoint: 'unix:///a'",
            format!(
                "{path}.apiVersion: Invalid value: \"v3\": unsupported apiVersion apiVersion for KMS provider, only v1 and \
                 v2 are supported"
            ),
        ),
        (
            "name: a, endpoint: ':a'",
            format!(
                "{path}.endpoint: Invalid value: \":a\": invalid endpoint for kms provider, error: parse \":a\": missing \
                 protocol scheme"
            ),
        ),
        (
            "name: a, endpoint: /run/kms.sock",
            format!(
                "{path}.endpoint: Invalid value: \"/run/kms.sock\": unsupported scheme \"\" for KMS provider, only unix is \
                 supported"
            ),
        ),
    ] {
        assert_eq!(parse(&entry("[secrets]", &format!("[{{kms: {{{kms}}}}}]"))), Err(error), "{kms}");
    }
}

#[test]
fn kms_names_are_unique_unless_all_are_v1_and_stay() {
    let providers = |first: &str, second: &str| {
        let kms =
            |version: &str| format!("{{kms: {{apiVersion: {version}, name: a, endpoint: 'unix:///a'}}}}");
        file(&entry("[secrets]", &format!("[{}, {}]", kms(first), kms(second))))
    };
    let duplicate = "resources[0].providers[1].kms.name: Invalid value: \"a\": duplicate KMS provider name a, names must be \
                     unique";
    for (first, second, is_reloaded, is_valid) in [
        ("v1", "v1", false, true),
        ("v1", "v1", true, false),
        ("v1", "v2", false, false),
        ("v2", "v1", false, true),
        ("v2", "v2", false, false),
    ] {
        let result = Configuration::parse(providers(first, second).as_bytes(), is_reloaded);
        let expected = if is_valid { None } else { Some(duplicate.to_owned()) };
        assert_eq!(result.err(), expected, "{first} {second}");
    }
}

#[test]
fn entries_that_an_earlier_pattern_masks_are_refused() {
    let entries = |lists: &[&str]| {
        let entries: Vec<String> = lists
            .iter()
            .map(|list| format!("{{resources: {list}, providers: [{{identity: {{}}}}]}}"))
            .collect();
        parse(&format!("[{}]", entries.join(", "))).unwrap()
    };
    for (lists, error) in [
        (
            &["['*.apps']", "[deployments.apps]"],
            "resource \"deployments.apps\" is masked by earlier rule \"*.apps\"",
        ),
        (&["['*.']", "[secrets]"], "resource \"secrets\" is masked by earlier rule \"*.\""),
        (&["['*.*']", "['*.apps']"], "resource \"*.apps\" is masked by earlier rule \"*.*\""),
        (&["['*.*']", "['*.*']"], "resource \"*.*\" is masked by earlier rule \"*.*\""),
    ] {
        assert_eq!(entries(lists).by_resource().err().as_deref(), Some(error));
    }
    let configuration = entries(&["[secrets, deployments.apps]", "['*.apps', secrets]", "['*.*']"]);
    let by_resource = configuration.by_resource().unwrap();
    let positions = |text: &'static str| by_resource.get(&GroupResource::parse(text)).cloned();
    assert_eq!(positions("secrets"), Some(vec![0, 1]));
    assert_eq!(
        (positions("*.apps"), positions("*.*"), positions("*.")),
        (Some(vec![1]), Some(vec![2]), None)
    );
}
