//! Ingresses, network policies and their kin.

use super::check::{Node, fill, present_mut, same};
use super::core::address;
use super::selector;
use super::{Errors, Warned, say};
use crate::api::field::{FieldError, Path};
use crate::api::value::Value;
use crate::api::{meta, names};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// Checks an Ingress.
pub fn validate_ingress(ingress: &Value, errors: &mut Errors) {
    validate_ingress_any(ingress, Allowed::default(), errors);
    let annotation = meta::of(ingress).at(&["annotations", CLASS_ANNOTATION]);
    let class = Node::of(ingress, "spec").child("ingressClassName");
    if let Some(value) = annotation.filter(|value| class.is_set() && *value != class.value) {
        let path = Path::new("annotations").child(CLASS_ANNOTATION);
        Node { value, path }.invalid(errors, "must match `ingressClassName` when both are specified");
    }
}

/// What an Ingress may still say because it said it before.
#[derive(Clone, Copy, Default)]
struct Allowed {
    secret_names: bool,
    wildcard_rules: bool,
}

fn validate_ingress_any(ingress: &Value, allowed: Allowed, errors: &mut Errors) {
    let spec = Node::of(ingress, "spec");
    let (rules, default) = (spec.child("rules"), spec.child("defaultBackend"));
    if rules.is_empty() && !default.is_set() {
        let wrong = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(&spec.path, "[]networking.IngressRule(nil)", wrong));
    }
    if default.is_set() {
        backend(&default, errors);
    }
    for rule in rules.items() {
        let host = rule.child("host");
        if !host.is_empty() {
            if names::parse_ip(host.text()).is_some() {
                host.invalid(errors, "must be a DNS name, not an IP address");
            }
            host_name(&host, errors);
        }
        if !allowed.wildcard_rules || !host.text().contains('*') {
            ingress_rule(&rule, errors);
        }
    }
    for tls in spec.child("tls").items() {
        for host in tls.child("hosts").items() {
            host_name(&host, errors);
        }
        if !allowed.secret_names {
            tls.child("secretName").syntax_if_set(errors, names::dns_subdomain);
        }
    }
    if spec.child("ingressClassName").is_set() {
        spec.child("ingressClassName").syntax(errors, names::dns_subdomain);
    }
}

fn ingress_rule(rule: &Node<'_>, errors: &mut Errors) {
    let http = rule.child("http");
    if http.is_set() {
        http.child("paths").need(errors);
    }
    for path in http.child("paths").items() {
        ingress_path(&path, errors);
    }
}

fn host_name(host: &Node<'_>, errors: &mut Errors) {
    if host.text().contains('*') {
        host.syntax(errors, names::wildcard_subdomain);
    } else {
        host.syntax(errors, names::dns_subdomain);
    }
}

fn ingress_path(node: &Node<'_>, errors: &mut Errors) {
    let (kind, path) = (node.child("pathType"), node.child("path"));
    let absolute = path.text().starts_with('/');
    if !kind.is_set() {
        kind.required(errors, "pathType must be specified");
        return;
    }
    match kind.text() {
        "Exact" | "Prefix" => {
            if !absolute {
                path.invalid_text(errors, "must be an absolute path");
            }
            for part in
                ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|part| path.text().contains(part))
            {
                path.invalid(errors, &format!("must not contain '{part}'"));
            }
            for end in ["/..", "/."].into_iter().filter(|end| path.text().ends_with(end)) {
                path.invalid(errors, &format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" => {
            if !path.is_empty() && !absolute {
                path.invalid(errors, "must be an absolute path");
            }
        }
        _ => kind.one_of(errors, &["Exact", "ImplementationSpecific", "Prefix"]),
    }
    backend(&node.child("backend"), errors);
}

fn backend(node: &Node<'_>, errors: &mut Errors) {
    let (resource, service) = (node.child("resource"), node.child("service"));
    let mut wrong = |why| errors.push(FieldError::invalid(&node.path, "\"\"", why));
    match (resource.is_set(), service.is_set()) {
        (true, true) => wrong("cannot set both resource and service backends"),
        (false, false) => wrong("resource or service backend is required"),
        (true, false) => {
            local_reference(&resource, errors);
        }
        (false, true) => {
            service.child("name").need_syntax(errors, names::dns_1035_label);
            let (name, number) = (service.child("port").child("name"), service.child("port").child("number"));
            match (!name.is_empty(), number.number() != 0) {
                (true, true) => {
                    let why = "cannot set both port name & port number";
                    errors.push(FieldError::invalid(&node.path, "\"\"", why));
                }
                (true, false) => name.syntax(errors, names::port_name),
                (false, true) => number.port(errors),
                (false, false) => node.required(errors, "port name or number is required"),
            }
        }
    }
}

/// Checks a reference to an object of any kind in the same place.
fn local_reference(reference: &Node<'_>, errors: &mut Errors) {
    if reference.child("apiGroup").is_set() {
        reference.child("apiGroup").syntax(errors, names::dns_subdomain);
    }
    for field in ["kind", "name"] {
        let part = reference.child(field);
        if part.is_empty() {
            part.required(errors, &format!("{field} is required"));
        }
        part.syntax_if_set(errors, |name| names::path_segment(name, false));
    }
}

/// Checks a changed Ingress.
pub fn validate_ingress_update(new: &Value, old: &Value, errors: &mut Errors) {
    let was = Node::of(old, "spec");
    let bad_name = |tls: Node<'_>| {
        let name = tls.child("secretName");
        !name.is_empty() && !names::dns_subdomain(name.text()).is_empty()
    };
    let bad_rule = |rule: Node<'_>| {
        let mut found = Errors::new();
        ingress_rule(&rule, &mut found);
        rule.child("host").text().contains('*') && !found.is_empty()
    };
    let allowed = Allowed {
        secret_names: was.child("tls").items().any(bad_name),
        wildcard_rules: was.child("rules").items().any(bad_rule),
    };
    validate_ingress_any(new, allowed, errors);
}

/// Checks a changed status of an Ingress.
pub fn validate_ingress_status(new: &Value, old: &Value, errors: &mut Errors) {
    let at = |object| Node::of(object, "status").child("loadBalancer").child("ingress");
    let known = address::listed(at(old).value, "ip");
    for entry in at(new).items() {
        let (ip, host) = (entry.child("ip"), entry.child("hostname"));
        if !ip.is_empty() && !known.contains(ip.text()) {
            ip.syntax(errors, names::ip_address);
        }
        host.syntax_if_set(errors, names::dns_subdomain);
        if names::parse_ip(host.text()).is_some() {
            host.invalid(errors, "must be a DNS name, not an IP address");
        }
    }
}

/// Warns of the annotation that a field has replaced.
pub fn warn_ingress(ingress: &Value, old: Option<&Value>, warned: &mut Warned) {
    let named = meta::of(ingress).at(&["annotations", CLASS_ANNOTATION]).is_some();
    if old.is_none() && named && !Node::of(ingress, "spec").child("ingressClassName").is_set() {
        warned.push(format!(
            "annotation \"{CLASS_ANNOTATION}\" is deprecated, please use 'spec.ingressClassName' instead"
        ));
    }
}

/// The defaults of an IngressClass.
pub fn default_ingress_class(class: &mut Value) {
    if let Some(parameters) = class.get_mut("spec").and_then(|spec| present_mut(spec, "parameters")) {
        fill(parameters, "scope", "Cluster");
    }
}

/// Checks an IngressClass.
pub fn validate_ingress_class(class: &Value, errors: &mut Errors) {
    let spec = Node::of(class, "spec");
    const LONGEST: usize = 250;
    let controller = spec.child("controller");
    if controller.text().len() > LONGEST {
        errors.push(FieldError::too_long(&controller.path, LONGEST));
    }
    if controller.need(errors) {
        for (wrong, part) in names::domain_prefixed_path(controller.text()) {
            errors.push(FieldError::invalid(&controller.path, &crate::api::field::quoted(&part), &wrong));
        }
    }
    let parameters = spec.child("parameters");
    if !parameters.is_set() {
        return;
    }
    local_reference(&parameters, errors);
    let (scope, namespace) = (parameters.child("scope"), parameters.child("namespace"));
    match scope.text() {
        "" if !scope.is_set() => scope.required(errors, ""),
        "Namespace" if !namespace.is_set() => {
            namespace.required(errors, "`parameters.scope` is set to 'Namespace'");
        }
        "Namespace" => namespace.syntax(errors, names::dns_label),
        "Cluster" if namespace.is_set() => {
            namespace.forbidden(errors, "`parameters.scope` is set to 'Cluster'");
        }
        "Cluster" => {}
        _ => scope.one_of(errors, &["Cluster", "Namespace"]),
    }
}

/// Checks a changed IngressClass.
pub fn validate_ingress_class_update(new: &Value, old: &Value, errors: &mut Errors) {
    let controller = |object| Node::of(object, "spec").child("controller");
    if controller(new).text() != controller(old).text() {
        controller(new).invalid_text(errors, meta::IMMUTABLE);
    }
    validate_ingress_class(new, errors);
}

/// A policy that says nothing is about what comes in, and about what goes out if it says something of it.
pub fn default_policy(policy: &mut Value) {
    let spec = policy.entry("spec");
    if spec.get("policyTypes").is_none_or(|types| types.items().is_empty()) {
        let mut types = vec!["Ingress"];
        if spec.get("egress").is_some_and(|rules| !rules.items().is_empty()) {
            types.push("Egress");
        }
        spec.set("policyTypes", types);
    }
}

/// Checks a NetworkPolicy.
pub fn validate_policy(policy: &Value, errors: &mut Errors) {
    let spec = Node::of(policy, "spec");
    selector::validate(&spec.child("podSelector"), errors);
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.child(direction).items() {
            for port in rule.child("ports").items() {
                policy_port(&port, errors);
            }
            for peer in rule.child(peers).items() {
                policy_peer(&peer, errors);
            }
        }
    }
    let types = spec.child("policyTypes");
    if types.len() > 2 {
        let shown = say::shown_texts(&types, "networking.PolicyType");
        errors.push(FieldError::invalid(&types.path, &shown, "may not specify more than two policyTypes"));
        return;
    }
    for kind in types.items() {
        kind.one_of(errors, &["Ingress", "Egress"]);
    }
}

fn policy_port(node: &Node<'_>, errors: &mut Errors) {
    node.child("protocol").one_of_if_set(errors, &["TCP", "UDP", "SCTP"]);
    let (port, end) = (node.child("port"), node.child("endPort"));
    if let Some(first) = port.int() {
        port.port(errors);
        if end.int().is_some_and(|end| end < first) {
            let wrong = "must be greater than or equal to `port`";
            errors.push(FieldError::invalid(&end.path, &first.to_string(), wrong));
        }
        if end.is_set() {
            end.port(errors);
        }
    } else if port.is_set() {
        if end.is_set() {
            end.invalid(errors, "may not be specified when `port` is non-numeric");
        }
        port.syntax(errors, names::port_name);
    } else if end.is_set() {
        end.invalid(errors, "may not be specified when `port` is not specified");
    }
}

fn policy_peer(peer: &Node<'_>, errors: &mut Errors) {
    let (pods, namespaces, block) =
        (peer.child("podSelector"), peer.child("namespaceSelector"), peer.child("ipBlock"));
    selector::validate(&pods, errors);
    selector::validate(&namespaces, errors);
    if block.is_set() {
        ip_block(&block, errors);
    }
    match (pods.is_set() || namespaces.is_set(), block.is_set()) {
        (false, false) => peer.required(errors, "must specify a peer"),
        (true, true) => peer.forbidden(errors, "may not specify both ipBlock and another peer"),
        _ => {}
    }
}

fn ip_block(block: &Node<'_>, errors: &mut Errors) {
    let range = block.child("cidr");
    if !range.need(errors) {
        return;
    }
    range.syntax(errors, names::cidr);
    let Some((address, length)) = names::parse_cidr(range.text()) else { return };
    for except in block.child("except").items() {
        except.syntax(errors, names::cidr);
        let Some((inner, inner_length)) = names::parse_cidr(except.text()) else { continue };
        if inner_length <= length || !contains(address, length, inner) {
            except.invalid(errors, "must be a strict subset of `cidr`");
        }
    }
}

/// Whether an address lies in a network.
fn contains(network: std::net::IpAddr, length: u8, address: std::net::IpAddr) -> bool {
    use std::net::IpAddr::{V4, V6};
    let shift = |width: u8| u32::from(width.saturating_sub(length));
    match (network, address) {
        (V4(network), V4(address)) => {
            let cut = |ip: std::net::Ipv4Addr| u32::from(ip).checked_shr(shift(32)).unwrap_or_default();
            cut(network) == cut(address)
        }
        (V6(network), V6(address)) => {
            let cut = |ip: std::net::Ipv6Addr| u128::from(ip).checked_shr(shift(128)).unwrap_or_default();
            cut(network) == cut(address)
        }
        _ => false,
    }
}

/// Checks a changed NetworkPolicy.
pub fn validate_policy_update(new: &Value, _old: &Value, errors: &mut Errors) {
    validate_policy(new, errors);
}

/// Warns of networks that are written in an unusual way.
pub fn warn_policy(policy: &Value, _old: Option<&Value>, warned: &mut Warned) {
    let spec = Node::of(policy, "spec");
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.child(direction).items() {
            for peer in rule.child(peers).items() {
                let block = peer.child("ipBlock");
                address::warn_cidr(&block.child("cidr").path, block.child("cidr").text(), warned);
                for except in block.child("except").items() {
                    address::warn_cidr(&except.path, except.text(), warned);
                }
            }
        }
    }
}

/// Checks an IPAddress.
pub fn validate_address(address: &Value, errors: &mut Errors) {
    let parent = Node::of(address, "spec").child("parentRef");
    if !parent.is_set() {
        parent.required(errors, "");
        return;
    }
    for (field, check) in [
        ("group", names::dns_subdomain as names::Check),
        ("resource", |text| names::path_segment(text, false)),
        ("name", |text| names::path_segment(text, false)),
        ("namespace", |text| names::path_segment(text, false)),
    ] {
        let part = parent.child(field);
        if part.is_empty() && matches!(field, "resource" | "name") {
            part.required(errors, "");
        }
        part.syntax_if_set(errors, check);
    }
}

/// Checks a changed IPAddress: whose it is stays.
pub fn validate_address_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_address(new, errors);
    let parent = |object| Node::of(object, "spec").child("parentRef");
    if !same(Some(parent(new).value), Some(parent(old).value)) {
        errors.push(FieldError::invalid(&parent(new).path, "networking.ParentReference{}", meta::IMMUTABLE));
    }
}

/// Checks a ServiceCIDR.
pub fn validate_service_cidr(object: &Value, errors: &mut Errors) {
    service_ranges(&Node::of(object, "spec").child("cidrs"), errors);
}

fn service_ranges(ranges: &Node<'_>, errors: &mut Errors) {
    if ranges.is_empty() {
        ranges.required(errors, "at least one CIDR required");
        return;
    }
    if ranges.len() > 2 {
        say::structure(&ranges.path, "networking.ServiceCIDRSpec", errors, "may only hold up to 2 values");
        return;
    }
    let mut families = Vec::new();
    for range in ranges.items() {
        say::strict_range(&range, errors);
        families.extend(names::parse_cidr(range.text()).map(|(address, _)| address.is_ipv4()));
    }
    if matches!(families.as_slice(), [one, other] if one == other) {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        ranges.invalid(errors, why);
    }
}

/// Checks a changed ServiceCIDR: its networks stay, but a second one may join.
pub fn validate_service_cidr_update(new: &Value, old: &Value, errors: &mut Errors) {
    let at = |object| Node::of(object, "spec").child("cidrs");
    let (ranges, before) = (at(new), at(old));
    let pairs = ranges.items().zip(before.items());
    match (before.len(), ranges.len()) {
        (had, has) if had == has || (had, has) == (1, 2) => {
            for (range, _) in pairs.filter(|(range, was)| range.text() != was.text()) {
                range.invalid(errors, meta::IMMUTABLE);
            }
            if had != has {
                service_ranges(&ranges, errors);
            }
        }
        _ => {
            let shown = say::shown_texts(&ranges, "string");
            errors.push(FieldError::invalid(&ranges.path, &shown, meta::IMMUTABLE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{each_change_refused, each_refused, object};
    use super::*;

    #[test]
    fn each_rule_of_an_ingress_refuses() {
        let base = object(
            r#"{"spec":{"ingressClassName":"x","tls":[{"hosts":["a.b"],"secretName":"s"}],"rules":[{"host":"a.b","http":{"paths":[
                {"path":"/","pathType":"Prefix","backend":{"service":{"name":"s","port":{"number":80}}}}]}}]}}"#,
        );
        let backend = "spec.rules.0.http.paths.0.backend";
        let at = |rest: &str| format!("{backend}.{rest}");
        let (name, port, resource) = (at("service.name"), at("service.port"), at("resource"));
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
    fn the_rest_of_an_ingress_is_checked_too() {
        each_change_refused(
            &object(r#"{"status":{"loadBalancer":{"ingress":[{"ip":"10.0.0.1"}]}}}"#),
            validate_ingress_status,
            &[
                (
                    "status.loadBalancer.ingress.0.ip",
                    r#""x""#,
                    "status.loadBalancer.ingress[0].ip: Invalid value: \"x\": must be a valid IP address",
                ),
                (
                    "status.loadBalancer.ingress.0.hostname",
                    r#""A""#,
                    "ingress[0].hostname: Invalid value: \"A\"",
                ),
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
        let mut errors = Errors::new();
        validate_ingress_update(&old, &old, &mut errors);
        assert_eq!(errors, [], "what was wrong before may stay");
        validate_ingress_update(&old, &object("{}"), &mut errors);
        assert_eq!(errors.len(), 2);
        let mut warned = Warned::new();
        warn_ingress(&old, None, &mut warned);
        assert_eq!(
            warned,
            [
                "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"
            ]
        );
        let policy = object(
            r#"{"spec":{"ingress":[{"from":[{"ipBlock":{"cidr":"10.1.0.0/8","except":["010.1.0.0/16"]}}]}]}}"#,
        );
        let mut warned = Warned::new();
        warn_policy(&policy, None, &mut warned);
        assert!(warned[0].starts_with("spec.ingress[0].from[0].ipBlock.cidr: CIDR value"));
        assert!(warned[1].starts_with("spec.ingress[0].from[0].ipBlock.except[0]: non-standard CIDR value"));
    }

    #[test]
    fn each_rule_of_a_policy_refuses() {
        let mut base = object(
            r#"{"spec":{"podSelector":{},"ingress":[{"ports":[{"port":80,"endPort":90,"protocol":"TCP"}],
                "from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}]}],"egress":[{}]}}"#,
        );
        default_policy(&mut base);
        assert_eq!(base.at(&["spec", "policyTypes"]), Some(&object(r#"["Ingress","Egress"]"#)));
        each_refused(
            &base,
            validate_policy,
            &[
                ("spec.ingress.0.ports.0.protocol", r#""X""#, "\"TCP\", \"UDP\", \"SCTP\""),
                ("spec.ingress.0.ports.0.port", "0", "ports[0].port: Invalid value: 0"),
                (
                    "spec.ingress.0.ports.0.endPort",
                    "70",
                    "endPort: Invalid value: 80: must be greater than or equal to `port`",
                ),
                (
                    "spec.ingress.0.ports.0.port",
                    r#""http""#,
                    "may not be specified when `port` is non-numeric",
                ),
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
    fn each_rule_of_the_others_refuses() {
        let mut class = object(r#"{"spec":{"controller":"a.b/c","parameters":{"kind":"K","name":"n"}}}"#);
        default_ingress_class(&mut class);
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
            &[(
                "spec.controller",
                r#""a.b/d""#,
                "spec.controller: Invalid value: \"a.b/d\": field is immutable",
            )],
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
                (
                    "spec.cidrs",
                    r#"["10.0.0.0/24","10.0.1.0/24","10.0.2.0/24"]"#,
                    "may only hold up to 2 values",
                ),
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
}
