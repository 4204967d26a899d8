//! MutatingAdmissionPolicies: their changes, their limits, and their order with webhooks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::support::hook_server::{HookServer, Reply};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1alpha1/mutatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1alpha1/mutatingadmissionpolicybindings";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SERVED: &str = "--runtime-config=admissionregistration.k8s.io/v1alpha1=true";
const GATE: &str = "--feature-gates=MutatingAdmissionPolicy=true";

fn policy_server() -> Server {
    Server::with_flags(&["--engine=memory", SERVED, GATE])
}

fn apply_configuration(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn json_patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

fn rules(resources: &[&str]) -> Value {
    json!({"resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
        "resources": resources}]})
}

/// A policy for objects with its name as their label; `fields` replace the usual fields of the spec.
fn policy(name: &str, mutations: &[Value], fields: &Value) -> Value {
    let mut matched = rules(&["configmaps", "pods", "deployments", "widgets"]);
    matched["objectSelector"] = json!({"matchLabels": {"for": name}});
    let mut spec =
        json!({"matchConstraints": matched, "mutations": mutations, "reinvocationPolicy": "Never"});
    for (field, value) in fields.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": spec})
}

fn bind(admin: &mut Client, name: &str, fields: &Value) {
    let mut spec = json!({"policyName": name});
    for (field, value) in fields.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": format!("{name}-b")}, "spec": spec});
    admin.post(BINDINGS, &object).ok();
}

/// Creates a policy and its binding.
fn create_and_bind(admin: &mut Client, name: &str, mutations: &[Value], fields: &Value) {
    admin.post(POLICIES, &policy(name, mutations, fields)).ok();
    bind(admin, name, &json!({}));
}

fn map(name: &str, label: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"for": label}},
        "data": {"a": "b"}})
}

fn with_label(mut object: Value, label: &str) -> Value {
    object["metadata"]["labels"] = json!({"for": label});
    object
}

fn deployment(name: &str, label: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": {"for": label}},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"x": "y"}}, "template": {"metadata": {"labels": {"x": "y"}},
            "spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]}}}})
}

/// Expects a refusal by a policy.
fn expect_denied(client: &mut Client, path: &str, object: &Value, reason: &str) {
    let status = client.post(path, object).expect_error(403, "Invalid");
    assert_eq!(text(&status, "/message"), reason);
    assert_eq!(status["details"]["causes"][0]["message"], reason);
}

#[test]
fn apply_configuration_policy_merges_fields_into_object() {
    let server = policy_server();
    let mut admin = server.admin();
    let labels = r#"Object{metadata: Object.metadata{labels: {"by": "policy"}}, data: {"n": variables.n, "a": object.data.a + "!"}}"#;
    let variables = json!({"variables": [{"name": "n", "expression": "string(size(object.data))"}]});
    create_and_bind(&mut admin, "label", &[apply_configuration(labels)], &variables);
    let created = admin.post(&format!("{MAPS}?fieldManager=me"), &map("a", "label")).ok();
    assert_eq!(created["metadata"]["labels"], json!({"for": "label", "by": "policy"}));
    assert_eq!(created["data"], json!({"a": "b!", "n": "1"}));
    // Fields changed by admission have no owner.
    let owned = &created["metadata"]["managedFields"][0]["fieldsV1"]["f:data"];
    assert!(owned.get("f:a").is_some() && owned.get("f:n").is_none(), "{owned}");
    let changed = admin.patch(&format!("{MAPS}/a"), "merge", &json!({"data": {"c": "d"}})).ok();
    assert_eq!(changed["data"], json!({"a": "b!!", "c": "d", "n": "3"}));
    assert_eq!(admin.post(&format!("{MAPS}?dryRun=All"), &map("dry", "label")).ok()["data"]["n"], "1");
    admin.get(&format!("{MAPS}/dry")).expect_error(404, "NotFound");
    assert!(admin.post(MAPS, &map("other", "nobody")).ok()["data"].get("n").is_none());

    // List items are merged by their keys, and defaulted afterwards.
    let containers = "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers:
        object.spec.template.spec.containers.filter(c, c.name == 'b').map(c, Object.spec.template.spec.containers{name: c.name,
            image: 'new', ports: [Object.spec.template.spec.containers.ports{containerPort: 80}]})}}}}";
    create_and_bind(&mut admin, "containers", &[apply_configuration(containers)], &json!({}));
    let created = admin.post(DEPLOYMENTS, &deployment("d", "containers")).ok();
    let containers = &created["spec"]["template"]["spec"]["containers"];
    assert_eq!((&containers[0]["image"], &containers[1]["image"]), (&json!("i"), &json!("new")));
    assert_eq!(containers[1]["ports"], json!([{"containerPort": 80, "protocol": "TCP"}]));

    // A deleted policy no longer applies to the next request.
    admin.delete(&format!("{POLICIES}/label")).ok();
    assert_eq!(admin.post(MAPS, &map("b", "label")).ok()["data"], json!({"a": "b"}));
}

#[test]
fn json_patch_policy_applies_operations() {
    let server = policy_server();
    let mut admin = server.admin();
    let patch =
        "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a.io/b'), value: 'x'},
        JSONPatch{op: 'add', path: '/spec/template/spec/containers/-', value:
            Object.spec.template.spec.containers{name: 'c', image: 'k'}},
        JSONPatch{op: 'replace', path: '/spec/replicas', value: 3}]";
    create_and_bind(&mut admin, "patch", &[json_patch(patch)], &json!({}));
    let created = admin.post(DEPLOYMENTS, &deployment("d", "patch")).ok();
    assert_eq!(created["metadata"]["labels"]["a.io/b"], "x");
    assert_eq!(created["spec"]["replicas"], 3);
    assert_eq!(
        created["spec"]["template"]["spec"]["containers"][2]["terminationMessagePath"],
        "/dev/termination-log"
    );

    // A failed test operation skips the patch; a patch that does not apply is refused.
    let tested =
        "[JSONPatch{op: 'test', path: '/data/a', value: 'z'}, JSONPatch{op: 'remove', path: '/data/a'}]";
    create_and_bind(&mut admin, "tested", &[json_patch(tested)], &json!({}));
    assert_eq!(admin.post(MAPS, &map("a", "tested")).ok()["data"]["a"], "b");
    create_and_bind(
        &mut admin,
        "wrong",
        &[json_patch("[JSONPatch{op: 'add', path: '/data/x/y', value: 'z'}]")],
        &json!({}),
    );
    expect_denied(
        &mut admin,
        MAPS,
        &map("b", "wrong"),
        "policy 'wrong' with binding 'wrong-b' denied request: JSON Patch: add operation does not apply: doc is missing path: \
         \"/data/x/y\": missing value",
    );
    // A patch that yields an invalid object is an internal error, whatever the failure policy.
    let unknown = json_patch("[JSONPatch{op: 'add', path: '/spec/foo', value: 1}]");
    create_and_bind(&mut admin, "unknown", &[unknown], &json!({"failurePolicy": "Ignore"}));
    let status = admin.post(DEPLOYMENTS, &deployment("e", "unknown")).expect_error(500, "InternalError");
    assert!(
        text(&status, "/message").contains("strict decoding error: unknown field \"spec.foo\""),
        "{status}"
    );
}

#[test]
fn invalid_mutation_denies_request_unless_failure_policy_ignores() {
    let server = policy_server();
    let mut admin = server.admin();
    let atomic = "Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'a': 'b'}}}}";
    let prefix = "policy 'p' with binding 'p-b' denied request: ";
    for (expression, reason) in [
        (
            atomic,
            "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector",
        ),
        (
            "Object{spec: Object.spec{foo: 1}}",
            "error applying patch: failed to convert patch object to typed object: .spec.foo: field not declared in schema",
        ),
        (
            "Object{spec: Object.wrong{replicas: 1}}",
            "type mismatch: unexpected type name \"Object.wrong\", expected \"Object.spec\", which matches field name path \
             from root Object type",
        ),
        (
            "Object{spec: Object.spec{replicas: object.spec.nope}}",
            "expression 'Object{spec: Object.spec{replicas: object.spec.nope}}' resulted in error: no such key: nope",
        ),
    ] {
        create_and_bind(&mut admin, "p", &[apply_configuration(expression)], &json!({}));
        expect_denied(&mut admin, DEPLOYMENTS, &deployment("d", "p"), &format!("{prefix}{reason}"));
        admin.delete(&format!("{POLICIES}/p")).ok();
        admin.delete(&format!("{BINDINGS}/p-b")).ok();
    }
    // All errors are reported, and ignored ones do not skip the other mutations.
    let mutations = [
        apply_configuration(atomic),
        apply_configuration("Object{spec: Object.spec{replicas: 7}}"),
        apply_configuration(atomic),
    ];
    create_and_bind(&mut admin, "p", &mutations, &json!({}));
    let status = admin.post(DEPLOYMENTS, &deployment("d", "p")).expect_error(403, "Invalid");
    assert_eq!(status["details"]["causes"].as_array().unwrap().len(), 2);
    admin.patch(&format!("{POLICIES}/p"), "merge", &json!({"spec": {"failurePolicy": "Ignore"}})).ok();
    assert_eq!(admin.post(DEPLOYMENTS, &deployment("d", "p")).ok()["spec"]["replicas"], 7);
    // Validation of the kind comes after admission.
    let negative = apply_configuration("Object{spec: Object.spec{replicas: -1}}");
    admin.patch(&format!("{POLICIES}/p"), "merge", &json!({"spec": {"mutations": [negative]}})).ok();
    admin.post(DEPLOYMENTS, &deployment("e", "p")).expect_error(422, "Invalid");
}

#[test]
fn mutation_expressions_are_compiled_on_write() {
    let server = policy_server();
    let mut admin = server.admin();
    let mut expect_invalid = |mutation: Value, reason: &str| {
        let status = admin.post(POLICIES, &policy("p", &[mutation], &json!({}))).expect_error(422, "Invalid");
        let message = text(&status, "/message");
        assert!(message.contains(reason), "{message}");
    };
    let expression = "spec.mutations[0].applyConfiguration.expression: Invalid value: ";
    expect_invalid(
        apply_configuration(" Object.spec{} "),
        &format!("{expression}\"Object.spec{{}}\": must evaluate to Object but got Object.spec"),
    );
    expect_invalid(
        apply_configuration("Object{a: x}"),
        "compilation failed: ERROR: <input>:1:11: undeclared reference to 'x'",
    );
    expect_invalid(
        apply_configuration("type(Object{}) == Object ? Object{} : Object{}"),
        "expression: Internal error: program instantiation failed: reference to undefined type: Object",
    );
    expect_invalid(json_patch("[]"), "must evaluate to list(JSONPatch) but got list(dyn)");
    expect_invalid(json_patch("Object{}"), "must evaluate to list(JSONPatch) but got Object");
    expect_invalid(
        json_patch("[JSONPatch{op: 1}]"),
        "<input>:1:14: expected type of field 'op' is 'string' but provided type is 'int'",
    );
    let variable = json!({"variables": [{"name": "v", "expression": "Object{}"}]});
    let status = admin
        .post(POLICIES, &policy("p", &[apply_configuration("Object{}")], &variable))
        .expect_error(422, "Invalid");
    assert!(text(&status, "/message").contains("undeclared reference to 'Object'"), "{status}");
}

#[test]
fn mutating_policy_evaluates_params_conditions_namespace_and_authorizer() {
    let server = policy_server();
    let mut admin = server.admin();
    let expression = "Object{data: {'p': string(params.data.v), 'n': namespaceObject.metadata.name, 'o': request.operation,
        'r': string(authorizer.requestResource.check('create').allowed())}}";
    let fields = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "c", "expression": "object.metadata.name != 'free'"}]});
    admin.post(POLICIES, &policy("p", &[apply_configuration(expression)], &fields)).ok();
    bind(&mut admin, "p", &json!({"paramRef": {"name": "params", "parameterNotFoundAction": "Deny"}}));
    let status = admin.post(MAPS, &map("a", "p")).expect_error(403, "Forbidden");
    assert_eq!(
        text(&status, "/message"),
        "policy 'p' with binding 'p-b' denied request: failed to configure binding: no params found for policy binding with \
         `Deny` parameterNotFoundAction"
    );
    let mut params = map("params", "nobody");
    params["data"] = json!({"v": "1"});
    admin.post(MAPS, &params).ok();
    assert_eq!(
        admin.post(MAPS, &map("a", "p")).ok()["data"],
        json!({"a": "b", "p": "1", "n": "default", "o": "CREATE", "r": "true"})
    );
    assert_eq!(admin.post(MAPS, &map("free", "p")).ok()["data"], json!({"a": "b"}));
    let metrics = admin.get("/metrics").text();
    let metric = r#"apiserver_admission_match_condition_evaluation_seconds_count{kind="policy",name="p",operation="CREATE",type="validate"}"#;
    assert!(metrics.contains(metric), "{metrics}");
    // A policy whose paramKind is not served denies.
    let unknown = json!({"paramKind": {"apiVersion": "nobody.io/v1", "kind": "X"}});
    create_and_bind(&mut admin, "q", &[apply_configuration("Object{}")], &unknown);
    let status = admin.post(MAPS, &map("b", "q")).expect_error(403, "Forbidden");
    assert_eq!(
        text(&status, "/message"),
        "policy \"q\" denied request: failed to configure policy: failed to find resource referenced by paramKind: \
         'nobody.io/v1, Kind=X'"
    );
}

#[test]
fn mutating_policy_params_require_read_permission() {
    let server = policy_server();
    let (mut admin, mut user) = (server.admin(), server.anonymous().with_token(Some("token-of-alice")));
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "policies"},
        "rules": [{"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]}]});
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).ok();
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "policies"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "policies"}, "subjects": [{"kind": "Group", "name": "system:authenticated",
            "apiGroup": "rbac.authorization.k8s.io"}]});
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).ok();
    let secrets = json!({"paramKind": {"apiVersion": "v1", "kind": "Secret"}});
    let object = policy("p", &[apply_configuration("Object{}")], &secrets);
    let status = user.post(POLICIES, &object).expect_error(422, "Invalid");
    assert!(text(&status, "/message").contains("must have \"get\" permission on all objects"), "{status}");
    admin.post(POLICIES, &object).ok();
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "b"}, "spec": {"policyName": "p", "paramRef": {"name": "s", "namespace": "default",
            "parameterNotFoundAction": "Deny"}}});
    let status = user.post(BINDINGS, &object).expect_error(422, "Invalid");
    assert!(
        text(&status, "/message").contains("permission on the object referenced by paramRef"),
        "{status}"
    );
    admin.post(BINDINGS, &object).ok();
}

#[test]
fn mutating_policies_run_before_webhooks_and_are_reinvoked() {
    let hooks = HookServer::start("h", |_, request| {
        let sequence = request["object"]["data"]["seq"].as_str().unwrap_or_default();
        let patch = json!([{"op": "add", "path": "/data/seq", "value": format!("{sequence}h")}]).to_string();
        Reply::Review(json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch)}))
    });
    let server = policy_server();
    let mut admin = server.admin();
    let append_letter = |letter: &str| {
        apply_configuration(&format!("Object{{data: {{'seq': object.data.?seq.orValue('') + '{letter}'}}}}"))
    };
    let constraints = |name: &str, reinvocation: &str| {
        let mut matched = rules(&["configmaps"]);
        matched["objectSelector"] = json!({"matchLabels": {"for": name}});
        json!({"matchConstraints": matched, "reinvocationPolicy": reinvocation})
    };
    create_and_bind(&mut admin, "once", &[append_letter("o")], &constraints("seq", "Never"));
    create_and_bind(&mut admin, "again", &[append_letter("a")], &constraints("seq", "IfNeeded"));
    // In the order of their names; reinvocation happens even without a later change.
    assert_eq!(admin.post(MAPS, &map("a", "seq")).ok()["data"]["seq"], "aoa");
    // Constraints are matched against the submitted object.
    let relabel = apply_configuration("Object{metadata: Object.metadata{labels: {'for': 'late'}}}");
    create_and_bind(&mut admin, "early", &[relabel], &constraints("early", "Never"));
    create_and_bind(&mut admin, "late", &[append_letter("l")], &constraints("late", "Never"));
    assert!(admin.post(MAPS, &map("b", "early")).ok()["data"].get("seq").is_none());
    let hook = json!({
        "name": "m.x.io", "sideEffects": "None", "admissionReviewVersions": ["v1"], "reinvocationPolicy": "IfNeeded",
        "clientConfig": {"url": hooks.url("/m"), "caBundle": STANDARD.encode(&hooks.ca_pem)},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
    });
    let body = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "m"}, "webhooks": [hook]});
    admin.post("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", &body).ok();
    assert_eq!(admin.post(MAPS, &map("c", "seq")).ok()["data"]["seq"], "aohah");
}

#[test]
fn mutating_policy_applies_to_subresources_custom_resources_and_versions() {
    let server = policy_server();
    let mut admin = server.admin();
    let mut matched = rules(&["deployments/scale"]);
    let scale =
        json_patch("[JSONPatch{op: 'replace', path: '/spec/replicas', value: object.spec.replicas + 10}]");
    create_and_bind(&mut admin, "scale", &[scale], &json!({"matchConstraints": matched}));
    admin.post(DEPLOYMENTS, &deployment("d", "nobody")).ok();
    admin.patch(&format!("{DEPLOYMENTS}/d/scale"), "merge", &json!({"spec": {"replicas": 2}})).ok();
    assert_eq!(admin.get(&format!("{DEPLOYMENTS}/d")).ok()["spec"]["replicas"], 12);

    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "n": {"type": "integer"}, "words": {"type": "array", "items": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {
            "type": "object", "required": ["k"], "properties": {"k": {"type": "string"},
                "v": {"type": "integer", "default": 5}}}}}}}});
    let version = |name: &str| json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": schema}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.x.io"}, "spec": {"group": "x.io", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"}, "versions": [version("v1"), version("v2")]}});
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).ok();
    let path = "/apis/x.io/v1/namespaces/default/widgets";
    let is_served = crate::support::wait::poll(crate::support::wait::TIMEOUT, || {
        (admin.get(path).status == 200).then_some(())
    });
    assert!(is_served.is_some());
    let widget = |name: &str, label: &str| {
        with_label(
            json!({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"name": name},
        "spec": {"n": 1, "items": [{"k": "a"}]}}),
            label,
        )
    };
    let merge_expression =
        "Object{spec: Object.spec{n: object.spec.n + 1, items: [Object.spec.items{k: 'b'}],
        free: Object.spec.free{x: {'y': 1}}}}";
    create_and_bind(&mut admin, "merged", &[apply_configuration(merge_expression)], &json!({}));
    assert_eq!(
        admin.post(path, &widget("a", "merged")).ok()["spec"],
        json!({"n": 2, "items": [{"k": "a", "v": 5}, {"k": "b", "v": 5}], "free": {"x": {"y": 1}}})
    );
    create_and_bind(
        &mut admin,
        "atomic",
        &[apply_configuration("Object{spec: Object.spec{words: ['a']}}")],
        &json!({}),
    );
    let status = admin.post(path, &widget("b", "atomic")).expect_error(403, "Invalid");
    assert!(text(&status, "/message").ends_with("atomic arrays, maps or structs: .spec.words"), "{status}");
    // A rule for another version receives the object in that version.
    matched = json!({"resourceRules": [{"apiGroups": ["x.io"], "apiVersions": ["v2"], "operations": ["*"],
        "resources": ["widgets"]}], "objectSelector": {"matchLabels": {"for": "v2"}}});
    let annotate_version = apply_configuration(
        "Object{metadata: Object.metadata{annotations: {'v': object.apiVersion + request.requestResource.version}}}",
    );
    create_and_bind(&mut admin, "v2", &[annotate_version], &json!({"matchConstraints": matched}));
    let created = admin.post(path, &widget("c", "v2")).ok();
    assert_eq!(
        (&created["apiVersion"], &created["metadata"]["annotations"]["v"]),
        (&json!("x.io/v1"), &json!("x.io/v2v1"))
    );
}

#[test]
fn mutating_policy_is_inactive_without_feature_gate() {
    let server = Server::with_flags(&["--engine=memory", SERVED]);
    let mut admin = server.admin();
    create_and_bind(&mut admin, "p", &[apply_configuration("Object{data: {'x': 'y'}}")], &json!({}));
    assert_eq!(admin.post(MAPS, &map("a", "p")).ok()["data"], json!({"a": "b"}));
}
