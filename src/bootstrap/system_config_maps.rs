//! Two ConfigMaps in kube-system: extension-apiserver-authentication, and the start date of legacy token tracking.

use pilothouse_api::catalog::Catalog;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::well_known::SYSTEM_NAMESPACE;
use serde_json::{Value as Json, json};

use super::{ObjectAddress, OwnClient};
use crate::registry::Backend;

/// The ConfigMap that extension API servers read.
pub const NAME: &str = "extension-apiserver-authentication";
/// The ConfigMap with the date since which the use of token Secrets is tracked: namespace and name.
pub const TRACKED: (&str, &str) = (SYSTEM_NAMESPACE, "kube-apiserver-legacy-service-account-token-tracking");
/// The key of the date.
pub const SINCE: &str = "since";

/// The key that is omitted if its list is empty.
const UID_HEADERS: &str = "requestheader-uid-headers";

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
        for (name, values) in self.proxy_lists {
            if name != UID_HEADERS || !values.is_empty() {
                data[name] = json!(json!(values).to_string());
            }
        }
        data
    }
}

/// Makes the ConfigMap contain exactly these authentication settings.
pub async fn authentication(
    backend: &Backend,
    catalog: &Catalog,
    contents: ExtensionAuthentication,
) -> Result<()> {
    let client = OwnClient::new(backend, catalog);
    let address = ObjectAddress { group: "", resource: "configmaps", namespace: "kube-system", name: NAME };
    if !client.serves(address) {
        return Ok(());
    }
    let body = json!({"kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": NAME, "namespace": "kube-system"},
        "data": contents.data()});
    client.restore(address, &body, "data").await
}

/// Records since which day the use of token Secrets is tracked, unless recorded already.
pub async fn token_tracking(backend: &Backend, catalog: &Catalog, today: &str) -> Result<()> {
    let client = OwnClient::new(backend, catalog);
    let address = ObjectAddress { group: "", resource: "configmaps", namespace: TRACKED.0, name: TRACKED.1 };
    if !client.serves(address) || client.find(address).await?.is_some() {
        return Ok(());
    }
    let body = json!({"kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": TRACKED.1, "namespace": TRACKED.0}, "data": {SINCE: today}});
    client.create(address, &body).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extension_authentication_has_proxy_settings_only_with_a_front_proxy() {
        let lists = || vec![("requestheader-allowed-names", vec!["a".to_owned()]), (UID_HEADERS, Vec::new())];
        let data_with = |proxy: Option<&str>| {
            let proxy_authority = proxy.map(str::to_owned);
            ExtensionAuthentication { client_authority: "c".into(), proxy_authority, proxy_lists: lists() }
                .data()
        };
        assert_eq!(data_with(None), json!({"client-ca-file": "c"}));
        let expected = json!({"client-ca-file": "c", "requestheader-client-ca-file": "p",
            "requestheader-allowed-names": "[\"a\"]"});
        assert_eq!(data_with(Some("p")), expected);
    }
}
