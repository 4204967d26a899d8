//! The IP families of a service: from its fields, the cluster's ranges, and defaults.

use std::collections::BTreeSet;

use pilothouse_apimachinery::error_list::ErrorList;
use pilothouse_apimachinery::field::{FieldError, FieldPath, quoted};
use pilothouse_apimachinery::field_value::{FieldValue, same};
use pilothouse_apimachinery::names;
use pilothouse_apimachinery::value::Value;

use super::addresses::{self, Family};
use super::{HEADLESS, is_headless, list, needs_address};
use crate::allowed::core_v1::ServiceSpec;

const SINGLE: &str = "SingleStack";
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";
const NOT_CHANGED: &str = "may not change once set";

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
pub fn settle(service: &mut Value, old: Option<&Value>, cluster: Families) -> Result<(), ErrorList> {
    let was = old.map(crate::services::spec);
    if !needs_address(crate::services::spec(service))
        || was.is_some_and(|was| stays_preferred(crate::services::spec(service), was))
    {
        return Ok(());
    }
    let spec = service.entry("spec");
    let unselected = spec.str("clusterIP") == HEADLESS
        && spec.get("selector").and_then(Value::fields).is_none_or(|selector| selector.is_empty());
    if spec.get("ipFamilyPolicy").is_none() {
        let before = was.map(|was| was.str("ipFamilyPolicy")).filter(|policy| !policy.is_empty());
        let policy = before.unwrap_or(if unselected { REQUIRE } else { SINGLE }).to_owned();
        spec.set("ipFamilyPolicy", policy);
    }
    let mut errors = ErrorList::new();
    validate(&FieldValue::of(service, "spec"), &mut errors);
    refuse(&mut errors)?;
    let spec = service.entry("spec");
    let policy = spec.str("ipFamilyPolicy").to_owned();
    match was {
        Some(was) if policy == SINGLE => shorten(spec, was),
        Some(was) => refuse_loss(spec, was, &policy, &mut errors),
        None => {}
    }
    if policy == SINGLE {
        for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
            if list(spec, field).len() == 2 {
                let wrong = format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
                );
                errors.push(FieldError::invalid(&policy_path(), &quoted(&policy), &wrong));
            }
        }
    }
    let mut families = infer(spec, cluster, &mut errors);
    refuse(&mut errors)?;
    if unselected {
        // A headless service without selector has unknown endpoints: it may have more families than the cluster.
        complete(&mut families, cluster.first, policy != SINGLE);
    } else {
        check_against_cluster(&families, &policy, cluster, &mut errors);
        refuse(&mut errors)?;
        complete(&mut families, cluster.first, policy != SINGLE && cluster.both);
    }
    spec.set("ipFamilies", families);
    Ok(())
}

fn refuse(errors: &mut ErrorList) -> Result<(), ErrorList> {
    if errors.is_empty() { Ok(()) } else { Err(std::mem::take(errors)) }
}

/// Whether an unchanged service with PreferDualStack is left alone, even if the cluster has gained a family.
fn stays_preferred(spec: &Value, was: &Value) -> bool {
    let prefers = |spec: &Value| spec.str("ipFamilyPolicy") == PREFER;
    prefers(spec)
        && (prefers(was) || was.get("ipFamilyPolicy").is_none())
        && spec.str("type") == was.str("type")
        && matches!(spec.str("type"), "ClusterIP" | "NodePort" | "LoadBalancer")
        && same(spec.get("clusterIPs"), was.get("clusterIPs"))
        && same(spec.get("ipFamilies"), was.get("ipFamilies"))
}

/// A change to a single family drops the second of unchanged lists.
fn shorten(spec: &mut Value, was: &Value) {
    for field in ["clusterIPs", "ipFamilies"] {
        let now = list(spec, field);
        if now.len() > 1 && same(spec.get(field), was.get(field)) {
            let first = now.first().map(|&first| first.to_owned()).into_iter().collect::<Vec<_>>();
            spec.set(field, first);
        }
    }
}

fn refuse_loss(spec: &Value, was: &Value, policy: &str, errors: &mut ErrorList) {
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let now = list(spec, field).len();
        if now > 0 && now < list(was, field).len() {
            let wrong = format!("must be 'SingleStack' to release the secondary {what}");
            errors.push(FieldError::invalid(&policy_path(), &quoted(policy), &wrong));
        }
    }
}

/// The stated families, and those that follow from addresses.
fn infer(spec: &Value, cluster: Families, errors: &mut ErrorList) -> Vec<String> {
    let mut families: Vec<String> = list(spec, "ipFamilies").into_iter().map(str::to_owned).collect();
    let addresses = FieldValue {
        value: spec.get("clusterIPs").unwrap_or(&Value::Null),
        path: FieldPath::new("spec").child("clusterIPs"),
    };
    for (index, address) in addresses.items().enumerate().skip(families.len()) {
        let Some(found) = addresses::parse(address.text()) else { break };
        let family = Family::of(found);
        if cluster.has(family) {
            families.push(family.as_str().to_owned());
        } else {
            let wrong = format!("{} is not configured on this cluster", family.as_str());
            errors.push(FieldError::invalid(&addresses.path.index(index), &addresses.shown(), &wrong));
        }
    }
    families
}

fn check_against_cluster(families: &[String], policy: &str, cluster: Families, errors: &mut ErrorList) {
    if policy == REQUIRE && !cluster.both {
        let wrong = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid(&policy_path(), &quoted(policy), wrong));
    }
    for (index, family) in families.iter().enumerate() {
        if !Family::parse(family).is_some_and(|family| cluster.has(family)) {
            let path = FieldPath::new("spec").child("ipFamilies").index(index);
            errors.push(FieldError::invalid(&path, &quoted(family), "not configured on this cluster"));
        }
    }
}

fn complete(families: &mut Vec<String>, first: Family, both: bool) {
    if families.is_empty() {
        families.push(first.as_str().to_owned());
    }
    if both && families.len() == 1 {
        families.extend(Family::parse(&families[0]).map(|family| family.other().as_str().to_owned()));
    }
}

/// The addresses that a new service requests: one per family, with the stated one if any.
pub fn asked_by_new(spec: &Value) -> Vec<(usize, Option<String>)> {
    let named = list(spec, "clusterIPs");
    if !needs_address(spec) || named.first() == Some(&HEADLESS) {
        return Vec::new();
    }
    let families = list(spec, "ipFamilies").len();
    (0..families).map(|index| (index, named.get(index).map(|&address| address.to_owned()))).collect()
}

/// The additional addresses that a changed service requests.
pub fn asked_by_changed(spec: &Value, was: &Value) -> Vec<(usize, Option<String>)> {
    if !needs_address(spec) {
        return Vec::new();
    }
    if !needs_address(was) {
        return asked_by_new(spec);
    }
    let grows = list(was, "ipFamilies").len() == 1 && list(spec, "ipFamilies").len() == 2;
    if !grows || list(was, "clusterIPs").first() == Some(&HEADLESS) {
        return Vec::new();
    }
    vec![(1, list(spec, "clusterIPs").get(1).map(|&address| address.to_owned()))]
}

/// Writes an allocated address.
pub fn fill(service: &mut Value, index: usize, address: &str) {
    let spec = service.entry("spec");
    let mut all: Vec<String> = list(spec, "clusterIPs").into_iter().map(str::to_owned).collect();
    all.resize(all.len().max(index + 1), String::new());
    all[index] = address.to_owned();
    spec.set("clusterIPs", all);
    if index == 0 {
        spec.set("clusterIP", address);
    }
}

/// Validates that the addresses and families of a service are consistent.
pub fn validate(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let (one, all) = (spec.child("clusterIP"), spec.child("clusterIPs"));
    let first = all.value.items().first().and_then(Value::as_str);
    match (one.text(), first) {
        ("", Some(_)) => all.invalid(errors, "must be empty when `clusterIP` is not specified"),
        ("", None) => {}
        (_, None) => all.required(errors, ""),
        (one, Some(first)) if one != first => all.invalid(errors, "first value must match `clusterIP`"),
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
    let mut broken = false;
    for (index, address) in all.items().enumerate() {
        let before = errors.len();
        if index == 0 && address.text() == HEADLESS {
            if all.len() > 1 {
                all.invalid(errors, "'None' must be the first and only value");
            }
        } else {
            address.syntax(errors, names::ip_address);
        }
        broken |= errors.len() > before;
    }
    if all.len() > 2 {
        all.invalid(errors, "may only hold up to 2 values");
    }
    // Further errors would only blame valid addresses for the invalid ones.
    if !broken {
        validate_pairs(spec, errors);
    }
}

fn validate_pairs(spec: &FieldValue<'_>, errors: &mut ErrorList) {
    let all = spec.child("clusterIPs");
    let families: Vec<Option<Family>> =
        all.items().map(|address| addresses::parse(address.text()).map(Family::of)).collect();
    if families.len() > 1 && families.iter().all(|family| *family == families[0]) {
        all.invalid(errors, "may specify no more than one IP for each IP family");
    }
    if is_headless(spec.value) {
        return;
    }
    let named = spec.child("ipFamilies");
    for (index, (address, said)) in all.items().zip(named.items()).enumerate() {
        let Some(said) = Family::parse(said.text()) else { continue };
        if families.get(index).copied().flatten() != Some(said) {
            let wrong = format!("expected an {} value as indicated by `ipFamilies[{index}]`", said.as_str());
            address.invalid(errors, &wrong);
        }
    }
}

/// Validates that a changed service keeps its addresses and families, except for the second ones.
pub fn validate_change(spec: &FieldValue<'_>, was: &FieldValue<'_>, errors: &mut ErrorList) {
    if !needs_address(spec.value) || !needs_address(was.value) {
        return;
    }
    let (headless, was_headless) = (is_headless(spec.value), is_headless(was.value));
    if headless && was_headless {
        return;
    }
    let policy = spec.child("ipFamilyPolicy");
    let (now, had) = (spec.child("clusterIPs"), was.child("clusterIPs"));
    let texts = |node: &FieldValue<'_>| node.items().map(|item| item.text().to_owned()).collect::<Vec<_>>();
    let (addresses, before) = (texts(&now), texts(&had));
    let mut wrong = |index: usize, why: &str| {
        errors.push(FieldError::invalid(&now.path.index(index), &shown_addresses(&now), why));
    };
    if addresses.len() == before.len() {
        for (index, _) in before.iter().zip(&addresses).enumerate().filter(|(_, (old, new))| old != new) {
            wrong(index, NOT_CHANGED);
        }
    } else {
        if before.len() > addresses.len() && addresses.is_empty() {
            wrong(0, "primary clusterIP can not be unset");
        }
        if !before.is_empty() && !addresses.is_empty() && addresses[0] != before[0] {
            wrong(0, NOT_CHANGED);
        }
        if before.len() > addresses.len() && addresses.len() == 1 && policy.text() != SINGLE {
            policy.invalid(errors, "must be set to 'SingleStack' when releasing the secondary clusterIP");
        }
    }
    if headless == was_headless {
        validate_family_change(spec, was, errors);
    }
}

fn validate_family_change(spec: &FieldValue<'_>, was: &FieldValue<'_>, errors: &mut ErrorList) {
    let (now, before) = (list(spec.value, "ipFamilies"), list(was.value, "ipFamilies"));
    let path = spec.path.child("ipFamilies").index(0);
    let shown: Vec<String> = now.iter().map(|family| quoted(family)).collect();
    let shown = format!("[]core.IPFamily{{{}}}", shown.join(", "));
    let addresses = shown_addresses(&spec.child("clusterIPs"));
    let policy = spec.child("ipFamilyPolicy");
    if now.len() == before.len() {
        for _ in now.iter().zip(&before).filter(|(new, old)| new != old) {
            errors.push(FieldError::invalid(&path, &shown, NOT_CHANGED));
        }
        return;
    }
    if now.len() < before.len() && spec.child("clusterIPs").is_empty() {
        errors.push(FieldError::invalid(&path, &shown, "primary ipFamily can not be unset"));
    }
    if !now.is_empty() && !before.is_empty() && now[0] != before[0] {
        errors.push(FieldError::invalid(&path, &addresses, NOT_CHANGED));
    }
    if now.len() == 1 && before.len() > 1 && policy.text() != SINGLE {
        policy.invalid(errors, "must be set to 'SingleStack' when releasing the secondary ipFamily");
    }
}

fn shown_addresses(all: &FieldValue<'_>) -> String {
    if all.is_empty() { "[]string(nil)".to_owned() } else { all.shown() }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::testing::{object, said};

    use super::*;

    const ONE: Families = Families { first: Family::V4, both: false };
    const TWO: Families = Families { first: Family::V4, both: true };

    fn settled(
        json: &str,
        old: Option<&str>,
        cluster: Families,
    ) -> Result<(Vec<String>, String), Vec<String>> {
        let mut service = object(&format!(r#"{{"spec":{json}}}"#));
        let old = old.map(|old| object(&format!(r#"{{"spec":{old}}}"#)));
        settle(&mut service, old.as_ref(), cluster).map_err(|errors| said(&errors))?;
        let spec = super::super::spec(&service);
        let families = list(spec, "ipFamilies").into_iter().map(str::to_owned).collect();
        Ok((families, spec.str("ipFamilyPolicy").to_owned()))
    }

    #[test]
    fn new_services_get_what_the_cluster_has() {
        let table = [
            (r#"{}"#, ONE, "IPv4", SINGLE),
            (r#"{}"#, TWO, "IPv4", SINGLE),
            (r#"{"ipFamilyPolicy":"PreferDualStack"}"#, ONE, "IPv4", PREFER),
            (r#"{"ipFamilyPolicy":"PreferDualStack"}"#, TWO, "IPv4 IPv6", PREFER),
            (r#"{"ipFamilyPolicy":"RequireDualStack","ipFamilies":["IPv6"]}"#, TWO, "IPv6 IPv4", REQUIRE),
            (r#"{"clusterIP":"fd00::1","clusterIPs":["fd00::1"]}"#, TWO, "IPv6", SINGLE),
            (r#"{"clusterIP":"None","clusterIPs":["None"]}"#, ONE, "IPv4 IPv6", REQUIRE),
            (r#"{"clusterIP":"None","clusterIPs":["None"],"selector":{"a":"b"}}"#, ONE, "IPv4", SINGLE),
            (r#"{"type":"ExternalName"}"#, ONE, "", ""),
        ];
        for (json, cluster, families, policy) in table {
            let found = settled(json, None, cluster).unwrap();
            assert_eq!((found.0.join(" ").as_str(), found.1.as_str()), (families, policy), "{json}");
        }
    }

    #[test]
    fn what_the_cluster_cannot_give_is_refused() {
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
        for (json, wanted) in table {
            assert_eq!(settled(json, None, ONE), Err(vec![wanted.to_owned()]), "{json}");
        }
    }

    const BOTH: &str = r#"{"type":"ClusterIP","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1","fd00::1"],
        "ipFamilies":["IPv4","IPv6"],"ipFamilyPolicy":"RequireDualStack"}"#;

    #[test]
    fn the_second_address_comes_and_goes_with_the_policy() {
        let less = BOTH.replace("RequireDualStack", "SingleStack");
        assert_eq!(settled(&less, Some(BOTH), TWO), Ok((vec!["IPv4".to_owned()], SINGLE.to_owned())));
        let silent = r#"{"type":"ClusterIP","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"ipFamilies":["IPv4","IPv6"]}"#;
        let wanted = "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the \
                      secondary cluster IP";
        assert_eq!(settled(silent, Some(BOTH), TWO), Err(vec![wanted.to_owned()]));
        let one = r#"{"type":"ClusterIP","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"ipFamilies":["IPv4"],
            "ipFamilyPolicy":"SingleStack"}"#;
        let more = one.replace(SINGLE, PREFER);
        assert_eq!(settled(&more, Some(one), TWO).unwrap().0, ["IPv4", "IPv6"]);
        // An unchanged service with PreferDualStack is not touched.
        assert_eq!(settled(&more, Some(&more), TWO).unwrap().0, ["IPv4"]);
    }

    #[test]
    fn first_addresses_and_families_stay() {
        let refused = |new: &str| {
            let (new, old) =
                (object(&format!(r#"{{"spec":{new}}}"#)), object(&format!(r#"{{"spec":{BOTH}}}"#)));
            let mut errors = ErrorList::new();
            validate_change(&FieldValue::of(&new, "spec"), &FieldValue::of(&old, "spec"), &mut errors);
            said(&errors)
        };
        assert!(refused(BOTH).is_empty());
        assert_eq!(
            refused(
                r#"{"type":"ClusterIP","clusterIPs":["10.0.0.2","fd00::1"],"ipFamilies":["IPv6","IPv4"]}"#
            ),
            [
                "spec.clusterIPs[0]: Invalid value: []string{\"10.0.0.2\", \"fd00::1\"}: may not change once set",
                "spec.ipFamilies[0]: Invalid value: []core.IPFamily{\"IPv6\", \"IPv4\"}: may not change once set",
                "spec.ipFamilies[0]: Invalid value: []core.IPFamily{\"IPv6\", \"IPv4\"}: may not change once set",
            ]
        );
        assert_eq!(
            refused(r#"{"type":"ClusterIP","clusterIPs":["10.0.0.1"],"ipFamilies":["IPv4"]}"#),
            [
                "spec.ipFamilyPolicy: Invalid value: \"null\": must be set to 'SingleStack' when releasing the secondary \
                 clusterIP",
                "spec.ipFamilyPolicy: Invalid value: \"null\": must be set to 'SingleStack' when releasing the secondary \
                 ipFamily",
            ]
        );
        assert!(refused(r#"{"type":"ExternalName"}"#).is_empty());
    }

    #[test]
    fn addresses_are_asked_for_by_family() {
        let new = object(r#"{"type":"ClusterIP","ipFamilies":["IPv4","IPv6"],"clusterIPs":["10.0.0.1"]}"#);
        assert_eq!(asked_by_new(&new), [(0, Some("10.0.0.1".to_owned())), (1, None)]);
        let one = object(r#"{"type":"ClusterIP","ipFamilies":["IPv4"],"clusterIPs":["10.0.0.1"]}"#);
        assert_eq!(asked_by_changed(&new, &one), [(1, None)]);
        assert!(asked_by_changed(&one, &new).is_empty());
        let name = object(r#"{"type":"ExternalName"}"#);
        assert_eq!(asked_by_changed(&one, &name).len(), 1);
        assert!(asked_by_changed(&name, &one).is_empty());
        assert!(asked_by_new(&object(r#"{"ipFamilies":["IPv4"],"clusterIPs":["None"]}"#)).is_empty());
        let mut service = object(r#"{"spec":{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"]}}"#);
        fill(&mut service, 1, "fd00::1");
        assert_eq!(list(super::super::spec(&service), "clusterIPs"), ["10.0.0.1", "fd00::1"]);
    }
    /// As many as a body can have: quadratic work would take minutes.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
    fn very_many_families_are_checked_in_one_pass() {
        let many: Vec<String> = (0..196_000).map(|family| format!("v{family}")).collect();
        let mut service = object(r#"{"spec":{}}"#);
        service.entry("spec").set("ipFamilies", many);
        let began = std::time::Instant::now();
        let mut errors = ErrorList::new();
        validate(&FieldValue::of(&service, "spec"), &mut errors);
        assert_eq!(errors.len(), 196_000);
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }
}
