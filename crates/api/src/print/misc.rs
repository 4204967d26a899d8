//! Rows of kinds that belong to no other file.

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, UNSET, cells, condition, first_few, or, quantity};
use crate::age;

/// How many servers of a storage version are shown.
const FEW: usize = 3;

/// Cells of a config map.
pub fn config_map(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), it.count("data").saturating_add(it.count("binaryData")), it.age()]
}

/// Cells of a secret.
pub fn secret(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), it.text("type"), it.count("data"), it.age()]
}

/// Cells of a service account.
pub fn service_account(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), it.count("secrets"), it.age()]
}

/// Cells of a namespace.
pub fn namespace(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), it.text("status.phase"), it.age()]
}

/// Cells of a component status.
pub fn component_status(it: &PrintedObject<'_>) -> Vec<Value> {
    let healthy = condition(it.items("conditions"), "Healthy");
    let status = match healthy.map(|healthy| healthy.str("status")) {
        None => "Unknown",
        Some("True") => "Healthy",
        Some(_) => "Unhealthy",
    };
    let said = |field: &str| healthy.map(|healthy| healthy.str(field)).unwrap_or_default();
    cells![it.name(), status, said("message"), said("error")]
}

/// Cells of a resource quota: what is used of what is allowed.
pub fn quota(it: &PrintedObject<'_>) -> Vec<Value> {
    let hard = it.at("status.hard").and_then(Value::fields).into_iter().flatten();
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, allowed) in hard {
        let used = quantity(it.object.at(&["status", "used", resource]));
        let cell = if resource.starts_with("limits.") { &mut limits } else { &mut requests };
        cell.push(format!("{resource}: {used}/{}", quantity(Some(allowed))));
    }
    cells![it.name(), requests.join(", "), limits.join(", "), it.age()]
}

/// Cells of an event. A series says itself how often and when it was seen.
pub fn event(it: &PrintedObject<'_>) -> Vec<Value> {
    let first = it.instant("firstTimestamp").or_else(|| it.instant("eventTime"));
    let series = it.at("series");
    let last = match series {
        Some(_) => it.instant("series.lastObservedTime"),
        None => it.instant("lastTimestamp").or(first),
    };
    let count = match (series, it.int("count")) {
        (Some(_), _) => it.int("series.count"),
        (None, 0) => 1,
        (None, count) => count,
    };
    let kind = it.text("involvedObject.kind").to_lowercase();
    let target = match it.text("involvedObject.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component = or(it.text("source.component"), it.text("reportingComponent"));
    let source = match or(it.text("source.host"), it.text("reportingInstance")) {
        "" => component.to_owned(),
        instance => format!("{component}, {instance}"),
    };
    cells![
        age::since(last, it.now),
        it.text("type"),
        it.text("reason"),
        target,
        it.text("involvedObject.fieldPath"),
        source,
        it.text("message").trim(),
        age::since(first, it.now),
        count,
        it.name()
    ]
}

/// Cells of a priority class.
pub fn priority_class(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        it.name(),
        it.int("value"),
        it.flag("globalDefault").unwrap_or(false),
        it.age(),
        it.text("preemptionPolicy")
    ]
}

/// Cells of a request for a certificate.
pub fn signing_request(it: &PrintedObject<'_>) -> Vec<Value> {
    let has = |kind: &str| condition(it.items("status.conditions"), kind).is_some();
    let decision = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    };
    let failed = if has("Failed") { ",Failed" } else { "" };
    let issued = if it.text("status.certificate").is_empty() { "" } else { ",Issued" };
    let lifetime = it.at("spec.expirationSeconds").and_then(Value::as_int).map(age::length);
    cells![
        it.name(),
        it.age(),
        or(it.text("spec.signerName"), NONE),
        it.text("spec.username"),
        lifetime.unwrap_or_else(|| NONE.to_owned()),
        format!("{decision}{failed}{issued}")
    ]
}

/// Cells of a bundle of trust anchors.
pub fn trust_bundle(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), or(it.text("spec.signerName"), NONE)]
}

/// Cells of a lease.
pub fn lease(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![it.name(), it.text("spec.holderIdentity"), it.age()]
}

/// Cells of a candidate for a lease.
pub fn lease_candidate(it: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        it.name(),
        it.text("spec.leaseName"),
        it.text("spec.binaryVersion"),
        it.text("spec.emulationVersion"),
        it.age()
    ]
}

/// Cells of a storage version.
pub fn storage_version(it: &PrintedObject<'_>) -> Vec<Value> {
    let servers: Vec<String> = it
        .items("status.storageVersions")
        .iter()
        .map(|server| format!("{}={}", server.str("apiServerID"), server.str("encodingVersion")))
        .collect();
    cells![
        it.name(),
        it.at("status.commonEncodingVersion").and_then(Value::as_str).unwrap_or(UNSET),
        or(&first_few(&servers, FEW), UNSET),
        it.age()
    ]
}

/// Cells of a migration to a storage version.
pub fn storage_migration(it: &PrintedObject<'_>) -> Vec<Value> {
    let part = |field: &str| it.text(&format!("spec.resource.{field}"));
    cells![it.name(), format!("{}.{}.{}", part("resource"), part("version"), part("group"))]
}

/// Cells of an API service.
pub fn api_service(it: &PrintedObject<'_>) -> Vec<Value> {
    let service = it.at("spec.service");
    let service = service.map(|service| format!("{}/{}", service.str("namespace"), service.str("name")));
    let available = match condition(it.items("status.conditions"), "Available") {
        None => "Unknown".to_owned(),
        Some(available) => match (available.str("status"), available.str("reason")) {
            (status @ "True", _) | (status, "") => status.to_owned(),
            (status, reason) => format!("{status} ({reason})"),
        },
    };
    cells![it.name(), service.unwrap_or_else(|| "Local".to_owned()), available, it.age()]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::shows;

    #[test]
    fn kinds_that_count_their_content() {
        let named = |rest: &str| format!(r#"{{"metadata":{{"name":"x"}},{rest}}}"#);
        for (group, kind, rest, row) in [
            ("", "ConfigMap", r#""data":{"a":"","b":""},"binaryData":{"c":""}"#, r#"["x",3,"<unknown>"]"#),
            ("", "Secret", r#""type":"Opaque","data":{"a":""}"#, r#"["x","Opaque",1,"<unknown>"]"#),
            ("", "ServiceAccount", r#""secrets":[{},{}]"#, r#"["x",2,"<unknown>"]"#),
            ("", "Namespace", r#""status":{"phase":"Active"}"#, r#"["x","Active","<unknown>"]"#),
            (
                "scheduling.k8s.io",
                "PriorityClass",
                r#""value":-7,"globalDefault":true,"preemptionPolicy":"Never""#,
                r#"["x",-7,true,"<unknown>","Never"]"#,
            ),
            ("scheduling.k8s.io", "PriorityClass", r#""value":1"#, r#"["x",1,false,"<unknown>",""]"#),
            (
                "coordination.k8s.io",
                "Lease",
                r#""spec":{"holderIdentity":"me"}"#,
                r#"["x","me","<unknown>"]"#,
            ),
            (
                "coordination.k8s.io",
                "LeaseCandidate",
                r#""spec":{"leaseName":"l","binaryVersion":"1.33.0","emulationVersion":"1.32.0"}"#,
                r#"["x","l","1.33.0","1.32.0","<unknown>"]"#,
            ),
            ("certificates.k8s.io", "ClusterTrustBundle", r#""spec":{}"#, r#"["x","<none>"]"#),
            (
                "certificates.k8s.io",
                "ClusterTrustBundle",
                r#""spec":{"signerName":"e.com/s"}"#,
                r#"["x","e.com/s"]"#,
            ),
            (
                "storagemigration.k8s.io",
                "StorageVersionMigration",
                r#""spec":{"resource":{"group":"g","version":"v1","resource":"things"}}"#,
                r#"["x","things.v1.g"]"#,
            ),
        ] {
            shows(group, kind, &named(rest), row);
        }
    }

    #[test]
    fn components_are_healthy_or_not() {
        for (conditions, rest) in [
            ("", r#""Unknown","","""#),
            (r#"{"type":"Healthy","status":"True","message":"ok"}"#, r#""Healthy","ok","""#),
            (r#"{"type":"Healthy","status":"False","error":"no"}"#, r#""Unhealthy","","no""#),
        ] {
            let object = format!(r#"{{"metadata":{{"name":"c"}},"conditions":[{conditions}]}}"#);
            shows("", "ComponentStatus", &object, &format!(r#"["c",{rest}]"#));
        }
    }

    #[test]
    fn quotas_tell_requests_from_limits() {
        shows(
            "",
            "ResourceQuota",
            r#"{"metadata":{"name":"q"},"status":{"used":{"pods":"2","limits.cpu":"1"},
                "hard":{"requests.cpu":"1","pods":"10","limits.memory":"1Gi","limits.cpu":"2","limits":"3"}}}"#,
            r#"["q","limits: 0/3, pods: 2/10, requests.cpu: 0/1","limits.cpu: 1/2, limits.memory: 0/1Gi","<unknown>"]"#,
        );
    }

    #[test]
    fn events_tell_when_they_were_seen() {
        let pod = r#""involvedObject":{"kind":"Pod","name":"p","fieldPath":"spec"}"#;
        let object = |rest: &str| {
            format!(r#"{{"metadata":{{"name":"e"}},"type":"Normal","reason":"R","message":" m\n",{rest}}}"#)
        };
        let row = |last: &str, target: &str, source: &str, first: &str, count: i64| {
            format!(r#"["{last}","Normal","R",{target},"{source}","m","{first}",{count},"e"]"#)
        };
        let of_pod = r#""pod/p","spec""#;
        let seen = r#""firstTimestamp":"2024-05-01T12:00:00Z","lastTimestamp":"2024-05-01T12:09:00Z""#;
        for (rest, expected) in [
            (
                format!(r#"{pod},{seen},"count":4,"source":{{"component":"c","host":"h"}}"#),
                row("60s", of_pod, "c, h", "10m", 4),
            ),
            (format!(r#"{pod},"source":{{"component":"c"}}"#), row("<unknown>", of_pod, "c", "<unknown>", 1)),
            (
                format!(
                    r#"{pod},"eventTime":"2024-05-01T12:08:00.000000Z","reportingComponent":"r","reportingInstance":"i""#
                ),
                row("2m", of_pod, "r, i", "2m", 1),
            ),
            (
                format!(
                    r#"{pod},{seen},"count":4,"series":{{"count":9,"lastObservedTime":"2024-05-01T12:09:50.000000Z"}}"#
                ),
                row("10s", of_pod, "", "10m", 9),
            ),
            (
                r#""involvedObject":{"kind":"Node"}"#.to_owned(),
                row("<unknown>", r#""node","""#, "", "<unknown>", 1),
            ),
        ] {
            shows("", "Event", &object(&rest), &expected);
            shows("events.k8s.io", "Event", &object(&rest), &expected);
        }
    }

    #[test]
    fn requests_for_certificates_tell_their_state() {
        let row = |signer: &str, lifetime: &str, state: &str| {
            format!(r#"["r","<unknown>","{signer}","u","{lifetime}","{state}"]"#)
        };
        let conditions = |kinds: &[&str]| {
            let all: Vec<String> = kinds.iter().map(|kind| format!(r#"{{"type":"{kind}"}}"#)).collect();
            format!(r#""conditions":[{}]"#, all.join(","))
        };
        for (spec, status, expected) in [
            ("", conditions(&[]), row("<none>", "<none>", "Pending")),
            (
                r#","signerName":"e.com/s","expirationSeconds":3600"#,
                format!(r#"{},"certificate":"YQ==""#, conditions(&["Approved"])),
                row("e.com/s", "60m", "Approved,Issued"),
            ),
            ("", conditions(&["Approved", "Denied"]), row("<none>", "<none>", "Denied")),
            ("", conditions(&["Approved", "Failed"]), row("<none>", "<none>", "Approved,Failed")),
        ] {
            let object = format!(
                r#"{{"metadata":{{"name":"r"}},"spec":{{"username":"u"{spec}}},"status":{{{status}}}}}"#
            );
            shows("certificates.k8s.io", "CertificateSigningRequest", &object, &expected);
        }
    }

    #[test]
    fn storage_versions_show_some_servers() {
        let server = |id: u32| format!(r#"{{"apiServerID":"s{id}","encodingVersion":"v1"}}"#);
        let all: Vec<String> = (1..=5).map(server).collect();
        let object = format!(
            r#"{{"metadata":{{"name":"x"}},"status":{{"commonEncodingVersion":"v1","storageVersions":[{}]}}}}"#,
            all.join(",")
        );
        let group = "internal.apiserver.k8s.io";
        let row = r#"["x","v1","s1=v1,s2=v1,s3=v1 + 2 more...","<unknown>"]"#;
        shows(group, "StorageVersion", &object, row);
        shows(group, "StorageVersion", "{}", r#"["","<unset>","<unset>","<unknown>"]"#);
    }

    #[test]
    fn api_services_tell_who_answers() {
        let group = "apiregistration.k8s.io";
        for (spec, condition, rest) in [
            ("{}", "", r#""Local","Unknown""#),
            ("{}", r#"{"type":"Available","status":"True","reason":"Local"}"#, r#""Local","True""#),
            (
                r#"{"service":{"namespace":"n","name":"s"}}"#,
                r#"{"type":"Available","status":"False","reason":"MissingEndpoints"}"#,
                r#""n/s","False (MissingEndpoints)""#,
            ),
            ("{}", r#"{"type":"Available","status":"False"}"#, r#""Local","False""#),
        ] {
            let object = format!(
                r#"{{"metadata":{{"name":"a"}},"spec":{spec},"status":{{"conditions":[{condition}]}}}}"#
            );
            shows(group, "APIService", &object, &format!(r#"["a",{rest},"<unknown>"]"#));
        }
    }
}
