//! Service account and bootstrap tokens: requests, validity, forgeries and keys.

mod admission;
mod external_signer;
mod keys;
mod openid;
mod requests;
mod validity;

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD as BASE64};
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::ecdsa::EcdsaSig;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::sha::sha256;
use openssl::sign::{Signer, Verifier};
use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::{Client, Server};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const NODES: &str = "/api/v1/nodes";
const ISSUER: &str = "https://kubernetes.default.svc";

fn request(spec: &Value) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
}

fn account(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
}

fn pod(name: &str, account: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]}})
}

fn request_token_object(admin: &mut Client, spec: &Value) -> Value {
    admin.post(&format!("{ACCOUNTS}/sa/token"), &request(spec)).ok()
}

fn request_token(admin: &mut Client, spec: &Value) -> String {
    text(&request_token_object(admin, spec), "/status/token").to_owned()
}

fn decode_token_part(token: &str, index: usize) -> Value {
    serde_json::from_slice(&BASE64.decode(token.split('.').nth(index).unwrap()).unwrap()).unwrap()
}

/// The user that a token authenticates, if any.
fn authenticated_user(server: &Server, token: &str) -> Option<String> {
    let mut client = server.anonymous().with_token(Some(token));
    let response = client.get("/api/v1/namespaces/default/configmaps");
    match response.status {
        401 => None,
        403 => {
            let status = response.json();
            let message = text(&status, "/message");
            Some(message.split('"').nth(1).expect("a user").to_owned())
        }
        other => panic!("{other}: {}", response.text()),
    }
}
