//! The permissions of controllers: those of the default roles, which an operator can revoke and grant.

use std::fs;

use serde_json::{Value, json};

use super::{config_map, reference, wait_until, wait_until_gone};
use crate::support::server::temp_directory;
use crate::support::wait::{TIMEOUT, poll};
use crate::support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const ACCOUNT: &str = "system:serviceaccount:kube-system:";

/// A server with all controllers, and the audit log of their requests.
struct AuditedServer {
    server: Server,
    log: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl AuditedServer {
    fn start() -> AuditedServer {
        let folder = temp_directory();
        let (policy, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
        let rules = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
                     rules: [{level: Metadata, userGroups: ['system:serviceaccounts']}]";
        fs::write(&policy, rules).unwrap();
        let flags = [
            "--controllers=*".to_owned(),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log.display()),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start_in(&folder.path().join("data"), &flags);
        AuditedServer { server, log, _folder: folder }
    }

    /// The refused requests of an account.
    fn refusals(&self, account: &str) -> Vec<Value> {
        let user = format!("{ACCOUNT}{account}");
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let complete_lines = text.rsplit_once('\n').map_or("", |(complete_lines, _)| complete_lines);
        let events =
            complete_lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("a record"));
        events
            .filter(|record| record["user"]["username"] == *user && record["responseStatus"]["code"] == 403)
            .collect()
    }
}

/// Deletes a binding and returns the object that restores it.
fn delete_binding(client: &mut Client, name: &str) -> Value {
    let binding = client.get(&format!("{BINDINGS}/{name}")).ok();
    client.delete(&format!("{BINDINGS}/{name}")).ok();
    json!({"apiVersion": binding["apiVersion"], "kind": binding["kind"], "metadata": {"name": name},
        "roleRef": binding["roleRef"], "subjects": binding["subjects"]})
}

#[test]
fn garbage_collector_without_permission_retries_until_granted() {
    let audited = AuditedServer::start();
    let mut client = audited.server.admin();
    let binding = delete_binding(&mut client, "system:controller:generic-garbage-collector");
    let owner = client.post(MAPS, &config_map("owner", &[])).ok();
    client.post(MAPS, &config_map("dependent", &[reference(&owner, false)])).ok();
    client.delete(&format!("{MAPS}/owner")).ok();
    let refusals = poll(TIMEOUT, || {
        Some(audited.refusals("generic-garbage-collector")).filter(|refusals| refusals.len() >= 5)
    });
    let refusals = refusals.expect("it is refused, and tries again");
    let status = &refusals[0]["responseStatus"];
    assert_eq!(
        (&status["reason"], &status["message"]),
        (
            &json!("Forbidden"),
            &json!(format!(
                "configmaps \"dependent\" is forbidden: User \"{ACCOUNT}generic-garbage-collector\" cannot get resource \
                 \"configmaps\" in API group \"\" in the namespace \"default\""
            ))
        )
    );
    assert_eq!(refusals[0]["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(client.get(&format!("{MAPS}/dependent")).status, 200);
    // Retries back off exponentially from 5 ms on.
    let timestamp = |record: &Value| record["stageTimestamp"].as_str().unwrap().to_owned();
    assert!(timestamp(&refusals[0]) < timestamp(&refusals[4]), "{refusals:?}");
    assert!(client.get("/readyz").status == 200, "a controller without rights does not end");
    assert!(audited.server.log().contains("a request of a controller is refused"));

    client.post(BINDINGS, &binding).ok();
    wait_until_gone(&mut client, &format!("{MAPS}/dependent"));
}

#[test]
fn controllers_need_permissions_of_their_accounts() {
    let audited = AuditedServer::start();
    let mut client = audited.server.admin();
    let account_binding = delete_binding(&mut client, "system:controller:service-account-controller");
    let namespace_binding = delete_binding(&mut client, "system:controller:namespace-controller");
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "new"}})).ok();
    let first_refusal = |account: &str| {
        poll(TIMEOUT, || audited.refusals(account).into_iter().next()).unwrap_or_else(|| panic!("{account}"))
    };
    let status = first_refusal("service-account-controller");
    assert_eq!(
        (&status["verb"], &status["objectRef"]["resource"]),
        (&json!("create"), &json!("serviceaccounts"))
    );
    assert_eq!(client.get("/api/v1/namespaces/new/serviceaccounts/default").status, 404);
    client.post(BINDINGS, &account_binding).ok();
    wait_until(&mut client, "/api/v1/namespaces/new/serviceaccounts/default", |account| {
        account["kind"] == "ServiceAccount"
    });

    client.delete("/api/v1/namespaces/new").ok();
    assert_eq!(first_refusal("namespace-controller")["verb"], "get");
    assert_eq!(client.get("/api/v1/namespaces/new").status, 200);
    client.post(BINDINGS, &namespace_binding).ok();
    wait_until_gone(&mut client, "/api/v1/namespaces/new");
}

#[test]
fn missing_controller_roles_are_restored_before_controllers_start() {
    let folder = temp_directory();
    let data = folder.path().join("data");
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let name = "system:controller:generic-garbage-collector";
    let server = Server::start_in(&data, &["--controllers=-*"]);
    let mut client = server.admin();
    // A server of an older release has neither role nor binding of this name.
    client.delete(&format!("{roles}/{name}")).ok();
    client.delete(&format!("{BINDINGS}/{name}")).ok();
    let owner = client.post(MAPS, &config_map("owner", &[])).ok();
    client.post(MAPS, &config_map("dependent", &[reference(&owner, false)])).ok();
    client.delete(&format!("{MAPS}/owner")).ok();
    server.stop();
    let server = Server::start_in(&data, &["--controllers=*"]);
    wait_until_gone(&mut server.admin(), &format!("{MAPS}/dependent"));
    assert!(!server.log().contains("a request of a controller is refused"), "{}", server.log());
}
