//! Updates that a pod and its subresources refuse.

use pilothouse_apimachinery::testing::{each_change_refused, error_messages, object, with};

use super::*;

fn base() -> Value {
    object(
        r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i:1"}],"restartPolicy":"Always",
            "activeDeadlineSeconds":9,"tolerations":[{"key":"k","operator":"Exists"}]}}"#,
    )
}

#[test]
fn pod_update_refuses_each_immutable_field() {
    each_change_refused(
        &base(),
        validate,
        &[
            (
                "spec.restartPolicy",
                r#""Never""#,
                "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.init",
            ),
            ("spec.nodeName", r#""n""#, CHANGEABLE),
            (
                "spec.containers",
                r#"[{"name":"c","image":"i:1"},{"name":"d","image":"i:1"}]"#,
                "may not add or remove containers",
            ),
            (
                "spec.activeDeadlineSeconds",
                "10",
                "spec.activeDeadlineSeconds: Invalid value: 10: must be less than or equal",
            ),
            ("spec.activeDeadlineSeconds", "null", "must not update from a positive integer to nil value"),
            ("spec.tolerations", "[]", "existing toleration can not be modified"),
            ("spec.schedulingGates", r#"[{"name":"a"}]"#, "found new scheduling gate 'a'"),
        ],
    );
    let mut new = base();
    new.entry("spec").set("containers", object(r#"[{"name":"c","image":"i:2"}]"#));
    new.entry("spec").set("activeDeadlineSeconds", 8);
    let mut errors = ErrorList::new();
    validate(&new, &base(), &mut errors);
    assert_eq!(errors, []);
}

#[test]
fn gated_pod_may_only_narrow_its_placement() {
    let term = |keys: &str| format!(r#"{{"matchExpressions":[{keys}]}}"#);
    let key = |name: &str| format!(r#"{{"key":"{name}","operator":"Exists"}}"#);
    let affinity =
        |terms: &str| format!(r#"{{"nodeAffinity":{{"{REQUIRED}":{{"nodeSelectorTerms":[{terms}]}}}}}}"#);
    let base = with(&base(), "spec.schedulingGates", r#"[{"name":"g"}]"#);
    let base = with(&base, "spec.nodeSelector", r#"{"a":"b"}"#);
    let base = with(&base, "spec.affinity", &affinity(&term(&key("x"))));
    let two_terms = affinity(&format!("{},{}", term(&key("x")), term(&key("y"))));
    let other_key = affinity(&term(&key("y")));
    let more_keys = affinity(&term(&format!("{},{}", key("x"), key("y"))));
    each_change_refused(
        &base,
        validate,
        &[
            ("spec.nodeSelector", r#"{"c":"d"}"#, "only additions to spec.nodeSelector are allowed"),
            ("spec.affinity", &two_terms, "no additions/deletions to non-empty NodeSelectorTerms list"),
            ("spec.affinity", &other_key, "nodeSelectorTerms[0]: Invalid value"),
        ],
    );
    let unrestricted = with(&base, "spec.affinity", "null");
    for (path, json, old) in [
        ("spec.nodeSelector", r#"{"a":"b","c":"d"}"#, &base),
        ("spec.affinity", more_keys.as_str(), &base),
        ("spec.affinity", more_keys.as_str(), &unrestricted),
        ("spec.affinity", more_keys.as_str(), &with(&base, "spec.affinity", "{}")),
    ] {
        let mut errors = ErrorList::new();
        validate(&with(old, path, json), old, &mut errors);
        assert_eq!(error_messages(&errors), Vec::<String>::new(), "{path}");
    }
    // An empty affinity differs from none.
    each_change_refused(
        &unrestricted,
        validate,
        &[("spec.affinity", "{}", "pod updates may not change fields")],
    );
}

#[test]
fn ephemeral_containers_are_immutable() {
    let old = with(&base(), "spec.ephemeralContainers", r#"[{"name":"e","image":"i"}]"#);
    each_change_refused(
        &old,
        validate_ephemeral,
        &[
            ("spec.ephemeralContainers", "[]", "existing ephemeral containers \"e\" may not be removed"),
            (
                "spec.ephemeralContainers.0.image",
                r#""j""#,
                "existing ephemeral containers \"e\" may not be changed",
            ),
        ],
    );
    let mut errors = ErrorList::new();
    validate_ephemeral(&with(&old, "spec.ephemeralContainers.0.lifecycle", "{}"), &old, &mut errors);
    assert_eq!(
        error_messages(&errors),
        [
            "spec.ephemeralContainers[0].lifecycle: Forbidden: cannot be set for an Ephemeral Container",
            "spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be changed",
        ]
    );
    let mut new = with(&old, "spec.containers.0.image", r#""x""#);
    new = with(&new, "spec.ephemeralContainers", r#"[{"name":"e","image":"i"},{"name":"f","image":"i"}]"#);
    prepare_ephemeral(&mut new, &old);
    assert_eq!(new.get_path(&["spec", "containers"]), old.get_path(&["spec", "containers"]));
    assert_eq!(new.get_path(&["spec", "ephemeralContainers"]).unwrap().items().len(), 2);
    let mut errors = ErrorList::new();
    let mirror = with(&old, "metadata.annotations", r#"{"kubernetes.io/config.mirror":"x"}"#);
    validate_ephemeral(&mirror, &mirror, &mut errors);
    assert_eq!(error_messages(&errors), ["[]: Forbidden: static pods do not support ephemeral containers"]);
}

#[test]
fn resize_may_change_only_cpu_and_memory() {
    let base = with(
        &base(),
        "spec.containers.0.resources",
        r#"{"requests":{"cpu":"1","memory":"1Gi"},"limits":{"memory":"2Gi"}}"#,
    );
    each_change_refused(
        &base,
        validate_resize,
        &[
            (
                "spec.containers.0.resources.requests",
                r#"{"cpu":"1"}"#,
                "resources.requests: Forbidden: resource requests cannot be removed",
            ),
            (
                "spec.containers.0.resources.limits.memory",
                r#""1500Mi""#,
                "spec.containers[0].resources.limits[memory]: Forbidden: memory limits cannot be decreased unless resizePolicy is RestartContainer",
            ),
            (
                "spec.containers.0.name",
                r#""x""#,
                "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize",
            ),
            (
                "spec.containers.0.image",
                r#""x""#,
                "spec: Forbidden: only cpu and memory resources are mutable",
            ),
        ],
    );
    let larger = with(&base, "spec.containers.0.resources.requests.cpu", r#""2""#);
    let mut errors = ErrorList::new();
    validate_resize(&larger, &base, &mut errors);
    assert_eq!(error_messages(&errors), Vec::<String>::new());
    let mut new = with(&larger, "spec.restartPolicy", r#""Never""#);
    prepare_resize(&mut new, &base);
    assert_eq!(new, larger);
    let best_effort = with(&base, "spec.containers.0.resources", "null");
    validate_resize(&larger, &best_effort, &mut errors);
    assert!(!error_messages(&errors).iter().any(|error| error.contains("only cpu and memory")), "{errors:?}");
    assert_eq!(errors[0].path.to_string(), "spec");
    assert!(errors[0].message.contains("Pod QOS Class may not change as a result of resizing"));
    // A container without resources may get any that keep the QoS class.
    let devices = with(
        &best_effort,
        "spec.containers.0.resources",
        r#"{"limits":{"a.b/c":"1"},"requests":{"a.b/c":"1"}}"#,
    );
    let mut errors = ErrorList::new();
    validate_resize(&devices, &best_effort, &mut errors);
    assert_eq!(error_messages(&errors), Vec::<String>::new());
    let more_keys = with(&base, "spec.containers.0.resources.limits", r#"{"memory":"2Gi","a.b/c":"1"}"#);
    validate_resize(
        &with(
            &more_keys,
            "spec.containers.0.resources.requests",
            r#"{"cpu":"1","memory":"1Gi","a.b/c":"1"}"#,
        ),
        &base,
        &mut errors,
    );
    assert!(
        error_messages(&errors)
            .contains(&"spec: Forbidden: only cpu and memory resources are mutable".to_owned())
    );
}
