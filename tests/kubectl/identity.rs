//! Acting as somebody else, and asking who one is.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::Kubectl;
use super::support::server::USER_TOKEN;
use super::support::{Server, wait};

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

/// A server whose default roles have all that they gather.
fn gathered() -> Server {
    let server = Server::with(&["--engine=memory", "--authorization-mode=RBAC", "--controllers=*"]);
    let mut admin = server.admin();
    for role in ["view", "edit", "admin"] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}");
        wait::poll(wait::CAP, || (!admin.get(&path).ok()["rules"].is_null()).then_some(()))
            .expect("its rules");
    }
    server
}

fn refused(kubectl: &Kubectl, arguments: &[&str]) -> String {
    let output = kubectl.try_run(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// kubectl with a kubeconfig of somebody who is no administrator.
fn alice(server: &Server) -> Kubectl {
    let mut kubectl = Kubectl::new(server);
    let file = kubectl.home.path().join("alice.kubeconfig");
    fs::copy(server.kubeconfig(), &file).unwrap();
    kubectl.kubeconfig = file.to_str().unwrap().to_owned();
    kubectl.run(&["config", "set-credentials", "alice", &format!("--token={USER_TOKEN}")]);
    kubectl.run(&["config", "set-context", "--current", "--user=alice"]);
    kubectl
}

#[test]
fn somebody_lives_under_view_and_then_under_edit() {
    let server = gathered();
    let (admin, alice) = (Kubectl::new(&server), alice(&server));
    assert!(refused(&alice, &["get", "pods"]).contains("User \"alice\" cannot list resource \"pods\""));
    admin.run(&["create", "rolebinding", "v", "--clusterrole=view", "--user=alice"]);
    for read in
        [&["get", "pods,services,deployments,configmaps"][..], &["get", "events"], &["describe", "quota"]]
    {
        alice.run(read);
    }
    assert_eq!(alice.run(&["auth", "can-i", "list", "deployments.apps"]).trim(), "yes");
    for (verb, what) in [("get", "secrets"), ("create", "pods"), ("list", "nodes"), ("get", "roles")] {
        assert!(refused(&alice, &["auth", "can-i", verb, what]).starts_with("no"), "{verb} {what}");
    }
    assert!(refused(&alice, &["get", "pods", "-A"]).contains("at the cluster scope"));
    assert!(refused(&alice, &["create", "configmap", "a"]).contains("cannot create resource \"configmaps\""));

    admin.run(&["create", "rolebinding", "e", "--clusterrole=edit", "--group=devs"]);
    alice.run(&["create", "configmap", "a", "--from-literal=k=v"]);
    alice.run(&["create", "deployment", "d", "--image=i"]);
    alice.run(&["scale", "deployment", "d", "--replicas=3"]);
    alice.run(&["create", "secret", "generic", "s", "--from-literal=k=v"]);
    alice.run(&["label", "configmap", "a", "l=x"]);
    alice.run(&["delete", "configmap/a", "secret/s", "deployment/d"]);
    let listed = alice.run(&["auth", "can-i", "--list"]);
    for line in ["deployments.apps", "secrets", "selfsubjectaccessreviews.authorization.k8s.io", "[/healthz]"]
    {
        assert!(listed.contains(line), "{line} in {listed}");
    }
    // Editors edit no rights, and nobody gives what they do not have.
    let role = ["create", "role", "r", "--verb=get", "--resource=pods"];
    assert!(refused(&alice, &role).contains("cannot create resource \"roles\""));
    admin.run(&["create", "rolebinding", "a", "--clusterrole=admin", "--user=alice"]);
    alice.run(&role);
    let greedy = ["create", "role", "g", "--verb=get,create", "--resource=csinodes.storage.k8s.io"];
    let said = refused(&alice, &greedy);
    assert!(said.contains("user \"alice\" (groups=[\"devs\" \"testers\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:"), "{said}");
    assert!(
        said.contains(
            "{APIGroups:[\"storage.k8s.io\"], Resources:[\"csinodes\"], Verbs:[\"get\" \"create\"]}"
        ),
        "{said}"
    );
    let all = ["create", "rolebinding", "all", "--clusterrole=cluster-admin", "--user=alice"];
    assert!(refused(&alice, &all).contains("is attempting to grant RBAC permissions not currently held"));
}

#[test]
fn roles_and_bindings_are_made_asked_about_and_reconciled() {
    let server = gathered();
    let kubectl = Kubectl::new(&server);
    kubectl.run(&["create", "role", "one", "--verb=get,list", "--resource=pods", "--resource-name=a"]);
    kubectl.run(&["create", "clusterrole", "health", "--verb=get", "--non-resource-url=/metrics,/logs/*"]);
    kubectl.run(&["create", "clusterrole", "part", "--verb=get,list", "--resource=nodes,pods/log"]);
    kubectl.run(&["create", "clusterrole", "whole", "--aggregation-rule=example.com/to-whole=true"]);
    kubectl.run(&["create", "rolebinding", "one", "--role=one", "--user=bob"]);
    kubectl.run(&["create", "clusterrolebinding", "whole", "--clusterrole=whole", "--user=bob"]);
    kubectl.run(&[
        "create",
        "clusterrolebinding",
        "health",
        "--clusterrole=health",
        "--serviceaccount=default:sa",
    ]);
    let can = |arguments: &[&str]| {
        let output = kubectl.try_run(&[&["auth", "can-i"], arguments].concat());
        String::from_utf8_lossy(&output.stdout).trim() == "yes"
    };
    assert!(can(&["get", "pods/a", "--as=bob"]) && !can(&["get", "pods/b", "--as=bob"]));
    assert!(!can(&["list", "nodes", "--as=bob"]));
    kubectl.run(&["label", "clusterrole", "part", "example.com/to-whole=true"]);
    wait::poll(wait::CAP, || can(&["list", "nodes", "--as=bob"]).then_some(())).expect("it is gathered");
    assert!(
        can(&["get", "pods", "--subresource=log", "--as=bob", "-A"])
            && !can(&["delete", "nodes", "--as=bob"])
    );
    let account = "--as=system:serviceaccount:default:sa";
    assert!(can(&["get", "/metrics", account]) && can(&["get", "/logs/x", account]));
    assert!(!can(&["get", "/logs", account]) && !can(&["get", "/metrics", "--as=bob"]) && can(&["*", "*"]));
    let listed = kubectl.run(&["auth", "can-i", "--list", "--as=bob"]);
    let line = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(line("pods ").contains("[a]") && line("pods ").contains("[get list]"), "{listed}");
    assert!(line("nodes ").contains("[get list]"), "{listed}");

    let file = kubectl.home.path().join("rights.yaml");
    fs::write(
        &file,
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: part}, \
         rules: [{verbs: [watch], apiGroups: [''], resources: [nodes]}]}\n---\n\
         {apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: one, namespace: default}, \
         roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}, \
         subjects: [{kind: User, name: carol, apiGroup: rbac.authorization.k8s.io}]}\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    kubectl.run(&["auth", "reconcile", "-f", file]);
    let rules = kubectl.get("clusterrole", "part")["rules"].clone();
    assert_eq!(rules.as_array().map(Vec::len), Some(2), "{rules}");
    let binding = kubectl.get("rolebinding", "one");
    assert_eq!(
        (&binding["roleRef"]["name"], &binding["subjects"][0]["name"]),
        (&"view".into(), &"carol".into())
    );
    assert!(!can(&["get", "pods/a", "--as=bob"]) && can(&["get", "pods", "--as=carol"]));
    kubectl.run(&["auth", "reconcile", "-f", file, "--remove-extra-permissions", "--remove-extra-subjects"]);
    let rules = kubectl.get("clusterrole", "part")["rules"].clone();
    assert_eq!(rules[0]["verbs"], serde_json::json!(["watch"]));
    wait::poll(wait::CAP, || (!can(&["list", "nodes", "--as=bob"])).then_some(())).expect("it is gathered");
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
