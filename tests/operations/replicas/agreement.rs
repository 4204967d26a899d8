//! What servers must agree on at every moment.

use std::thread;

use super::*;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const CREATORS: usize = 4;
const CREATED_BY_EACH: usize = 10;
const HARD: usize = 13;

fn definition(plural: &str) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
    let names = json!({"plural": plural, "kind": plural.to_uppercase()});
    let spec = json!({"group": "agreed.example", "names": names, "scope": "Cluster", "versions": [version]});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.agreed.example")}, "spec": spec})
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

#[test]
fn kind_that_one_server_has_established_is_served_by_every_server() {
    let replicas = Replicas::new(1);
    let (one, other) = (replicas.start("one"), replicas.start("other"));
    let (mut first, mut second) = (one.admin(), other.admin());
    for number in 0..20 {
        let plural = format!("kind{number}s");
        first.post(DEFINITIONS, &definition(&plural)).ok();
        let path = format!("{DEFINITIONS}/{plural}.agreed.example");
        poll(TIMEOUT, || is_established(&first.get(&path).ok()).then_some(())).expect("it is established");
        if number % 2 == 0 {
            let object = json!({"apiVersion": "agreed.example/v1", "kind": plural.to_uppercase(),
                "metadata": {"name": "a"}});
            second.post(&format!("/apis/agreed.example/v1/{plural}"), &object).ok();
        } else {
            let document = second.get("/apis/agreed.example/v1").ok();
            let mut resources = document["resources"].as_array().unwrap().iter();
            assert!(resources.any(|resource| resource["name"] == plural), "{plural}: {document}");
        }
    }
    assert_eq!(second.get("/apis/agreed.example/v1/unknown").status, 404);
}

#[test]
fn quota_is_not_exceeded_by_writes_at_several_servers() {
    let replicas = Replicas::new(1);
    // No controller counts anew what was charged.
    let flags = ["--controllers=-*"];
    let servers = ["one", "other"].map(|name| replicas.start_with(name, &flags));
    let mut admin = servers[0].admin();
    let hard = json!({"secrets": HARD.to_string()});
    let quota = json!({"metadata": {"name": "quota"}, "spec": {"hard": hard}});
    let mut quota = admin.post(QUOTAS, &quota).ok();
    quota["status"] = json!({"hard": hard, "used": {"secrets": "0"}});
    admin.put(&format!("{QUOTAS}/quota/status"), &quota).ok();
    let creators = (0..CREATORS).map(|creator| {
        let mut client = servers[creator % servers.len()].admin();
        thread::spawn(move || {
            let mut create = |number| {
                let secret = json!({"metadata": {"name": format!("s{creator}-{number}")}});
                let response = client.post(SECRETS, &secret);
                if response.status != 201 {
                    response.expect_error(403, "Forbidden");
                }
                usize::from(response.status == 201)
            };
            (0..CREATED_BY_EACH).map(&mut create).sum::<usize>()
        })
    });
    let created: usize =
        creators.collect::<Vec<_>>().into_iter().map(|creator| creator.join().unwrap()).sum();
    assert_eq!(created, HARD);
    for server in &servers {
        let mut client = server.admin();
        let used = client.get(&format!("{QUOTAS}/quota")).ok()["status"]["used"]["secrets"].clone();
        let stored = client.get(SECRETS).ok()["items"].as_array().unwrap().len();
        assert_eq!((used, stored), (json!(HARD.to_string()), HARD));
    }
}
