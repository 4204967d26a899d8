//! Tokens of an OpenID Connect provider: a real one, from the Python package index, over TLS.

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
use crate::support::kubelet::Papers;
use crate::support::python::{script, succeed, with};
use crate::support::server::{Refusal, directory};
use crate::support::wait::{CAP, poll};
use crate::support::{Client, Server};

/// The provider needs a part of its library that the next major release leaves out.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| with(&["oidc-provider-mock==0.3.4", "authlib<2"]));

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Where a provider is, or will be.
struct Place {
    folder: TempDir,
    port: u16,
    certificate: PathBuf,
    key: PathBuf,
}

/// A running provider. Dropped, it is gone.
struct Provider(Child);

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Place {
    fn new() -> Place {
        let folder = directory();
        let (certificate, key) =
            Papers::new("provider.test", &["127.0.0.1"]).write(folder.path(), "provider");
        let listener = TcpListener::bind((IpAddr::from(Ipv4Addr::LOCALHOST), 0)).unwrap();
        Place { folder, port: listener.local_addr().unwrap().port(), certificate, key }
    }

    fn issuer(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Starts the provider, with a key that it never had before.
    fn open(&self) -> Provider {
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

    /// Logs in and answers the token.
    fn login(&self, client: &str, user: &str) -> String {
        let mut command = Command::new(&*PYTHON);
        command.arg(script("openid.py")).args(["login", &self.issuer()]).arg(&self.certificate);
        succeed(command.args([client, user])).trim().to_owned()
    }

    /// A server that believes the provider.
    fn server(&self, more: &[&str]) -> Server {
        let own = [
            format!("--oidc-issuer-url={}", self.issuer()),
            format!("--oidc-ca-file={}", self.certificate.display()),
            "--oidc-client-id=pilothouse".to_owned(),
            "--oidc-groups-claim=groups".to_owned(),
            "--oidc-groups-prefix=oidc:".to_owned(),
        ];
        let all: Vec<_> = own.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Server::with(&[&["--engine=memory"][..], &all].concat())
    }
}

fn bearer(server: &Server, token: &str) -> Client {
    server.anonymous().with_token(Some(token))
}

fn status(server: &Server, token: &str) -> u16 {
    bearer(server, token).get(MAPS).status
}

/// Whom the server takes the bearer for.
fn whoami(server: &Server, token: &str) -> Value {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    bearer(server, token).post(REVIEWS, &review).ok()["status"]["userInfo"].clone()
}

/// Lets a group or a user read config maps.
fn permit(server: &Server, kind: &str, name: &str) {
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

/// The kubeconfig of whoever bears this token.
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
fn whoever_logs_in_is_known_and_roles_see_their_groups() {
    let place = Place::new();
    let provider = place.open();
    let mut server = place.server(&[]);
    let token = place.login("pilothouse", "ann");
    let refused = bearer(&server, &token).get(MAPS).refused(403, "Forbidden");
    let user = format!("{}#ann", place.issuer());
    assert!(text(&refused, "/message").contains(&format!("User \"{user}\" cannot list")), "{refused}");
    let me = whoami(&server, &token);
    assert_eq!(me["username"], user);
    assert_eq!(me["groups"], json!(["oidc:devs", "oidc:testers", "system:authenticated"]));
    permit(&server, "Group", "oidc:testers");
    bearer(&server, &token).get(MAPS).ok();
    assert_eq!(bearer(&server, &token).get("/api/v1/namespaces/default/secrets").status, 403);
    // One group may be a text.
    let other = place.login("pilothouse", "bob");
    assert_eq!(whoami(&server, &other)["groups"], json!(["oidc:devs", "system:authenticated"]));
    assert_eq!(status(&server, &other), 403);

    let kubectl = Kubectl::new(&server);
    let kubectl = Kubectl { kubeconfig: kubeconfig(&server, place.folder.path(), &token), ..kubectl };
    kubectl.run(&["get", "configmaps"]);
    // Old releases do not know the question.
    if kubectl.run(&["auth", "--help"]).contains("whoami") {
        assert_eq!(kubectl.run(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]), user);
    }

    // Everybody else is known as before.
    assert_eq!(whoami(&server, crate::support::USER_TOKEN)["username"], "alice");
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}});
    server.admin().post(accounts, &account).ok();
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let made = server.admin().post(&format!("{accounts}/sa/token"), &asked).ok();
    let of_account = text(&made, "/status/token");
    assert_eq!(whoami(&server, of_account)["username"], "system:serviceaccount:default:sa");

    // What is known of the provider outlives it.
    drop(provider);
    assert_eq!(status(&server, &token), 200);
    server.unharmed();
    for secret in [&token, &other] {
        assert!(!server.log().contains(secret.as_str()) && !server.output().contains(secret.as_str()));
    }
}

#[test]
fn a_provider_may_come_late_and_change_its_keys() {
    let place = Place::new();
    let mut server = place.server(&["--oidc-username-claim=email"]);
    assert_eq!(server.admin().get(MAPS).status, 200, "nobody waits for the provider");
    permit(&server, "User", "ann@example.com");
    let provider = place.open();
    let first = place.login("pilothouse", "ann");
    poll(CAP, || (status(&server, &first) == 200).then_some(())).expect("the provider is found");
    assert_eq!(status(&server, &place.login("pilothouse", "bob")), 401, "the address is not verified");
    assert_eq!(status(&server, &place.login("pilothouse", "cat")), 401, "there is no address");

    drop(provider);
    let _provider = place.open();
    let second = place.login("pilothouse", "ann");
    assert_eq!(status(&server, &second), 200, "the new key is fetched when it is first needed");
    // The old key is none of the provider's any more.
    poll(CAP, || (status(&server, &first) == 401).then_some(())).expect("the old token ends");
    server.unharmed();
}

#[test]
fn what_is_no_good_token_is_refused_with_the_body_of_the_reference() {
    let place = Place::new();
    let _provider = place.open();
    let mut server = place.server(&["--oidc-required-claim=tier=gold"]);
    let good = place.login("pilothouse", "ann");
    poll(CAP, || (status(&server, &good) == 403).then_some(())).expect("a good token is known");
    let parts: Vec<&str> = good.split('.').collect();
    let part = |value: &Value| BASE64.encode(value.to_string());
    let mut claims: Value = serde_json::from_slice(&BASE64.decode(parts[1]).unwrap()).unwrap();
    claims["sub"] = "eve".into();
    let bad = [
        ("another client", place.login("another", "ann")),
        ("no tier", place.login("pilothouse", "cat")),
        ("groups elsewhere", place.login("pilothouse", "far")),
        ("other claims", format!("{}.{}.{}", parts[0], part(&claims), parts[2])),
        ("not signed", format!("{}.{}.", part(&json!({"alg": "none"})), parts[1])),
        ("a shared secret", format!("{}.{}.{}", part(&json!({"alg": "HS256"})), parts[1], parts[2])),
        (
            "an unknown key",
            format!("{}.{}.{}", part(&json!({"alg": "RS256", "kid": "x"})), parts[1], parts[2]),
        ),
        ("no token", "x.y.z".to_owned()),
    ];
    for (what, token) in &bad {
        let answer = bearer(&server, token).get(MAPS);
        let expected = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
        assert_eq!((answer.status, answer.json()), (401, expected), "{what}");
    }
    // Of many refusals in a second one is told.
    let elsewhere = &bad[2].1;
    let is_told = || server.log().contains("distributed or aggregated claim").then_some(());
    poll(CAP, || is_told().or_else(|| (bearer(&server, elsewhere).get(MAPS).status != 401).then_some(())))
        .expect("the log says why");
    server.unharmed();
    let log = server.log();
    assert!(bad.iter().all(|(_, token)| !log.contains(token.as_str())), "{log}");
}

/// Writes an authentication configuration and answers its path.
fn configuration(folder: &Path, content: &Value) -> String {
    let mut file =
        json!({"apiVersion": "apiserver.config.k8s.io/v1beta1", "kind": "AuthenticationConfiguration"});
    for (field, value) in content.as_object().unwrap() {
        file[field] = value.clone();
    }
    // Whole or not at all: the server may look at any moment.
    let (path, draft) = (folder.join("authentication.yaml"), folder.join("draft.yaml"));
    fs::write(&draft, file.to_string()).unwrap();
    fs::rename(&draft, &path).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_file_names_providers_and_the_doors_of_the_anonymous() {
    let (place, other) = (Place::new(), Place::new());
    let provider = |place: &Place, audiences: &[&str], prefix: &str| {
        json!({"issuer": {"url": place.issuer(), "audiences": audiences, "audienceMatchPolicy": "MatchAny",
                "certificateAuthority": fs::read_to_string(&place.certificate).unwrap()},
            "claimValidationRules": [{"claim": "tier", "requiredValue": "gold"}],
            "claimMappings": {"username": {"claim": "sub", "prefix": prefix}, "uid": {"claim": "email"},
                "groups": {"claim": "groups", "prefix": "oidc:"}}})
    };
    let anonymous = json!({"enabled": true, "conditions": [{"path": "/livez"}, {"path": "/readyz"}]});
    let folder = place.folder.path();
    let write = |jwt: Value| configuration(folder, &json!({"jwt": jwt, "anonymous": anonymous}));
    let path = write(json!([provider(&place, &["pilothouse", "spare"], "one:")]));
    let flag = format!("--authentication-config={path}");
    let mut server = Server::with(&["--engine=memory", &flag]);
    assert_eq!(server.anonymous().get("/livez").status, 200);
    for path in ["/version", "/livez/ping", "/healthz"] {
        assert_eq!(server.anonymous().get(path).status, 401, "{path}");
    }
    assert_eq!(server.admin().get("/version").status, 200);

    let (_provider, _other) = (place.open(), other.open());
    let token = place.login("pilothouse", "ann");
    poll(CAP, || (status(&server, &token) == 403).then_some(())).expect("the provider is found");
    let me = whoami(&server, &token);
    assert_eq!((&me["username"], &me["uid"]), (&json!("one:ann"), &json!("ann@example.com")));
    assert_eq!(me["groups"], json!(["oidc:devs", "oidc:testers", "system:authenticated"]));
    assert_eq!(whoami(&server, &place.login("spare", "ann"))["username"], "one:ann");
    assert_eq!(status(&server, &place.login("else", "ann")), 401);
    assert_eq!(status(&server, &place.login("pilothouse", "cat")), 401, "no tier");
    let elsewhere = other.login("pilothouse", "ann");
    assert_eq!(status(&server, &elsewhere), 401, "nobody named this provider");

    // What the file says counts without a restart, if it makes sense.
    write(json!([provider(&place, &["spare"], "one:"), provider(&other, &["pilothouse"], "two:")]));
    poll(CAP, || (status(&server, &elsewhere) == 403).then_some(())).expect("the other provider counts");
    assert_eq!(whoami(&server, &elsewhere)["username"], "two:ann");
    assert_eq!(status(&server, &token), 401, "not meant for us any more");
    let reloads = |server: &Server, status: &str| {
        let line = format!("automatic_reloads_total{{apiserver_id_hash=\"\",status=\"{status}\"}} 1");
        server.admin().get("/metrics").text().contains(&line)
    };
    assert!(reloads(&server, "success"));
    configuration(folder, &json!({"jwt": [], "anonymous": {"enabled": true}}));
    poll(CAP, || reloads(&server, "failure").then_some(())).expect("the change is told");
    assert!(server.log().contains("anonymous: Forbidden: changed from initial configuration file"));
    assert_eq!(status(&server, &elsewhere), 403, "all stays as it was");
    let metrics = server.admin().get("/metrics").text();
    assert!(metrics.contains("authentication_config_controller_automatic_reload_last_timestamp_seconds"));
    assert!(
        metrics.contains("apiserver_authentication_jwt_authenticator_latency_seconds_count{"),
        "{metrics}"
    );
    server.unharmed();
    assert!(!server.log().contains(&token) && !server.log().contains(&elsewhere));

    // What cannot work ends the start.
    let jwt = |change: &dyn Fn(&mut Value)| {
        let mut one = provider(&place, &["a"], "");
        change(&mut one);
        json!({"jwt": [one]})
    };
    let expression = jwt(&|one| one["claimMappings"]["username"] = json!({"expression": "claims.email"}));
    let ours = jwt(&|one| one["issuer"]["url"] = "https://kubernetes.default.svc".into());
    for (content, flags, part) in [
        (expression, vec![], "claims.email_verified must be used in claimMappings.username.expression"),
        (ours, vec![], "URL must not overlap with disallowed issuers"),
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
        let refusal = Server::try_on(&folder.join("data"), &flags).err().expect("no server");
        let said = refusal.stderr.replace('\\', "");
        assert!(said.contains(&part.replace('\\', "")), "{content}: {refusal:?}");
    }
}

#[test]
fn expressions_say_whom_claims_make() {
    let place = Place::new();
    let jwt = json!({"issuer": {"url": place.issuer(), "audiences": ["pilothouse"],
            "certificateAuthority": fs::read_to_string(&place.certificate).unwrap()},
        "claimValidationRules": [{"expression": "claims.?tier.orValue('') == 'gold'", "message": "only gold"}],
        "claimMappings": {
            "username": {"expression": "claims.?email_verified.orValue(true) ? 'x:' + claims.email : ''"},
            "groups": {"expression": "claims.groups.filter(g, g != 'testers').map(g, 'e:' + g)"},
            "uid": {"expression": "claims.sub"},
            "extra": [{"key": "a.test/tier", "valueExpression": "claims.tier"},
                {"key": "a.test/none", "valueExpression": "''"}]},
        "userValidationRules": [{"expression": "!('e:robots' in user.groups)", "message": "no robots"},
            {"expression": "user.extra['a.test/tier'] == ['gold']"}]});
    let path = configuration(place.folder.path(), &json!({"jwt": [jwt]}));
    let mut server = Server::with(&["--engine=memory", &format!("--authentication-config={path}")]);
    let _provider = place.open();
    let token = place.login("pilothouse", "ann");
    poll(CAP, || (status(&server, &token) == 403).then_some(())).expect("the provider is found");
    let me = whoami(&server, &token);
    assert_eq!((&me["username"], &me["uid"]), (&json!("x:ann@example.com"), &json!("ann")));
    assert_eq!(me["groups"], json!(["e:devs", "system:authenticated"]));
    assert_eq!(me["extra"]["a.test/tier"], json!(["gold"]));
    assert_eq!(me["extra"].get("a.test/none"), None, "what is empty is not there");
    for user in ["bob", "cat"] {
        assert_eq!(status(&server, &place.login("pilothouse", user)), 401, "{user}");
    }
    let is_told = |why: &str| server.log().contains(why).then_some(());
    let cat = place.login("pilothouse", "cat");
    poll(CAP, || {
        bearer(&server, &cat).get(MAPS);
        is_told("oidc: error evaluating")
    })
    .expect("the log says why");
    server.unharmed();
}

#[test]
fn flags_that_cannot_work_end_the_start() {
    let folder = directory();
    let refusal = |flags: &[&str]| -> Refusal {
        match Server::try_on(&folder.path().join("data"), flags) {
            Ok(_) => panic!("{flags:?}: the server started"),
            Err(refusal) => refusal,
        }
    };
    let empty = folder.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    let (empty, absent) = (format!("--oidc-ca-file={}", empty.display()), "--oidc-ca-file=absent.pem");
    let both = ["--oidc-issuer-url=https://127.0.0.1:1", "--oidc-client-id=c"];
    for (flags, part) in [
        (vec!["--oidc-client-id=c"], "oidc-issuer-url and oidc-client-id must be specified together"),
        (vec!["--oidc-issuer-url=http://a.test", "--oidc-client-id=c"], "URL scheme must be https"),
        ([&both[..], &["--oidc-signing-algs=HS256"]].concat(), "unsupported signing alg"),
        ([&both[..], &[absent]].concat(), "--oidc-ca-file"),
        ([&both[..], &[&*empty]].concat(), "does not contain any valid"),
    ] {
        let refusal = refusal(&flags);
        assert!(!refusal.status.success() && refusal.stderr.contains(part), "{flags:?}: {refusal:?}");
    }
}
