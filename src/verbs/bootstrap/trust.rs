//! What others need to know of whom this server trusts: two configurations in the cluster's own namespace.

use serde_json::json;

use super::{Own, Place};
use crate::api::catalog::Catalog;
use crate::api::status::Result;
use crate::verbs::Backend;

/// The name of the configuration, which extensions read.
const NAME: &str = "extension-apiserver-authentication";
/// Where it is written since when the use of tokens that lie in Secrets is tracked: a ConfigMap by namespace and name.
pub const TRACKED: (&str, &str) = ("kube-system", "kube-apiserver-legacy-service-account-token-tracking");
/// Under which key.
pub const SINCE: &str = "since";

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

/// Says since which day the use of tokens that lie in Secrets is tracked, if that is not said yet.
pub async fn token_tracking(backend: &Backend, catalog: &Catalog, today: &str) -> Result<()> {
    let own = Own::new(backend, catalog);
    let place = Place { group: "", resource: "configmaps", namespace: TRACKED.0, name: TRACKED.1 };
    if !own.serves(place) || own.find(place).await?.is_some() {
        return Ok(());
    }
    let body = json!({"kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": TRACKED.1, "namespace": TRACKED.0}, "data": {SINCE: today}});
    own.make(place, &body).await.map(drop)
}
