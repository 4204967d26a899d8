//! ValidatingAdmissionPolicies: denials, warnings, parameters and matching.

use serde_json::{Value, json};

use crate::support::compare::text;
use crate::support::{Client, Server};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "merge";

fn rules(operations: &[&str], resources: &[&str]) -> Value {
    json!({"resourceRules": [{"apiGroups": ["", "apps"], "apiVersions": ["v1"], "operations": operations,
        "resources": resources}]})
}

/// Creates a policy for config maps.
fn create_policy(admin: &mut Client, name: &str, spec: &Value) {
    let mut fields_of_spec = json!({"matchConstraints": rules(&["*"], &["configmaps"])});
    for (field, value) in spec.as_object().unwrap() {
        fields_of_spec[field] = value.clone();
    }
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": fields_of_spec});
    admin.post(POLICIES, &object).ok();
}

fn bind(admin: &mut Client, name: &str, spec: &Value) {
    let mut fields_of_spec = json!({"policyName": name, "validationActions": ["Deny"]});
    for (field, value) in spec.as_object().unwrap() {
        fields_of_spec[field] = value.clone();
    }
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": format!("{name}-b")}, "spec": fields_of_spec});
    admin.post(BINDINGS, &object).ok();
}

fn map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn expect_invalid(client: &mut Client, name: &str, data: &Value, reason: &str) {
    let status = client.post(MAPS, &map(name, data)).expect_error(422, "Invalid");
    let message = text(&status, "/message");
    assert!(message.contains(reason), "{message}");
}

#[test]
fn validating_policy_denies_or_warns_by_binding_actions() {
    let server = Server::start();
    let mut admin = server.admin();
    create_policy(
        &mut admin,
        "p",
        &json!({"variables": [{"name": "n", "expression": "has(object.data) ? size(object.data) : 0"}],
            "matchConditions": [{"name": "not-exempt", "expression": "request.operation == 'DELETE' || !object.metadata.name.startsWith('exempt')"}],
            "validations": [
                {"expression": "request.operation == 'DELETE' ? oldObject.metadata.name != 'kept' : variables.n < 2",
                    "messageExpression": "'too many: ' + string(variables.n)", "message": "no", "reason": "Forbidden"}],
            "auditAnnotations": [{"key": "k", "valueExpression": "'noted'"}]}),
    );
    let full = json!({"a": "1", "b": "2"});
    admin.post(MAPS, &map("free", &full)).ok();
    bind(&mut admin, "p", &json!({}));
    let status = admin.post(MAPS, &map("a", &full)).expect_error(403, "Forbidden");
    let reason = "ValidatingAdmissionPolicy 'p' with binding 'p-b' denied request: too many: 2";
    assert_eq!(status["message"], format!("configmaps \"a\" is forbidden: {reason}"));
    assert_eq!(status["details"]["causes"], json!([{"message": reason}]));
    admin.post(MAPS, &map("exempt", &full)).ok();
    admin.post(MAPS, &map("kept", &json!({"a": "1"}))).ok();
    admin.patch(&format!("{MAPS}/kept"), MERGE, &json!({"data": full})).expect_error(403, "Forbidden");
    let headers = [("Content-Type", "application/apply-patch+yaml")];
    let body = map("applied", &full).to_string();
    admin
        .request("PATCH", &format!("{MAPS}/applied?fieldManager=m"), &headers, body.as_bytes())
        .expect_error(403, "Forbidden");
    let status = admin.delete(&format!("{MAPS}/kept")).expect_error(403, "Forbidden");
    assert!(text(&status, "/message").ends_with("denied request: too many: 0"), "{status}");
    admin.delete(&format!("{MAPS}/free")).ok();

    // Changes of binding and policy apply to the next request.
    admin
        .patch(&format!("{BINDINGS}/p-b"), MERGE, &json!({"spec": {"validationActions": ["Warn", "Audit"]}}))
        .ok();
    let response = admin.post(MAPS, &map("a", &full));
    response.ok();
    let warned = "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p-b': too many: 2";
    assert!(response.warnings()[0].contains(warned), "{:?}", response.warnings());
    admin.patch(&format!("{BINDINGS}/p-b"), MERGE, &json!({"spec": {"validationActions": ["Deny"]}})).ok();
    admin
        .patch(
            &format!("{POLICIES}/p"),
            MERGE,
            &json!({"spec": {"validations": [{"expression": "object == null || !('z' in object.data)"}]}}),
        )
        .ok();
    expect_invalid(
        &mut admin,
        "b",
        &json!({"z": "1"}),
        "failed expression: object == null || !('z' in object.data)",
    );
    admin.post(MAPS, &map("b", &full)).ok();
    admin.delete(&format!("{POLICIES}/p")).ok();
    admin.post(MAPS, &map("c", &json!({"z": "1"}))).ok();

    let metrics = admin.get("/metrics").text();
    let counted = r#"apiserver_validating_admission_policy_check_total{enforcement_action="deny",error_type="invalid_error",policy="p",policy_binding="p-b"}"#;
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn validating_policy_params_come_from_binding() {
    let server = Server::start();
    let mut admin = server.admin();
    create_policy(
        &mut admin,
        "p",
        &json!({"paramKind": {"apiVersion": "v1", "kind": "Secret"},
            "validations": [{"expression": "params == null || size(object.data) <= int(params.type)"}]}),
    );
    bind(&mut admin, "p", &json!({"paramRef": {"name": "limit", "parameterNotFoundAction": "Deny"}}));
    let missing = "ValidatingAdmissionPolicy 'p' with binding 'p-b' denied request: failed to configure binding: no \
                   params found for policy binding with `Deny` parameterNotFoundAction";
    expect_invalid(&mut admin, "a", &json!({"a": "1"}), missing);
    let secret = |name: &str, kind: &str, labels: &Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "type": kind});
    admin.post("/api/v1/namespaces/default/secrets", &secret("limit", "1", &json!({"a": "b"}))).ok();
    admin.post(MAPS, &map("a", &json!({"a": "1"}))).ok();
    expect_invalid(&mut admin, "b", &json!({"a": "1", "b": "2"}), "failed expression: params == null");

    // All selected params must allow; without any, parameterNotFoundAction decides.
    let selected =
        json!({"selector": {"matchLabels": {"a": "b"}}, "name": null, "parameterNotFoundAction": "Allow"});
    admin.patch(&format!("{BINDINGS}/p-b"), MERGE, &json!({"spec": {"paramRef": selected}})).ok();
    admin.post("/api/v1/namespaces/default/secrets", &secret("more", "9", &json!({"a": "b"}))).ok();
    expect_invalid(&mut admin, "b", &json!({"a": "1", "b": "2"}), "failed expression: params == null");
    admin.delete("/api/v1/namespaces/default/secrets/limit").ok();
    admin.post(MAPS, &map("b", &json!({"a": "1", "b": "2"}))).ok();
    admin.delete("/api/v1/namespaces/default/secrets/more").ok();
    admin.post(MAPS, &map("c", &json!({"a": "1", "b": "2", "c": "3"}))).ok();

    // A paramKind that is not served.
    admin
        .patch(
            &format!("{POLICIES}/p"),
            MERGE,
            &json!({"spec": {"paramKind": {"apiVersion": "x.io/v1", "kind": "Nope"}}}),
        )
        .ok();
    let unknown = "ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to find resource \
                   referenced by paramKind: 'x.io/v1, Kind=Nope'";
    expect_invalid(&mut admin, "d", &json!({}), unknown);
}

#[test]
fn validating_policy_sees_user_and_authorizer() {
    let server = Server::start();
    let mut admin = server.admin();
    create_policy(
        &mut admin,
        "p",
        &json!({"validations": [
            {"expression": "authorizer.group('').resource('pods').namespace('default').check('create').allowed()", "message": "no rights"},
            {"expression": "!authorizer.serviceAccount('default', 'nobody').path('/metrics').check('get').allowed()", "message": "account has rights"},
            {"expression": "authorizer.requestResource.check('create').allowed()", "message": "not even this"},
            {"expression": "request.userInfo.username != 'alice' && namespaceObject.metadata.name == 'default'"},
            {"expression": "object.kind == 'ConfigMap' && object.apiVersion == 'v1' && request.options.kind in ['CreateOptions', 'UpdateOptions']"}]}),
    );
    bind(&mut admin, "p", &json!({}));
    admin.post(MAPS, &map("a", &json!({}))).ok();

    // RBAC changes apply to the next evaluation.
    create_policy(
        &mut admin,
        "q",
        &json!({"validations": [{"expression": "authorizer.serviceAccount('default', 'sa').group('').resource('secrets').namespace('default').check('get').allowed()"}]}),
    );
    bind(&mut admin, "q", &json!({}));
    expect_invalid(
        &mut admin,
        "b",
        &json!({}),
        "failed expression: authorizer.serviceAccount('default', 'sa')",
    );
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    admin.post(&format!("{rbac}/rolebindings"), &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "x"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "sa", "namespace": "default"}]})).ok();
    admin.post(MAPS, &map("b", &json!({}))).ok();
}

#[test]
fn validating_policy_matches_namespaces_objects_and_versions() {
    let server = Server::start();
    let mut admin = server.admin();
    for (name, label) in [("red", "red"), ("blue", "blue")] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"color": label}}});
        admin.post("/api/v1/namespaces", &namespace).ok();
    }
    create_policy(
        &mut admin,
        "p",
        &json!({"matchConstraints": rules(&["CREATE", "UPDATE"], &["configmaps", "deployments/scale"]),
            "validations": [{"expression": "has(object.spec) && object.kind == 'Scale' ? object.spec.replicas < 3 : false"}]}),
    );
    bind(
        &mut admin,
        "p",
        &json!({"matchResources": {"namespaceSelector": {"matchLabels": {"color": "red"}},
            "objectSelector": {"matchExpressions": [{"key": "free", "operator": "DoesNotExist"}]}}}),
    );
    admin.post("/api/v1/namespaces/blue/configmaps", &map("a", &json!({}))).ok();
    admin.post("/api/v1/namespaces/red/configmaps", &map("a", &json!({}))).expect_error(422, "Invalid");
    let mut free = map("a", &json!({}));
    free["metadata"]["labels"] = json!({"free": "yes"});
    admin.post("/api/v1/namespaces/red/configmaps", &free).ok();

    // Subresources are matched as such.
    let deployments = "/apis/apps/v1/namespaces/red/deployments";
    admin
        .post(
            deployments,
            &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
        )
        .ok();
    admin.patch(&format!("{deployments}/d/scale"), MERGE, &json!({"spec": {"replicas": 2}})).ok();
    admin
        .patch(&format!("{deployments}/d/scale"), MERGE, &json!({"spec": {"replicas": 3}}))
        .expect_error(422, "Invalid");

    // A rule for one version matches requests in others, and receives the object in its own.
    let autoscalers = json!({"resourceRules": [{"apiGroups": ["autoscaling"], "apiVersions": ["v1"], "operations": ["*"],
        "resources": ["horizontalpodautoscalers"]}]});
    create_policy(
        &mut admin,
        "q",
        &json!({"matchConstraints": autoscalers, "validations": [{"expression":
            "object.apiVersion == 'autoscaling/v1' && request.requestKind.version == 'v2' && !has(object.spec.targetCPUUtilizationPercentage)"}]}),
    );
    bind(&mut admin, "q", &json!({}));
    let scaler = |metrics: &Value| {
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}, "metrics": metrics}})
    };
    let path = "/apis/autoscaling/v2/namespaces/red/horizontalpodautoscalers";
    let cpu = json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]);
    admin.post(path, &scaler(&cpu)).expect_error(422, "Invalid");
    let memory = json!([{"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 50}}}]);
    admin.post(path, &scaler(&memory)).ok();
}

#[test]
fn validating_policy_error_or_cost_limit_denies_unless_ignored() {
    let server = Server::start();
    let mut admin = server.admin();
    let list = "[0,1,2,3,4,5,6,7,8,9]";
    let costly = format!(
        "{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, {list}.all(e, a + b + c + d + e >= 0)))))"
    );
    create_policy(&mut admin, "p", &json!({"validations": [{"expression": costly}]}));
    bind(&mut admin, "p", &json!({}));
    expect_invalid(
        &mut admin,
        "a",
        &json!({}),
        "resulted in error: operation cancelled: actual cost limit exceeded",
    );
    admin.patch(&format!("{POLICIES}/p"), MERGE, &json!({"spec": {"failurePolicy": "Ignore"}})).ok();
    admin.post(MAPS, &map("a", &json!({}))).ok();
    admin
        .patch(
            &format!("{POLICIES}/p"),
            MERGE,
            &json!({"spec": {"failurePolicy": "Fail", "validations": [{"expression": "object.nope == 1"}]}}),
        )
        .ok();
    expect_invalid(
        &mut admin,
        "b",
        &json!({}),
        "denied request: expression 'object.nope == 1' resulted in error: no such key: nope",
    );
    // The policy itself can still be deleted.
    admin.delete(&format!("{POLICIES}/p")).ok();
    admin.post(MAPS, &map("b", &json!({}))).ok();
}

#[test]
fn validating_policy_params_require_read_permission() {
    let server = Server::with_flags(&["--authorization-mode=RBAC"]);
    let mut admin = server.admin();
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    admin.post(&format!("{rbac}/clusterroles"), &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "writer"}, "rules": [{"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]})).ok();
    admin.post(&format!("{rbac}/clusterrolebindings"), &json!({"apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding", "metadata": {"name": "writer"}, "subjects": [{"kind": "User", "name": "bob"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "writer"}})).ok();
    let as_bob = [("Impersonate-User", "bob"), ("Content-Type", "application/json")];
    let mut post =
        |path: &str, object: &Value| admin.request("POST", path, &as_bob, object.to_string().as_bytes());
    let policy = |name: &str, kind: &str| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
            "spec": {"matchConstraints": rules(&["*"], &["pods"]), "paramKind": {"apiVersion": "v1", "kind": kind},
                "validations": [{"expression": "true"}]}})
    };
    let status = post(POLICIES, &policy("s", "Secret")).expect_error(422, "Invalid");
    let reason = "spec.paramKind: Forbidden: user &{bob  [system:authenticated] map[]} must have \"get\" permission on all objects \
               of the referenced paramKind (kind=Secret, apiVersion=v1)";
    assert!(text(&status, "/message").ends_with(reason), "{status}");
    post(POLICIES, &policy("c", "ConfigMap")).ok();
    let binding = |name: &str, policy: &str| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {"policyName": policy, "validationActions": ["Deny"],
                "paramRef": {"name": "x", "namespace": "default", "parameterNotFoundAction": "Allow"}}})
    };
    post(BINDINGS, &binding("c", "c")).ok();
    let status = post(BINDINGS, &binding("n", "none")).expect_error(422, "Invalid");
    assert!(
        text(&status, "/message")
            .contains("spec.paramRef: Forbidden: unable to get policy none to determine"),
        "{status}"
    );
}
