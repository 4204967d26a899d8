use super::*;

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n";
const WEBHOOK: &str = "- type: Webhook
  name: first.example.com
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: /x/first.kubeconfig}
";

fn parse(rest: &str) -> Result<Vec<AuthorizerConfig>, String> {
    AuthorizerConfig::parse(format!("{HEAD}{rest}").as_bytes())
}

#[test]
fn authorization_file_is_parsed_in_order() {
    let authorizers = parse(&format!(
        "{WEBHOOK}- {{type: Node, name: node}}\n- {{type: RBAC, name: rbac}}\n{}",
        WEBHOOK.replace("first", "second").replace("timeout: 3s", "timeout: 500ms\n    authorizedTTL: 1m")
    ));
    let authorizers = authorizers.unwrap();
    let names: Vec<&str> = authorizers.iter().map(|authorizer| authorizer.name.as_str()).collect();
    assert_eq!(names, ["first.example.com", "node", "rbac", "second.example.com"]);
    let webhook = authorizers[0].webhook.clone().unwrap();
    assert_eq!(
        webhook,
        Webhook {
            kubeconfig: PathBuf::from("/x/first.kubeconfig"),
            version: "v1".into(),
            authorized_ttl: DEFAULT_AUTHORIZED_TTL,
            unauthorized_ttl: DEFAULT_UNAUTHORIZED_TTL,
            timeout: Duration::from_secs(3),
            denies_on_failure: true,
            conditions: Vec::new(),
        }
    );
    let second = authorizers[3].webhook.clone().unwrap();
    assert_eq!(
        (second.timeout, second.authorized_ttl),
        (Duration::from_millis(500), Duration::from_secs(60))
    );
    for version in VERSIONS {
        let text = format!("{HEAD}- {{type: RBAC, name: rbac}}").replace(VERSIONS[0], version);
        assert_eq!(
            AuthorizerConfig::parse(text.as_bytes()).unwrap(),
            [AuthorizerConfig::without_webhook(AuthorizationMode::Rbac)]
        );
    }
}

/// The webhook authorizer with a replacement.
fn with_webhook_change(old: &str, new: &str) -> String {
    WEBHOOK.replace(old, new)
}

/// The webhook authorizer with match conditions.
fn with_conditions(list: &str) -> String {
    with_webhook_change("failurePolicy: Deny", &format!("failurePolicy: Deny\n    matchConditions: {list}"))
}

fn assert_errors<const N: usize>(table: [(String, &str); N]) {
    for (text, expected) in table {
        let error = parse(&text).unwrap_err();
        assert!(error.starts_with(expected), "{text}\n{error}");
    }
}

#[test]
fn authorization_file_authorizer_errors_name_the_field() {
    assert_errors([
        ("  []".to_owned(), "authorizers: Required value: at least one authorization mode must be defined"),
        ("- {name: rbac}".to_owned(), "authorizers[0].type: Required value"),
        (
            "- {type: Other, name: other}".to_owned(),
            "authorizers[0].type: Unsupported value: \"Other\": supported values: \"ABAC\", \"AlwaysAllow\", \
             \"AlwaysDeny\", \"Node\", \"RBAC\", \"Webhook\"",
        ),
        (
            "- {type: RBAC, name: rbac}\n- {type: RBAC, name: rbac}".to_owned(),
            "authorizers[1].type: Duplicate value: \"RBAC\"",
        ),
        ("- {type: RBAC, name: x}".to_owned(), "expected name rbac for authorizer RBAC instead of x"),
        ("- {type: RBAC, name: rbac, more: 1}".to_owned(), "unknown field \"authorizers[0].more\""),
        (
            "- {type: RBAC, name: rbac, webhook: {}}".to_owned(),
            "authorizers[0].webhook: Invalid value: \"non-null\": may only be specified when type=Webhook",
        ),
        (
            "- {type: Webhook, name: w}".to_owned(),
            "authorizers[0].webhook: Required value: required when type=Webhook",
        ),
        (format!("{WEBHOOK}{WEBHOOK}"), "authorizers[1].name: Duplicate value: \"first.example.com\""),
        ("- 1".to_owned(), "[authorizers[0]: must be an object, authorizers[0].type: Required value]"),
    ]);
    assert!(
        AuthorizerConfig::parse(b"- a").is_err()
            && AuthorizerConfig::parse(b"kind: AuthorizationConfiguration").is_err()
    );
    assert!(AuthorizerConfig::parse(&vec![b' '; AUTHORIZATION_FILE_BYTES + 1]).is_err());
}

#[test]
fn authorization_file_webhook_errors_name_the_field() {
    assert_errors([
        (
            with_webhook_change("timeout: 3s", "timeout: ''"),
            "authorizers[0].timeout: Invalid value: \"\": \"\" is not a duration",
        ),
        (with_webhook_change("    timeout: 3s\n", ""), "authorizers[0].timeout: Required value"),
        (
            with_webhook_change("timeout: 3s", "timeout: 31s"),
            "authorizers[0].timeout: Invalid value: \"31s\": must be > 0s and <= 30s",
        ),
        (
            with_webhook_change("ReviewVersion: v1\n    match", "ReviewVersion: v2\n    match"),
            "authorizers[0].subjectAccessReviewVersion: Unsupported value: \"v2\": supported values: \"v1\", \"v1beta1\"",
        ),
        (
            with_webhook_change("failurePolicy: Deny", "failurePolicy: Allow"),
            "authorizers[0].failurePolicy: Unsupported value: \"Allow\"",
        ),
        (
            with_webhook_change("/x/first", "x/first"),
            "authorizers[0].connectionInfo.kubeConfigFile: Invalid value: \"x/first.kubeconfig\": must be an absolute path",
        ),
        (
            with_webhook_change("type: KubeConfigFile", "type: InClusterConfig"),
            "authorizers[0].connectionInfo.type: Invalid value: \"InClusterConfig\"",
        ),
    ]);
}

#[test]
fn authorization_file_match_condition_errors_name_the_field() {
    assert_errors([
        (
            with_conditions("[{expression: request.user}]"),
            "authorizers[0].matchConditions[0].expression: Invalid value: \"request.user\": must evaluate to bool but got string",
        ),
        (
            with_conditions("[{expression: object.x}]"),
            "authorizers[0].matchConditions[0].expression: Invalid value: \"object.x\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'object'",
        ),
        (
            with_conditions("[{expression: ' '}]"),
            "authorizers[0].matchConditions[0].expression: Required value",
        ),
        (
            with_conditions("[{expression: 'true'}, {expression: 'true'}]"),
            "authorizers[0].matchConditions[1].expression: Duplicate value: \"true\"",
        ),
        (with_conditions("1"), "authorizers[0].matchConditions: must be a list"),
        (
            with_conditions(&format!("[{}]", "{expression: 'true'}, ".repeat(65))),
            "authorizers[0].matchConditions: Too many: 65: must have at most 64 items",
        ),
        (
            with_conditions("[{expression: 'true'}]")
                .replace("    matchConditionSubjectAccessReviewVersion: v1\n", ""),
            "authorizers[0].matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified",
        ),
        (
            with_webhook_change(
                "matchConditionSubjectAccessReviewVersion: v1",
                "matchConditionSubjectAccessReviewVersion: v2",
            ),
            "authorizers[0].matchConditionSubjectAccessReviewVersion: Unsupported value: \"v2\"",
        ),
    ]);
}

#[test]
fn reloaded_authorizers_must_keep_initial_types() {
    let authorizers = |modes: &[AuthorizationMode]| -> Vec<AuthorizerConfig> {
        modes.iter().map(|mode| AuthorizerConfig::without_webhook(*mode)).collect()
    };
    use AuthorizationMode::{AlwaysDeny, Node, Rbac, Webhook};
    let first = authorizers(&[Node, Rbac]);
    assert_eq!(
        AuthorizerConfig::check_reload(&first, &authorizers(&[Rbac, Webhook, Node, AlwaysDeny])),
        Ok(())
    );
    assert_eq!(
        AuthorizerConfig::check_reload(&first, &authorizers(&[Webhook])),
        Err("missing required types: [Node RBAC]".into())
    );
    assert_eq!(
        AuthorizerConfig::check_reload(&authorizers(&[Node]), &first),
        Err("authorizer type RBAC is not allowed if it was not enabled at initial server startup".into())
    );
}
