use std::collections::BTreeSet;
use std::sync::LazyLock;

use pilothouse_api::custom::definition::store_named;
use proptest::prelude::*;

use super::*;
use crate::values::testing::custom;

/// Every stored built-in resource as the reference stores it: resource and group, folder in etcd with `*` for the namespace, and
/// the version.
const REFERENCE: &[(&str, &str, &str)] = &[
    ("configmaps", "configmaps/*", "v1"),
    ("endpoints", "services/endpoints/*", "v1"),
    ("events", "events/*", "v1"),
    ("limitranges", "limitranges/*", "v1"),
    ("namespaces", "namespaces", "v1"),
    ("nodes", "minions", "v1"),
    ("persistentvolumeclaims", "persistentvolumeclaims/*", "v1"),
    ("persistentvolumes", "persistentvolumes", "v1"),
    ("pods", "pods/*", "v1"),
    ("podtemplates", "podtemplates/*", "v1"),
    ("replicationcontrollers", "controllers/*", "v1"),
    ("resourcequotas", "resourcequotas/*", "v1"),
    ("secrets", "secrets/*", "v1"),
    ("serviceaccounts", "serviceaccounts/*", "v1"),
    ("services", "services/specs/*", "v1"),
    ("controllerrevisions.apps", "controllerrevisions/*", "apps/v1"),
    ("daemonsets.apps", "daemonsets/*", "apps/v1"),
    ("deployments.apps", "deployments/*", "apps/v1"),
    ("replicasets.apps", "replicasets/*", "apps/v1"),
    ("statefulsets.apps", "statefulsets/*", "apps/v1"),
    ("horizontalpodautoscalers.autoscaling", "horizontalpodautoscalers/*", "autoscaling/v2"),
    ("cronjobs.batch", "cronjobs/*", "batch/v1"),
    ("jobs.batch", "jobs/*", "batch/v1"),
    (
        "certificatesigningrequests.certificates.k8s.io",
        "certificatesigningrequests",
        "certificates.k8s.io/v1",
    ),
    ("clustertrustbundles.certificates.k8s.io", "clustertrustbundles", "certificates.k8s.io/v1beta1"),
    ("leases.coordination.k8s.io", "leases/*", "coordination.k8s.io/v1"),
    ("leasecandidates.coordination.k8s.io", "leasecandidates/*", "coordination.k8s.io/v1beta1"),
    ("endpointslices.discovery.k8s.io", "endpointslices/*", "discovery.k8s.io/v1"),
    ("ingresses.networking.k8s.io", "ingress/*", "networking.k8s.io/v1"),
    ("ingressclasses.networking.k8s.io", "ingressclasses", "networking.k8s.io/v1"),
    ("networkpolicies.networking.k8s.io", "networkpolicies/*", "networking.k8s.io/v1"),
    ("ipaddresses.networking.k8s.io", "ipaddresses", "networking.k8s.io/v1beta1"),
    ("servicecidrs.networking.k8s.io", "servicecidrs", "networking.k8s.io/v1beta1"),
    ("poddisruptionbudgets.policy", "poddisruptionbudgets/*", "policy/v1"),
    (
        "storageversionmigrations.storagemigration.k8s.io",
        "storageversionmigrations",
        "storagemigration.k8s.io/v1alpha1",
    ),
    ("flowschemas.flowcontrol.apiserver.k8s.io", "flowschemas", "flowcontrol.apiserver.k8s.io/v1"),
    (
        "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
        "prioritylevelconfigurations",
        "flowcontrol.apiserver.k8s.io/v1",
    ),
    ("csidrivers.storage.k8s.io", "csidrivers", "storage.k8s.io/v1"),
    ("csinodes.storage.k8s.io", "csinodes", "storage.k8s.io/v1"),
    ("csistoragecapacities.storage.k8s.io", "csistoragecapacities/*", "storage.k8s.io/v1"),
    ("storageclasses.storage.k8s.io", "storageclasses", "storage.k8s.io/v1"),
    ("volumeattachments.storage.k8s.io", "volumeattachments", "storage.k8s.io/v1"),
    ("volumeattributesclasses.storage.k8s.io", "volumeattributesclasses", "storage.k8s.io/v1beta1"),
    ("clusterrolebindings.rbac.authorization.k8s.io", "clusterrolebindings", "rbac.authorization.k8s.io/v1"),
    ("clusterroles.rbac.authorization.k8s.io", "clusterroles", "rbac.authorization.k8s.io/v1"),
    ("rolebindings.rbac.authorization.k8s.io", "rolebindings/*", "rbac.authorization.k8s.io/v1"),
    ("roles.rbac.authorization.k8s.io", "roles/*", "rbac.authorization.k8s.io/v1"),
    (
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        "admissionregistration.k8s.io/v1",
    ),
    (
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        "admissionregistration.k8s.io/v1",
    ),
    (
        "validatingadmissionpolicies.admissionregistration.k8s.io",
        "validatingadmissionpolicies",
        "admissionregistration.k8s.io/v1",
    ),
    (
        "validatingadmissionpolicybindings.admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
        "admissionregistration.k8s.io/v1",
    ),
    (
        "mutatingadmissionpolicies.admissionregistration.k8s.io",
        "mutatingadmissionpolicies",
        "admissionregistration.k8s.io/v1alpha1",
    ),
    (
        "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
        "mutatingadmissionpolicybindings",
        "admissionregistration.k8s.io/v1alpha1",
    ),
    ("priorityclasses.scheduling.k8s.io", "priorityclasses", "scheduling.k8s.io/v1"),
    ("apiservices.apiregistration.k8s.io", "apiregistration.k8s.io/apiservices", "apiregistration.k8s.io/v1"),
    (
        "customresourcedefinitions.apiextensions.k8s.io",
        "apiextensions.k8s.io/customresourcedefinitions",
        "apiextensions.k8s.io/v1beta1",
    ),
    ("runtimeclasses.node.k8s.io", "runtimeclasses", "node.k8s.io/v1"),
    ("deviceclasses.resource.k8s.io", "deviceclasses", "resource.k8s.io/v1beta1"),
    ("resourceclaims.resource.k8s.io", "resourceclaims/*", "resource.k8s.io/v1beta1"),
    ("resourceclaimtemplates.resource.k8s.io", "resourceclaimtemplates/*", "resource.k8s.io/v1beta1"),
    ("resourceslices.resource.k8s.io", "resourceslices", "resource.k8s.io/v1beta1"),
    ("devicetaintrules.resource.k8s.io", "devicetaintrules", "resource.k8s.io/v1alpha3"),
    ("storageversions.internal.apiserver.k8s.io", "storageversions", "internal.apiserver.k8s.io/v1alpha1"),
];

/// The resources that this server stores in another version than the reference, and that version.
const OTHER_VERSIONS: [(&str, &str); 3] = [
    ("customresourcedefinitions.apiextensions.k8s.io", "apiextensions.k8s.io/v1"),
    ("ipaddresses.networking.k8s.io", "networking.k8s.io/v1"),
    ("servicecidrs.networking.k8s.io", "networking.k8s.io/v1"),
];

static LAYOUT: LazyLock<KeyLayout> =
    LazyLock::new(|| KeyLayout::new(EtcdPrefix::default(), &Builtin::load().unwrap()));

fn layout() -> KeyLayout {
    LAYOUT.clone()
}

fn object_at(type_name: &TypeName, key: &str) -> Option<Location> {
    Some(Location::Object(type_name.clone(), Key::from_path(key)))
}

#[test]
fn every_stored_resource_has_the_folder_and_version_of_the_reference() {
    let (layout, builtin) = (layout(), Builtin::load().unwrap());
    let mut stores = BTreeSet::new();
    for resource in builtin.resources() {
        let Some(stored) = resource.stored() else { continue };
        let name = stored.store.as_str();
        let (_, folder, version) = REFERENCE.iter().find(|row| row.0 == name).expect(name);
        assert_eq!(folder.ends_with("/*"), resource.namespaced, "{name}");
        let prefix = format!("/registry/{}/", folder.trim_end_matches("/*"));
        assert_eq!(layout.type_prefix(&stored.store), Some(prefix), "{name}");
        assert_eq!(stored.reference_version.to_string(), *version, "{name}");
        stores.insert(name.to_owned());
    }
    assert_eq!(stores, REFERENCE.iter().map(|row| row.0.to_owned()).collect());
    assert_eq!(stores.len(), layout.by_type.len());
}

#[test]
fn storage_versions_differ_from_the_reference_only_where_it_is_known() {
    let builtin = Builtin::load().unwrap();
    let differing: BTreeSet<(String, String)> = builtin
        .resources()
        .iter()
        .filter_map(|resource| resource.stored())
        .filter(|stored| stored.version != stored.reference_version)
        .map(|stored| (stored.store.to_string(), stored.version.to_string()))
        .collect();
    let known = OTHER_VERSIONS.map(|(name, version)| (name.to_owned(), version.to_owned()));
    assert_eq!(differing, BTreeSet::from(known));
}

#[test]
fn keys_map_to_etcd_and_back() {
    let layout = layout();
    for (name, folder, _) in REFERENCE {
        let type_name = TypeName::new(name);
        let (path, key) = match folder.strip_suffix("/*") {
            Some(folder) => (format!("/registry/{folder}/ns/a"), Key::namespaced("ns", "a")),
            None => (format!("/registry/{folder}/a"), Key::cluster("a")),
        };
        assert_eq!(layout.object_key(&type_name, &key).as_ref(), Some(&path));
        assert_eq!(layout.locate(path.as_bytes()), object_at(&type_name, key.as_str()));
    }
}

#[test]
fn foreign_keys_are_nothing() {
    let layout = layout();
    for key in [
        "",
        "/",
        "/registry",
        "/registry/",
        "/registry/pods",
        "/registry/pods/",
        "/registry/pods/ns",
        "/registry/pods/ns/",
        "/registry/pods//a",
        "/registry/pods/ns/a/b",
        "/registry/pods/../a",
        "/registry/pods/ns/.",
        "/registry/pods2/ns/a",
        "/registry/minions/a/b",
        "/registry/services/a",
        "/registry/services/other/ns/a",
        "/registry/ranges/other",
        "/registry/masterleases/",
        "/registry/masterleases/1.2.3.4/x",
        "/registry/toys.example/kites/ns/a",
        "/registry2/pods/ns/a",
        "registry/pods/ns/a",
        "/registry/compact_rev_key",
        "/calico/v1/host",
    ] {
        assert_eq!(layout.locate(key.as_bytes()), None, "{key}");
    }
    assert_eq!(layout.locate(b"/registry/pods/ns/\xff"), None);
    assert_eq!(layout.locate(format!("/registry/pods/ns/{}", "a".repeat(KEY_BYTES)).as_bytes()), None);
}

#[test]
fn folders_that_begin_alike_are_told_apart() {
    let layout = layout();
    for (path, type_name, key) in [
        ("/registry/ingress/ns/a", "ingresses.networking.k8s.io", "ns/a"),
        ("/registry/ingressclasses/a", "ingressclasses.networking.k8s.io", "a"),
        ("/registry/roles/ns/system:a", "roles.rbac.authorization.k8s.io", "ns/system:a"),
        ("/registry/services/specs/specs/specs", "services", "specs/specs"),
        ("/registry/services/endpoints/ns/a", "endpoints", "ns/a"),
    ] {
        assert_eq!(layout.locate(path.as_bytes()), object_at(&TypeName::new(type_name), key), "{path}");
    }
}

#[test]
fn custom_types_come_and_go() {
    let mut layout = layout();
    let (kites, type_name) =
        (custom("kites", "toys.example", "Namespaced"), store_named("kites.toys.example"));
    let path = b"/registry/toys.example/kites/ns/a";
    assert_eq!(layout.locate(path), None);
    assert!(layout.add(&kites) && layout.add(&kites));
    assert_eq!(layout.type_prefix(&type_name).as_deref(), Some("/registry/toys.example/kites/"));
    assert_eq!(layout.locate(path), object_at(&type_name, "ns/a"));
    assert_eq!(layout.locate(b"/registry/toys.example/kites/a"), None, "it has another scope");
    assert!(layout.add(&custom("kites", "toys.example", "Cluster")), "the definition was made again");
    assert_eq!(layout.locate(b"/registry/toys.example/kites/a"), object_at(&type_name, "a"));
    assert_eq!(layout.object_key(&type_name, &Key::namespaced("ns", "a")), None);
    layout.remove(&type_name);
    assert_eq!(
        (layout.locate(b"/registry/toys.example/kites/a"), layout.type_prefix(&type_name)),
        (None, None)
    );
}

#[test]
fn definition_cannot_take_the_folder_of_a_built_in_type() {
    let mut layout = layout();
    for (plural, group) in [
        ("apiservices", "apiregistration.k8s.io"),
        ("specs", "services"),
        ("endpoints", "services"),
        ("kites", "pods"),
    ] {
        let type_name = store_named(&format!("{plural}.{group}"));
        assert!(!layout.add(&custom(plural, group, "Namespaced")), "{plural}.{group}");
        assert_eq!(layout.object_key(&type_name, &Key::namespaced("ns", "a")), None);
    }
    // The plural and group of a built-in type, whose own folder has no group.
    let ingresses = "ingresses.networking.k8s.io";
    assert!(layout.add(&custom("ingresses", "networking.k8s.io", "Namespaced")));
    assert_eq!(
        layout.locate(b"/registry/networking.k8s.io/ingresses/ns/a"),
        object_at(&store_named(ingresses), "ns/a")
    );
    assert_eq!(layout.locate(b"/registry/ingress/ns/a"), object_at(&TypeName::new(ingresses), "ns/a"));
}

#[test]
fn records_have_the_keys_of_the_reference() {
    let layout = layout();
    for (record, key) in [
        (Record::ServiceIps, "/registry/ranges/serviceips"),
        (Record::SecondaryServiceIps, "/registry/ranges/secondaryserviceips"),
        (Record::NodePorts, "/registry/ranges/servicenodeports"),
        (Record::EndpointLease("10.0.0.1".to_owned()), "/registry/masterleases/10.0.0.1"),
        (Record::EndpointLease("fd00::1".to_owned()), "/registry/masterleases/fd00::1"),
        (Record::PeerEndpointLease("apiserver-x".to_owned()), "/registry/peerserverleases/apiserver-x"),
        (Record::Compaction, "compact_rev_key"),
        (Record::UnfinishedCopy, "/registry/pilothouse/copy"),
    ] {
        assert_eq!(layout.record_key(&record), key);
        assert_eq!(layout.locate(key.as_bytes()), Some(Location::Record(record)));
    }
    assert_eq!(layout.endpoint_leases_prefix(), "/registry/masterleases/");
    assert_eq!(layout.peer_endpoint_leases_prefix(), "/registry/peerserverleases/");
}

#[test]
fn hidden_keys_have_no_etcd_key() {
    let key = Key::hidden(&[7; 16]);
    assert_eq!(layout().object_key(&TypeName::new("pods"), &key), None);
    assert_eq!(layout().object_key(&TypeName::new("nodes"), &key), None);
}

proptest! {
    #[test]
    fn located_objects_have_the_key_that_they_were_located_by(
        prefix in "[a-z./]{0,8}",
        segments in proptest::collection::vec(
            prop_oneof![Just("pods"), Just("services"), Just("specs"), Just("minions"), Just(""), Just("."), Just("ns"), Just("a:b")],
            0..6,
        ),
    ) {
        let layout = KeyLayout { prefix: EtcdPrefix::new(&prefix), ..layout() };
        let etcd_key = format!("{}{}", layout.prefix(), segments.join("/"));
        if let Some(Location::Object(type_name, key)) = layout.locate(etcd_key.as_bytes()) {
            prop_assert_eq!(layout.object_key(&type_name, &key), Some(etcd_key));
        }
    }

    #[test]
    fn any_key_can_be_looked_up(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let layout = layout();
        let _ = layout.locate(&bytes);
        let _ = layout.locate(&[b"/registry/", &bytes[..]].concat());
    }
}
