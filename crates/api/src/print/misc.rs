//! Rows of kinds that belong to no other file.

use pilothouse_apimachinery::value::Value;

use super::cells::{NONE, PrintedObject, UNSET, cells, condition, first_few, quantity, text_or};
use crate::age;

/// The number of servers that the cell of a storage version lists.
const MAX_SHOWN: usize = 3;

/// Cells of a config map.
pub fn config_map(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), object.count("data").saturating_add(object.count("binaryData")), object.age()]
}

/// Cells of a secret.
pub fn secret(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), object.text("type"), object.count("data"), object.age()]
}

/// Cells of a service account.
pub fn service_account(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), object.count("secrets"), object.age()]
}

/// Cells of a namespace.
pub fn namespace(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), object.text("status.phase"), object.age()]
}

/// Cells of a component status.
pub fn component_status(object: &PrintedObject<'_>) -> Vec<Value> {
    let healthy = condition(object.items("conditions"), "Healthy");
    let status = match healthy.map(|healthy| healthy.str("status")) {
        None => "Unknown",
        Some("True") => "Healthy",
        Some(_) => "Unhealthy",
    };
    let detail = |field: &str| healthy.map(|healthy| healthy.str(field)).unwrap_or_default();
    cells![object.name(), status, detail("message"), detail("error")]
}

/// Cells of a resource quota: used and hard amounts.
pub fn quota(object: &PrintedObject<'_>) -> Vec<Value> {
    let hard = object.field("status.hard").and_then(Value::fields).into_iter().flatten();
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, allowed) in hard {
        let used = quantity(object.value.get_path(&["status", "used", resource]));
        let cell = if resource.starts_with("limits.") { &mut limits } else { &mut requests };
        cell.push(format!("{resource}: {used}/{}", quantity(Some(allowed))));
    }
    cells![object.name(), requests.join(", "), limits.join(", "), object.age()]
}

/// Cells of an event. A series has its own count and time.
pub fn event(object: &PrintedObject<'_>) -> Vec<Value> {
    let first = object.instant("firstTimestamp").or_else(|| object.instant("eventTime"));
    let series = object.field("series");
    let last = match series {
        Some(_) => object.instant("series.lastObservedTime"),
        None => object.instant("lastTimestamp").or(first),
    };
    let count = match (series, object.int("count")) {
        (Some(_), _) => object.int("series.count"),
        (None, 0) => 1,
        (None, count) => count,
    };
    let kind = object.text("involvedObject.kind").to_lowercase();
    let target = match object.text("involvedObject.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component = text_or(object.text("source.component"), object.text("reportingComponent"));
    let source = match text_or(object.text("source.host"), object.text("reportingInstance")) {
        "" => component.to_owned(),
        instance => format!("{component}, {instance}"),
    };
    cells![
        object.ages.since(last),
        object.text("type"),
        object.text("reason"),
        target,
        object.text("involvedObject.fieldPath"),
        source,
        object.text("message").trim(),
        object.ages.since(first),
        count,
        object.name()
    ]
}

/// Cells of a priority class.
pub fn priority_class(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        object.name(),
        object.int("value"),
        object.flag("globalDefault").unwrap_or(false),
        object.age(),
        object.text("preemptionPolicy")
    ]
}

/// Cells of a request for a certificate.
pub fn signing_request(object: &PrintedObject<'_>) -> Vec<Value> {
    let has_condition = |kind: &str| condition(object.items("status.conditions"), kind).is_some();
    let decision = match (has_condition("Denied"), has_condition("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    };
    let failed = if has_condition("Failed") { ",Failed" } else { "" };
    let issued = if object.text("status.certificate").is_empty() { "" } else { ",Issued" };
    let lifetime = object.field("spec.expirationSeconds").and_then(Value::as_int).map(age::format_duration);
    cells![
        object.name(),
        object.age(),
        text_or(object.text("spec.signerName"), NONE),
        object.text("spec.username"),
        lifetime.unwrap_or_else(|| NONE.to_owned()),
        format!("{decision}{failed}{issued}")
    ]
}

/// Cells of a bundle of trust anchors.
pub fn trust_bundle(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), text_or(object.text("spec.signerName"), NONE)]
}

/// Cells of a lease.
pub fn lease(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![object.name(), object.text("spec.holderIdentity"), object.age()]
}

/// Cells of a candidate for a lease.
pub fn lease_candidate(object: &PrintedObject<'_>) -> Vec<Value> {
    cells![
        object.name(),
        object.text("spec.leaseName"),
        object.text("spec.binaryVersion"),
        object.text("spec.emulationVersion"),
        object.age()
    ]
}

/// Cells of a storage version.
pub fn storage_version(object: &PrintedObject<'_>) -> Vec<Value> {
    let servers: Vec<String> = object
        .items("status.storageVersions")
        .iter()
        .map(|server| format!("{}={}", server.str("apiServerID"), server.str("encodingVersion")))
        .collect();
    cells![
        object.name(),
        object.field("status.commonEncodingVersion").and_then(Value::as_str).unwrap_or(UNSET),
        text_or(&first_few(&servers, MAX_SHOWN), UNSET),
        object.age()
    ]
}

/// Cells of a migration to a storage version.
pub fn storage_migration(object: &PrintedObject<'_>) -> Vec<Value> {
    let part = |field: &str| object.text(&format!("spec.resource.{field}"));
    cells![object.name(), format!("{}.{}.{}", part("resource"), part("version"), part("group"))]
}

/// Cells of an API service.
pub fn api_service(object: &PrintedObject<'_>) -> Vec<Value> {
    let service = object.field("spec.service");
    let service = service.map(|service| format!("{}/{}", service.str("namespace"), service.str("name")));
    let available = match condition(object.items("status.conditions"), "Available") {
        None => "Unknown".to_owned(),
        Some(available) => match (available.str("status"), available.str("reason")) {
            (status @ "True", _) | (status, "") => status.to_owned(),
            (status, reason) => format!("{status} ({reason})"),
        },
    };
    cells![object.name(), service.unwrap_or_else(|| "Local".to_owned()), available, object.age()]
}

#[cfg(test)]
mod tests {
    use crate::print::testing::assert_cells;

    #[test]
    fn simple_kinds_show_counts_and_fields() {
        let object_with = |rest: &str| format!(r#"{{"metadata":{{"name":"x"}},{rest}}}"#);
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
            assert_cells(group, kind, &object_with(rest), row);
        }
    }

    #[test]
    fn component_status_cells_show_health() {
        for (conditions, rest) in [
            ("", r#""Unknown","","""#),
            (r#"{"type":"Healthy","status":"True","message":"ok"}"#, r#""Healthy","ok","""#),
            (r#"{"type":"Healthy","status":"False","error":"no"}"#, r#""Unhealthy","","no""#),
        ] {
            let object = format!(r#"{{"metadata":{{"name":"c"}},"conditions":[{conditions}]}}"#);
            assert_cells("", "ComponentStatus", &object, &format!(r#"["c",{rest}]"#));
        }
    }

    #[test]
    fn quota_cells_separate_requests_and_limits() {
        assert_cells(
            "",
            "ResourceQuota",
            r#"{"metadata":{"name":"q"},"status":{"used":{"pods":"2","limits.cpu":"1"},
                "hard":{"requests.cpu":"1","pods":"10","limits.memory":"1Gi","limits.cpu":"2","limits":"3"}}}"#,
            r#"["q","limits: 0/3, pods: 2/10, requests.cpu: 0/1","limits.cpu: 1/2, limits.memory: 0/1Gi","<unknown>"]"#,
        );
    }

    #[test]
    fn event_cells_show_times_source_and_count() {
        let pod = r#""involvedObject":{"kind":"Pod","name":"p","fieldPath":"spec"}"#;
        let object = |rest: &str| {
            format!(r#"{{"metadata":{{"name":"e"}},"type":"Normal","reason":"R","message":" m\n",{rest}}}"#)
        };
        let row = |last: &str, target: &str, source: &str, first: &str, count: i64| {
            format!(r#"["{last}","Normal","R",{target},"{source}","m","{first}",{count},"e"]"#)
        };
        let pod_cells = r#""pod/p","spec""#;
        let seen = r#""firstTimestamp":"2024-05-01T12:00:00Z","lastTimestamp":"2024-05-01T12:09:00Z""#;
        for (rest, expected) in [
            (
                format!(r#"{pod},{seen},"count":4,"source":{{"component":"c","host":"h"}}"#),
                row("60s", pod_cells, "c, h", "10m", 4),
            ),
            (
                format!(r#"{pod},"source":{{"component":"c"}}"#),
                row("<unknown>", pod_cells, "c", "<unknown>", 1),
            ),
            (
                format!(
                    r#"{pod},"eventTime":"2024-05-01T12:08:00.000000Z","reportingComponent":"r","reportingInstance":"i""#
                ),
                row("2m", pod_cells, "r, i", "2m", 1),
            ),
            (
                format!(
                    r#"{pod},{seen},"count":4,"series":{{"count":9,"lastObservedTime":"2024-05-01T12:09:50.000000Z"}}"#
                ),
                row("10s", pod_cells, "", "10m", 9),
            ),
            (
                r#""involvedObject":{"kind":"Node"}"#.to_owned(),
                row("<unknown>", r#""node","""#, "", "<unknown>", 1),
            ),
        ] {
            assert_cells("", "Event", &object(&rest), &expected);
            assert_cells("events.k8s.io", "Event", &object(&rest), &expected);
        }
    }

    #[test]
    fn signing_request_cells_show_state() {
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
            assert_cells("certificates.k8s.io", "CertificateSigningRequest", &object, &expected);
        }
    }

    #[test]
    fn storage_version_cells_list_the_first_servers() {
        let server = |id: u32| format!(r#"{{"apiServerID":"s{id}","encodingVersion":"v1"}}"#);
        let all: Vec<String> = (1..=5).map(server).collect();
        let object = format!(
            r#"{{"metadata":{{"name":"x"}},"status":{{"commonEncodingVersion":"v1","storageVersions":[{}]}}}}"#,
            all.join(",")
        );
        let group = "internal.apiserver.k8s.io";
        let row = r#"["x","v1","s1=v1,s2=v1,s3=v1 + 2 more...","<unknown>"]"#;
        assert_cells(group, "StorageVersion", &object, row);
        assert_cells(group, "StorageVersion", "{}", r#"["","<unset>","<unset>","<unknown>"]"#);
    }

    #[test]
    fn api_service_cells_show_service_and_availability() {
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
            assert_cells(group, "APIService", &object, &format!(r#"["a",{rest},"<unknown>"]"#));
        }
    }
}
