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
    access.credentials.show().await.unwrap().header
}

#[actix::test]
async fn the_current_context_counts() {
    let access = parse(FILE).unwrap();
    assert_eq!((access.server.as_str(), access.server_name.as_deref()), ("https://h:1/x", Some("host.test")));
    assert_eq!(access.authority_pem.as_deref(), Some(&b"a"[..]));
    assert_eq!(header(&access).await.as_deref(), Some("Basic YTpi"));
    assert_eq!(header(&with_user("token: t").unwrap()).await.as_deref(), Some("Bearer t"));
    let nobody = parse(&FILE.replace(", user: u}", "}")).unwrap();
    assert_eq!(header(&nobody).await, None);
    let without_credentials = parse(&FILE.replace("  user: {username: a, password: b}\n", "")).unwrap();
    assert_eq!(header(&without_credentials).await, None);
}

#[actix::test]
async fn a_token_file_is_read_anew() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("token");
    std::fs::write(&path, "one\n").unwrap();
    let text = FILE.replace(USER, "tokenFile: token, token: other");
    let access = Access::parse(text.as_bytes(), home.path()).unwrap();
    assert_eq!(header(&access).await.as_deref(), Some("Bearer one"));
    std::fs::write(&path, "two").unwrap();
    assert_eq!(header(&access).await.as_deref(), Some("Bearer two"));
    std::fs::remove_file(&path).unwrap();
    assert!(access.credentials.show().await.is_err_and(|why| why.contains("token")));
}

#[test]
fn somebody_else_can_be_asked_for() {
    let user = "token: t, as: bob, as-uid: u, as-groups: [g, h], as-user-extra: {acme.com/x%: [1a, 2b]}";
    let headers = with_user(user).unwrap().acting_as.headers();
    let headers: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let wanted = [
        "Impersonate-User: bob",
        "Impersonate-Uid: u",
        "Impersonate-Group: g",
        "Impersonate-Group: h",
        "Impersonate-Extra-acme.com%2Fx%25: 1a",
        "Impersonate-Extra-acme.com%2Fx%25: 2b",
    ];
    assert_eq!(headers, wanted);
    assert!(with_user("token: t").unwrap().acting_as.headers().is_empty());
}

#[test]
fn proxies_are_read() {
    let proxy = |url: &str| {
        let cluster = format!("proxy-url: '{url}', tls-server-name");
        parse(&FILE.replace("tls-server-name", &cluster)).map(|access| access.proxy.unwrap())
    };
    let http = proxy("http://us%40er:word@[::1]:3128").unwrap();
    assert_eq!((http.host.as_str(), http.port), ("::1", 3_128));
    assert_eq!(http.user, Some(("us@er".to_owned(), "word".to_owned())));
    assert_eq!((proxy("socks5://p").unwrap().port, proxy("http://p").unwrap().port), (1_080, 80));
    assert!(proxy("https://p").err().unwrap().contains("https is neither http nor socks5"));
}

#[test]
fn a_user_who_is_not_listed_has_no_credentials() {
    let access = parse(&FILE.replace("cluster: k, user: u", "cluster: k, user: z")).unwrap();
    assert!(matches!(access.credentials, Credentials::None) && access.identity_pem.is_none());
}

#[test]
fn what_is_wrong_is_named() {
    let wrong = |from: &str, to: &str| parse(&FILE.replace(from, to)).err().unwrap();
    assert_eq!(wrong("current-context: c", ""), "there is no current-context");
    assert_eq!(wrong("cluster: k, user: u", "cluster: z, user: u"), "there is no cluster \"z\"");
    assert_eq!(wrong("'https://h:1/x'", "''"), "the cluster has no server");
    assert!(wrong("YQ==", "'!'").starts_with("certificate-authority-data: "));
    assert!(wrong("tls-server-name", "insecure-skip-tls-verify: true, x").contains("do not go together"));
    for (user, part) in [
        ("tokenFile: t, client-key: k", "/nowhere/k"),
        ("client-key-data: YQ==", "go together"),
        ("token: t, username: a", "do not go together"),
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
        let said = with_user(user).err().unwrap_or_default();
        assert!(said.contains(part), "{user}: {said}");
    }
}

#[test]
fn what_a_user_has_comes_before_what_a_program_makes() {
    let exec = "exec: {command: x, apiVersion: client.authentication.k8s.io/v1beta1}";
    assert!(matches!(with_user(exec).unwrap().credentials, Credentials::Exec(_)));
    let both = with_user(&format!("token: t, {exec}")).unwrap();
    assert!(matches!(both.credentials, Credentials::Token(_)));
}
