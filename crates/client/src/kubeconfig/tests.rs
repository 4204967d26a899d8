use super::*;

const FILE: &str = "
apiVersion: v1
kind: Config
current-context: c
clusters:
- name: k
  cluster: {server: 'https://h:1/x', certificate-authority-data: YQ==, tls-server-name: host.test}
users:
- name: u
  user: {username: a, password: b}
contexts:
- name: c
  context: {cluster: k, user: u}
";
const USER: &str = "username: a, password: b";

fn parse(text: &str) -> Result<Access, String> {
    Access::parse(text.as_bytes(), Path::new("/nowhere"))
}

fn with_user(user: &str) -> Result<Access, String> {
    parse(&FILE.replace(USER, user))
}

async fn header(access: &Access) -> Option<String> {
    access.credentials.present().await.unwrap().header
}

#[actix_rt::test]
async fn kubeconfig_uses_current_context() {
    let access = parse(FILE).unwrap();
    assert_eq!((access.server.as_str(), access.server_name.as_deref()), ("https://h:1/x", Some("host.test")));
    assert_eq!(access.authority_pem.as_deref(), Some(&b"a"[..]));
    assert_eq!(header(&access).await.as_deref(), Some("Basic YTpi"));
    assert_eq!(header(&with_user("token: t").unwrap()).await.as_deref(), Some("Bearer t"));
    let without_user = parse(&FILE.replace(", user: u}", "}")).unwrap();
    assert_eq!(header(&without_user).await, None);
    let without_credentials = parse(&FILE.replace("  user: {username: a, password: b}\n", "")).unwrap();
    assert_eq!(header(&without_credentials).await, None);
}

#[actix_rt::test]
async fn kubeconfig_token_file_is_reread() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("token");
    std::fs::write(&path, "one\n").unwrap();
    let text = FILE.replace(USER, "tokenFile: token, token: other");
    let access = Access::parse(text.as_bytes(), home.path()).unwrap();
    assert_eq!(header(&access).await.as_deref(), Some("Bearer one"));
    std::fs::write(&path, "two").unwrap();
    assert_eq!(header(&access).await.as_deref(), Some("Bearer two"));
    std::fs::remove_file(&path).unwrap();
    assert!(access.credentials.present().await.is_err_and(|error| error.contains("token")));
}

#[test]
fn kubeconfig_impersonation_headers_are_escaped() {
    let user = "token: t, as: bob, as-uid: u, as-groups: [g, h], as-user-extra: {acme.com/x%: [1a, 2b]}";
    let headers = with_user(user).unwrap().impersonation.headers();
    let headers: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let expected = [
        "Impersonate-User: bob",
        "Impersonate-Uid: u",
        "Impersonate-Group: g",
        "Impersonate-Group: h",
        "Impersonate-Extra-acme.com%2Fx%25: 1a",
        "Impersonate-Extra-acme.com%2Fx%25: 2b",
    ];
    assert_eq!(headers, expected);
    assert!(with_user("token: t").unwrap().impersonation.headers().is_empty());
}

#[test]
fn kubeconfig_proxy_url_is_parsed() {
    let proxy = |url: &str| {
        let cluster = format!("proxy-url: '{url}', tls-server-name");
        parse(&FILE.replace("tls-server-name", &cluster)).map(|access| access.proxy.unwrap())
    };
    let http = proxy("http://us%40er:word@[::1]:3128").unwrap();
    assert_eq!(http.address.to_string(), "[::1]:3128");
    assert_eq!(http.user, Some(("us@er".to_owned(), "word".to_owned())));
    assert_eq!(
        (proxy("socks5://p").unwrap().address.port, proxy("http://p").unwrap().address.port),
        (1_080, 80)
    );
    assert_eq!(
        (proxy("https://p").unwrap().address.port, proxy("https://p:1").unwrap().is_http()),
        (443, true)
    );
    let error = proxy("ftp://p").err().unwrap();
    assert_eq!(error, "proxy-url: unsupported scheme \"ftp\", must be http, https, or socks5");
}

#[test]
fn kubeconfig_unlisted_user_has_no_credentials() {
    let access = parse(&FILE.replace("cluster: k, user: u", "cluster: k, user: z")).unwrap();
    assert!(matches!(access.credentials, Credentials::None) && access.identity_pem.is_none());
}

#[test]
fn kubeconfig_errors_name_the_cause() {
    let parse_error = |old: &str, new: &str| parse(&FILE.replace(old, new)).err().unwrap();
    assert_eq!(parse_error("current-context: c", ""), "there is no current-context");
    assert_eq!(parse_error("cluster: k, user: u", "cluster: z, user: u"), "there is no cluster \"z\"");
    assert_eq!(parse_error("'https://h:1/x'", "''"), "the cluster has no server");
    assert!(parse_error("YQ==", "'!'").starts_with("certificate-authority-data: "));
    assert!(
        parse_error("tls-server-name", "insecure-skip-tls-verify: true, x").contains("exclude each other")
    );
    for (user, expected) in [
        ("tokenFile: t, client-key: k", "/nowhere/k"),
        ("client-key-data: YQ==", "must be set together"),
        ("token: t, username: a", "exclude each other"),
        ("as-groups: [g]", "need a user"),
        ("auth-provider: {name: gcp}", "auth-provider is not supported"),
        ("exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}", "command is missing"),
        ("exec: {command: x}", "apiVersion is missing"),
        ("exec: {command: x, apiVersion: client.authentication.k8s.io/v1alpha1}", "invalid apiVersion"),
        ("exec: {command: x, apiVersion: client.authentication.k8s.io/v1}", "interactiveMode is missing"),
        (
            "token: t, exec: {command: x, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Ever}",
            "invalid interactiveMode \"Ever\"",
        ),
        (
            "exec: {command: x, apiVersion: client.authentication.k8s.io/v1beta1, env: [{value: x}]}",
            "name of a variable",
        ),
    ] {
        let error = with_user(user).err().unwrap_or_default();
        assert!(error.contains(expected), "{user}: {error}");
    }
}

#[test]
fn kubeconfig_token_takes_precedence_over_exec() {
    let exec = "exec: {command: x, apiVersion: client.authentication.k8s.io/v1beta1}";
    assert!(matches!(with_user(exec).unwrap().credentials, Credentials::Exec(_)));
    let token_and_exec = with_user(&format!("token: t, {exec}")).unwrap();
    assert!(matches!(token_and_exec.credentials, Credentials::Token(_)));
}
