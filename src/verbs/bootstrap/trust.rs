//! What servers that extend this one need to know to trust its clients: a configuration in the cluster's own namespace.

use serde_json::json;

use super::{Own, Place};
use crate::api::catalog::Catalog;
use crate::api::status::Result;
use crate::verbs::Backend;

/// The name of the configuration, which extensions read.
const NAME: &str = "extension-apiserver-authentication";

/// Makes the configuration say by which authority clients are known, and nothing else.
pub async fn authentication(backend: &Backend, catalog: &Catalog, client_authority: &str) -> Result<()> {
    let own = Own::new(backend, catalog);
    let place = Place { group: "", resource: "configmaps", namespace: "kube-system", name: NAME };
    if !own.serves(place) {
        return Ok(());
    }
    let body = json!({"kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": NAME, "namespace": "kube-system"},
        "data": {"client-ca-file": client_authority}});
    own.keep(place, &body, "data").await
}
