//! Acting as somebody else, and asking who one is.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::Kubectl;
use super::support::{Server, USER_TOKEN, wait};

#[test]
fn acting_as_somebody_else() {
    let server = Server::with(&["--engine=memory", "--authorization-mode=RBAC", "--controllers=*"]);
    let kubectl = Kubectl::new(&server);
    // What the default roles gather from others comes with a control loop.
    let mut admin = server.admin();
    let view = "/apis/rbac.authorization.k8s.io/v1/clusterroles/view";
    wait::poll(wait::CAP, || (!admin.get(view).ok()["rules"].is_null()).then_some(())).expect("its rules");
    let refused = |arguments: &[&str]| {
        let output = kubectl.try_run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let pods = ["get", "pods", "--as=bob", "--as-group=testers"];
    assert!(refused(&pods).contains("User \"bob\" cannot list resource \"pods\""));
    assert!(refused(&["auth", "can-i", "list", "pods", "--as=bob"]).starts_with("no"));
    kubectl.run(&["create", "rolebinding", "view", "--clusterrole=view", "--group=testers"]);
    kubectl.run(&pods);
    let asked = kubectl.run(&["auth", "can-i", "list", "pods", "--as=bob", "--as-group=testers"]);
    assert_eq!(asked.trim(), "yes");
    // They are bob now, with all that bob may not do.
    assert!(refused(&["create", "configmap", "x", "--as=bob", "--as-group=testers"]).contains("\"bob\""));
    let both = ["get", "pods", "--as=system:serviceaccount:default:reader"];
    assert!(refused(&both).contains("system:serviceaccount:default:reader"));
    kubectl.run(&[
        "create",
        "rolebinding",
        "reader",
        "--clusterrole=view",
        "--serviceaccount=default:reader",
    ]);
    kubectl.run(&both);

    // Old releases do not know the question.
    if kubectl.run(&["auth", "--help"]).contains("whoami") {
        let me = kubectl.run(&["auth", "whoami", "--as=bob", "--as-group=testers", "-o", "yaml"]);
        for line in ["    username: bob", "    - testers", "    - system:authenticated"] {
            assert!(me.lines().any(|known| known == line), "{line} in {me}");
        }
    }
}

#[test]
fn a_plugin_makes_the_credentials() {
    let server = Server::with(&["--engine=memory"]);
    let mut kubectl = Kubectl::new(&server);
    let plugin = kubectl.home.path().join("plugin");
    let version = "client.authentication.k8s.io/v1";
    let made = json!({"apiVersion": version, "kind": "ExecCredential", "status": {"token": USER_TOKEN}});
    fs::write(&plugin, format!("#!/bin/sh\necho '{made}'\n")).expect("a plug-in");
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("a program");
    let known = |user: &serde_json::Value| {
        let old = fs::read_to_string(server.kubeconfig()).expect("the kubeconfig of the server");
        let authority =
            old.lines().find(|line| line.contains("certificate-authority-data")).expect("an authority");
        let data = authority.split_once(':').expect("a value").1.trim().trim_matches('"').to_owned();
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": format!("https://{}", server.address()),
                "certificate-authority-data": data}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]})
    };
    let exec = json!({"exec": {"apiVersion": version, "command": plugin, "interactiveMode": "Never"}});
    let path = kubectl.home.path().join("config");
    fs::write(&path, known(&exec).to_string()).expect("a kubeconfig");
    kubectl.kubeconfig = path.to_str().expect("a path of letters").to_owned();
    let refused = kubectl.try_run(&["get", "pods"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("User \"alice\" cannot list resource \"pods\""), "{said}");
    // A token that nobody knows makes the plug-in run again, and is told as what it is.
    fs::write(&plugin, format!("#!/bin/sh\necho '{}'\n", made.to_string().replace(USER_TOKEN, "bad")))
        .expect("a plug-in");
    let refused = kubectl.try_run(&["get", "pods"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("Unauthorized") || said.contains("logged in"), "{said}");
}
