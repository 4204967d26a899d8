//! Tests of the rules of storage kinds.

use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

use super::super::testing::filled;
use super::*;

#[test]
fn storage_class_validation_refuses_each_violation() {
    let base = filled(("storage.k8s.io", "v1"), "StorageClass", r#"{"provisioner":"a"}"#);
    each_refused(
        &base,
        validate_class,
        &[
            ("provisioner", "null", "provisioner: Required value"),
            ("provisioner", r#""-""#, "provisioner: Invalid value"),
            (
                "reclaimPolicy",
                r#""Nope""#,
                "reclaimPolicy: Unsupported value: \"Nope\": supported values: \"Delete\", \"Retain\"",
            ),
            ("volumeBindingMode", r#""X""#, "supported values: \"Immediate\", \"WaitForFirstConsumer\""),
        ],
    );
    each_change_refused(
        &base,
        validate_class_update,
        &[
            ("provisioner", r#""b""#, "provisioner: Forbidden: updates to provisioner are forbidden."),
            ("parameters", r#"{"a":"b"}"#, "updates to parameters are forbidden."),
            ("reclaimPolicy", r#""Retain""#, "updates to reclaimPolicy are forbidden."),
            (
                "volumeBindingMode",
                r#""WaitForFirstConsumer""#,
                "volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable",
            ),
        ],
    );
}

#[test]
fn csi_and_attachment_kinds_validation_refuses_each_violation() {
    let driver = object(
        r#"{"spec":{"attachRequired":true,"podInfoOnMount":false,"storageCapacity":false,"seLinuxMount":false,
                "volumeLifecycleModes":["Persistent"],"fsGroupPolicy":"File","tokenRequests":[{"audience":"a"}]}}"#,
    );
    each_refused(
        &driver,
        validate_driver,
        &[
            ("spec.volumeLifecycleModes", r#"["X"]"#, "supported values: \"Persistent\", \"Ephemeral\""),
            ("spec.fsGroupPolicy", r#""X""#, "\"File\", \"None\", \"ReadWriteOnceWithFSType\""),
            ("spec.attachRequired", "null", "spec.attachedRequired: Required value"),
            ("spec.storageCapacity", "null", "spec.storageCapacity: Required value"),
            (
                "spec.tokenRequests.0.expirationSeconds",
                "599",
                "may not specify a duration less than 10 minutes",
            ),
            (
                "spec.tokenRequests.0.expirationSeconds",
                "4294967297",
                "may not specify a duration larger than 2^32 seconds",
            ),
            ("spec.nodeAllocatableUpdatePeriodSeconds", "9", "must be greater than or equal to 10 seconds"),
            (
                "spec.tokenRequests",
                r#"[{"audience":"a"},{"audience":"a"}]"#,
                "tokenRequests[1].audience: Duplicate value: \"a\"",
            ),
        ],
    );
    each_change_refused(
        &driver,
        validate_driver_update,
        &[(
            "spec.attachRequired",
            "false",
            "spec.attachedRequired: Invalid value: false: field is immutable",
        )],
    );
    let node = object(r#"{"spec":{"drivers":[{"name":"a","nodeID":"n"}]}}"#);
    each_refused(
        &node,
        validate_csi_node,
        &[
            ("spec.drivers.0.name", r#""a_b""#, "spec.drivers[0].name: Invalid value: \"a_b\""),
            ("spec.drivers.0.topologyKeys", r#"["k","k"]"#, "spec.drivers[0]: Duplicate value: \"k\""),
            ("spec.drivers.0.topologyKeys", r#"["-"]"#, "spec.drivers[0]: Invalid value: \"-\""),
            ("spec.drivers.0.nodeID", "null", "spec.drivers[0].nodeID: Required value"),
            ("spec.drivers.0.allocatable", r#"{"count":-1}"#, "count: Invalid value: -1"),
            (
                "spec.drivers",
                r#"[{"name":"a","nodeID":"n"},{"name":"a","nodeID":"n"}]"#,
                "spec.drivers[1].name: Duplicate value: \"a\"",
            ),
        ],
    );
    let attachment =
        object(r#"{"spec":{"attacher":"a.b","nodeName":"n","source":{"persistentVolumeName":"p"}}}"#);
    each_refused(
        &attachment,
        validate_attachment,
        &[
            ("spec.attacher", r#""a_b""#, "spec.attacher: Invalid value"),
            ("spec.nodeName", r#""A""#, "spec.nodeName: Invalid value: \"A\""),
            ("status.attachError", r#"{"errorCode":-1}"#, "status.attachError.errorCode: Invalid value: -1"),
            ("spec.source", "{}", "spec.source: Required value: must specify exactly one"),
            ("spec.source.inlineVolumeSpec", r#"{"x":1}"#, "spec.source: Forbidden"),
        ],
    );
    each_change_refused(
        &attachment,
        validate_attachment_update,
        &[(
            "spec.nodeName",
            r#""m""#,
            "spec: Invalid value: storage.VolumeAttachmentSpec{}: field is immutable",
        )],
    );
    each_change_refused(
        &node,
        validate_csi_node_update,
        &[(
            "spec.drivers.0.nodeID",
            r#""m""#,
            "spec.drivers: Invalid value: storage.CSINodeDriver{}: field is immutable",
        )],
    );
    let capacity =
        object(r#"{"storageClassName":"c","capacity":"1Gi","nodeTopology":{"matchLabels":{"a":"b"}}}"#);
    each_refused(
        &capacity,
        validate_capacity,
        &[
            ("storageClassName", "null", "storageClassName: Invalid value: \"\""),
            ("capacity", r#""-1""#, "capacity: Invalid value: \"-1\": must be greater than or equal to 0"),
            ("nodeTopology.matchLabels.a", r#""-""#, "nodeTopology.matchLabels: Invalid value"),
        ],
    );
    each_change_refused(
        &capacity,
        validate_capacity_update,
        &[
            ("storageClassName", r#""d""#, "storageClassName: Invalid value: \"d\": field is immutable"),
            (
                "nodeTopology.matchLabels.a",
                r#""c""#,
                "nodeTopology: Invalid value: v1.LabelSelector{}: field is immutable",
            ),
        ],
    );
    let attributes = object(r#"{"driverName":"a.b","parameters":{"k":"v"}}"#);
    each_refused(
        &attributes,
        validate_attributes_class,
        &[
            ("driverName", "null", "driverName: Required value"),
            ("parameters", "null", "parameters: Required value: must contain at least one key/value pair"),
            ("parameters", r#"{"":"v"}"#, "parameters: Invalid value: \"\": field can not be empty."),
        ],
    );
    each_change_refused(
        &attributes,
        validate_attributes_class_update,
        &[("parameters.k", r#""w""#, "parameters: Forbidden: updates to parameters are forbidden.")],
    );
}

#[test]
fn storage_class_topologies_refuse_duplicates_and_warn_about_old_labels() {
    let base = filled(
        ("storage.k8s.io", "v1"),
        "StorageClass",
        r#"{"provisioner":"a","allowedTopologies":[{"matchLabelExpressions":[{"key":"k","values":["v"]}]},
                {"matchLabelExpressions":[{"key":"beta.kubernetes.io/os","values":["v"]}]}]}"#,
    );
    let expression = "allowedTopologies.0.matchLabelExpressions";
    let (values, key) = (format!("{expression}.0.values"), format!("{expression}.0.key"));
    each_refused(
        &base,
        validate_class,
        &[
            (&values, "[]", "matchLabelExpressions[0].values: Required value"),
            (&values, r#"["v","v"]"#, "values[1]: Duplicate value: \"v\""),
            (&key, r#""-""#, "matchLabelExpressions[0].key: Invalid value: \"-\""),
            (
                &key,
                r#""beta.kubernetes.io/os""#,
                "allowedTopologies[1].matchLabelExpressions: Duplicate value: \"\"",
            ),
            (
                expression,
                r#"[{"key":"k","values":["v"]},{"key":"k","values":["w"]}]"#,
                "matchLabelExpressions[1].key: Duplicate value: \"k\"",
            ),
        ],
    );
    let mut warnings = WarningList::new();
    warn_class(&base, None, &mut warnings);
    assert_eq!(
        warnings,
        [
            "allowedTopologies[1].matchLabelExpressions[0].key: deprecated since v1.14; use \"kubernetes.io/os\" instead"
        ]
    );
    let capacity = object(
        r#"{"nodeTopology":{"matchLabels":{"beta.kubernetes.io/os":"a"},"matchExpressions":[{"key":"beta.kubernetes.io/arch"}]}}"#,
    );
    let mut warnings = WarningList::new();
    warn_capacity(&capacity, None, &mut warnings);
    assert_eq!(
        warnings,
        [
            "nodeTopology.matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead",
            "nodeTopology.matchLabels.beta.kubernetes.io/os: deprecated since v1.14; use \"kubernetes.io/os\" instead",
        ]
    );
}

#[test]
fn empty_topology_term_counts_as_duplicate() {
    let error_count = |terms: &str| {
        let class = format!(
            r#"{{"provisioner":"Ex.com/P","volumeBindingMode":"Immediate","allowedTopologies":{terms}}}"#
        );
        let mut errors = ErrorList::new();
        validate_class(&object(&class), &mut errors);
        errors.len()
    };
    assert_eq!(error_count("[]"), 0);
    assert_eq!(error_count("[{}]"), 1);
    assert_eq!(error_count("[{},{}]"), 5, "two for the first, three for the second");
}

#[test]
fn provisioner_errors_print_lower_case() {
    let mut errors = ErrorList::new();
    validate_provisioner(
        &FieldValue::top_level(&object(r#"{"provisioner":"Bad!"}"#), "provisioner"),
        &mut errors,
    );
    assert!(errors.iter().all(|error| error.message.starts_with("Invalid value: \"bad!\"")));
    assert!(!errors.is_empty());
}

#[test]
fn inline_volume_spec_validation_refuses_each_violation() {
    let base = object(
        r#"{"spec":{"attacher":"a.b","nodeName":"n","source":{"inlineVolumeSpec":{"accessModes":["ReadWriteOnce"],
                "csi":{"driver":"d.e","volumeHandle":"h"}}}}}"#,
    );
    let detail = "may not be specified in the context of inline volumes";
    let field_path = |field: &str| format!("spec.source.inlineVolumeSpec.{field}");
    let (claim, capacity, nodes, class, policy, mode, modes) = (
        field_path("claimRef"),
        field_path("capacity"),
        field_path("nodeAffinity"),
        field_path("storageClassName"),
        field_path("persistentVolumeReclaimPolicy"),
        field_path("volumeMode"),
        field_path("accessModes"),
    );
    each_refused(
        &base,
        validate_attachment,
        &[
            (&claim, r#"{"name":"c"}"#, detail),
            (&capacity, r#"{"storage":"1Gi"}"#, detail),
            (&nodes, r#"{"required":{}}"#, detail),
            (&class, r#""c""#, detail),
            (&policy, r#""Delete""#, "may only be Retain in the context of inline volumes"),
            (&mode, r#""Block""#, "may not specify volumeMode other than Filesystem"),
            (&modes, "[]", "accessModes: Required value"),
        ],
    );
}
