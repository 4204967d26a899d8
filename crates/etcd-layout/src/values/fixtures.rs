//! Values that the reference has encoded: `PILOTHOUSE_FIXTURES=FOLDER cargo test -p pilothouse-etcd-layout fixtures -- --ignored`.
//!
//! The folder has a file for each kind and version, with every field set. A stored value has neither resourceVersion nor selfLink, so
//! these two are taken out first.

use std::fs;
use std::path::PathBuf;

use pilothouse_apimachinery::schema::Registry;

use super::testing::{codec, stored_resources};
use super::*;

/// Kinds whose fixtures set fields that exclude or lack each other, which reading resolves in the reference as well: the aliases of
/// fields (`serviceAccount`, `podCIDR`, `stringData`, the version of a definition), requests from limits, labels and annotations that
/// every object has.
const RESOLVED: [&str; 13] = [
    "CronJob",
    "CustomResourceDefinition",
    "DaemonSet",
    "Deployment",
    "Job",
    "Namespace",
    "Node",
    "Pod",
    "PodTemplate",
    "ReplicaSet",
    "ReplicationController",
    "Secret",
    "StatefulSet",
];

/// The server inside the reference that has APIServices has no fixtures.
const WITHOUT_FIXTURE: &str = "APIService";

/// The value that the reference would store of a fixture, and a second server would read.
fn value_of_fixture(
    protobuf: &[u8],
    kind: &GroupVersionKind,
    encoding: Encoding,
    registry: &Registry,
) -> Vec<u8> {
    let mut value = protobuf::decode_object(protobuf, kind, registry).unwrap().value;
    value.entry("metadata").remove("resourceVersion");
    value.entry("metadata").remove("selfLink");
    encode_typed(encoding, registry, registry.lookup(kind).unwrap(), &value)
}

#[test]
#[ignore = "needs the folder of objects that the reference has written, named by PILOTHOUSE_FIXTURES"]
fn fixtures_are_read_and_written_again_unchanged() {
    let folder = PathBuf::from(std::env::var_os("PILOTHOUSE_FIXTURES").expect("PILOTHOUSE_FIXTURES"));
    let registry = Registry::complete().unwrap();
    let (mut errors, mut count) = (Vec::new(), 0);
    for resource in stored_resources() {
        let version = &resource.stored().unwrap().reference_version;
        let kind = GroupVersionKind::new(&version.group, &version.version, &resource.kind);
        let group = if version.group.is_empty() { "core" } else { &version.group };
        let file = folder.join(format!("{group}.{}.{}.pb", version.version, kind.kind));
        let Ok(protobuf) = fs::read(&file) else {
            assert_eq!(kind.kind, WITHOUT_FIXTURE, "{}", file.display());
            continue;
        };
        for media in MediaType::ALL {
            let codec = codec(media);
            let encoding = match *version.group == *"apiextensions.k8s.io" {
                true => Encoding::Json,
                false => media.encoding(),
            };
            let rewritten = |value: &[u8]| {
                let decoded = codec.decode(&resource, &Key::cluster("a"), value).unwrap();
                (codec.encode(&resource, &decoded.draft).unwrap(), decoded.is_stale)
            };
            let mut value = value_of_fixture(&protobuf, &kind, encoding, &registry);
            if RESOLVED.contains(&&*kind.kind) {
                value = rewritten(&value).0;
            }
            let (written, is_stale) = rewritten(&value);
            if written != value || is_stale {
                let same = value.iter().zip(&written).take_while(|(left, right)| left == right).count();
                let around = |value: &[u8]| {
                    let end = value.len().min(same + 80);
                    String::from_utf8_lossy(&value[same.saturating_sub(40)..end]).into_owned()
                };
                errors.push(format!("{kind} {media:?}: {:?} and not {:?}", around(&written), around(&value)));
            }
            count += 1;
        }
    }
    assert!(errors.is_empty(), "{} of {count}:\n{}", errors.len(), errors.join("\n"));
}
