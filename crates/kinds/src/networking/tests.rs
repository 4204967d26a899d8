//! Each violation in a networking kind is refused.

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::features::{EnabledFeatures, Feature};
use pilothouse_apimachinery::testing::{each_change_refused, each_refused, object};

use super::super::testing::filled;
use super::ingress::*;
use super::policy::{self, *};
use super::service_cidr::*;

#[test]
fn ingress_validation_refuses_each_violation() {
    let base = object(
        r#"{"spec":{"ingressClassName":"x","tls":[{"hosts":["a.b"],"secretName":"s"}],"rules":[{"host":"a.b","http":{"paths":[
            {"path":"/","pathType":"Prefix","backend":{"service":{"name":"s","port":{"number":80}}}}]}}]}}"#,
    );
    let backend = "spec.rules.0.http.paths.0.backend";
    let backend_path = |rest: &str| format!("{backend}.{rest}");
    let (name, port, resource) =
        (backend_path("service.name"), backend_path("service.port"), backend_path("resource"));
    each_refused(
        &base,
        validate_ingress,
        &[
            (
                "spec.rules",
                "[]",
                "spec: Invalid value: []networking.IngressRule(nil): either `defaultBackend` or `rules`",
            ),
            ("spec.rules.0.host", r#""A""#, "spec.rules[0].host: Invalid value: \"A\""),
            ("spec.rules.0.host", r#""*a""#, "a wildcard DNS-1123 subdomain must start with"),
            ("spec.rules.0.host", r#""1.2.3.4""#, "must be a DNS name, not an IP address"),
            ("spec.rules.0.http.paths", "[]", "spec.rules[0].http.paths: Required value"),
            (
                "spec.rules.0.http.paths.0.pathType",
                "null",
                "pathType: Required value: pathType must be specified",
            ),
            (
                "spec.rules.0.http.paths.0.pathType",
                r#""X""#,
                "\"Exact\", \"ImplementationSpecific\", \"Prefix\"",
            ),
            ("spec.rules.0.http.paths.0.path", r#""x""#, "must be an absolute path"),
            ("spec.rules.0.http.paths.0.path", r#""/a//b""#, "must not contain '//'"),
            ("spec.rules.0.http.paths.0.path", r#""/a/.""#, "cannot end with '/.'"),
            (backend, "{}", "backend: Invalid value: \"\": resource or service backend is required"),
            (&name, r#""1""#, "backend.service.name: Invalid value: \"1\": a DNS-1035 label"),
            (&port, "{}", "backend: Required value: port name or number is required"),
            (&port, r#"{"name":"a","number":1}"#, "cannot set both port name & port number"),
            (&resource, r#"{"kind":"K","name":"n"}"#, "cannot set both resource and service backends"),
            ("spec.tls.0.hosts", r#"["A"]"#, "spec.tls[0].hosts[0]: Invalid value: \"A\""),
            ("spec.tls.0.secretName", r#""A""#, "spec.tls[0].secretName: Invalid value"),
            ("spec.ingressClassName", r#""A""#, "spec.ingressClassName: Invalid value"),
            (
                "metadata.annotations",
                r#"{"kubernetes.io/ingress.class":"y"}"#,
                "must match `ingressClassName`",
            ),
        ],
    );
}

#[test]
fn ingress_status_update_and_warnings_are_checked() {
    each_change_refused(
        &object(r#"{"status":{"loadBalancer":{"ingress":[{"ip":"10.0.0.1"}]}}}"#),
        validate_ingress_status,
        &[
            (
                "status.loadBalancer.ingress.0.ip",
                r#""x""#,
                "status.loadBalancer.ingress[0].ip: Invalid value: \"x\": must be a valid IP address",
            ),
            ("status.loadBalancer.ingress.0.hostname", r#""A""#, "ingress[0].hostname: Invalid value: \"A\""),
            (
                "status.loadBalancer.ingress.0.hostname",
                r#""1.2.3.4""#,
                "must be a DNS name, not an IP address",
            ),
        ],
    );
    let old = object(
        r#"{"metadata":{"annotations":{"kubernetes.io/ingress.class":"x"}},"spec":{"tls":[{"secretName":"A"}],"rules":[{"host":"*.a","http":{}}]}}"#,
    );
    let mut errors = ErrorList::new();
    validate_ingress_update(&old, &old, &mut errors);
    assert_eq!(errors, [], "violations of the old object are tolerated");
    validate_ingress_update(&old, &object("{}"), &mut errors);
    assert_eq!(errors.len(), 2);
    let mut warnings = WarningList::new();
    warn_ingress(&old, None, &mut warnings);
    assert_eq!(
        warnings,
        [
            "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"
        ]
    );
    let policy = object(
        r#"{"spec":{"ingress":[{"from":[{"ipBlock":{"cidr":"10.1.0.0/8","except":["010.1.0.0/16"]}}]}]}}"#,
    );
    let mut warnings = WarningList::new();
    warn_policy(&policy, None, &mut warnings);
    assert!(warnings[0].starts_with("spec.ingress[0].from[0].ipBlock.cidr: CIDR value"));
    assert!(warnings[1].starts_with("spec.ingress[0].from[0].ipBlock.except[0]: non-standard CIDR value"));
}

#[test]
fn network_policy_validation_refuses_each_violation() {
    let mut base = object(
        r#"{"spec":{"podSelector":{},"ingress":[{"ports":[{"port":80,"endPort":90,"protocol":"TCP"}],
            "from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}]}],"egress":[{}]}}"#,
    );
    default_policy(&mut base);
    assert_eq!(base.get_path(&["spec", "policyTypes"]), Some(&object(r#"["Ingress","Egress"]"#)));
    each_refused(
        &base,
        policy::RULES.validation.validate,
        &[
            ("spec.ingress.0.ports.0.protocol", r#""X""#, "\"TCP\", \"UDP\", \"SCTP\""),
            ("spec.ingress.0.ports.0.port", "0", "ports[0].port: Invalid value: 0"),
            (
                "spec.ingress.0.ports.0.endPort",
                "70",
                "endPort: Invalid value: 80: must be greater than or equal to `port`",
            ),
            ("spec.ingress.0.ports.0.port", r#""http""#, "may not be specified when `port` is non-numeric"),
            ("spec.ingress.0.ports.0.port", "null", "may not be specified when `port` is not specified"),
            ("spec.ingress.0.from.0.ipBlock", "null", "from[0]: Required value: must specify a peer"),
            ("spec.ingress.0.from.0.podSelector", "{}", "may not specify both ipBlock and another peer"),
            ("spec.ingress.0.from.0.ipBlock.cidr", "null", "ipBlock.cidr: Required value"),
            ("spec.ingress.0.from.0.ipBlock.cidr", r#""x""#, "must be a valid CIDR value"),
            (
                "spec.ingress.0.from.0.ipBlock.except",
                r#"["11.0.0.0/16"]"#,
                "must be a strict subset of `cidr`",
            ),
            ("spec.policyTypes", r#"["X"]"#, "spec.policyTypes[0]: Unsupported value: \"X\""),
            (
                "spec.policyTypes",
                r#"["Ingress","Egress","Ingress"]"#,
                "may not specify more than two policyTypes",
            ),
        ],
    );
}

#[test]
fn ingress_class_ip_address_and_service_cidr_validation_refuses_each_violation() {
    let class = filled(
        ("networking.k8s.io", "v1"),
        "IngressClass",
        r#"{"spec":{"controller":"a.b/c","parameters":{"kind":"K","name":"n"}}}"#,
    );
    each_refused(
        &class,
        validate_ingress_class,
        &[
            ("spec.controller", r#""x""#, "must be a domain-prefixed path"),
            ("spec.parameters.kind", "null", "spec.parameters.kind: Required value: kind is required"),
            ("spec.parameters.scope", r#""X""#, "supported values: \"Cluster\", \"Namespace\""),
            ("spec.parameters.scope", r#""Namespace""#, "`parameters.scope` is set to 'Namespace'"),
            ("spec.parameters.namespace", r#""n""#, "`parameters.scope` is set to 'Cluster'"),
        ],
    );
    each_change_refused(
        &class,
        validate_ingress_class_update,
        &[("spec.controller", r#""a.b/d""#, "spec.controller: Invalid value: \"a.b/d\": field is immutable")],
    );
    let address = object(r#"{"spec":{"parentRef":{"resource":"services","name":"s"}}}"#);
    each_refused(
        &address,
        validate_address,
        &[
            ("spec.parentRef", "null", "spec.parentRef: Required value"),
            ("spec.parentRef.name", "null", "spec.parentRef.name: Required value"),
            ("spec.parentRef.group", r#""A""#, "spec.parentRef.group: Invalid value"),
        ],
    );
    each_change_refused(
        &address,
        validate_address_update,
        &[("spec.parentRef.name", r#""t""#, "field is immutable")],
    );
    let cidr = object(r#"{"spec":{"cidrs":["10.0.0.0/24"]}}"#);
    each_refused(
        &cidr,
        validate_service_cidr,
        &[
            ("spec.cidrs", "[]", "spec.cidrs: Required value: at least one CIDR required"),
            ("spec.cidrs", r#"["x"]"#, "spec.cidrs[0]: Invalid value: \"x\""),
            ("spec.cidrs", r#"["10.0.0.1/24"]"#, "must not have bits set beyond the prefix length"),
            (
                "spec.cidrs",
                r#"["10.0.0.0/24","10.0.1.0/24"]"#,
                "may specify no more than one IP for each IP family",
            ),
            ("spec.cidrs", r#"["10.0.0.0/24","10.0.1.0/24","10.0.2.0/24"]"#, "may only hold up to 2 values"),
        ],
    );
    each_change_refused(
        &cidr,
        validate_service_cidr_update,
        &[(
            "spec.cidrs",
            r#"["10.0.1.0/24"]"#,
            "spec.cidrs[0]: Invalid value: \"10.0.1.0/24\": field is immutable",
        )],
    );
}

#[test]
fn network_policy_keeps_ranges_that_strict_rules_refuse() {
    let policy = |cidr: &str, except: &str| {
        object(&format!(
            r#"{{"spec":{{"podSelector":{{}},"policyTypes":["Ingress"],
                "ingress":[{{"from":[{{"ipBlock":{{"cidr":"{cidr}","except":["{except}"]}}}}]}}]}}}}"#
        ))
    };
    let strict = || ErrorList::with_features(EnabledFeatures::RELEASE.with(Feature::StrictIPCIDRValidation));
    let (stored, rules) = (policy("10.0.0.1/8", "010.1.0.0/16"), policy::RULES.validation);
    let mut errors = strict();
    (rules.validate)(&stored, &mut errors);
    assert_eq!(errors.len(), 2);
    for (cidr, except, expected) in [
        ("10.0.0.1/8", "010.1.0.0/16", 0),
        ("10.0.0.0/8", "010.1.0.0/16", 0),
        // Each is found by both validations of an update.
        ("10.0.0.2/8", "010.1.0.0/16", 2),
        ("10.0.0.1/8", "010.2.0.0/16", 2),
    ] {
        let mut errors = strict();
        (rules.validate_update)(&policy(cidr, except), &stored, &mut errors);
        assert_eq!(errors.len(), expected, "{cidr} {except}: {errors:?}");
    }
}
