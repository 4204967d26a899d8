//! The IP families of a service: from its fields, the cluster's ranges, and defaults.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::value::Value;

use super::addresses::{self, Family};
use super::{HEADLESS, is_headless, list, needs_address};
use crate::address;
use crate::allowed::core_v1::ServiceSpec;

const SINGLE: &str = "SingleStack";
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";
const IMMUTABLE_ONCE_SET: &str = "may not change once set";

/// The IP families of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// The default family of services.
    pub first: Family,
    /// Whether the cluster has both families.
    pub both: bool,
}

impl Families {
    fn has(self, family: Family) -> bool {
        self.both || self.first == family
    }
}

fn policy_path() -> FieldPath {
    FieldPath::new("spec").child("ipFamilyPolicy")
}

/// Sets the families and the policy of a service, or reports errors.
pub fn resolve(service: &mut Value, old: Option<&Value>, cluster: Families) -> Result<(), ErrorList> {
    let old_spec = old.map(crate::services::spec);
    if !needs_address(crate::services::spec(service))
        || old_spec.is_some_and(|old_spec| stays_preferred(crate::services::spec(service), old_spec))
    {
        return Ok(());
    }
    let spec = service.entry("spec");
    let has_no_selector = spec.str("clusterIP") == HEADLESS
        && spec.get("selector").and_then(Value::fields).is_none_or(|selector| selector.is_empty());
    if spec.get("ipFamilyPolicy").is_none() {
        let old_policy =
            old_spec.map(|old_spec| old_spec.str("ipFamilyPolicy")).filter(|policy| !policy.is_empty());
        let policy = old_policy.unwrap_or(if has_no_selector { REQUIRE } else { SINGLE }).to_owned();
        spec.set("ipFamilyPolicy", policy);
    }
    let mut errors = ErrorList::new();
    let old_addresses = old_spec.and_then(|old_spec| old_spec.get("clusterIPs")).unwrap_or(&Value::Null);
    let known = address::collect_strings(old_addresses, "");
    validate(&FieldValue::top_level(service, "spec"), &known, &mut errors);
    fail_on_errors(&mut errors)?;
    let spec = service.entry("spec");
    let policy = spec.str("ipFamilyPolicy").to_owned();
    match old_spec {
        Some(old_spec) if policy == SINGLE => drop_secondary(spec, old_spec),
        Some(old_spec) => refuse_release(spec, old_spec, &policy, &mut errors),
        None => {}
    }
    if policy == SINGLE {
        for (field, items) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
            if list(spec, field).len() == 2 {
                let detail = format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {items} are specified"
                );
                errors.push(FieldError::invalid(&policy_path(), &quoted(&policy), &detail));
            }
        }
    }
    let mut families = infer_families(spec, cluster, &mut errors);
    fail_on_errors(&mut errors)?;
    if has_no_selector {
        // A headless service without selector has unknown endpoints: it may have more families than the cluster.
        complete_families(&mut families, cluster.first, policy != SINGLE);
    } else {
        validate_against_cluster(&families, &policy, cluster, &mut errors);
        fail_on_errors(&mut errors)?;
        complete_families(&mut families, cluster.first, policy != SINGLE && cluster.both);
    }
    spec.set("ipFamilies", families);
    Ok(())
}

fn fail_on_errors(errors: &mut ErrorList) -> Result<(), ErrorList> {
    if errors.is_empty() { Ok(()) } else { Err(std::mem::take(errors)) }
}

/// Whether an unchanged service with PreferDualStack keeps its families, even if the cluster has gained one.
fn stays_preferred(spec: &Value, old_spec: &Value) -> bool {
    let prefers = |spec: &Value| spec.str("ipFamilyPolicy") == PREFER;
    prefers(spec)
        && (prefers(old_spec) || old_spec.get("ipFamilyPolicy").is_none())
        && spec.str("type") == old_spec.str("type")
        && matches!(spec.str("type"), "ClusterIP" | "NodePort" | "LoadBalancer")
        && same(spec.get("clusterIPs"), old_spec.get("clusterIPs"))
        && same(spec.get("ipFamilies"), old_spec.get("ipFamilies"))
}

/// A change to a single family drops the second of unchanged lists.
fn drop_secondary(spec: &mut Value, old_spec: &Value) {
    for field in ["clusterIPs", "ipFamilies"] {
        let current = list(spec, field);
        if current.len() > 1 && same(spec.get(field), old_spec.get(field)) {
            let first = current.first().map(|&first| first.to_owned()).into_iter().collect::<Vec<_>>();
            spec.set(field, first);
        }
    }
}

fn refuse_release(spec: &Value, old_spec: &Value, policy: &str, errors: &mut ErrorList) {
    for (field, item) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let new_len = list(spec, field).len();
        if new_len > 0 && new_len < list(old_spec, field).len() {
            let detail = format!("must be 'SingleStack' to release the secondary {item}");
            errors.push(FieldError::invalid(&policy_path(), &quoted(policy), &detail));
        }
    }
}

/// The stated families, and those that follow from addresses.
fn infer_families(spec: &Value, cluster: Families, errors: &mut ErrorList) -> Vec<String> {
    let mut families: Vec<String> = list(spec, "ipFamilies").into_iter().map(str::to_owned).collect();
    let addresses = FieldValue {
        value: spec.get("clusterIPs").unwrap_or(&Value::Null),
        path: FieldPath::new("spec").child("clusterIPs"),
    };
    for (index, address) in addresses.items().enumerate().skip(families.len()) {
        let Some(ip) = addresses::parse(address.text()) else { break };
        let family = Family::from_address(ip);
        if cluster.has(family) {
            families.push(family.as_str().to_owned());
        } else {
            let detail = format!("{} is not configured on this cluster", family.as_str());
            errors.push(FieldError::invalid(&addresses.path.index(index), &addresses.render(), &detail));
        }
    }
    families
}

fn validate_against_cluster(families: &[String], policy: &str, cluster: Families, errors: &mut ErrorList) {
    if policy == REQUIRE && !cluster.both {
        let detail = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid(&policy_path(), &quoted(policy), detail));
    }
    for (index, family) in families.iter().enumerate() {
        if !Family::parse(family).is_some_and(|family| cluster.has(family)) {
            let path = FieldPath::new("spec").child("ipFamilies").index(index);
            errors.push(FieldError::invalid(&path, &quoted(family), "not configured on this cluster"));
        }
    }
}

fn complete_families(families: &mut Vec<String>, first: Family, both: bool) {
    if families.is_empty() {
        families.push(first.as_str().to_owned());
    }
    if both && families.len() == 1 {
        families.extend(Family::parse(&families[0]).map(|family| family.other().as_str().to_owned()));
    }
}

/// The addresses that a new service requests: one per family, with the stated one if any.
pub fn addresses_for_new(spec: &Value) -> Vec<(usize, Option<String>)> {
    let stated = list(spec, "clusterIPs");
    if !needs_address(spec) || stated.first() == Some(&HEADLESS) {
        return Vec::new();
    }
    let families = list(spec, "ipFamilies").len();
    (0..families).map(|index| (index, stated.get(index).map(|&address| address.to_owned()))).collect()
}

/// The additional addresses that an updated service requests.
pub fn addresses_for_updated(spec: &Value, old_spec: &Value) -> Vec<(usize, Option<String>)> {
    if !needs_address(spec) {
        return Vec::new();
    }
    if !needs_address(old_spec) {
        return addresses_for_new(spec);
    }
    let adds_family = list(old_spec, "ipFamilies").len() == 1 && list(spec, "ipFamilies").len() == 2;
    if !adds_family || list(old_spec, "clusterIPs").first() == Some(&HEADLESS) {
        return Vec::new();
    }
    vec![(1, list(spec, "clusterIPs").get(1).map(|&address| address.to_owned()))]
}

/// Writes an allocated address.
pub fn set_address(service: &mut Value, index: usize, address: &str) {
    let spec = service.entry("spec");
    let mut addresses: Vec<String> = list(spec, "clusterIPs").into_iter().map(str::to_owned).collect();
    addresses.resize(addresses.len().max(index + 1), String::new());
    addresses[index] = address.to_owned();
    spec.set("clusterIPs", addresses);
    if index == 0 {
        spec.set("clusterIP", address);
    }
}

/// Validates that the addresses and families of a service are consistent. `known`: the addresses that it had before.
pub fn validate(spec: &FieldValue<'_>, known: &BTreeSet<&str>, errors: &mut ErrorList) {
    let (cluster_ip, cluster_ips) = (spec.child("clusterIP"), spec.child("clusterIPs"));
    let first = cluster_ips.value.items().first().and_then(Value::as_str);
    match (cluster_ip.text(), first) {
        ("", Some(_)) => cluster_ips.invalid(errors, "must be empty when `clusterIP` is not specified"),
        ("", None) => {}
        (_, None) => cluster_ips.required(errors, ""),
        (cluster_ip, Some(first)) if cluster_ip != first => {
            cluster_ips.invalid(errors, "first value must match `clusterIP`");
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for family in spec.child("ipFamilies").items() {
        // The published schema lists the empty string, too, but it is never accepted.
        family.one_of(errors, &["IPv4", "IPv6"]);
        if !seen.insert(family.text()) {
            family.duplicate(errors);
        }
    }
    spec.child("ipFamilyPolicy").one_of_if_set(errors, ServiceSpec::IP_FAMILY_POLICY);
    let mut has_invalid = false;
    for (index, address) in cluster_ips.items().enumerate() {
        let error_count = errors.len();
        if index == 0 && address.text() == HEADLESS {
            if cluster_ips.len() > 1 {
                cluster_ips.invalid(errors, "'None' must be the first and only value");
            }
        } else {
            address::validate_ip(&address.path, address.text(), known, errors);
        }
        has_invalid |= errors.len() > error_count;
    }
    if cluster_ips.len() > 2 {
        cluster_ips.invalid(errors, "may only hold up to 2 values");
    }
    // Further errors would only blame valid addresses for the invalid ones.
    if !has_invalid {
        validate_pairs(spec, errors);
    }
}

fn validate_pairs(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let cluster_ips = spec.child("clusterIPs");
    let families: Vec<Option<Family>> = cluster_ips
        .items()
        .map(|address| addresses::parse(address.text()).map(Family::from_address))
        .collect();
    if families.len() > 1 && families.iter().all(|family| *family == families[0]) {
        cluster_ips.invalid(errors, "may specify no more than one IP for each IP family");
    }
    if is_headless(spec.value) {
        return;
    }
    let stated_families = spec.child("ipFamilies");
    for (index, (address, stated)) in cluster_ips.items().zip(stated_families.items()).enumerate() {
        let Some(stated) = Family::parse(stated.text()) else { continue };
        if families.get(index).copied().flatten() != Some(stated) {
            let detail =
                format!("expected an {} value as indicated by `ipFamilies[{index}]`", stated.as_str());
            address.invalid(errors, &detail);
        }
    }
}

/// Validates that an updated service keeps its addresses and families, except for the second ones.
pub fn validate_change(spec: &FieldValue<'_>, old_spec: &FieldValue<'_>, errors: &mut ErrorList) {
    if !needs_address(spec.value) || !needs_address(old_spec.value) {
        return;
    }
    let (is_headless_now, was_headless) = (is_headless(spec.value), is_headless(old_spec.value));
    if is_headless_now && was_headless {
        return;
    }
    let policy = spec.child("ipFamilyPolicy");
    let (cluster_ips, old_cluster_ips) = (spec.child("clusterIPs"), old_spec.child("clusterIPs"));
    let texts = |node: &FieldValue<'_>| node.items().map(|item| item.text().to_owned()).collect::<Vec<_>>();
    let (addresses, old_addresses) = (texts(&cluster_ips), texts(&old_cluster_ips));
    let mut invalid = |index: usize, detail: &str| {
        errors.push(FieldError::invalid(
            &cluster_ips.path.index(index),
            &render_addresses(&cluster_ips),
            detail,
        ));
    };
    if addresses.len() == old_addresses.len() {
        for (index, _) in
            old_addresses.iter().zip(&addresses).enumerate().filter(|(_, (old, new))| old != new)
        {
            invalid(index, IMMUTABLE_ONCE_SET);
        }
    } else {
        if old_addresses.len() > addresses.len() && addresses.is_empty() {
            invalid(0, "primary clusterIP can not be unset");
        }
        if !old_addresses.is_empty() && !addresses.is_empty() && addresses[0] != old_addresses[0] {
            invalid(0, IMMUTABLE_ONCE_SET);
        }
        if old_addresses.len() > addresses.len() && addresses.len() == 1 && policy.text() != SINGLE {
            policy.invalid(errors, "must be set to 'SingleStack' when releasing the secondary clusterIP");
        }
    }
    if is_headless_now == was_headless {
        validate_family_change(spec, old_spec, errors);
    }
}

fn validate_family_change(spec: &FieldValue<'_>, old_spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let (families, old_families) = (list(spec.value, "ipFamilies"), list(old_spec.value, "ipFamilies"));
    let path = spec.path.child("ipFamilies").index(0);
    let rendered: Vec<String> = families.iter().map(|family| quoted(family)).collect();
    let rendered = format!("[]core.IPFamily{{{}}}", rendered.join(", "));
    let addresses = render_addresses(&spec.child("clusterIPs"));
    let policy = spec.child("ipFamilyPolicy");
    if families.len() == old_families.len() {
        for _ in families.iter().zip(&old_families).filter(|(new, old)| new != old) {
            errors.push(FieldError::invalid(&path, &rendered, IMMUTABLE_ONCE_SET));
        }
        return;
    }
    if families.len() < old_families.len() && spec.child("clusterIPs").is_empty() {
        errors.push(FieldError::invalid(&path, &rendered, "primary ipFamily can not be unset"));
    }
    if !families.is_empty() && !old_families.is_empty() && families[0] != old_families[0] {
        errors.push(FieldError::invalid(&path, &addresses, IMMUTABLE_ONCE_SET));
    }
    if families.len() == 1 && old_families.len() > 1 && policy.text() != SINGLE {
        policy.invalid(errors, "must be set to 'SingleStack' when releasing the secondary ipFamily");
    }
}

fn render_addresses(addresses: &FieldValue<'_>) -> String {
    if addresses.is_empty() { "[]string(nil)".to_owned() } else { addresses.render() }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{error_messages, object};

    use super::*;

    const SINGLE_STACK: Families = Families { first: Family::V4, both: false };
    const DUAL_STACK: Families = Families { first: Family::V4, both: true };

    fn resolved(
        json: &str,
        old: Option<&str>,
        cluster: Families,
    ) -> Result<(Vec<String>, String), Vec<String>> {
        let mut service = object(&format!(r#"{{"spec":{json}}}"#));
        let old = old.map(|old| object(&format!(r#"{{"spec":{old}}}"#)));
        resolve(&mut service, old.as_ref(), cluster).map_err(|errors| error_messages(&errors))?;
        let spec = super::super::spec(&service);
        let families = list(spec, "ipFamilies").into_iter().map(str::to_owned).collect();
        Ok((families, spec.str("ipFamilyPolicy").to_owned()))
    }

    #[test]
    fn new_service_gets_families_of_the_cluster() {
        let table = [
            (r#"{}"#, SINGLE_STACK, "IPv4", SINGLE),
            (r#"{}"#, DUAL_STACK, "IPv4", SINGLE),
            (r#"{"ipFamilyPolicy":"PreferDualStack"}"#, SINGLE_STACK, "IPv4", PREFER),
            (r#"{"ipFamilyPolicy":"PreferDualStack"}"#, DUAL_STACK, "IPv4 IPv6", PREFER),
            (
                r#"{"ipFamilyPolicy":"RequireDualStack","ipFamilies":["IPv6"]}"#,
                DUAL_STACK,
                "IPv6 IPv4",
                REQUIRE,
            ),
            (r#"{"clusterIP":"fd00::1","clusterIPs":["fd00::1"]}"#, DUAL_STACK, "IPv6", SINGLE),
            (r#"{"clusterIP":"None","clusterIPs":["None"]}"#, SINGLE_STACK, "IPv4 IPv6", REQUIRE),
            (
                r#"{"clusterIP":"None","clusterIPs":["None"],"selector":{"a":"b"}}"#,
                SINGLE_STACK,
                "IPv4",
                SINGLE,
            ),
            (r#"{"type":"ExternalName"}"#, SINGLE_STACK, "", ""),
        ];
        for (json, cluster, families, policy) in table {
            let actual = resolved(json, None, cluster).unwrap();
            assert_eq!((actual.0.join(" ").as_str(), actual.1.as_str()), (families, policy), "{json}");
        }
    }

    #[test]
    fn families_missing_in_the_cluster_are_refused() {
        let table = [
            (
                r#"{"ipFamilyPolicy":"RequireDualStack"}"#,
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for \
                 dual-stack services",
            ),
            (
                r#"{"ipFamilies":["IPv6"]}"#,
                "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
            ),
            (
                r#"{"clusterIP":"fd00::1","clusterIPs":["fd00::1"]}"#,
                "spec.clusterIPs[0]: Invalid value: []string{\"fd00::1\"}: IPv6 is not configured on this cluster",
            ),
            (
                r#"{"ipFamilies":["IPv4","IPv6"]}"#,
                "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' \
                 when multiple IP families are specified",
            ),
            (
                r#"{"clusterIP":"fd00::1","clusterIPs":["fd00::1"],"ipFamilies":["IPv4"]}"#,
                "spec.clusterIPs[0]: Invalid value: \"fd00::1\": expected an IPv4 value as indicated by `ipFamilies[0]`",
            ),
            (
                r#"{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1","10.0.0.2"],"ipFamilyPolicy":"PreferDualStack"}"#,
                "spec.clusterIPs: Invalid value: []string{\"10.0.0.1\", \"10.0.0.2\"}: may specify no more than one IP \
                 for each IP family",
            ),
        ];
        for (json, expected) in table {
            assert_eq!(resolved(json, None, SINGLE_STACK), Err(vec![expected.to_owned()]), "{json}");
        }
    }

    const BOTH: &str = r#"{"type":"ClusterIP","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1","fd00::1"],
        "ipFamilies":["IPv4","IPv6"],"ipFamilyPolicy":"RequireDualStack"}"#;

    #[test]
    fn secondary_family_follows_the_policy() {
        let to_single = BOTH.replace("RequireDualStack", "SingleStack");
        assert_eq!(
            resolved(&to_single, Some(BOTH), DUAL_STACK),
            Ok((vec!["IPv4".to_owned()], SINGLE.to_owned()))
        );
        let without_policy = r#"{"type":"ClusterIP","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"ipFamilies":["IPv4","IPv6"]}"#;
        let expected = "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the \
                      secondary cluster IP";
        assert_eq!(resolved(without_policy, Some(BOTH), DUAL_STACK), Err(vec![expected.to_owned()]));
        let single = r#"{"type":"ClusterIP","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"ipFamilies":["IPv4"],
            "ipFamilyPolicy":"SingleStack"}"#;
        let preferred = single.replace(SINGLE, PREFER);
        assert_eq!(resolved(&preferred, Some(single), DUAL_STACK).unwrap().0, ["IPv4", "IPv6"]);
        // An unchanged service with PreferDualStack is not touched.
        assert_eq!(resolved(&preferred, Some(&preferred), DUAL_STACK).unwrap().0, ["IPv4"]);
    }

    #[test]
    fn primary_address_and_family_are_immutable() {
        let update_errors = |new: &str| {
            let (new, old) =
                (object(&format!(r#"{{"spec":{new}}}"#)), object(&format!(r#"{{"spec":{BOTH}}}"#)));
            let mut errors = ErrorList::new();
            validate_change(
                &FieldValue::top_level(&new, "spec"),
                &FieldValue::top_level(&old, "spec"),
                &mut errors,
            );
            error_messages(&errors)
        };
        assert!(update_errors(BOTH).is_empty());
        assert_eq!(
            update_errors(
                r#"{"type":"ClusterIP","clusterIPs":["10.0.0.2","fd00::1"],"ipFamilies":["IPv6","IPv4"]}"#
            ),
            [
                "spec.clusterIPs[0]: Invalid value: []string{\"10.0.0.2\", \"fd00::1\"}: may not change once set",
                "spec.ipFamilies[0]: Invalid value: []core.IPFamily{\"IPv6\", \"IPv4\"}: may not change once set",
                "spec.ipFamilies[0]: Invalid value: []core.IPFamily{\"IPv6\", \"IPv4\"}: may not change once set",
            ]
        );
        assert_eq!(
            update_errors(r#"{"type":"ClusterIP","clusterIPs":["10.0.0.1"],"ipFamilies":["IPv4"]}"#),
            [
                "spec.ipFamilyPolicy: Invalid value: \"null\": must be set to 'SingleStack' when releasing the secondary \
                 clusterIP",
                "spec.ipFamilyPolicy: Invalid value: \"null\": must be set to 'SingleStack' when releasing the secondary \
                 ipFamily",
            ]
        );
        assert!(update_errors(r#"{"type":"ExternalName"}"#).is_empty());
    }

    #[test]
    fn requested_addresses_follow_the_families() {
        let new = object(r#"{"type":"ClusterIP","ipFamilies":["IPv4","IPv6"],"clusterIPs":["10.0.0.1"]}"#);
        assert_eq!(addresses_for_new(&new), [(0, Some("10.0.0.1".to_owned())), (1, None)]);
        let single = object(r#"{"type":"ClusterIP","ipFamilies":["IPv4"],"clusterIPs":["10.0.0.1"]}"#);
        assert_eq!(addresses_for_updated(&new, &single), [(1, None)]);
        assert!(addresses_for_updated(&single, &new).is_empty());
        let external_name = object(r#"{"type":"ExternalName"}"#);
        assert_eq!(addresses_for_updated(&single, &external_name).len(), 1);
        assert!(addresses_for_updated(&external_name, &single).is_empty());
        assert!(addresses_for_new(&object(r#"{"ipFamilies":["IPv4"],"clusterIPs":["None"]}"#)).is_empty());
        let mut service = object(r#"{"spec":{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"]}}"#);
        set_address(&mut service, 1, "fd00::1");
        assert_eq!(list(super::super::spec(&service), "clusterIPs"), ["10.0.0.1", "fd00::1"]);
    }
    /// As many as fit into a request body: quadratic work would take minutes.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the test measures time")]
    fn validation_of_many_families_is_linear() {
        let many: Vec<String> = (0..196_000).map(|family| format!("v{family}")).collect();
        let mut service = object(r#"{"spec":{}}"#);
        service.entry("spec").set("ipFamilies", many);
        let start = std::time::Instant::now();
        let mut errors = ErrorList::new();
        validate(&FieldValue::top_level(&service, "spec"), address::NOTHING_KNOWN, &mut errors);
        assert_eq!(errors.len(), 196_000);
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
