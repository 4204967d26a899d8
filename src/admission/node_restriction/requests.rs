//! Requests that nodes make: tokens for their pods, and certificates for themselves.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::nid::Nid;
use openssl::x509::X509Req;
use pilothouse_actors::authorizer::AuthorizeExplained;
use pilothouse_apimachinery::meta;
use pilothouse_apimachinery::status::Result;
use pilothouse_apimachinery::stored_type::StoredType;
use pilothouse_apimachinery::value::Value;
use pilothouse_apimachinery::well_known::signers;
use pilothouse_types::authorization::{Action, Decision, Target};
use pilothouse_types::object::Key;

use super::{Allowances, PODS, get_object, is_on};
use crate::registry::admission::Write;
use crate::registry::authorization;

/// The signers of the certificates that identify nodes.
const NODE_SIGNERS: [&str; 2] = [signers::SERVING, signers::KUBELET];
/// The verb that a node needs for an audience that no volume of its pod uses.
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

const CLAIMS: StoredType = StoredType::v1("", "persistentvolumeclaims", "PersistentVolumeClaim");
const VOLUMES: StoredType = StoredType::v1("", "persistentvolumes", "PersistentVolume");
const CSI_DRIVERS: StoredType = StoredType::v1("storage.k8s.io", "csidrivers", "CSIDriver");

/// Refuses a token that is not bound to a pod on the node.
pub async fn check_token(
    write: &Write<'_>,
    request: &Value,
    node: &str,
    allowances: Allowances,
) -> Result<()> {
    let refuse = |reason: &str| Err(write.forbidden(request, reason));
    let bound_object = request.get_path(&["spec", "boundObjectRef"]).unwrap_or(&Value::Null);
    let (name, uid) = (bound_object.str("name"), bound_object.str("uid"));
    if bound_object.str("apiVersion") != "v1" || bound_object.str("kind") != "Pod" || name.is_empty() {
        return refuse("node requested token not bound to a pod");
    }
    if uid.is_empty() {
        return refuse("node requested token with a pod binding without a uid");
    }
    let pod = get_object(write, &PODS, Key::namespaced(write.call.namespace(), name)).await?;
    if meta::metadata(&pod).str("uid") != uid {
        return refuse(&format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        ));
    }
    if !is_on(Some(&pod), node) {
        return refuse("node requested token bound to a pod scheduled on a different node");
    }
    if allowances.any_audience {
        return Ok(());
    }
    match check_audience(write, request, &pod).await? {
        None => Ok(()),
        Some(reason) => refuse(&reason),
    }
}

/// The error if the node must not request this audience.
async fn check_audience(write: &Write<'_>, request: &Value, pod: &Value) -> Result<Option<String>> {
    let audiences = request.get_path(&["spec", "audiences"]).map(Value::items).unwrap_or_default();
    let audience = match audiences {
        [] => "",
        [audience] => audience.as_str().unwrap_or_default(),
        _ => return Ok(Some("node may only request 0 or 1 audiences".to_owned())),
    };
    let mut errors = Vec::new();
    for volume in pod.get_path(&["spec", "volumes"]).map(Value::items).unwrap_or_default() {
        if projects_token(volume, audience) {
            return Ok(None);
        }
        match driver_requests_token(write, pod, volume, audience).await {
            Ok(true) => return Ok(None),
            Ok(false) => {}
            Err(status) => errors.push(status.message),
        }
    }
    match errors.as_slice() {
        [] => {}
        [error] => return Ok(Some(format!("error validating audience {audience:?}: {error}"))),
        errors => {
            return Ok(Some(format!("error validating audience {audience:?}: [{}]", errors.join(", "))));
        }
    }
    let user = &write.call.user().name;
    let prefix = format!("audience {audience:?} not found in pod spec volume,");
    let target = Target::Resource {
        group: String::new(),
        version: "v1".to_owned(),
        resource: audience.to_owned(),
        subresource: String::new(),
        namespace: write.call.namespace().to_owned(),
        name: write.call.name().to_owned(),
    };
    let action = Arc::new(Action { verb: ANY_AUDIENCE.to_owned(), target });
    let identity = Arc::new(write.call.user().clone());
    let command = AuthorizeExplained { identity, action, selection: Arc::default() };
    let verdict = authorization::send(&write.backend.access.authorizer, command).await?;
    Ok(match (verdict.decision, verdict.error) {
        (Decision::Allowed, _) => None,
        (_, Some(error)) => {
            Some(format!("{prefix} error authorizing {user} to request tokens for this audience: {error}"))
        }
        _ => Some(format!("{prefix} {user} is not authorized to request tokens for this audience")),
    })
}

/// Whether a projected volume has a token for this audience.
fn projects_token(volume: &Value, audience: &str) -> bool {
    let sources = volume.get_path(&["projected", "sources"]).map(Value::items).unwrap_or_default();
    let mut tokens = sources.iter().filter_map(|source| source.get("serviceAccountToken"));
    tokens.any(|token| token.str("audience") == audience)
}

/// Whether the CSI driver of a volume wants tokens for this audience.
async fn driver_requests_token(
    write: &Write<'_>,
    pod: &Value,
    volume: &Value,
    audience: &str,
) -> Result<bool> {
    let claim = if volume.get_path(&["ephemeral", "volumeClaimTemplate"]).is_some() {
        Some(format!("{}-{}", meta::name(pod), volume.str("name")))
    } else {
        volume.get("persistentVolumeClaim").map(|source| source.str("claimName").to_owned())
    };
    let driver = match claim {
        None => csi_driver(volume),
        Some(claim) => {
            let claim = get_object(write, &CLAIMS, Key::namespaced(write.call.namespace(), &claim)).await?;
            let name = claim.get_path(&["spec", "volumeName"]).and_then(Value::as_str).unwrap_or_default();
            let volume = get_object(write, &VOLUMES, Key::cluster(name)).await?;
            csi_driver(volume.get("spec").unwrap_or(&Value::Null))
        }
    };
    let Some(driver) = driver else { return Ok(false) };
    let driver = get_object(write, &CSI_DRIVERS, Key::cluster(&driver)).await?;
    let requests = driver.get_path(&["spec", "tokenRequests"]).map(Value::items).unwrap_or_default();
    Ok(requests.iter().any(|request| request.str("audience") == audience))
}

/// The CSI driver of a volume, named directly or implied by its type.
fn csi_driver(volume: &Value) -> Option<String> {
    let explicit = volume.get("csi").map(|csi| csi.str("driver").to_owned());
    let in_tree = || DRIVERS.iter().find(|(field, _)| volume.get(field).is_some());
    explicit.or_else(|| in_tree().map(|(_, driver)| (*driver).to_owned())).filter(|driver| !driver.is_empty())
}

/// The error if a node must not request this certificate.
pub fn check_certificate(request: &Value, node: &str) -> Option<String> {
    let spec = request.get("spec").unwrap_or(&Value::Null);
    if !NODE_SIGNERS.contains(&spec.str("signerName")) {
        return None;
    }
    let pem = STANDARD.decode(spec.str("request")).map_err(|error| error.to_string());
    let parsed = pem.and_then(|pem| X509Req::from_pem(&pem).map_err(|error| error.to_string()));
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(reason) => return Some(format!("unable to parse csr: {reason}")),
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
    use pilothouse_apimachinery::testing::object;

    use super::*;

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
    fn node_certificate_request_must_name_the_node() {
        for signer in NODE_SIGNERS {
            assert_eq!(check_certificate(&request(signer, "system:node:n"), "n"), None);
            assert_eq!(
                check_certificate(&request(signer, "system:node:m"), "n").unwrap(),
                "can only create a node CSR with CN=system:node:n"
            );
        }
        assert_eq!(check_certificate(&request("example.com/other", "anybody"), "n"), None);
        let mut broken = request(NODE_SIGNERS[0], "x");
        broken.entry("spec").set("request", "eA==");
        assert!(check_certificate(&broken, "n").unwrap().starts_with("unable to parse csr: "));
    }

    #[test]
    fn projected_volume_grants_only_its_audiences() {
        let volume = object(
            r#"{"projected":{"sources":[{"secret":{}},{"serviceAccountToken":{"path":"t"}},
                {"serviceAccountToken":{"audience":"vault","path":"v"}}]}}"#,
        );
        assert!(
            projects_token(&volume, "")
                && projects_token(&volume, "vault")
                && !projects_token(&volume, "other")
        );
    }

    #[test]
    fn csi_driver_is_read_from_volume() {
        let driver = |text: &str| csi_driver(&object(text));
        assert_eq!(driver(r#"{"csi":{"driver":"d"}}"#).as_deref(), Some("d"));
        assert_eq!(driver(r#"{"azureDisk":{}}"#).as_deref(), Some("disk.csi.azure.com"));
        assert_eq!(driver(r#"{"emptyDir":{}}"#), None);
    }
}
