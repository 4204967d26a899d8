//! Each violation in a volume source is refused.

use pilothouse_apimachinery::testing::{error_messages, object};

use super::*;

fn errors(kind: &str, json: &str, owner: Owner<'_>) -> Vec<String> {
    let object_with_source = object(&format!(r#"{{"v":{{"{kind}":{json}}}}}"#));
    let mut errors = ErrorList::new();
    validate(kind, &FieldValue::top_level(&object_with_source, "v").child(kind), owner, &mut errors);
    error_messages(&errors)
}

#[test]
fn volume_source_validation_refuses_each_violation() {
    let pod = Owner::Pod;
    let volume = Owner::Volume("p");
    let table = [
        ("persistentVolumeClaim", "{}", pod, "v.persistentVolumeClaim.claimName: Required value"),
        ("hostPath", "{}", pod, "v.hostPath.path: Required value"),
        (
            "hostPath",
            r#"{"path":"/a/.."}"#,
            pod,
            "v.hostPath.path: Invalid value: \"/a/..\": must not contain '..'",
        ),
        ("gcePersistentDisk", "{}", pod, "v.persistentDisk.pdName: Required value"),
        (
            "awsElasticBlockStore",
            r#"{"volumeID":"x","partition":256}"#,
            pod,
            "v.awsElasticBlockStore.partition: Invalid value: 256: must be between 1 and 255, inclusive",
        ),
        (
            "iscsi",
            r#"{"targetPortal":"t","iqn":"x"}"#,
            pod,
            "v.iscsi.iqn: Invalid value: \"x\": must be valid format starting with iqn, eui, or naa",
        ),
        (
            "iscsi",
            r#"{"targetPortal":"t","iqn":"x"}"#,
            volume,
            "v.iscsi.iqn: Invalid value: \"x\": must be valid format",
        ),
        (
            "iscsi",
            r#"{"targetPortal":"t","iqn":"iqn.2001-04.com.example:x","lun":256}"#,
            pod,
            "v.iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
        ),
        (
            "iscsi",
            r#"{"targetPortal":"t","iqn":"eui.0123456789abcdef","chapAuthSession":true}"#,
            pod,
            "v.iscsi.secretRef: Required value",
        ),
        (
            "iscsi",
            r#"{"targetPortal":"t","iqn":"eui.0123456789abcdef","initiatorName":"naa.1"}"#,
            pod,
            "v.iscsi.initiatorname: Invalid value: \"naa.1\": must be valid format",
        ),
        ("glusterfs", r#"{"endpoints":"e"}"#, pod, "v.glusterfs.path: Required value"),
        (
            "glusterfs",
            r#"{"endpoints":"e","path":"p","endpointsNamespace":""}"#,
            volume,
            "v.glusterfs.endpointsNamespace: Invalid value: \"\": if the endpointnamespace is set, it must be a valid namespace name",
        ),
        ("flocker", "{}", pod, "v.flocker: Required value: one of datasetName and datasetUUID is required"),
        (
            "flocker",
            r#"{"datasetName":"a","datasetUUID":"b"}"#,
            pod,
            "v.flocker: Invalid value: \"resource\": datasetName and datasetUUID can not be specified simultaneously",
        ),
        (
            "flocker",
            r#"{"datasetName":"a/b"}"#,
            pod,
            "v.flocker.datasetName: Invalid value: \"a/b\": must not contain '/'",
        ),
        ("rbd", r#"{"monitors":["m"]}"#, pod, "v.rbd.image: Required value"),
        ("cephfs", "{}", pod, "v.cephfs.monitors: Required value"),
        (
            "cinder",
            r#"{"volumeID":"v","secretRef":{"name":"s"}}"#,
            volume,
            "v.cinder.secretRef.namespace: Required value",
        ),
        (
            "quobyte",
            r#"{"registry":"a:1,b","volume":"v"}"#,
            pod,
            "v.quobyte.registry: Invalid value: \"a:1,b\": must be a host:port pair or multiple pairs separated by commas",
        ),
        ("quobyte", r#"{"registry":"a:1"}"#, pod, "v.quobyte.volume: Required value"),
        (
            "fc",
            "{}",
            pod,
            "v.fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both",
        ),
        (
            "fc",
            r#"{"targetWWNs":["a"]}"#,
            pod,
            "v.fc.lun: Required value: lun is required if targetWWNs is specified",
        ),
        (
            "flexVolume",
            r#"{"driver":"d","options":{"a.k8s.io/x":""}}"#,
            pod,
            "v.flexVolume.options[a.k8s.io/x]: Invalid value: \"a.k8s.io/x\": kubernetes.io and k8s.io namespaces are reserved",
        ),
        ("azureFile", r#"{"secretName":"s"}"#, pod, "v.azureFile.shareName: Required value"),
        (
            "azureFile",
            r#"{"secretName":"s","shareName":"s","secretNamespace":""}"#,
            volume,
            "v.azureFile.secretNamespace: Required value",
        ),
        (
            "azureDisk",
            r#"{"diskName":"d","diskURI":"x","kind":"Managed"}"#,
            pod,
            "v.azureDisk.diskURI: Unsupported value: \"x\": supported values: \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
        ),
        ("vsphereVolume", "{}", pod, "v.vsphereVolume.volumePath: Required value"),
        ("photonPersistentDisk", "{}", pod, "v.photonPersistentDisk.pdID: Required value"),
        ("portworxVolume", "{}", pod, "v.portworxVolume.volumeID: Required value"),
        ("scaleIO", r#"{"gateway":"g","system":"s"}"#, pod, "v.scaleIO.volumeName: Required value"),
        ("storageos", "{}", pod, "v.storageos.volumeName: Required value"),
        (
            "csi",
            r#"{"driver":"d","volumeHandle":"h","nodePublishSecretRef":{"name":"n"}}"#,
            volume,
            "v.csi.nodePublishSecretRef.namespace: Required value",
        ),
        (
            "csi",
            r#"{"driver":"d","nodePublishSecretRef":{}}"#,
            pod,
            "v.csi.nodePublishSecretRef.name: Required value",
        ),
    ];
    for (kind, json, owner, expected) in table {
        assert_eq!(errors(kind, json, owner), [expected], "{kind} {json}");
    }
    let both = errors("nfs", r#"{"server":"s"}"#, pod);
    assert_eq!(
        both,
        ["v.nfs.path: Required value", "v.nfs.path: Invalid value: \"\": must be an absolute path"]
    );
    assert_eq!(errors("csi", "{}", pod).len(), 2);
}

#[test]
fn valid_volume_sources_are_accepted() {
    let table = [
        (
            "iscsi",
            r#"{"targetPortal":"t","iqn":"iqn.2001-04.com.example:storage.x","initiatorName":"naa.0123456789abcdef0123456789abcdef"}"#,
        ),
        ("quobyte", r#"{"registry":"a:1,[::1]:2","volume":"v"}"#),
        ("azureDisk", r#"{"diskName":"d","diskURI":"https://x","kind":"Shared","cachingMode":"None"}"#),
        ("fc", r#"{"wwids":["a"]}"#),
        ("flexVolume", r#"{"driver":"d","options":{"x":"y","notk8s.io/a":""}}"#),
    ];
    for (kind, json) in table {
        assert_eq!(errors(kind, json, Owner::Pod), Vec::<String>::new(), "{kind}");
    }
}
