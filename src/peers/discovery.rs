//! What each peer serves: its own discovery documents, which include extension API servers and custom resources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilothouse_api::aggregation::discovered::{is_aggregated, read_all};
use pilothouse_apimachinery::version::GroupVersion;
use pilothouse_apimachinery::well_known::{AGGREGATED_DISCOVERY, API_SERVER_USER, AUTHENTICATED};
use pilothouse_types::identity::Identity;

use super::Peers;
use crate::aggregation::{ExtensionRequest, ExtensionResponse, fetch};
use crate::limits::{EXTENSION_DISCOVERY_TIMEOUT, PEERS};

/// The documents: the core group, and all others.
const PATHS: [&str; 2] = ["/api", "/apis"];

/// What one server serves.
#[derive(Clone, Debug, Default)]
pub(super) struct Discovery([Document; PATHS.len()]);

/// What one document says.
#[derive(Clone, Debug, Default)]
struct Document {
    /// Its ETag, for the next request.
    etag: String,
    resources: BTreeMap<GroupVersion, BTreeSet<String>>,
}

impl Discovery {
    /// Whether it has this resource.
    pub(super) fn has(&self, group: &str, version: &str, resource: &str) -> bool {
        let version = GroupVersion::new(group, version);
        let mut served = self.0.iter().filter_map(|document| document.resources.get(&version));
        served.any(|resources| resources.contains(resource))
    }
}

impl Document {
    /// What the document in a response says; an error says what is wrong with it.
    fn read(response: ExtensionResponse) -> Result<Document, String> {
        let ExtensionResponse { content_type, etag, body, url, .. } = response;
        let versions = Some(&body).filter(|_| is_aggregated(&content_type)).and_then(|body| read_all(body));
        let versions = versions.ok_or_else(|| format!("{url} is no aggregated discovery document"))?;
        let names = versions.into_iter().map(|(version, discovered)| {
            (version, discovered.resources.into_iter().map(|resource| resource.resource).collect())
        });
        Ok(Document { etag, resources: names.collect() })
    }
}

impl Peers {
    /// Asks a server what it serves. What it has said before counts until it says something else, or is forgotten: a request that
    /// cannot be passed on at the moment is not one for something that nobody serves.
    pub async fn discover(&self, server: &str) -> Result<(), String> {
        let known = self.served.read().get(server).cloned();
        if known.is_none() && self.served.read().len() >= PEERS {
            return Err(format!("there are more than {PEERS} API servers"));
        }
        let records = self.records.find(server).await.map_err(|error| error.to_string())?;
        let peer = records.ok_or_else(|| "it has no record of its address".to_owned())?;
        let user = Identity {
            name: API_SERVER_USER.to_owned(),
            uid: API_SERVER_USER.to_owned(),
            groups: vec![AUTHENTICATED.to_owned()],
            ..Identity::default()
        };
        let mut discovery = known.as_deref().cloned().unwrap_or_default();
        for (path, document) in PATHS.into_iter().zip(&mut discovery.0) {
            let request = ExtensionRequest {
                accept: AGGREGATED_DISCOVERY,
                if_none_match: &document.etag,
                ..ExtensionRequest::get(path, &user, EXTENSION_DISCOVERY_TIMEOUT)
            };
            let destination = self.destination(&peer, path, "", "");
            let response = fetch(&self.upstream, &destination, &request).await?;
            match response.status {
                304 => {}
                200 => *document = Document::read(response)?,
                status => return Err(format!("bad status from {}: {status}", response.url)),
            }
        }
        self.served.write().insert(server.to_owned(), Arc::new(discovery));
        Ok(())
    }

    /// The ids of the servers that have said what they serve.
    pub fn known(&self) -> Vec<String> {
        self.served.read().keys().cloned().collect()
    }

    /// Forgets a server that is gone.
    pub fn forget(&self, server: &str) {
        self.served.write().remove(server);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(content_type: &str, body: &str) -> ExtensionResponse {
        ExtensionResponse {
            status: 200,
            content_type: content_type.to_owned(),
            etag: "e".to_owned(),
            body: body.as_bytes().to_vec(),
            url: "https://peer/apis".to_owned(),
        }
    }

    #[test]
    fn discovery_tells_the_resources_of_each_version() {
        let body = r#"{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"batch"},"versions":[
            {"version":"v1","resources":[{"resource":"jobs","subresources":[{"subresource":"status"}]},{"resource":"cronjobs"}]},
            {"version":"v1beta1"}]}]}"#;
        let apis = Document::read(response(AGGREGATED_DISCOVERY, body)).unwrap();
        assert_eq!(apis.etag, "e");
        let core =
            r#"{"items":[{"metadata":{},"versions":[{"version":"v1","resources":[{"resource":"pods"}]}]}]}"#;
        let api = Document::read(response(AGGREGATED_DISCOVERY, core)).unwrap();
        let discovery = Discovery([api, apis]);
        for (group, version, resource, has) in [
            ("batch", "v1", "jobs", true),
            ("batch", "v1", "cronjobs", true),
            ("batch", "v1", "status", false),
            ("batch", "v1beta1", "jobs", false),
            ("batch", "v1", "pods", false),
            ("", "v1", "pods", true),
            ("core", "v1", "pods", false),
            ("", "v1", "jobs", false),
        ] {
            assert_eq!(discovery.has(group, version, resource), has, "{group} {version} {resource}");
        }
    }

    #[test]
    fn document_of_another_form_is_refused() {
        for (content_type, body) in
            [("application/json", r#"{"items":[]}"#), (AGGREGATED_DISCOVERY, "nothing"), ("", "")]
        {
            assert!(Document::read(response(content_type, body)).is_err(), "{content_type} {body}");
        }
    }
}
