//! Two ConfigMaps in kube-system: extension-apiserver-authentication, and the start date of legacy token tracking.

use pilothouse_api::catalog::Catalog;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::well_known::SYSTEM_NAMESPACE;
use serde_json::{Value as Json, json};

use super::{ObjectAddress, Own};
use crate::backend::Backend;

/// The ConfigMap that extension API servers read.
pub const NAME: &str = "extension-apiserver-authentication";
/// The ConfigMap with the date since which the use of token Secrets is tracked: namespace and name.
pub const TRACKED: (&str, &str) = (SYSTEM_NAMESPACE, "kube-apiserver-legacy-service-account-token-tracking");
/// The key of the date.
pub const SINCE: &str = "since";

/// The key that is omitted if its list is empty.
const UIDS: &str = "requestheader-uid-headers";

/// The contents of extension-apiserver-authentication.
pub struct ExtensionAuthentication {
    /// The CA bundle for client certificates, as PEM.
    pub client_authority: String,
    /// The CA bundle for the front proxy, as PEM; `None` if there is no front proxy.
    pub proxy_authority: Option<String>,
    /// The front proxy's allowed names and header names, by flag.
    pub proxy_lists: Vec<(&'static str, Vec<String>)>,
}

impl ExtensionAuthentication {
    fn data(self) -> Json {
        let mut data = json!({"client-ca-file": self.client_authority});
        let Some(authority) = self.proxy_authority else { return data };
        data["requestheader-client-ca-file"] = json!(authority);
        for (name, words) in self.proxy_lists {
            if name != UIDS || !words.is_empty() {
                data[name] = json!(json!(words).to_string());
            }
        }
        data
    }
}

/// Makes the ConfigMap contain exactly these authentication settings.
pub async fn authentication(
    backend: &Backend,
    catalog: &Catalog,
    told: ExtensionAuthentication,
) -> Result<()> {
    let own = Own::new(backend, catalog);
    let place = ObjectAddress { group: "", resource: "configmaps", namespace: "kube-system", name: NAME };
    if !own.serves(place) {
        return Ok(());
    }
    let body = json!({"kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": NAME, "namespace": "kube-system"},
        "data": told.data()});
    own.keep(place, &body, "data").await
}

/// Records since which day the use of token Secrets is tracked, unless recorded already.
pub async fn token_tracking(backend: &Backend, catalog: &Catalog, today: &str) -> Result<()> {
    let own = Own::new(backend, catalog);
    let place = ObjectAddress { group: "", resource: "configmaps", namespace: TRACKED.0, name: TRACKED.1 };
    if !own.serves(place) || own.find(place).await?.is_some() {
        return Ok(());
    }
    let body = json!({"kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": TRACKED.1, "namespace": TRACKED.0}, "data": {SINCE: today}});
    own.make(place, &body).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_told_of_the_proxy_only_where_one_is_believed() {
        let lists = || vec![("requestheader-allowed-names", vec!["a".to_owned()]), (UIDS, Vec::new())];
        let told = |proxy: Option<&str>| {
            let proxy_authority = proxy.map(str::to_owned);
            ExtensionAuthentication { client_authority: "c".into(), proxy_authority, proxy_lists: lists() }
                .data()
        };
        assert_eq!(told(None), json!({"client-ca-file": "c"}));
        let wanted = json!({"client-ca-file": "c", "requestheader-client-ca-file": "p",
            "requestheader-allowed-names": "[\"a\"]"});
        assert_eq!(told(Some("p")), wanted);
    }
}
