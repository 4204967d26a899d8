//! Attacks by bodies that are small to send and expensive to decode.

use serde_json::{Value, json};

use super::alice;
use crate::support::{Client, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const YAML: [(&str, &str); 1] = [("Content-Type", "application/yaml")];
const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
const PATCH: [(&str, &str); 1] = [("Content-Type", "application/json-patch+json")];
/// What a refusal may cost in memory: a few times the largest body, not a multiple of what the bomb would become.
const MEMORY_KIB: u64 = 256 << 10;

fn billion_laughs() -> String {
    let mut bomb =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..12 {
        let before = level - 1;
        bomb.push_str(&format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 10].join(",")));
    }
    bomb
}

fn assert_memory_bounded(server: &Server, case: &str, action: impl FnOnce()) {
    let before = server.memory_kib("VmHWM");
    action();
    let after = server.memory_kib("VmHWM");
    assert!(after < before + MEMORY_KIB, "{case}: {before} KiB before, {after} KiB after");
}

/// CVE-2019-11253 and CVE-2019-11254: bodies that grow when they are read, and bodies that take a parser quadratic time.
#[test]
fn expansion_bombs_in_bodies_are_refused() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let large = |unit: &str| unit.repeat((2 << 20) / unit.len());
    let yaml = [
        billion_laughs(),
        large("["),
        large("{a: "),
        large("- "),
        large("? "),
        large("&a "),
        large("!a "),
        large(": "),
        large("'\n"),
        large("a: b: "),
        large("#\n- "),
    ];
    for body in &yaml {
        let case: String = body.chars().take(20).collect();
        assert_memory_bounded(&server, &case, || {
            let response = admin.request("POST", MAPS, &YAML, body.as_bytes());
            assert!(
                matches!(response.status, 400 | 413 | 422),
                "{case}: {} {}",
                response.status,
                response.text()
            );
        });
    }
    let json = [
        large("["),
        large("{\"a\":"),
        large("\"\\u0000"),
        format!("{{\"a\":{}{}}}", "[".repeat(9_999), "]".repeat(9_999)),
    ];
    for body in &json {
        let case: String = body.chars().take(20).collect();
        assert_memory_bounded(&server, &case, || {
            let response = admin.request("POST", MAPS, &JSON, body.as_bytes());
            assert!(
                matches!(response.status, 400 | 413 | 422),
                "{case}: {} {}",
                response.status,
                response.text()
            );
        });
    }
    // Unauthorized requests are refused before their bodies are decoded.
    for mut client in [alice(&server), server.anonymous()] {
        client.request("POST", MAPS, &YAML, billion_laughs().as_bytes()).expect_error(403, "Forbidden");
    }
    server.assert_healthy();
}

fn operations(admin: &mut Client, count: usize, operation: &Value) -> u16 {
    let patch = vec![operation.to_string(); count].join(",");
    admin.request("PATCH", &format!("{MAPS}/a"), &PATCH, format!("[{patch}]").as_bytes()).status
}

/// CVE-2019-1002100: patches of many operations, and operations that double what is there.
#[test]
fn json_patches_are_bounded_in_operations_and_growth() {
    let mut server = Server::with_flags(&["--engine=memory"]);
    let mut admin = server.admin();
    let data: Value = (0..5_000)
        .map(|index| (format!("key-{index}"), json!("x".repeat(50))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    let created = admin.post(MAPS, &map).ok();
    let replace = json!({"op": "replace", "path": "/data/key-1", "value": "y"});
    assert_memory_bounded(&server, "many operations", || {
        assert_eq!(operations(&mut admin, 10_000, &replace), 200);
        assert_eq!(operations(&mut admin, 10_001, &replace), 413);
        assert_eq!(operations(&mut admin, 40_000, &json!({"op": "test", "path": "", "value": 1})), 413);
    });
    // Each copy doubles the object.
    let doubled: Vec<Value> = (0..40)
        .map(|index| json!({"op": "copy", "from": "/data", "path": format!("/data/copy-{index}")}))
        .collect();
    assert_memory_bounded(&server, "copies", || {
        let response = admin.patch(&format!("{MAPS}/a"), "json", &doubled.into());
        assert!((400..500).contains(&response.status), "{} {}", response.status, response.text());
        let status = operations(
            &mut admin,
            10_000,
            &json!({"op": "copy", "from": "/data", "path": "/metadata/annotations"}),
        );
        assert!((400..500).contains(&status), "{status}");
    });
    let object = admin.get(&format!("{MAPS}/a")).ok();
    assert_eq!(
        (&object["data"]["key-1"], &object["data"]["key-2"]),
        (&json!("y"), &created["data"]["key-2"])
    );
    server.assert_healthy();
}
