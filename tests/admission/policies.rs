//! Policies of the cluster that are written as expressions: what they refuse, what they only tell of, and what they know.

use serde_json::{Value, json};

use super::support::compare::text;
use super::support::{Client, Server};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "merge";

fn rules(operations: &[&str], resources: &[&str]) -> Value {
    json!({"resourceRules": [{"apiGroups": ["", "apps"], "apiVersions": ["v1"], "operations": operations,
        "resources": resources}]})
}

/// Makes a policy about config maps.
fn policy(admin: &mut Client, name: &str, spec: &Value) {
    let mut whole = json!({"matchConstraints": rules(&["*"], &["configmaps"])});
    for (field, value) in spec.as_object().unwrap() {
        whole[field] = value.clone();
    }
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": whole});
    admin.post(POLICIES, &object).ok();
}

fn bind(admin: &mut Client, name: &str, spec: &Value) {
    let mut whole = json!({"policyName": name, "validationActions": ["Deny"]});
    for (field, value) in spec.as_object().unwrap() {
        whole[field] = value.clone();
    }
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": format!("{name}-b")}, "spec": whole});
    admin.post(BINDINGS, &object).ok();
}

fn map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn refused(client: &mut Client, name: &str, data: &Value, why: &str) {
    let status = client.post(MAPS, &map(name, data)).refused(422, "Invalid");
    let message = text(&status, "/message");
    assert!(message.contains(why), "{message}");
}

#[test]
fn what_a_policy_denies_is_refused_and_what_it_warns_of_is_not() {
    let server = Server::start();
    let mut admin = server.admin();
    policy(
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
    let status = admin.post(MAPS, &map("a", &full)).refused(403, "Forbidden");
    let why = "ValidatingAdmissionPolicy 'p' with binding 'p-b' denied request: too many: 2";
    assert_eq!(status["message"], format!("configmaps \"a\" is forbidden: {why}"));
    assert_eq!(status["details"]["causes"], json!([{"message": why}]));
    admin.post(MAPS, &map("exempt", &full)).ok();
    admin.post(MAPS, &map("kept", &json!({"a": "1"}))).ok();
    admin.patch(&format!("{MAPS}/kept"), MERGE, &json!({"data": full})).refused(403, "Forbidden");
    let headers = [("Content-Type", "application/apply-patch+yaml")];
    let body = map("applied", &full).to_string();
    admin
        .request("PATCH", &format!("{MAPS}/applied?fieldManager=m"), &headers, body.as_bytes())
        .refused(403, "Forbidden");
    let status = admin.delete(&format!("{MAPS}/kept")).refused(403, "Forbidden");
    assert!(text(&status, "/message").ends_with("denied request: too many: 0"), "{status}");
    admin.delete(&format!("{MAPS}/free")).ok();

    // A change of the binding counts at once, and so does one of the policy.
    admin
        .patch(&format!("{BINDINGS}/p-b"), MERGE, &json!({"spec": {"validationActions": ["Warn", "Audit"]}}))
        .ok();
    let answer = admin.post(MAPS, &map("a", &full));
    answer.ok();
    let warned = "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p-b': too many: 2";
    assert!(answer.warnings()[0].contains(warned), "{:?}", answer.warnings());
    admin.patch(&format!("{BINDINGS}/p-b"), MERGE, &json!({"spec": {"validationActions": ["Deny"]}})).ok();
    admin
        .patch(
            &format!("{POLICIES}/p"),
            MERGE,
            &json!({"spec": {"validations": [{"expression": "object == null || !('z' in object.data)"}]}}),
        )
        .ok();
    refused(
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
fn parameters_come_from_the_objects_that_a_binding_names() {
    let server = Server::start();
    let mut admin = server.admin();
    policy(
        &mut admin,
        "p",
        &json!({"paramKind": {"apiVersion": "v1", "kind": "Secret"},
            "validations": [{"expression": "params == null || size(object.data) <= int(params.type)"}]}),
    );
    bind(&mut admin, "p", &json!({"paramRef": {"name": "limit", "parameterNotFoundAction": "Deny"}}));
    let missing = "ValidatingAdmissionPolicy 'p' with binding 'p-b' denied request: failed to configure binding: no \
                   params found for policy binding with `Deny` parameterNotFoundAction";
    refused(&mut admin, "a", &json!({"a": "1"}), missing);
    let secret = |name: &str, kind: &str, labels: &Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "type": kind});
    admin.post("/api/v1/namespaces/default/secrets", &secret("limit", "1", &json!({"a": "b"}))).ok();
    admin.post(MAPS, &map("a", &json!({"a": "1"}))).ok();
    refused(&mut admin, "b", &json!({"a": "1", "b": "2"}), "failed expression: params == null");

    // Selected ones must all agree; none at all is nothing to ask about if the binding says so.
    let selected =
        json!({"selector": {"matchLabels": {"a": "b"}}, "name": null, "parameterNotFoundAction": "Allow"});
    admin.patch(&format!("{BINDINGS}/p-b"), MERGE, &json!({"spec": {"paramRef": selected}})).ok();
    admin.post("/api/v1/namespaces/default/secrets", &secret("more", "9", &json!({"a": "b"}))).ok();
    refused(&mut admin, "b", &json!({"a": "1", "b": "2"}), "failed expression: params == null");
    admin.delete("/api/v1/namespaces/default/secrets/limit").ok();
    admin.post(MAPS, &map("b", &json!({"a": "1", "b": "2"}))).ok();
    admin.delete("/api/v1/namespaces/default/secrets/more").ok();
    admin.post(MAPS, &map("c", &json!({"a": "1", "b": "2", "c": "3"}))).ok();

    // A kind that nobody serves.
    admin
        .patch(
            &format!("{POLICIES}/p"),
            MERGE,
            &json!({"spec": {"paramKind": {"apiVersion": "x.io/v1", "kind": "Nope"}}}),
        )
        .ok();
    let unknown = "ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to find resource \
                   referenced by paramKind: 'x.io/v1, Kind=Nope'";
    refused(&mut admin, "d", &json!({}), unknown);
}

#[test]
fn policies_see_who_asks_and_what_they_may() {
    let server = Server::start();
    let mut admin = server.admin();
    policy(
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

    // Rights that come and go count at once.
    policy(
        &mut admin,
        "q",
        &json!({"validations": [{"expression": "authorizer.serviceAccount('default', 'sa').group('').resource('secrets').namespace('default').check('get').allowed()"}]}),
    );
    bind(&mut admin, "q", &json!({}));
    refused(&mut admin, "b", &json!({}), "failed expression: authorizer.serviceAccount('default', 'sa')");
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    admin.post(&format!("{rbac}/rolebindings"), &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "x"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "sa", "namespace": "default"}]})).ok();
    admin.post(MAPS, &map("b", &json!({}))).ok();
}

#[test]
fn namespaces_objects_and_versions_are_matched() {
    let server = Server::start();
    let mut admin = server.admin();
    for (name, label) in [("red", "red"), ("blue", "blue")] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"color": label}}});
        admin.post("/api/v1/namespaces", &namespace).ok();
    }
    policy(
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
    admin.post("/api/v1/namespaces/red/configmaps", &map("a", &json!({}))).refused(422, "Invalid");
    let mut free = map("a", &json!({}));
    free["metadata"]["labels"] = json!({"free": "yes"});
    admin.post("/api/v1/namespaces/red/configmaps", &free).ok();

    // A part of an object is matched as that.
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
        .refused(422, "Invalid");

    // A rule about one version means requests in the others, and shows the object in its own.
    let autoscalers = json!({"resourceRules": [{"apiGroups": ["autoscaling"], "apiVersions": ["v1"], "operations": ["*"],
        "resources": ["horizontalpodautoscalers"]}]});
    policy(
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
    admin.post(path, &scaler(&cpu)).refused(422, "Invalid");
    let memory = json!([{"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 50}}}]);
    admin.post(path, &scaler(&memory)).ok();
}

#[test]
fn policies_that_fail_or_cost_too_much_refuse_unless_they_say_otherwise() {
    let server = Server::start();
    let mut admin = server.admin();
    let list = "[0,1,2,3,4,5,6,7,8,9]";
    let dear = format!(
        "{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, {list}.all(e, a + b + c + d + e >= 0)))))"
    );
    policy(&mut admin, "p", &json!({"validations": [{"expression": dear}]}));
    bind(&mut admin, "p", &json!({}));
    refused(
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
    refused(
        &mut admin,
        "b",
        &json!({}),
        "denied request: expression 'object.nope == 1' resulted in error: no such key: nope",
    );
    // Whoever made it can still take it back.
    admin.delete(&format!("{POLICIES}/p")).ok();
    admin.post(MAPS, &map("b", &json!({}))).ok();
}

#[test]
fn nobody_reads_through_a_policy_what_they_may_not_read() {
    let server = Server::with(&["--authorization-mode=RBAC"]);
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
    let status = post(POLICIES, &policy("s", "Secret")).refused(422, "Invalid");
    let why = "spec.paramKind: Forbidden: user &{bob  [system:authenticated] map[]} must have \"get\" permission on all objects \
               of the referenced paramKind (kind=Secret, apiVersion=v1)";
    assert!(text(&status, "/message").ends_with(why), "{status}");
    post(POLICIES, &policy("c", "ConfigMap")).ok();
    let binding = |name: &str, policy: &str| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {"policyName": policy, "validationActions": ["Deny"],
                "paramRef": {"name": "x", "namespace": "default", "parameterNotFoundAction": "Allow"}}})
    };
    post(BINDINGS, &binding("c", "c")).ok();
    let status = post(BINDINGS, &binding("n", "none")).refused(422, "Invalid");
    assert!(
        text(&status, "/message")
            .contains("spec.paramRef: Forbidden: unable to get policy none to determine"),
        "{status}"
    );
}
