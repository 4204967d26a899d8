//! Tokens of an OpenID Connect provider: a Python package, over TLS.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::compare::text;
use crate::support::kubectl::Kubectl;
use crate::support::kubelet::TlsIdentity;
use crate::support::python::{environment, run, script};
use crate::support::server::{StartFailure, temp_directory};
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

/// The provider needs a module of authlib that the next major release removes.
static PYTHON: LazyLock<PathBuf> =
    LazyLock::new(|| environment("oidc-provider-mock", &["oidc-provider-mock==0.3.4", "authlib<2"]));

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Address and certificate of a provider, which may not run yet.
struct ProviderEndpoint {
    folder: TempDir,
    port: u16,
    certificate: PathBuf,
    key: PathBuf,
}

/// A running provider, killed on drop.
struct Provider(Child);

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl ProviderEndpoint {
    fn new() -> ProviderEndpoint {
        let folder = temp_directory();
        let (certificate, key) =
            TlsIdentity::new("provider.test", &["127.0.0.1"]).write(folder.path(), "provider");
        let listener = TcpListener::bind((IpAddr::from(Ipv4Addr::LOCALHOST), 0)).unwrap();
        ProviderEndpoint { folder, port: listener.local_addr().unwrap().port(), certificate, key }
    }

    fn issuer(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Starts the provider with a new key.
    fn start(&self) -> Provider {
        let mut command = Command::new(&*PYTHON);
        command.arg(script("openid.py")).args(["serve", &self.port.to_string()]);
        command.args([&self.certificate, &self.key]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let errors = fs::File::create(self.folder.path().join("provider.log")).unwrap();
        let mut child = command.stderr(errors).spawn().expect("python runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let provider = Provider(child);
        assert_eq!(
            line,
            "ready\n",
            "{}",
            fs::read_to_string(self.folder.path().join("provider.log")).unwrap()
        );
        provider
    }

    /// Logs in and returns the token.
    fn login(&self, client: &str, user: &str) -> String {
        let mut command = Command::new(&*PYTHON);
        command.arg(script("openid.py")).args(["login", &self.issuer()]).arg(&self.certificate);
        run(command.args([client, user])).trim().to_owned()
    }

    /// A server that trusts the provider.
    fn server(&self, flags: &[&str]) -> Server {
        let provider_flags = [
            format!("--oidc-issuer-url={}", self.issuer()),
            format!("--oidc-ca-file={}", self.certificate.display()),
            "--oidc-client-id=pilothouse".to_owned(),
            "--oidc-groups-claim=groups".to_owned(),
            "--oidc-groups-prefix=oidc:".to_owned(),
        ];
        let all_flags: Vec<_> =
            provider_flags.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        Server::with_flags(&[&["--engine=memory"][..], &all_flags].concat())
    }
}

fn bearer(server: &Server, token: &str) -> Client {
    server.anonymous().with_token(Some(token))
}

fn list_status(server: &Server, token: &str) -> u16 {
    bearer(server, token).get(MAPS).status
}

/// The user that the server sees.
fn whoami(server: &Server, token: &str) -> Value {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    bearer(server, token).post(REVIEWS, &review).ok()["status"]["userInfo"].clone()
}

/// Allows a group or a user to read config maps.
fn grant_map_access(server: &Server, kind: &str, name: &str) {
    let mut admin = server.admin();
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let meta = json!({"name": "reader"});
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
    let version = "rbac.authorization.k8s.io/v1";
    let role = json!({"apiVersion": version, "kind": "Role", "metadata": meta, "rules": rules});
    admin.post(&format!("{roles}/roles"), &role).ok();
    let binding = json!({"apiVersion": version, "kind": "RoleBinding", "metadata": meta,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}]});
    admin.post(&format!("{roles}/rolebindings"), &binding).ok();
}

/// A kubeconfig with this token.
fn kubeconfig(server: &Server, folder: &Path, token: &str) -> String {
    let admin = fs::read_to_string(server.kubeconfig()).unwrap();
    let value = |field: &str| {
        let line = admin.lines().find_map(|line| line.trim().strip_prefix(field)?.strip_prefix(": "));
        line.expect("a field").to_owned()
    };
    let (url, authority) = (value("server"), value("certificate-authority-data"));
    let file = folder.join("openid.kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {{server: {url}, \
         certificate-authority-data: {authority}}}\nusers:\n- name: u\n  user: {{token: {token}}}\ncontexts:\n- name: c\n  \
         context: {{cluster: c, user: u}}\n"
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn oidc_token_authenticates_user_and_groups() {
    let endpoint = ProviderEndpoint::new();
    let provider = endpoint.start();
    let mut server = endpoint.server(&[]);
    let token = endpoint.login("pilothouse", "ann");
    let refused = bearer(&server, &token).get(MAPS).expect_error(403, "Forbidden");
    let user = format!("{}#ann", endpoint.issuer());
    assert!(text(&refused, "/message").contains(&format!("User \"{user}\" cannot list")), "{refused}");
    let user_info = whoami(&server, &token);
    assert_eq!(user_info["username"], user);
    assert_eq!(user_info["groups"], json!(["oidc:devs", "oidc:testers", "system:authenticated"]));
    let distributed = whoami(&server, &endpoint.login("pilothouse", "near"));
    assert_eq!(distributed["groups"], user_info["groups"], "they are fetched with the access token");
    grant_map_access(&server, "Group", "oidc:testers");
    bearer(&server, &token).get(MAPS).ok();
    assert_eq!(bearer(&server, &token).get("/api/v1/namespaces/default/secrets").status, 403);
    // A single group may be a string.
    let other_token = endpoint.login("pilothouse", "bob");
    assert_eq!(whoami(&server, &other_token)["groups"], json!(["oidc:devs", "system:authenticated"]));
    assert_eq!(list_status(&server, &other_token), 403);

    let kubectl = Kubectl::new(&server);
    let kubectl = Kubectl { kubeconfig: kubeconfig(&server, endpoint.folder.path(), &token), ..kubectl };
    kubectl.run(&["get", "configmaps"]);
    // Old releases lack `whoami`.
    if kubectl.run(&["auth", "--help"]).contains("whoami") {
        assert_eq!(kubectl.run(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]), user);
    }

    // Other authenticators still work.
    assert_eq!(whoami(&server, crate::support::USER_TOKEN)["username"], "alice");
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}});
    server.admin().post(accounts, &account).ok();
    let token_request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let created = server.admin().post(&format!("{accounts}/sa/token"), &token_request).ok();
    let account_token = text(&created, "/status/token");
    assert_eq!(whoami(&server, account_token)["username"], "system:serviceaccount:default:sa");

    // Keys of the provider stay cached when it is down.
    drop(provider);
    assert_eq!(list_status(&server, &token), 200);
    server.assert_healthy();
    for secret in [&token, &other_token] {
        assert!(!server.log().contains(secret.as_str()) && !server.output().contains(secret.as_str()));
    }
}

#[test]
fn oidc_provider_may_start_late_and_rotate_keys() {
    let endpoint = ProviderEndpoint::new();
    let mut server = endpoint.server(&["--oidc-username-claim=email"]);
    assert_eq!(server.admin().get(MAPS).status, 200, "nobody waits for the provider");
    grant_map_access(&server, "User", "ann@example.com");
    let provider = endpoint.start();
    let first = endpoint.login("pilothouse", "ann");
    poll(TIMEOUT, || (list_status(&server, &first) == 200).then_some(())).expect("the provider is found");
    assert_eq!(
        list_status(&server, &endpoint.login("pilothouse", "bob")),
        401,
        "the address is not verified"
    );
    assert_eq!(list_status(&server, &endpoint.login("pilothouse", "cat")), 401, "there is no address");

    drop(provider);
    let _provider = endpoint.start();
    let second = endpoint.login("pilothouse", "ann");
    assert_eq!(list_status(&server, &second), 200, "the new key is fetched when it is first needed");
    // Tokens of the old key become invalid.
    poll(TIMEOUT, || (list_status(&server, &first) == 401).then_some(())).expect("the old token ends");
    server.assert_healthy();
}

#[test]
fn invalid_oidc_tokens_are_unauthorized() {
    let endpoint = ProviderEndpoint::new();
    let _provider = endpoint.start();
    let mut server = endpoint.server(&["--oidc-required-claim=tier=gold"]);
    let valid_token = endpoint.login("pilothouse", "ann");
    poll(TIMEOUT, || (list_status(&server, &valid_token) == 403).then_some(()))
        .expect("a good token is known");
    let segments: Vec<&str> = valid_token.split('.').collect();
    let encode_segment = |value: &Value| BASE64.encode(value.to_string());
    let mut claims: Value = serde_json::from_slice(&BASE64.decode(segments[1]).unwrap()).unwrap();
    claims["sub"] = "eve".into();
    let invalid_tokens = [
        ("another client", endpoint.login("another", "ann")),
        ("no tier", endpoint.login("pilothouse", "cat")),
        ("groups that cannot be fetched", endpoint.login("pilothouse", "far")),
        ("other claims", format!("{}.{}.{}", segments[0], encode_segment(&claims), segments[2])),
        ("not signed", format!("{}.{}.", encode_segment(&json!({"alg": "none"})), segments[1])),
        (
            "a shared secret",
            format!("{}.{}.{}", encode_segment(&json!({"alg": "HS256"})), segments[1], segments[2]),
        ),
        (
            "an unknown key",
            format!(
                "{}.{}.{}",
                encode_segment(&json!({"alg": "RS256", "kid": "x"})),
                segments[1],
                segments[2]
            ),
        ),
        ("no token", "x.y.z".to_owned()),
    ];
    for (case, token) in &invalid_tokens {
        let response = bearer(&server, token).get(MAPS);
        let expected = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
        assert_eq!((response.status, response.json()), (401, expected), "{case}");
    }
    // Only one of many refusals in a second is logged.
    let distributed_claims_token = &invalid_tokens[2].1;
    let is_logged = || server.log().contains("could not expand distributed claims").then_some(());
    poll(TIMEOUT, || {
        is_logged()
            .or_else(|| (bearer(&server, distributed_claims_token).get(MAPS).status != 401).then_some(()))
    })
    .expect("the log says why");
    server.assert_healthy();
    let log = server.log();
    assert!(invalid_tokens.iter().all(|(_, token)| !log.contains(token.as_str())), "{log}");
}

/// Writes an authentication configuration and returns its path.
fn configuration(folder: &Path, content: &Value) -> String {
    let mut file =
        json!({"apiVersion": "apiserver.config.k8s.io/v1beta1", "kind": "AuthenticationConfiguration"});
    for (field, value) in content.as_object().unwrap() {
        file[field] = value.clone();
    }
    // Atomically, because the server may read the file at any moment.
    let (path, draft) = (folder.join("authentication.yaml"), folder.join("draft.yaml"));
    fs::write(&draft, file.to_string()).unwrap();
    fs::rename(&draft, &path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A JWT authenticator of the authentication configuration.
fn provider(endpoint: &ProviderEndpoint, audiences: &[&str], prefix: &str) -> Value {
    json!({"issuer": {"url": endpoint.issuer(), "audiences": audiences, "audienceMatchPolicy": "MatchAny",
            "certificateAuthority": fs::read_to_string(&endpoint.certificate).unwrap()},
        "claimValidationRules": [{"claim": "tier", "requiredValue": "gold"}],
        "claimMappings": {"username": {"claim": "sub", "prefix": prefix}, "uid": {"claim": "email"},
            "groups": {"claim": "groups", "prefix": "oidc:"}}})
}

#[test]
fn authentication_config_sets_providers_and_anonymous_paths() {
    let (endpoint, other_endpoint) = (ProviderEndpoint::new(), ProviderEndpoint::new());
    let anonymous_config = json!({"enabled": true, "conditions": [{"path": "/livez"}, {"path": "/readyz"}]});
    let folder = endpoint.folder.path();
    let write = |jwt: Value| configuration(folder, &json!({"jwt": jwt, "anonymous": anonymous_config}));
    let path = write(json!([provider(&endpoint, &["pilothouse", "spare"], "one:")]));
    let flag = format!("--authentication-config={path}");
    let mut server = Server::with_flags(&["--engine=memory", &flag]);
    assert_eq!(server.anonymous().get("/livez").status, 200);
    for path in ["/version", "/livez/ping", "/healthz"] {
        assert_eq!(server.anonymous().get(path).status, 401, "{path}");
    }
    assert_eq!(server.admin().get("/version").status, 200);

    let (_provider, _other) = (endpoint.start(), other_endpoint.start());
    let token = endpoint.login("pilothouse", "ann");
    poll(TIMEOUT, || (list_status(&server, &token) == 403).then_some(())).expect("the provider is found");
    let user_info = whoami(&server, &token);
    assert_eq!((&user_info["username"], &user_info["uid"]), (&json!("one:ann"), &json!("ann@example.com")));
    assert_eq!(user_info["groups"], json!(["oidc:devs", "oidc:testers", "system:authenticated"]));
    assert_eq!(whoami(&server, &endpoint.login("spare", "ann"))["username"], "one:ann");
    assert_eq!(list_status(&server, &endpoint.login("else", "ann")), 401);
    assert_eq!(list_status(&server, &endpoint.login("pilothouse", "cat")), 401, "no tier");
    let other_token = other_endpoint.login("pilothouse", "ann");
    assert_eq!(list_status(&server, &other_token), 401, "nobody named this provider");

    // A valid change is loaded without a restart.
    write(json!([
        provider(&endpoint, &["spare"], "one:"),
        provider(&other_endpoint, &["pilothouse"], "two:")
    ]));
    poll(TIMEOUT, || (list_status(&server, &other_token) == 403).then_some(()))
        .expect("the other provider counts");
    assert_eq!(whoami(&server, &other_token)["username"], "two:ann");
    assert_eq!(list_status(&server, &token), 401, "not meant for us any more");
    let reloads = |server: &Server, status: &str| {
        let line = format!("automatic_reloads_total{{apiserver_id_hash=\"\",status=\"{status}\"}} 1");
        server.admin().get("/metrics").text().contains(&line)
    };
    assert!(reloads(&server, "success"));
    configuration(folder, &json!({"jwt": [], "anonymous": {"enabled": true}}));
    poll(TIMEOUT, || reloads(&server, "failure").then_some(())).expect("the change is told");
    assert!(server.log().contains("anonymous: Forbidden: changed from initial configuration file"));
    assert_eq!(list_status(&server, &other_token), 403, "all stays as it was");
    let metrics = server.admin().get("/metrics").text();
    assert!(metrics.contains("authentication_config_controller_automatic_reload_last_timestamp_seconds"));
    assert!(
        metrics.contains("apiserver_authentication_jwt_authenticator_latency_seconds_count{"),
        "{metrics}"
    );
    server.assert_healthy();
    assert!(!server.log().contains(&token) && !server.log().contains(&other_token));
}

#[test]
fn start_refuses_invalid_authentication_config() {
    let endpoint = ProviderEndpoint::new();
    let folder = endpoint.folder.path();
    let jwt = |change: &dyn Fn(&mut Value)| {
        let mut provider_config = provider(&endpoint, &["a"], "");
        change(&mut provider_config);
        json!({"jwt": [provider_config]})
    };
    let expression = jwt(&|provider_config| {
        provider_config["claimMappings"]["username"] = json!({"expression": "claims.email"});
    });
    let own_issuer =
        jwt(&|provider_config| provider_config["issuer"]["url"] = "https://kubernetes.default.svc".into());
    for (content, flags, message) in [
        (expression, vec![], "claims.email_verified must be used in claimMappings.username.expression"),
        (own_issuer, vec![], "URL must not overlap with disallowed issuers"),
        (json!({"more": 1}), vec![], "unknown field \\\"more\\\""),
        (
            json!({"anonymous": {"enabled": true}}),
            vec!["--anonymous-auth=true"],
            "--anonymous-auth flag cannot be set",
        ),
        (json!({}), vec!["--oidc-issuer-url=https://a.test", "--oidc-client-id=c"], "cannot be used with"),
        (
            json!({}),
            vec!["--feature-gates=StructuredAuthenticationConfiguration=false"],
            "to use authentication-config",
        ),
    ] {
        let flag = format!("--authentication-config={}", configuration(folder, &content));
        let flags = [&[flag.as_str()][..], &flags].concat();
        let failure = Server::try_start_in(&folder.join("data"), &flags).err().expect("no server");
        let stderr = failure.stderr.replace('\\', "");
        assert!(stderr.contains(&message.replace('\\', "")), "{content}: {failure:?}");
    }
}

#[test]
fn oidc_cel_expressions_map_and_validate_claims() {
    let endpoint = ProviderEndpoint::new();
    let jwt = json!({"issuer": {"url": endpoint.issuer(), "audiences": ["pilothouse"],
            "certificateAuthority": fs::read_to_string(&endpoint.certificate).unwrap()},
        "claimValidationRules": [{"expression": "claims.?tier.orValue('') == 'gold'", "message": "only gold"}],
        "claimMappings": {
            "username": {"expression": "claims.?email_verified.orValue(true) ? 'x:' + claims.email : ''"},
            "groups": {"expression": "claims.groups.filter(g, g != 'testers').map(g, 'e:' + g)"},
            "uid": {"expression": "claims.sub"},
            "extra": [{"key": "a.test/tier", "valueExpression": "claims.tier"},
                {"key": "a.test/none", "valueExpression": "''"}]},
        "userValidationRules": [{"expression": "!('e:robots' in user.groups)", "message": "no robots"},
            {"expression": "user.extra['a.test/tier'] == ['gold']"}]});
    let path = configuration(endpoint.folder.path(), &json!({"jwt": [jwt]}));
    let mut server = Server::with_flags(&["--engine=memory", &format!("--authentication-config={path}")]);
    let _provider = endpoint.start();
    let token = endpoint.login("pilothouse", "ann");
    poll(TIMEOUT, || (list_status(&server, &token) == 403).then_some(())).expect("the provider is found");
    let user_info = whoami(&server, &token);
    assert_eq!((&user_info["username"], &user_info["uid"]), (&json!("x:ann@example.com"), &json!("ann")));
    assert_eq!(user_info["groups"], json!(["e:devs", "system:authenticated"]));
    assert_eq!(user_info["extra"]["a.test/tier"], json!(["gold"]));
    assert_eq!(user_info["extra"].get("a.test/none"), None, "what is empty is not there");
    for user in ["bob", "cat"] {
        assert_eq!(list_status(&server, &endpoint.login("pilothouse", user)), 401, "{user}");
    }
    let is_logged = |reason: &str| server.log().contains(reason).then_some(());
    let cat = endpoint.login("pilothouse", "cat");
    poll(TIMEOUT, || {
        bearer(&server, &cat).get(MAPS);
        is_logged("oidc: error evaluating")
    })
    .expect("the log says why");
    server.assert_healthy();
}

#[test]
fn start_refuses_invalid_oidc_flags() {
    let folder = temp_directory();
    let start_failure = |flags: &[&str]| -> StartFailure {
        match Server::try_start_in(&folder.path().join("data"), flags) {
            Ok(_) => panic!("{flags:?}: the server started"),
            Err(start_failure) => start_failure,
        }
    };
    let empty = folder.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    let (empty, absent) = (format!("--oidc-ca-file={}", empty.display()), "--oidc-ca-file=absent.pem");
    let required_flags = ["--oidc-issuer-url=https://127.0.0.1:1", "--oidc-client-id=c"];
    for (flags, message) in [
        (vec!["--oidc-client-id=c"], "oidc-issuer-url and oidc-client-id must be specified together"),
        (vec!["--oidc-issuer-url=http://a.test", "--oidc-client-id=c"], "URL scheme must be https"),
        ([&required_flags[..], &["--oidc-signing-algs=HS256"]].concat(), "unsupported signing alg"),
        ([&required_flags[..], &[absent]].concat(), "--oidc-ca-file"),
        ([&required_flags[..], &[&*empty]].concat(), "does not contain any valid"),
    ] {
        let start_failure = start_failure(&flags);
        assert!(
            !start_failure.status.success() && start_failure.stderr.contains(message),
            "{flags:?}: {start_failure:?}"
        );
    }
}
