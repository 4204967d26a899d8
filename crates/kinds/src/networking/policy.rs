//! NetworkPolicies.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::{ErrorList, WarningList};
use pilothouse_apimachinery::field::FieldError;
use pilothouse_apimachinery::field_value::FieldValue;
use pilothouse_apimachinery::label_selector;
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::super::{
    DefaultingRules, Generation, KindRules, MetadataRules, ValidationRules, WarningRules, messages,
};
use crate::address;
use crate::allowed::networking_v1;

/// The rules of a NetworkPolicy.
pub const RULES: KindRules = KindRules {
    metadata: MetadataRules {
        generation: Generation { counts_empty_lists: true, ..Generation::SPEC },
        ..MetadataRules::DEFAULT
    },
    defaulting: DefaultingRules { default: default_policy, ..DefaultingRules::DEFAULT },
    validation: ValidationRules {
        validate: |policy, errors| validate_policy(policy, address::NOTHING_KNOWN, errors),
        validate_update: validate_policy_update,
        ..ValidationRules::DEFAULT
    },
    warnings: WarningRules { warn: warn_policy, ..WarningRules::DEFAULT },
    ..KindRules::DEFAULT
};

/// The default policy types: Ingress, and Egress if there are egress rules.
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

/// Validates an updated NetworkPolicy. Errors are found twice, as by the two functions of the reference. CIDRs of the old policy are
/// accepted wherever they are: which of them are new cannot be told once rules move.
fn validate_policy_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let old = FieldValue::top_level(old, "spec");
    let mut known = BTreeSet::new();
    for block in peers(&old).filter_map(|peer| peer.value.get("ipBlock")) {
        known.insert(block.str("cidr"));
        known.extend(
            block.get("except").map(Value::items).unwrap_or_default().iter().filter_map(Value::as_str),
        );
    }
    for _ in 0..2 {
        validate_policy(new, &known, errors);
    }
}

/// The peers of all rules.
fn peers<'a>(spec: &FieldValue<'a>) -> impl Iterator<Item = FieldValue<'a>> {
    let of_direction = |direction, peers| {
        let rules: Vec<FieldValue<'a>> = spec.child(direction).items().collect();
        rules.into_iter().flat_map(move |rule| rule.child(peers).items().collect::<Vec<_>>())
    };
    of_direction("ingress", "from").chain(of_direction("egress", "to"))
}

/// Validates a NetworkPolicy. `known`: the CIDRs that it had before.
fn validate_policy(policy: &Value, known: &BTreeSet<&str>, errors: &mut ErrorList) {
    let spec = FieldValue::top_level(policy, "spec");
    label_selector::validate(&spec.child("podSelector"), errors);
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.child(direction).items() {
            for port in rule.child("ports").items() {
                validate_port(&port, errors);
            }
            for peer in rule.child(peers).items() {
                validate_peer(&peer, known, errors);
            }
        }
    }
    let types = spec.child("policyTypes");
    if types.len() > 2 {
        let rendered = messages::render_strings(&types, "networking.PolicyType");
        errors.push(FieldError::invalid(&types.path, &rendered, "may not specify more than two policyTypes"));
        return;
    }
    for kind in types.items() {
        kind.one_of(errors, networking_v1::NetworkPolicySpec::POLICY_TYPES);
    }
}

fn validate_port(node: &FieldValue<'_>, errors: &mut ErrorList) {
    node.child("protocol").one_of_if_set(errors, networking_v1::NetworkPolicyPort::PROTOCOL);
    let (port, end) = (node.child("port"), node.child("endPort"));
    if let Some(first) = port.int() {
        port.port(errors);
        if end.int().is_some_and(|end| end < first) {
            let detail = "must be greater than or equal to `port`";
            errors.push(FieldError::invalid(&end.path, &first.to_string(), detail));
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

fn validate_peer(peer: &FieldValue<'_>, known: &BTreeSet<&str>, errors: &mut ErrorList) {
    let (pods, namespaces, block) =
        (peer.child("podSelector"), peer.child("namespaceSelector"), peer.child("ipBlock"));
    label_selector::validate(&pods, errors);
    label_selector::validate(&namespaces, errors);
    if block.is_set() {
        validate_ip_block(&block, known, errors);
    }
    match (pods.is_set() || namespaces.is_set(), block.is_set()) {
        (false, false) => peer.required(errors, "must specify a peer"),
        (true, true) => peer.forbidden(errors, "may not specify both ipBlock and another peer"),
        _ => {}
    }
}

fn validate_ip_block(block: &FieldValue<'_>, known: &BTreeSet<&str>, errors: &mut ErrorList) {
    let range = block.child("cidr");
    if !range.need(errors) {
        return;
    }
    address::validate_cidr(&range.path, range.text(), known, errors);
    let Some(network) = names::parse_cidr(range.text()) else { return };
    for except in block.child("except").items() {
        address::validate_cidr(&except.path, except.text(), known, errors);
        let Some(inner) = names::parse_cidr(except.text()) else { continue };
        if inner.prefix_len() <= network.prefix_len() || !network.contains(&inner.addr()) {
            except.invalid(errors, "must be a strict subset of `cidr`");
        }
    }
}

/// Warns about CIDRs in a non-canonical form.
pub(super) fn warn_policy(policy: &Value, _old: Option<&Value>, warnings: &mut WarningList) {
    let spec = FieldValue::top_level(policy, "spec");
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.child(direction).items() {
            for peer in rule.child(peers).items() {
                let block = peer.child("ipBlock");
                address::warn_cidr(&block.child("cidr").path, block.child("cidr").text(), warnings);
                for except in block.child("except").items() {
                    address::warn_cidr(&except.path, except.text(), warnings);
                }
            }
        }
    }
}
