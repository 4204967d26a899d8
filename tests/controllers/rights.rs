//! The rights of the controllers: those of the default roles, which an operator can take away and give back.

use std::fs;

use serde_json::{Value, json};

use super::support::server::directory;
use super::support::wait::{CAP, poll};
use super::support::{Client, Server};
use super::{becomes, config_map, gone, reference};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const ACCOUNT: &str = "system:serviceaccount:kube-system:";

/// A server with all loops, and what it writes down of their requests.
struct Observed {
    server: Server,
    log: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl Observed {
    fn start() -> Observed {
        let folder = directory();
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
        let server = Server::on(&folder.path().join("data"), &flags);
        Observed { server, log, _folder: folder }
    }

    /// The refused requests of an account.
    fn refusals(&self, account: &str) -> Vec<Value> {
        let user = format!("{ACCOUNT}{account}");
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let all = whole.lines().map(|line| serde_json::from_str::<Value>(line).expect("a record"));
        all.filter(|record| record["user"]["username"] == *user && record["responseStatus"]["code"] == 403)
            .collect()
    }
}

/// Deletes a binding; answers what to post to have it back.
fn take_away(client: &mut Client, name: &str) -> Value {
    let binding = client.get(&format!("{BINDINGS}/{name}")).ok();
    client.delete(&format!("{BINDINGS}/{name}")).ok();
    json!({"apiVersion": binding["apiVersion"], "kind": binding["kind"], "metadata": {"name": name},
        "roleRef": binding["roleRef"], "subjects": binding["subjects"]})
}

#[test]
fn a_collector_without_its_rights_stops_until_they_are_back() {
    let observed = Observed::start();
    let mut client = observed.server.admin();
    let binding = take_away(&mut client, "system:controller:generic-garbage-collector");
    let owner = client.post(MAPS, &config_map("owner", &[])).ok();
    client.post(MAPS, &config_map("dependent", &[reference(&owner, false)])).ok();
    client.delete(&format!("{MAPS}/owner")).ok();
    let refused = poll(CAP, || {
        Some(observed.refusals("generic-garbage-collector")).filter(|refusals| refusals.len() >= 5)
    });
    let refused = refused.expect("it is refused, and tries again");
    let status = &refused[0]["responseStatus"];
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
    assert_eq!(refused[0]["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(client.get(&format!("{MAPS}/dependent")).status, 200);
    // Each pause is twice the one before, from 5 ms on.
    let at = |record: &Value| record["stageTimestamp"].as_str().unwrap().to_owned();
    assert!(at(&refused[0]) < at(&refused[4]), "{refused:?}");
    assert!(client.get("/readyz").status == 200, "a controller without rights does not end");
    assert!(observed.server.log().contains("a request of a controller is refused"));

    client.post(BINDINGS, &binding).ok();
    gone(&mut client, &format!("{MAPS}/dependent"));
}

#[test]
fn others_are_as_little_above_the_law() {
    let observed = Observed::start();
    let mut client = observed.server.admin();
    let accounts = take_away(&mut client, "system:controller:service-account-controller");
    let namespaces = take_away(&mut client, "system:controller:namespace-controller");
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "new"}})).ok();
    let refused = |account: &str| {
        poll(CAP, || observed.refusals(account).into_iter().next()).unwrap_or_else(|| panic!("{account}"))
    };
    let status = refused("service-account-controller");
    assert_eq!(
        (&status["verb"], &status["objectRef"]["resource"]),
        (&json!("create"), &json!("serviceaccounts"))
    );
    assert_eq!(client.get("/api/v1/namespaces/new/serviceaccounts/default").status, 404);
    client.post(BINDINGS, &accounts).ok();
    becomes(&mut client, "/api/v1/namespaces/new/serviceaccounts/default", |found| {
        found["kind"] == "ServiceAccount"
    });

    client.delete("/api/v1/namespaces/new").ok();
    assert_eq!(refused("namespace-controller")["verb"], "get");
    assert_eq!(client.get("/api/v1/namespaces/new").status, 200);
    client.post(BINDINGS, &namespaces).ok();
    gone(&mut client, "/api/v1/namespaces/new");
}

#[test]
fn the_default_roles_of_an_older_server_are_completed_before_the_controllers_need_them() {
    let folder = directory();
    let data = folder.path().join("data");
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let name = "system:controller:generic-garbage-collector";
    let server = Server::on(&data, &["--controllers=-*"]);
    let mut client = server.admin();
    // A server that knew the controllers by another name has left neither role nor binding.
    client.delete(&format!("{roles}/{name}")).ok();
    client.delete(&format!("{BINDINGS}/{name}")).ok();
    let owner = client.post(MAPS, &config_map("owner", &[])).ok();
    client.post(MAPS, &config_map("dependent", &[reference(&owner, false)])).ok();
    client.delete(&format!("{MAPS}/owner")).ok();
    server.stop();
    let server = Server::on(&data, &["--controllers=*"]);
    gone(&mut server.admin(), &format!("{MAPS}/dependent"));
    assert!(!server.log().contains("a request of a controller is refused"), "{}", server.log());
}
