use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::query::Query;

use super::*;

fn read(rules: &str) -> Result<ParsedPolicy, String> {
    let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}");
    Policy::read(&yaml::read(text.as_bytes()).unwrap())
}

fn policy(rules: &str) -> Policy {
    read(rules).unwrap().policy
}

fn decide(policy: &Policy, user: Option<&Identity>, method: &str, uri: &str) -> Level {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    policy.decide(user, &Request::parse(method, path, &Query::parse(query)).unwrap()).level
}

#[test]
fn first_matching_rule_decides_the_level() {
    let policy = policy(
        "rules:
- {level: None, users: [quiet]}
- {level: Request, verbs: [create, delete], resources: [{group: '', resources: [pods]}]}
- {level: Metadata, userGroups: [devs]}
- {level: RequestResponse}
",
    );
    let user = |name: &str, groups: &[&str]| Identity {
        name: name.to_owned(),
        groups: groups.iter().map(ToString::to_string).collect(),
        ..Identity::default()
    };
    let (quiet, dev, other) = (user("quiet", &["devs"]), user("ann", &["x", "devs"]), user("bob", &[]));
    let pods = "/api/v1/namespaces/nn/pods";
    for (user, method, expected) in [
        (Some(&quiet), "POST", Level::None),
        (Some(&dev), "POST", Level::Request),
        (Some(&dev), "GET", Level::Metadata),
        (Some(&other), "GET", Level::RequestResponse),
        (None, "GET", Level::RequestResponse),
    ] {
        assert_eq!(decide(&policy, user, method, pods), expected, "{user:?} {method}");
    }
    assert_eq!(decide(&policy, Some(&other), "DELETE", pods), Level::RequestResponse, "deletecollection");
}

#[test]
fn rules_match_resources_subresources_names_namespaces_and_paths() {
    let pod = "/api/v1/namespaces/nn/pods/a";
    for (rule, method, uri, expected) in [
        ("resources: [{resources: [pods]}]", "GET", pod, true),
        ("resources: [{resources: [pods]}]", "GET", "/api/v1/namespaces/nn/pods/a/log", false),
        ("resources: [{resources: [pods/log]}]", "GET", "/api/v1/namespaces/nn/pods/a/log", true),
        ("resources: [{resources: [pods/log]}]", "GET", pod, false),
        ("resources: [{resources: ['pods/*']}]", "GET", "/api/v1/namespaces/nn/pods/a/log", true),
        ("resources: [{resources: ['pods/*']}]", "GET", pod, true),
        ("resources: [{resources: ['pods/*']}]", "GET", "/api/v1/nodes/a", false),
        ("resources: [{resources: ['*/status']}]", "GET", "/api/v1/namespaces/nn/pods/a/status", true),
        ("resources: [{resources: ['*/status']}]", "GET", pod, false),
        ("resources: [{resources: ['*']}]", "GET", "/api/v1/namespaces/nn/pods/a/log", true),
        ("resources: [{resources: ['*']}]", "GET", "/apis/apps/v1/deployments", false),
        ("resources: [{group: apps}]", "GET", "/apis/apps/v1/deployments", true),
        ("resources: [{group: apps}]", "GET", pod, false),
        ("resources: [{resources: [pods], resourceNames: [a]}]", "GET", pod, true),
        ("resources: [{resources: [pods], resourceNames: [b]}]", "GET", pod, false),
        (
            "resources: [{resources: [pods], resourceNames: [a]}]",
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name%3Da",
            true,
        ),
        ("namespaces: [nn]", "GET", pod, true),
        ("namespaces: [m]", "GET", pod, false),
        ("namespaces: ['']", "GET", "/api/v1/nodes", true),
        ("namespaces: ['']", "GET", "/healthz", false),
        ("nonResourceURLs: [/healthz]", "GET", "/healthz", true),
        ("nonResourceURLs: [/healthz]", "GET", "/healthz/etcd", false),
        ("nonResourceURLs: ['/healthz*']", "GET", "/healthz/etcd", true),
        ("nonResourceURLs: ['*']", "GET", "/metrics", true),
        ("nonResourceURLs: ['*']", "GET", pod, false),
        ("verbs: [get]", "GET", "/version", true),
        ("verbs: [watch]", "GET", "/api/v1/pods?watch=1", true),
        ("verbs: [list]", "GET", "/api/v1/pods?watch=1", false),
    ] {
        let policy = policy(&format!("rules:\n- level: Metadata\n  {rule}\n"));
        let level = decide(&policy, None, method, uri);
        assert_eq!(level, if expected { Level::Metadata } else { Level::None }, "{rule} {uri}");
    }
}

#[test]
fn omitted_stages_add_up_and_rule_overrides_omit_managed_fields() {
    let policy = policy(
        "omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: Metadata, verbs: [get], omitStages: [Panic], omitManagedFields: false}
- {level: Metadata, verbs: [list]}
",
    );
    let decide = |uri: &str| {
        let query = Query::parse("");
        policy.decide(None, &Request::parse("GET", uri, &query).unwrap())
    };
    let first = decide("/api/v1/nodes/a");
    assert!(first.omitted.contains(Stage::RequestReceived) && first.omitted.contains(Stage::Panic));
    assert!(!first.omitted.contains(Stage::ResponseComplete) && !first.omits_managed_fields);
    let second = decide("/api/v1/nodes");
    assert!(!second.omitted.contains(Stage::Panic) && second.omits_managed_fields);
    assert_eq!(decide("/version").level, Level::Metadata);
}

#[test]
fn invalid_audit_policies_are_refused() {
    for (rules, expected) in [
        ("", "loaded illegal policy with 0 rules"),
        ("rules: []", "loaded illegal policy with 0 rules"),
        ("rules: [{}]", "rules[0].level: Required value"),
        (
            "rules: [{level: All}]",
            "rules[0].level: Unsupported value: \"All\": supported values: \"None\", \"Metadata\", \"Request\", \
             \"RequestResponse\"",
        ),
        (
            "rules: [{level: None, omitStages: [Done]}]",
            "rules[0].omitStages[0]: Invalid value: \"Done\": allowed stages are \
             RequestReceived,ResponseStarted,ResponseComplete,Panic",
        ),
        (
            "rules: [{level: None, nonResourceURLs: [metrics, '/a*b']}]",
            "[rules[0].nonResourceURLs[0]: Invalid value: \"metrics\": non-resource URL rules must begin with a '/' \
             character, rules[0].nonResourceURLs[1]: Invalid value: \"/a*b\": non-resource URL wildcards '*' must be \
             the final character of the rule]",
        ),
        (
            "rules: [{level: None, nonResourceURLs: [/a], namespaces: [nn]}]",
            "rules[0].nonResourceURLs: Invalid value: []string{\"/a\"}: rules cannot apply to both regular resources \
             and non-resource URLs",
        ),
        (
            "rules: [{level: None, resources: [{resourceNames: [a]}]}]",
            "rules[0].resources.resourceNames: Invalid value: []string{\"a\"}: using resourceNames requires at least \
             one resource",
        ),
        (
            "rules: [{level: None, users: [1]}]",
            "failed decoding: json: cannot unmarshal number into Go struct field PolicyRule.rules.users of type string",
        ),
    ] {
        assert_eq!(read(rules).unwrap_err(), expected, "{rules}");
    }
    assert!(
        read("rules: [{level: None, resources: [{group: a/v1}]}]")
            .unwrap_err()
            .contains("resources.group: Inv")
    );
    for (head, expected) in [
        (
            r#"{"kind":"Policy","apiVersion":"audit.k8s.io/v1beta1"}"#,
            "failed decoding: no kind \"Policy\" is registered",
        ),
        (
            r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1"}"#,
            "failed decoding: converting (v1.Event) to (audit.Policy)",
        ),
        ("{}", "unknown group version field audit.k8s.io/__internal, Kind=Policy in policy"),
        (r#"{"kind":"Policy"}"#, "unknown group version field"),
        (r#"{"apiVersion":"audit.k8s.io/v1"}"#, "loaded illegal policy with 0 rules"),
    ] {
        let error = Policy::read(&yaml::read(head.as_bytes()).unwrap()).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    let lenient = read("rules: [{level: None, userz: [a]}]").unwrap();
    assert_eq!(lenient.unknown, ["unknown field \"rules[0].userz\""]);
}
