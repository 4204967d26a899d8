//! Policies of the cluster that change objects: what they make of them, what they may not touch, who is asked when.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::hook_server::{Deed, HookServer};
use super::*;

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1alpha1/mutatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1alpha1/mutatingadmissionpolicybindings";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SERVED: &str = "--runtime-config=admissionregistration.k8s.io/v1alpha1=true";
const GATE: &str = "--feature-gates=MutatingAdmissionPolicy=true";

fn server() -> Server {
    Server::with(&["--engine=memory", SERVED, GATE])
}

fn configuration(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn operations(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

fn rules(resources: &[&str]) -> Value {
    json!({"resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
        "resources": resources}]})
}

/// A policy about objects that carry its name as their label; `fields` take the place of the usual ones.
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

/// Makes a policy and puts it to use.
fn put(admin: &mut Client, name: &str, mutations: &[Value], fields: &Value) {
    admin.post(POLICIES, &policy(name, mutations, fields)).ok();
    bind(admin, name, &json!({}));
}

fn map(name: &str, of: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"for": of}},
        "data": {"a": "b"}})
}

fn labelled(mut object: Value, of: &str) -> Value {
    object["metadata"]["labels"] = json!({"for": of});
    object
}

fn deployment(name: &str, of: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": {"for": of}},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"x": "y"}}, "template": {"metadata": {"labels": {"x": "y"}},
            "spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]}}}})
}

/// A refusal for which a policy is the reason.
fn denied(client: &mut Client, path: &str, object: &Value, why: &str) {
    let status = client.post(path, object).refused(403, "Invalid");
    assert_eq!(text(&status, "/message"), why);
    assert_eq!(status["details"]["causes"][0]["message"], why);
}

#[test]
fn a_policy_states_what_fields_shall_be() {
    let server = server();
    let mut admin = server.admin();
    let labels = r#"Object{metadata: Object.metadata{labels: {"by": "policy"}}, data: {"n": variables.n, "a": object.data.a + "!"}}"#;
    let variables = json!({"variables": [{"name": "n", "expression": "string(size(object.data))"}]});
    put(&mut admin, "label", &[configuration(labels)], &variables);
    let made = admin.post(&format!("{MAPS}?fieldManager=me"), &map("a", "label")).ok();
    assert_eq!(made["metadata"]["labels"], json!({"for": "label", "by": "policy"}));
    assert_eq!(made["data"], json!({"a": "b!", "n": "1"}));
    // What the cluster changes belongs to nobody.
    let owned = &made["metadata"]["managedFields"][0]["fieldsV1"]["f:data"];
    assert!(owned.get("f:a").is_some() && owned.get("f:n").is_none(), "{owned}");
    let changed = admin.patch(&format!("{MAPS}/a"), "merge", &json!({"data": {"c": "d"}})).ok();
    assert_eq!(changed["data"], json!({"a": "b!!", "c": "d", "n": "3"}));
    assert_eq!(admin.post(&format!("{MAPS}?dryRun=All"), &map("dry", "label")).ok()["data"]["n"], "1");
    admin.get(&format!("{MAPS}/dry")).refused(404, "NotFound");
    assert!(admin.post(MAPS, &map("other", "nobody")).ok()["data"].get("n").is_none());

    // Items of lists are found by their keys, and defaults are filled in after.
    let containers = "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers:
        object.spec.template.spec.containers.filter(c, c.name == 'b').map(c, Object.spec.template.spec.containers{name: c.name,
            image: 'new', ports: [Object.spec.template.spec.containers.ports{containerPort: 80}]})}}}}";
    put(&mut admin, "containers", &[configuration(containers)], &json!({}));
    let made = admin.post(DEPLOYMENTS, &deployment("d", "containers")).ok();
    let containers = &made["spec"]["template"]["spec"]["containers"];
    assert_eq!((&containers[0]["image"], &containers[1]["image"]), (&json!("i"), &json!("new")));
    assert_eq!(containers[1]["ports"], json!([{"containerPort": 80, "protocol": "TCP"}]));

    // A change counts at once.
    admin.delete(&format!("{POLICIES}/label")).ok();
    assert_eq!(admin.post(MAPS, &map("b", "label")).ok()["data"], json!({"a": "b"}));
}

#[test]
fn a_policy_says_what_to_do_in_operations() {
    let server = server();
    let mut admin = server.admin();
    let patch =
        "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a.io/b'), value: 'x'},
        JSONPatch{op: 'add', path: '/spec/template/spec/containers/-', value:
            Object.spec.template.spec.containers{name: 'c', image: 'k'}},
        JSONPatch{op: 'replace', path: '/spec/replicas', value: 3}]";
    put(&mut admin, "patch", &[operations(patch)], &json!({}));
    let made = admin.post(DEPLOYMENTS, &deployment("d", "patch")).ok();
    assert_eq!(made["metadata"]["labels"]["a.io/b"], "x");
    assert_eq!(made["spec"]["replicas"], 3);
    assert_eq!(
        made["spec"]["template"]["spec"]["containers"][2]["terminationMessagePath"],
        "/dev/termination-log"
    );

    // A test that fails keeps the others from doing anything; what does not fit is refused.
    let tested =
        "[JSONPatch{op: 'test', path: '/data/a', value: 'z'}, JSONPatch{op: 'remove', path: '/data/a'}]";
    put(&mut admin, "tested", &[operations(tested)], &json!({}));
    assert_eq!(admin.post(MAPS, &map("a", "tested")).ok()["data"]["a"], "b");
    put(
        &mut admin,
        "wrong",
        &[operations("[JSONPatch{op: 'add', path: '/data/x/y', value: 'z'}]")],
        &json!({}),
    );
    denied(
        &mut admin,
        MAPS,
        &map("b", "wrong"),
        "policy 'wrong' with binding 'wrong-b' denied request: JSON Patch: add operation does not apply: doc is missing path: \
         \"/data/x/y\": missing value",
    );
    // What is no object of the kind is nobody's fault but the policy's, whatever it says of failures.
    let unknown = operations("[JSONPatch{op: 'add', path: '/spec/foo', value: 1}]");
    put(&mut admin, "unknown", &[unknown], &json!({"failurePolicy": "Ignore"}));
    let status = admin.post(DEPLOYMENTS, &deployment("e", "unknown")).refused(500, "InternalError");
    assert!(
        text(&status, "/message").contains("strict decoding error: unknown field \"spec.foo\""),
        "{status}"
    );
}

#[test]
fn what_a_policy_may_not_do_refuses_the_request_unless_it_says_otherwise() {
    let server = server();
    let mut admin = server.admin();
    let atomic = "Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'a': 'b'}}}}";
    let refused = "policy 'p' with binding 'p-b' denied request: ";
    for (expression, why) in [
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
        put(&mut admin, "p", &[configuration(expression)], &json!({}));
        denied(&mut admin, DEPLOYMENTS, &deployment("d", "p"), &format!("{refused}{why}"));
        admin.delete(&format!("{POLICIES}/p")).ok();
        admin.delete(&format!("{BINDINGS}/p-b")).ok();
    }
    // All that is wrong is told, and what is ignored does not keep the rest from happening.
    let both = [
        configuration(atomic),
        configuration("Object{spec: Object.spec{replicas: 7}}"),
        configuration(atomic),
    ];
    put(&mut admin, "p", &both, &json!({}));
    let status = admin.post(DEPLOYMENTS, &deployment("d", "p")).refused(403, "Invalid");
    assert_eq!(status["details"]["causes"].as_array().unwrap().len(), 2);
    admin.patch(&format!("{POLICIES}/p"), "merge", &json!({"spec": {"failurePolicy": "Ignore"}})).ok();
    assert_eq!(admin.post(DEPLOYMENTS, &deployment("d", "p")).ok()["spec"]["replicas"], 7);
    // The rules of the kind come after.
    let negative = configuration("Object{spec: Object.spec{replicas: -1}}");
    admin.patch(&format!("{POLICIES}/p"), "merge", &json!({"spec": {"mutations": [negative]}})).ok();
    admin.post(DEPLOYMENTS, &deployment("e", "p")).refused(422, "Invalid");
}

#[test]
fn expressions_of_changes_are_compiled_when_they_are_written() {
    let server = server();
    let mut admin = server.admin();
    let mut refused = |mutation: Value, why: &str| {
        let status = admin.post(POLICIES, &policy("p", &[mutation], &json!({}))).refused(422, "Invalid");
        let message = text(&status, "/message");
        assert!(message.contains(why), "{message}");
    };
    let expression = "spec.mutations[0].applyConfiguration.expression: Invalid value: ";
    refused(
        configuration(" Object.spec{} "),
        &format!("{expression}\"Object.spec{{}}\": must evaluate to Object but got Object.spec"),
    );
    refused(
        configuration("Object{a: x}"),
        "compilation failed: ERROR: <input>:1:11: undeclared reference to 'x'",
    );
    refused(
        configuration("type(Object{}) == Object ? Object{} : Object{}"),
        "expression: Internal error: program instantiation failed: reference to undefined type: Object",
    );
    refused(operations("[]"), "must evaluate to list(JSONPatch) but got list(dyn)");
    refused(operations("Object{}"), "must evaluate to list(JSONPatch) but got Object");
    refused(
        operations("[JSONPatch{op: 1}]"),
        "<input>:1:14: expected type of field 'op' is 'string' but provided type is 'int'",
    );
    let variable = json!({"variables": [{"name": "v", "expression": "Object{}"}]});
    let status =
        admin.post(POLICIES, &policy("p", &[configuration("Object{}")], &variable)).refused(422, "Invalid");
    assert!(text(&status, "/message").contains("undeclared reference to 'Object'"), "{status}");
}

#[test]
fn policies_know_parameters_conditions_namespaces_and_rights() {
    let server = server();
    let mut admin = server.admin();
    let told = "Object{data: {'p': string(params.data.v), 'n': namespaceObject.metadata.name, 'o': request.operation,
        'r': string(authorizer.requestResource.check('create').allowed())}}";
    let fields = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "c", "expression": "object.metadata.name != 'free'"}]});
    admin.post(POLICIES, &policy("p", &[configuration(told)], &fields)).ok();
    bind(&mut admin, "p", &json!({"paramRef": {"name": "params", "parameterNotFoundAction": "Deny"}}));
    let status = admin.post(MAPS, &map("a", "p")).refused(403, "Forbidden");
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
    let counted = r#"apiserver_admission_match_condition_evaluation_seconds_count{kind="policy",name="p",operation="CREATE",type="validate"}"#;
    assert!(metrics.contains(counted), "{metrics}");
    // A policy whose parameters nobody serves cannot be asked.
    let unknown = json!({"paramKind": {"apiVersion": "nobody.io/v1", "kind": "X"}});
    put(&mut admin, "q", &[configuration("Object{}")], &unknown);
    let status = admin.post(MAPS, &map("b", "q")).refused(403, "Forbidden");
    assert_eq!(
        text(&status, "/message"),
        "policy \"q\" denied request: failed to configure policy: failed to find resource referenced by paramKind: \
         'nobody.io/v1, Kind=X'"
    );
}

#[test]
fn nobody_gives_a_changing_policy_what_they_may_not_read() {
    let server = server();
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
    let object = policy("p", &[configuration("Object{}")], &secrets);
    let status = user.post(POLICIES, &object).refused(422, "Invalid");
    assert!(text(&status, "/message").contains("must have \"get\" permission on all objects"), "{status}");
    admin.post(POLICIES, &object).ok();
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "b"}, "spec": {"policyName": "p", "paramRef": {"name": "s", "namespace": "default",
            "parameterNotFoundAction": "Deny"}}});
    let status = user.post(BINDINGS, &object).refused(422, "Invalid");
    assert!(
        text(&status, "/message").contains("permission on the object referenced by paramRef"),
        "{status}"
    );
    admin.post(BINDINGS, &object).ok();
}

#[test]
fn policies_come_before_webhooks_and_are_asked_again_if_they_want() {
    let hooks = HookServer::start("h", |_, request| {
        let seen = request["object"]["data"]["seq"].as_str().unwrap_or_default();
        let patch = json!([{"op": "add", "path": "/data/seq", "value": format!("{seen}h")}]).to_string();
        Deed::Says(json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch)}))
    });
    let server = server();
    let mut admin = server.admin();
    let appended = |letter: &str| {
        configuration(&format!("Object{{data: {{'seq': object.data.?seq.orValue('') + '{letter}'}}}}"))
    };
    let of = |name: &str, again: &str| {
        let mut matched = rules(&["configmaps"]);
        matched["objectSelector"] = json!({"matchLabels": {"for": name}});
        json!({"matchConstraints": matched, "reinvocationPolicy": again})
    };
    put(&mut admin, "once", &[appended("o")], &of("seq", "Never"));
    put(&mut admin, "again", &[appended("a")], &of("seq", "IfNeeded"));
    // In the order of their names; the second round comes though nothing has changed since.
    assert_eq!(admin.post(MAPS, &map("a", "seq")).ok()["data"]["seq"], "aoa");
    // Rules are held against the object as it came.
    let relabelled = configuration("Object{metadata: Object.metadata{labels: {'for': 'late'}}}");
    put(&mut admin, "early", &[relabelled], &of("early", "Never"));
    put(&mut admin, "late", &[appended("l")], &of("late", "Never"));
    assert!(admin.post(MAPS, &map("b", "early")).ok()["data"].get("seq").is_none());
    let hook = json!({
        "name": "m.x.io", "sideEffects": "None", "admissionReviewVersions": ["v1"], "reinvocationPolicy": "IfNeeded",
        "clientConfig": {"url": hooks.url("/m"), "caBundle": STANDARD.encode(&hooks.authority_pem)},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
    });
    let body = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "m"}, "webhooks": [hook]});
    admin.post("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", &body).ok();
    assert_eq!(admin.post(MAPS, &map("c", "seq")).ok()["data"]["seq"], "aohah");
}

#[test]
fn policies_change_parts_custom_objects_and_other_versions() {
    let server = server();
    let mut admin = server.admin();
    let mut matched = rules(&["deployments/scale"]);
    let scale =
        operations("[JSONPatch{op: 'replace', path: '/spec/replicas', value: object.spec.replicas + 10}]");
    put(&mut admin, "scale", &[scale], &json!({"matchConstraints": matched}));
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
    let served = support::wait::poll(support::wait::CAP, || (admin.get(path).status == 200).then_some(()));
    assert!(served.is_some());
    let widget = |name: &str, of: &str| {
        labelled(
            json!({"apiVersion": "x.io/v1", "kind": "Widget", "metadata": {"name": name},
        "spec": {"n": 1, "items": [{"k": "a"}]}}),
            of,
        )
    };
    let merged = "Object{spec: Object.spec{n: object.spec.n + 1, items: [Object.spec.items{k: 'b'}],
        free: Object.spec.free{x: {'y': 1}}}}";
    put(&mut admin, "merged", &[configuration(merged)], &json!({}));
    assert_eq!(
        admin.post(path, &widget("a", "merged")).ok()["spec"],
        json!({"n": 2, "items": [{"k": "a", "v": 5}, {"k": "b", "v": 5}], "free": {"x": {"y": 1}}})
    );
    put(&mut admin, "atomic", &[configuration("Object{spec: Object.spec{words: ['a']}}")], &json!({}));
    let status = admin.post(path, &widget("b", "atomic")).refused(403, "Invalid");
    assert!(text(&status, "/message").ends_with("atomic arrays, maps or structs: .spec.words"), "{status}");
    // A rule that names another version sees the object in that.
    matched = json!({"resourceRules": [{"apiGroups": ["x.io"], "apiVersions": ["v2"], "operations": ["*"],
        "resources": ["widgets"]}], "objectSelector": {"matchLabels": {"for": "v2"}}});
    let seen = configuration(
        "Object{metadata: Object.metadata{annotations: {'v': object.apiVersion + request.requestResource.version}}}",
    );
    put(&mut admin, "v2", &[seen], &json!({"matchConstraints": matched}));
    let made = admin.post(path, &widget("c", "v2")).ok();
    assert_eq!(
        (&made["apiVersion"], &made["metadata"]["annotations"]["v"]),
        (&json!("x.io/v1"), &json!("x.io/v2v1"))
    );
}

#[test]
fn without_the_gate_policies_change_nothing() {
    let server = Server::with(&["--engine=memory", SERVED]);
    let mut admin = server.admin();
    put(&mut admin, "p", &[configuration("Object{data: {'x': 'y'}}")], &json!({}));
    assert_eq!(admin.post(MAPS, &map("a", "p")).ok()["data"], json!({"a": "b"}));
}
