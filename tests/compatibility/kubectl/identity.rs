//! kubectl with impersonation, other users, and exec plug-ins.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::Kubectl;
use crate::support::server::USER_TOKEN;
use crate::support::{Server, wait};

#[test]
fn kubectl_impersonation_uses_rights_of_impersonated_user() {
    let server = Server::with_flags(&["--engine=memory", "--authorization-mode=RBAC", "--controllers=*"]);
    let kubectl = Kubectl::new(&server);
    // The aggregated rules of the default roles are set by a controller.
    let mut admin = server.admin();
    let view = "/apis/rbac.authorization.k8s.io/v1/clusterroles/view";
    wait::poll(wait::TIMEOUT, || (!admin.get(view).ok()["rules"].is_null()).then_some(()))
        .expect("its rules");
    let pods = ["get", "pods", "--as=bob", "--as-group=testers"];
    assert!(failed_output(&kubectl, &pods).contains("User \"bob\" cannot list resource \"pods\""));
    assert!(failed_output(&kubectl, &["auth", "can-i", "list", "pods", "--as=bob"]).starts_with("no"));
    kubectl.run(&["create", "rolebinding", "view", "--clusterrole=view", "--group=testers"]);
    kubectl.run(&pods);
    let answer = kubectl.run(&["auth", "can-i", "list", "pods", "--as=bob", "--as-group=testers"]);
    assert_eq!(answer.trim(), "yes");
    // The rights are those of bob.
    assert!(
        failed_output(&kubectl, &["create", "configmap", "x", "--as=bob", "--as-group=testers"])
            .contains("\"bob\"")
    );
    let as_account = ["get", "pods", "--as=system:serviceaccount:default:reader"];
    assert!(failed_output(&kubectl, &as_account).contains("system:serviceaccount:default:reader"));
    kubectl.run(&[
        "create",
        "rolebinding",
        "reader",
        "--clusterrole=view",
        "--serviceaccount=default:reader",
    ]);
    kubectl.run(&as_account);

    // Old releases lack `whoami`.
    if kubectl.run(&["auth", "--help"]).contains("whoami") {
        let me = kubectl.run(&["auth", "whoami", "--as=bob", "--as-group=testers", "-o", "yaml"]);
        for line in ["    username: bob", "    - testers", "    - system:authenticated"] {
            assert!(me.lines().any(|kubeconfig_for| kubeconfig_for == line), "{line} in {me}");
        }
    }
}

/// A server whose default roles are aggregated.
fn server_with_aggregated_roles() -> Server {
    let server = Server::with_flags(&["--engine=memory", "--authorization-mode=RBAC", "--controllers=*"]);
    let mut admin = server.admin();
    for role in ["view", "edit", "admin"] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}");
        wait::poll(wait::TIMEOUT, || (!admin.get(&path).ok()["rules"].is_null()).then_some(()))
            .expect("its rules");
    }
    server
}

fn failed_output(kubectl: &Kubectl, arguments: &[&str]) -> String {
    let output = kubectl.try_run(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// kubectl with the kubeconfig of a user without rights.
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
fn kubectl_user_with_view_then_edit_role() {
    let server = server_with_aggregated_roles();
    let (admin, alice) = (Kubectl::new(&server), alice(&server));
    assert!(failed_output(&alice, &["get", "pods"]).contains("User \"alice\" cannot list resource \"pods\""));
    admin.run(&["create", "rolebinding", "v", "--clusterrole=view", "--user=alice"]);
    for read in
        [&["get", "pods,services,deployments,configmaps"][..], &["get", "events"], &["describe", "quota"]]
    {
        alice.run(read);
    }
    assert_eq!(alice.run(&["auth", "can-i", "list", "deployments.apps"]).trim(), "yes");
    for (verb, resource) in [("get", "secrets"), ("create", "pods"), ("list", "nodes"), ("get", "roles")] {
        assert!(
            failed_output(&alice, &["auth", "can-i", verb, resource]).starts_with("no"),
            "{verb} {resource}"
        );
    }
    assert!(failed_output(&alice, &["get", "pods", "-A"]).contains("at the cluster scope"));
    assert!(
        failed_output(&alice, &["create", "configmap", "a"])
            .contains("cannot create resource \"configmaps\"")
    );

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
    // Editors may not write roles, and nobody may grant rights that they lack.
    let role = ["create", "role", "r", "--verb=get", "--resource=pods"];
    assert!(failed_output(&alice, &role).contains("cannot create resource \"roles\""));
    admin.run(&["create", "rolebinding", "a", "--clusterrole=admin", "--user=alice"]);
    alice.run(&role);
    let role_with_more = ["create", "role", "g", "--verb=get,create", "--resource=csinodes.storage.k8s.io"];
    let stderr = failed_output(&alice, &role_with_more);
    assert!(stderr.contains("user \"alice\" (groups=[\"devs\" \"testers\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:"), "{stderr}");
    assert!(
        stderr.contains(
            "{APIGroups:[\"storage.k8s.io\"], Resources:[\"csinodes\"], Verbs:[\"get\" \"create\"]}"
        ),
        "{stderr}"
    );
    let cluster_admin_binding =
        ["create", "rolebinding", "all", "--clusterrole=cluster-admin", "--user=alice"];
    assert!(
        failed_output(&alice, &cluster_admin_binding)
            .contains("is attempting to grant RBAC permissions not currently held")
    );
}

#[test]
fn kubectl_creates_queries_and_reconciles_roles() {
    let server = server_with_aggregated_roles();
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
    let can_i = |arguments: &[&str]| {
        let output = kubectl.try_run(&[&["auth", "can-i"], arguments].concat());
        String::from_utf8_lossy(&output.stdout).trim() == "yes"
    };
    assert!(can_i(&["get", "pods/a", "--as=bob"]) && !can_i(&["get", "pods/b", "--as=bob"]));
    assert!(!can_i(&["list", "nodes", "--as=bob"]));
    kubectl.run(&["label", "clusterrole", "part", "example.com/to-whole=true"]);
    wait::poll(wait::TIMEOUT, || can_i(&["list", "nodes", "--as=bob"]).then_some(()))
        .expect("it is gathered");
    assert!(
        can_i(&["get", "pods", "--subresource=log", "--as=bob", "-A"])
            && !can_i(&["delete", "nodes", "--as=bob"])
    );
    let account = "--as=system:serviceaccount:default:sa";
    assert!(can_i(&["get", "/metrics", account]) && can_i(&["get", "/logs/x", account]));
    assert!(
        !can_i(&["get", "/logs", account]) && !can_i(&["get", "/metrics", "--as=bob"]) && can_i(&["*", "*"])
    );
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
    assert!(!can_i(&["get", "pods/a", "--as=bob"]) && can_i(&["get", "pods", "--as=carol"]));
    kubectl.run(&["auth", "reconcile", "-f", file, "--remove-extra-permissions", "--remove-extra-subjects"]);
    let rules = kubectl.get("clusterrole", "part")["rules"].clone();
    assert_eq!(rules[0]["verbs"], serde_json::json!(["watch"]));
    wait::poll(wait::TIMEOUT, || (!can_i(&["list", "nodes", "--as=bob"])).then_some(()))
        .expect("it is gathered");
}

#[test]
fn kubectl_exec_plugin_provides_credentials() {
    let server = Server::with_flags(&["--engine=memory"]);
    let mut kubectl = Kubectl::new(&server);
    let plugin = kubectl.home.path().join("plugin");
    let version = "client.authentication.k8s.io/v1";
    let created = json!({"apiVersion": version, "kind": "ExecCredential", "status": {"token": USER_TOKEN}});
    fs::write(&plugin, format!("#!/bin/sh\necho '{created}'\n")).expect("a plug-in");
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("a program");
    let kubeconfig_for = |user: &serde_json::Value| {
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
    fs::write(&path, kubeconfig_for(&exec).to_string()).expect("a kubeconfig");
    kubectl.kubeconfig = path.to_str().expect("a path of letters").to_owned();
    let refused = kubectl.try_run(&["get", "pods"]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(stderr.contains("User \"alice\" cannot list resource \"pods\""), "{stderr}");
    // An unknown token makes the plug-in run again, and is reported as such.
    fs::write(&plugin, format!("#!/bin/sh\necho '{}'\n", created.to_string().replace(USER_TOKEN, "bad")))
        .expect("a plug-in");
    let refused = kubectl.try_run(&["get", "pods"]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(stderr.contains("Unauthorized") || stderr.contains("logged in"), "{stderr}");
}
