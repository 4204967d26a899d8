//! Hostile clients, which attack in rounds. Each has its own account. Their responses do not matter: only the effect on other
//! clients does.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};

use super::http2::{CONTINUATION, END_HEADERS, END_STREAM, HEADERS, Http2, RST_STREAM, frame, get, literal};
use crate::support::Client;
use crate::support::client::JSON;
use crate::support::kubelet::TlsIdentity;
use crate::support::wait::{Deadline, TIMEOUT};
use crate::support::wire::Connection;

const SECRETS: &str = "/api/v1/namespaces/hostile/secrets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The size of secrets that are just accepted.
const LARGE_BYTES: usize = 700 << 10;
/// Number of large objects, which each round writes again.
const LARGE_OBJECTS: usize = 3;
const KEYS: usize = 10_000;

/// A hostile client.
pub struct Attacker {
    client: Client,
    token: String,
    authority: Vec<u8>,
    attack: Attack,
    /// Connections that are left open until the next round.
    held: Vec<Connection>,
}

type Attack = fn(&mut Attacker);

/// All attacks, by name.
pub const ATTACKS: [(&str, Attack); 11] = [
    ("large-bodies", Attacker::large_bodies),
    ("large-patches", Attacker::large_patches),
    ("stalled-watches", Attacker::stalled_watches),
    ("dripping-lists", Attacker::dripping_lists),
    ("idle-connections", Attacker::idle_connections),
    ("rapid-resets", Attacker::rapid_resets),
    ("endless-headers", Attacker::endless_headers),
    ("bad-credentials", Attacker::bad_credentials),
    ("bombs", Attacker::bombs),
    ("huge-selectors", Attacker::huge_selectors),
    ("large-schemas", Attacker::large_schemas),
];

impl Attacker {
    pub fn new(client: &Client, token: &str, authority: &[u8], attack: Attack) -> Attacker {
        let (token, authority) = (token.to_owned(), authority.to_owned());
        Attacker { client: client.with_token(Some(&token)), token, authority, attack, held: Vec::new() }
    }

    /// One round of its attack.
    pub fn round(&mut self) {
        (self.attack)(self);
    }

    fn address(&self) -> SocketAddr {
        self.client.address
    }

    /// Sends a request and ignores the response.
    fn send(&mut self, method: &str, path: &str, media: &str, body: &[u8]) {
        let media = format!("application/{media}");
        let _ = self.client.attempt(method, path, &[("Content-Type", &media)], body);
    }

    /// Writes an object whether it is there or not.
    fn put(&mut self, collection: &str, name: &str, object: &Value) {
        let body = object.to_string();
        self.send("POST", collection, "json", body.as_bytes());
        self.send("PUT", &format!("{collection}/{name}"), "json", body.as_bytes());
    }

    fn large_bodies(&mut self) {
        for number in 0..LARGE_OBJECTS {
            let name = format!("large-{number}");
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
                "stringData": {"a": "x".repeat(LARGE_BYTES)}});
            self.put(SECRETS, &name, &secret);
            // Bodies of the maximum size, and one byte more.
            for bytes in [3 << 20, (3 << 20) + 1] {
                self.send("POST", SECRETS, "json", "x".repeat(bytes).as_bytes());
            }
            let value = "x".repeat((3 << 20) - 200);
            let body = format!(
                r#"{{"kind":"Secret","apiVersion":"v1","metadata":{{"name":"a"}},"stringData":{{"a":"{value}"}}}}"#
            );
            self.send("POST", SECRETS, "json", body.as_bytes());
        }
    }

    fn large_patches(&mut self) {
        let data: Map<String, Value> =
            (0..KEYS).map(|number| (format!("key-{number}"), json!("eA=="))).collect();
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data});
        self.put(SECRETS, "keys", &secret);
        let path = format!("{SECRETS}/keys");
        let operations: Vec<Value> = (0..KEYS)
            .map(|number| json!({"op": "replace", "path": format!("/data/key-{number}"), "value": "eQ=="}))
            .collect();
        self.send("PATCH", &path, "json-patch+json", Value::from(operations).to_string().as_bytes());
        let copies: Vec<Value> = (0..30)
            .map(|number| json!({"op": "copy", "from": "/data", "path": format!("/data/c{number}")}))
            .collect();
        self.send("PATCH", &path, "json-patch+json", Value::from(copies).to_string().as_bytes());
        let merged = json!({"data": secret["data"]}).to_string();
        self.send("PATCH", &path, "strategic-merge-patch+json", merged.as_bytes());
    }

    /// Sends a request and does not read its response.
    fn ask_and_stall(&mut self, path: &str) {
        let Ok(mut connection) = self.client.try_raw() else { return };
        let head = self.client.head("GET", path, &[]);
        if connection.send(format!("{head}\r\n").as_bytes()).is_ok() {
            self.held.push(connection);
        }
    }

    fn stalled_watches(&mut self) {
        self.held.clear();
        for _ in 0..10 {
            self.ask_and_stall(&format!("{SECRETS}?watch=true"));
            self.ask_and_stall("/api/v1/configmaps?watch=true&allowWatchBookmarks=true");
        }
    }

    fn dripping_lists(&mut self) {
        for _ in 0..4 {
            self.ask_and_stall(&format!("{SECRETS}?pretty=true"));
            self.ask_and_stall(&format!("{SECRETS}?limit=500"));
        }
        // Reads byte by byte, and never to the end.
        for connection in &mut self.held {
            for _ in 0..20 {
                let _ = connection.read_bytes(1, Deadline::after(TIMEOUT));
            }
        }
        let excess = self.held.len().saturating_sub(8);
        self.held.drain(..excess);
    }

    fn idle_connections(&mut self) {
        self.held.clear();
        self.held.extend((0..50).filter_map(|_| self.client.try_raw().ok()));
        for connection in self.held.iter_mut().step_by(2) {
            let _ = connection.send(b"GET /api/v1/namespaces HTTP/1.1\r\nHost: x\r\n");
        }
    }

    fn rapid_resets(&mut self) {
        let Ok(mut connection) = Http2::open(self.address(), &self.authority) else { return };
        let block = get(&format!("{SECRETS}?watch=true"), Some(&self.token));
        for number in 0..1_000_u32 {
            let stream = 1 + 2 * number;
            let mut frames = frame(HEADERS, END_STREAM | END_HEADERS, stream, &block);
            frames.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
            if connection.send_raw(&frames).is_err() {
                return;
            }
        }
    }

    fn endless_headers(&mut self) {
        let Ok(mut connection) = Http2::open(self.address(), &self.authority) else { return };
        let _ = connection.send(HEADERS, END_STREAM, 1, &get("/api", Some(&self.token)));
        let header = literal("x-part", &"x".repeat(8_000));
        for _ in 0..500 {
            if connection.send(CONTINUATION, 0, 1, &header).is_err() {
                return;
            }
        }
    }

    fn bad_credentials(&mut self) {
        for number in 0..20 {
            let forged = format!("{}{number}", self.token);
            for token in [forged.as_str(), "a.b.c", "nobody", &"x".repeat(20_000)] {
                let _ = self.client.with_token(Some(token)).attempt("GET", MAPS, &[], b"");
            }
        }
        let foreign_identity = TlsIdentity::new("system:masters", &[]);
        let (certificate, key) =
            (foreign_identity.certificate.to_pem(), foreign_identity.key.private_key_to_pem_pkcs8());
        let (certificate, key) = (certificate.expect("PEM"), key.expect("PEM"));
        for _ in 0..5 {
            let mut client = Client::new(self.address(), &self.authority, Some((&certificate, &key)));
            let _ = client.attempt("GET", MAPS, &[], b"");
        }
    }

    fn bombs(&mut self) {
        let mut billion_laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let before = level - 1;
            billion_laughs
                .push_str(&format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 10].join(",")));
        }
        self.send("POST", SECRETS, "yaml", billion_laughs.as_bytes());
        for unit in ["[", "{a: ", "- ", "? "] {
            self.send("POST", SECRETS, "yaml", unit.repeat(100_000).as_bytes());
        }
        self.send("POST", SECRETS, "json", "{\"a\":".repeat(500_000).as_bytes());
        let many_keys = format!("{{\"data\":{{{}}}}}", vec!["\"a\":\"\""; 300_000].join(","));
        self.send("POST", SECRETS, "json", many_keys.as_bytes());
        let containers = format!("{{\"spec\":{{\"containers\":[{}]}}}}", vec!["{}"; 300_000].join(","));
        self.send("POST", "/api/v1/namespaces/hostile/pods", "json", containers.as_bytes());
    }

    fn huge_selectors(&mut self) {
        let values = (0..8_000).map(|number| format!("v{number}")).collect::<Vec<_>>().join(",");
        let keys = (0..4_000).map(|number| format!("k{number}")).collect::<Vec<_>>().join(",");
        for selector in [format!("a%20in%20({values})"), format!("a%20notin%20({values})"), keys] {
            for _ in 0..4 {
                let path = format!("{MAPS}?labelSelector={selector}");
                let _ = self.client.attempt("GET", &path, &[], b"");
            }
        }
    }

    fn large_schemas(&mut self) {
        let leaf = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 10,
            "pattern": "^(a|b|c)*$"}, "b": {"type": "array", "items": {"type": "integer"}}}});
        let properties: Map<String, Value> =
            (0..1_500).map(|number| (format!("field{number}"), leaf.clone())).collect();
        let schema =
            json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}});
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "hulks.hostile.example.com"},
            "spec": {"group": "hostile.example.com", "scope": "Namespaced", "names": {"plural": "hulks", "kind": "Hulk"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
        let body = definition.to_string();
        let _ = self.client.attempt("POST", CRDS, &JSON, body.as_bytes());
        let _ = self.client.attempt("GET", "/openapi/v2", &[], b"");
        let _ = self.client.attempt("DELETE", &format!("{CRDS}/hulks.hostile.example.com"), &[], b"");
    }
}
