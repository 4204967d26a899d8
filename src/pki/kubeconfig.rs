//! Writes the administrator's kubeconfig.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Identity;

/// A kubeconfig with embedded certificates and key.
pub(super) fn render(server: &str, ca_pem: &[u8], admin: &Identity) -> String {
    let ca = STANDARD.encode(ca_pem);
    let certificate = STANDARD.encode(&admin.certificates_pem);
    let key = STANDARD.encode(&admin.key_pem);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: pilothouse
  cluster:
    server: {server}
    certificate-authority-data: {ca}
users:
- name: kubernetes-admin
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: kubernetes-admin@pilothouse
  context:
    cluster: pilothouse
    user: kubernetes-admin
current-context: kubernetes-admin@pilothouse
"
    )
}
