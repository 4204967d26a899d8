//! Requests that nodes make: tokens for their pods, and certificates for themselves.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::nid::Nid;
use openssl::x509::X509Req;
use pilothouse_actors::authorizer::AuthorizeExplained;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::signers;
use pilothouse_types::authorization::{Action, Decision, Target};

use super::{Allowances, Looked, PODS, find, is_on};
use crate::backend::admission::Write;
use crate::backend::authorization;

/// The signers of the certificates that identify nodes.
const NODE_SIGNERS: [&str; 2] = [signers::SERVING, signers::KUBELET];
/// The verb that a node needs for an audience that its pod does not name.
const ANY_AUDIENCE: &str = "request-serviceaccounts-token-audience";
/// In-tree volume types, and the CSI driver that serves each.
const DRIVERS: [(&str, &str); 7] = [
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

const CLAIMS: Looked =
    Looked { group: "", resource: "persistentvolumeclaims", kind: "PersistentVolumeClaim" };
const VOLUMES: Looked = Looked { group: "", resource: "persistentvolumes", kind: "PersistentVolume" };
const CSI_DRIVERS: Looked = Looked { group: "storage.k8s.io", resource: "csidrivers", kind: "CSIDriver" };

/// Refuses a token that is not bound to a pod on the node.
pub async fn token(write: &Write<'_>, request: &Value, node: &str, allowances: Allowances) -> Result<()> {
    let no = |why: &str| Err(write.forbidden(request, why));
    let bound = request.at(&["spec", "boundObjectRef"]).unwrap_or(&Value::Null);
    let (name, uid) = (bound.str("name"), bound.str("uid"));
    if bound.str("apiVersion") != "v1" || bound.str("kind") != "Pod" || name.is_empty() {
        return no("node requested token not bound to a pod");
    }
    if uid.is_empty() {
        return no("node requested token with a pod binding without a uid");
    }
    let pod = find(write, &PODS, write.call.namespace, name).await?;
    if meta::of(&pod).str("uid") != uid {
        return no(&format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        ));
    }
    if !is_on(Some(&pod), node) {
        return no("node requested token bound to a pod scheduled on a different node");
    }
    if allowances.any_audience {
        return Ok(());
    }
    match audience(write, request, &pod).await? {
        None => Ok(()),
        Some(why) => no(&why),
    }
}

/// Why a token must not have this audience.
async fn audience(write: &Write<'_>, request: &Value, pod: &Value) -> Result<Option<String>> {
    let asked = request.at(&["spec", "audiences"]).map(Value::items).unwrap_or_default();
    let audience = match asked {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return Ok(Some("node may only request 0 or 1 audiences".to_owned())),
    };
    let mut trouble = Vec::new();
    for volume in pod.at(&["spec", "volumes"]).map(Value::items).unwrap_or_default() {
        if projects(volume, audience) {
            return Ok(None);
        }
        match driver_has(write, pod, volume, audience).await {
            Ok(true) => return Ok(None),
            Ok(false) => {}
            Err(status) => trouble.push(status.message),
        }
    }
    match trouble.as_slice() {
        [] => {}
        [one] => return Ok(Some(format!("error validating audience {audience:?}: {one}"))),
        several => {
            return Ok(Some(format!("error validating audience {audience:?}: [{}]", several.join(", "))));
        }
    }
    let user = &write.call.user.name;
    let missed = format!("audience {audience:?} not found in pod spec volume,");
    let target = Target::Resource {
        group: String::new(),
        version: "v1".to_owned(),
        resource: audience.to_owned(),
        subresource: String::new(),
        namespace: write.call.namespace.to_owned(),
        name: write.call.name.to_owned(),
    };
    let action = Arc::new(Action { verb: ANY_AUDIENCE.to_owned(), target });
    let identity = Arc::new(write.call.user.clone());
    let asked = AuthorizeExplained { identity, action, selection: Arc::default() };
    let verdict = authorization::ask(&write.backend.access.authorizer, asked).await?;
    Ok(match (verdict.decision, verdict.error) {
        (Decision::Allowed, _) => None,
        (_, Some(error)) => {
            Some(format!("{missed} error authorizing {user} to request tokens for this audience: {error}"))
        }
        _ => Some(format!("{missed} {user} is not authorized to request tokens for this audience")),
    })
}

/// Whether a projected volume has a token for this audience.
fn projects(volume: &Value, audience: &str) -> bool {
    let sources = volume.at(&["projected", "sources"]).map(Value::items).unwrap_or_default();
    let mut tokens = sources.iter().filter_map(|source| source.get("serviceAccountToken"));
    tokens.any(|token| token.str("audience") == audience)
}

/// Whether the CSI driver of a volume wants tokens for this audience.
async fn driver_has(write: &Write<'_>, pod: &Value, volume: &Value, audience: &str) -> Result<bool> {
    let claim = if volume.at(&["ephemeral", "volumeClaimTemplate"]).is_some() {
        Some(format!("{}-{}", meta::name(pod), volume.str("name")))
    } else {
        volume.get("persistentVolumeClaim").map(|source| source.str("claimName").to_owned())
    };
    let driver = match claim {
        None => driver_of(volume),
        Some(claim) => {
            let claim = find(write, &CLAIMS, write.call.namespace, &claim).await?;
            let name = claim.at(&["spec", "volumeName"]).and_then(Value::as_str).unwrap_or_default();
            let volume = find(write, &VOLUMES, "", name).await?;
            driver_of(volume.get("spec").unwrap_or(&Value::Null))
        }
    };
    let Some(driver) = driver else { return Ok(false) };
    let driver = find(write, &CSI_DRIVERS, "", &driver).await?;
    let wanted = driver.at(&["spec", "tokenRequests"]).map(Value::items).unwrap_or_default();
    Ok(wanted.iter().any(|request| request.str("audience") == audience))
}

/// The CSI driver of a volume, named directly or implied by its type.
fn driver_of(volume: &Value) -> Option<String> {
    let named = volume.get("csi").map(|csi| csi.str("driver").to_owned());
    let of_kind = || DRIVERS.iter().find(|(field, _)| volume.get(field).is_some());
    named.or_else(|| of_kind().map(|(_, driver)| (*driver).to_owned())).filter(|driver| !driver.is_empty())
}

/// Why a node must not request this certificate.
pub fn certificate(request: &Value, node: &str) -> Option<String> {
    let spec = request.get("spec").unwrap_or(&Value::Null);
    if !NODE_SIGNERS.contains(&spec.str("signerName")) {
        return None;
    }
    let pem = STANDARD.decode(spec.str("request")).map_err(|error| error.to_string());
    let parsed = pem.and_then(|pem| X509Req::from_pem(&pem).map_err(|error| error.to_string()));
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(why) => return Some(format!("unable to parse csr: {why}")),
    };
    let names = parsed.subject_name().entries_by_nid(Nid::COMMONNAME);
    // The last of several common names counts, as it does in the certificate authenticator.
    let name = names.last().and_then(|name| name.data().to_string().ok()).unwrap_or_default();
    (name != format!("system:node:{node}"))
        .then(|| format!("can only create a node CSR with CN=system:node:{node}"))
}

#[cfg(test)]
mod tests {
    use openssl::hash::MessageDigest;
    use openssl::pkey::PKey;
    use openssl::x509::{X509NameBuilder, X509ReqBuilder};
    use pilothouse_apimachinery::json;

    use super::*;

    fn object(text: &str) -> Value {
        json::read(text.as_bytes()).unwrap()
    }

    fn request(signer: &str, name: &str) -> Value {
        let key = PKey::generate_ed25519().unwrap();
        let mut subject = X509NameBuilder::new().unwrap();
        subject.append_entry_by_nid(Nid::COMMONNAME, name).unwrap();
        let mut builder = X509ReqBuilder::new().unwrap();
        builder.set_subject_name(&subject.build()).unwrap();
        builder.set_pubkey(&key).unwrap();
        builder.sign(&key, MessageDigest::null()).unwrap();
        let pem = STANDARD.encode(builder.build().to_pem().unwrap());
        object(&format!(r#"{{"spec":{{"signerName":"{signer}","request":"{pem}"}}}}"#))
    }

    #[test]
    fn a_node_asks_only_for_certificates_of_its_own() {
        for signer in NODE_SIGNERS {
            assert_eq!(certificate(&request(signer, "system:node:n"), "n"), None);
            assert_eq!(
                certificate(&request(signer, "system:node:m"), "n").unwrap(),
                "can only create a node CSR with CN=system:node:n"
            );
        }
        assert_eq!(certificate(&request("example.com/other", "anybody"), "n"), None);
        let mut broken = request(NODE_SIGNERS[0], "x");
        broken.entry("spec").set("request", "eA==");
        assert!(certificate(&broken, "n").unwrap().starts_with("unable to parse csr: "));
    }

    #[test]
    fn volumes_say_for_whom_tokens_are_meant() {
        let volume = object(
            r#"{"projected":{"sources":[{"secret":{}},{"serviceAccountToken":{"path":"t"}},
                {"serviceAccountToken":{"audience":"vault","path":"v"}}]}}"#,
        );
        assert!(projects(&volume, "") && projects(&volume, "vault") && !projects(&volume, "other"));
        let driver = |text: &str| driver_of(&object(text));
        assert_eq!(driver(r#"{"csi":{"driver":"d"}}"#).as_deref(), Some("d"));
        assert_eq!(driver(r#"{"azureDisk":{}}"#).as_deref(), Some("disk.csi.azure.com"));
        assert_eq!(driver(r#"{"emptyDir":{}}"#), None);
    }
}
