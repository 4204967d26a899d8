#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected fails")]

mod groups;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::apply::apply;
use super::field_set::PathElement;
use super::managers::is_reset;
use super::*;
use crate::json;
use crate::schema::default;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::builtin().unwrap());

fn value(text: &str) -> Value {
    json::read(text.as_bytes()).unwrap()
}

fn text(value: &Value) -> String {
    String::from_utf8(json::to_json(value)).unwrap()
}

/// A kind in its one version.
struct Fixture {
    kind: &'static str,
    version: GroupVersion,
}

impl Fixture {
    fn new(api_version: &str, kind: &'static str) -> Fixture {
        Fixture { kind, version: GroupVersion::parse(api_version).unwrap() }
    }

    fn versions(&self) -> Versions<'_> {
        Versions {
            registry: &REGISTRY,
            kind: self.kind,
            stored: &self.version,
            conversion: Conversion::Table(ConversionTable::EMPTY),
            is_custom: false,
        }
    }

    fn write<'a>(&'a self, manager: &'a str, now: &'a str) -> Write<'a> {
        Write { manager, version: &self.version, subresource: "", now, reset: &[] }
    }

    fn update(&self, manager: &str, now: &str, old: Option<&Value>, new: &str) -> Value {
        let mut new = value(new);
        default::apply(&REGISTRY, self.versions().type_in(&self.version).unwrap(), &mut new);
        record(&self.versions(), &self.write(manager, now), old, &mut new);
        new
    }

    fn apply(&self, manager: &str, now: &str, live: Option<&Value>, config: &str) -> Result<Value, String> {
        self.apply_as(&self.write(manager, now), live, config, false)
    }

    fn force_apply(&self, manager: &str, live: Option<&Value>, config: &str) -> Result<Value, String> {
        self.apply_as(&self.write(manager, "1"), live, config, true)
    }

    fn apply_as(
        &self,
        write: &Write<'_>,
        live: Option<&Value>,
        config: &str,
        force: bool,
    ) -> Result<Value, String> {
        let applied = apply(&self.versions(), write, live, &value(config), force);
        let applied = applied.map_err(|status| status.message.clone())?;
        let mut object = applied.onto(live);
        object.entry("metadata").set("uid", "u");
        Ok(object)
    }
}

fn map(data: &str) -> String {
    format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"a","uid":"u"}},"data":{data}}}"#)
}

/// The owners of an object, each with its fields.
fn owners(object: &Value) -> Vec<(String, String)> {
    let entries = object.get_path(&["metadata", "managedFields"]).map(Value::items).unwrap_or_default();
    let owner = |entry: &Value| {
        let name = format!("{} {} {}", entry.str("manager"), entry.str("operation"), entry.str("time"));
        (name.trim_end().to_owned(), text(entry.get("fieldsV1").unwrap()))
    };
    entries.iter().map(owner).collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(owner, fields)| ((*owner).to_owned(), (*fields).to_owned())).collect()
}

#[test]
fn create_owns_all_printed_fields() {
    let deployment = Fixture::new("apps/v1", "Deployment").update(
        "golden",
        "1",
        None,
        r#"{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"d","labels":{"a":"b"}},"spec":{"replicas":1,
            "selector":{"matchLabels":{"app":"a"}},"template":{"metadata":{"labels":{"app":"a"}},"spec":{
            "containers":[{"name":"c","image":"i","ports":[{"containerPort":8080}]}],"securityContext":{}}}}}"#,
    );
    let expected = concat!(
        r#"{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:progressDeadlineSeconds":{},"f:replicas":{},"#,
        r#""f:revisionHistoryLimit":{},"f:selector":{},"f:strategy":{"f:type":{}},"f:template":{"#,
        r#""f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"#,
        r#""f:image":{},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"#,
        r#""f:containerPort":{},"f:protocol":{}}},"f:resources":{},"f:terminationMessagePath":{},"#,
        r#""f:terminationMessagePolicy":{}}},"f:dnsPolicy":{},"f:restartPolicy":{},"f:schedulerName":{},"#,
        r#""f:securityContext":{},"f:terminationGracePeriodSeconds":{}}}}}"#,
    );
    assert_eq!(owners(&deployment), owned(&[("golden Update 1", expected)]));
}

#[test]
fn update_takes_over_only_changed_fields() {
    let fixture = Fixture::new("v1", "ConfigMap");
    let first = fixture.update("a", "1", None, &map(r#"{"x":"1","y":"1"}"#));
    assert_eq!(owners(&first), owned(&[("a Update 1", r#"{"f:data":{".":{},"f:x":{},"f:y":{}}}"#)]));
    let second = fixture.update("b", "2", Some(&first), &map(r#"{"x":"2","y":"1"}"#));
    let expected =
        [("a Update 1", r#"{"f:data":{".":{},"f:y":{}}}"#), ("b Update 2", r#"{"f:data":{"f:x":{}}}"#)];
    assert_eq!(owners(&second), owned(&expected));
    // A no-op changes neither owners nor times.
    let again = fixture.update("c", "3", Some(&second), &map(r#"{"x":"2","y":"1"}"#));
    assert_eq!(owners(&again), owned(&expected));
    let removed = fixture.update("c", "3", Some(&second), &map(r#"{"y":"1"}"#));
    assert_eq!(owners(&removed), owned(&[("a Update 1", r#"{"f:data":{".":{},"f:y":{}}}"#)]));
}

#[test]
fn managed_fields_of_client_are_used_if_valid() {
    let fixture = Fixture::new("v1", "ConfigMap");
    let old = fixture.update("a", "1", None, &map(r#"{"x":"1"}"#));
    let owners_with = |entries: &str| {
        let mut new = value(&map(r#"{"x":"1"}"#));
        new.entry("metadata").set("managedFields", value(entries));
        record(&fixture.versions(), &fixture.write("b", "2"), Some(&old), &mut new);
        owners(&new)
    };
    let stored = owned(&[("a Update 1", r#"{"f:data":{".":{},"f:x":{}}}"#)]);
    assert_eq!(owners_with("[{}]"), []);
    for invalid in [
        "[]",
        r#"[{"manager":"z","operation":"Bogus"}]"#,
        r#"[{"manager":"z","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV2"}]"#,
        r#"[{"manager":"z","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"x":{}}}]"#,
    ] {
        assert_eq!(owners_with(invalid), stored, "{invalid}");
    }
    let stated = r#"[{"manager":"z","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:x":{}}}}]"#;
    assert_eq!(owners_with(stated), owned(&[("z Apply", r#"{"f:data":{"f:x":{}}}"#)]));
    assert!(is_reset(Some(&value("[{}]"))) && !is_reset(Some(&value("[]"))) && !is_reset(None));
}

#[test]
fn object_without_managers_gets_them_at_first_apply() {
    let fixture = Fixture::new("v1", "ConfigMap");
    let old = value(&map(r#"{"x":"1"}"#));
    assert_eq!(owners(&fixture.update("b", "2", Some(&old), &map(r#"{"x":"2"}"#))), []);
    let applied = fixture.apply("m", "3", Some(&old), &map(r#"{"x":"1"}"#).replace(r#","uid":"u""#, ""));
    let expected = [
        ("m Apply", r#"{"f:data":{"f:x":{}}}"#),
        ("before-first-apply Update 3", r#"{"f:data":{".":{},"f:x":{}}}"#),
    ];
    assert_eq!(owners(&applied.unwrap()), owned(&expected));
    let refused = fixture.apply("m", "3", Some(&old), &map(r#"{"x":"5"}"#)).unwrap_err();
    assert_eq!(
        refused,
        r#"Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .data.x"#
    );
}

#[test]
fn oldest_update_entries_are_merged_over_the_limit() {
    let fixture = Fixture::new("v1", "ConfigMap");
    let mut object = fixture.update("m00", "00", None, &map(r#"{"k00":""}"#));
    for number in 1..14 {
        let keys: Vec<String> = (0..=number).map(|key| format!(r#""k{key:02}":"""#)).collect();
        let (manager, now) = (format!("m{number:02}"), format!("{number:02}"));
        object = fixture.update(&manager, &now, Some(&object), &map(&format!("{{{}}}", keys.join(","))));
    }
    let owners = owners(&object);
    assert_eq!(owners.len(), 10);
    let ancient = r#"{"f:data":{".":{},"f:k00":{},"f:k01":{},"f:k02":{},"f:k03":{},"f:k04":{}}}"#;
    assert_eq!(owners.first().unwrap(), &("ancient-changes Update 04".to_owned(), ancient.to_owned()));
}

#[test]
fn apply_that_states_unowned_fields_is_no_repetition() {
    let fixture = Fixture::new("v1", "ConfigMap");
    let config = map(r#"{"x":"1"}"#).replace(r#","uid":"u""#, "");
    let live = fixture.apply("m", "1", None, &config).unwrap();
    let again = |config: &str| {
        apply(&fixture.versions(), &fixture.write("m", "2"), Some(&live), &value(config), false).unwrap()
    };
    assert!(again(&config).object.is_none());
    for stated in ["resourceVersion", "uid", "namespace"] {
        let other = config.replace(r#""name":"a""#, &format!(r#""name":"a","{stated}":"7""#));
        let applied = again(&other).object.expect(stated);
        assert_eq!(applied.get_path(&["metadata", stated]), Some(&"7".into()));
    }
}

#[test]
fn ten_thousand_managers_of_client_are_kept_or_merged() {
    let fixture = Fixture::new("v1", "ConfigMap");
    let old = fixture.update("a", "1", None, &map(r#"{"x":"1"}"#));
    let object_with = |operation: &str, versions: usize| {
        let entries = (0..10_000).map(|number| {
            let version = if number % versions == 0 { "v1".to_owned() } else { format!("v1x{}", number % versions) };
            format!(
                r#"{{"manager":"m{number:05}","operation":"{operation}","apiVersion":"{version}","fieldsType":"FieldsV1",
                    "fieldsV1":{{"f:data":{{"f:k{number}":{{}}}}}}}}"#
            )
        });
        let mut new = value(&map(r#"{"x":"1"}"#));
        let entries = format!("[{}]", entries.collect::<Vec<_>>().join(","));
        new.entry("metadata").set("managedFields", value(&entries));
        record(&fixture.versions(), &fixture.write("b", "2"), Some(&old), &mut new);
        new
    };
    let updated = owners(&object_with("Update", 1));
    assert_eq!((updated.len(), updated[0].0.as_str()), (10, "ancient-changes Update"));
    assert_eq!(value(&updated[0].1).get("f:data").unwrap().fields().unwrap().len(), 10_000 - 9);
    let applied = object_with("Apply", 1);
    assert_eq!(owners(&applied).len(), 10_000);
    let config = map(r#"{"x":"2"}"#).replace(r#","uid":"u""#, "");
    let more = fixture.apply("q", "3", Some(&applied), &config).unwrap();
    assert_eq!(owners(&more).len(), 10_001);
    assert_eq!(owners(&fixture.apply("q", "4", Some(&more), &config).unwrap()), owners(&more));
    assert_eq!(owners(&object_with("Apply", 10_000)).len(), 1, "entries of unknown versions are dropped");
}

#[test]
fn apply_removes_fields_no_longer_stated_unless_shared() {
    let fixture = Fixture::new("v1", "ConfigMap");
    let config = |labels: &str, data: &str| {
        format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"a","labels":{labels}}},"data":{data}}}"#
        )
    };
    let first = fixture.apply("m", "1", None, &config(r#"{"l":"1"}"#, r#"{"x":"1","y":"1"}"#)).unwrap();
    let shared = fixture.apply("n", "2", Some(&first), &config("{}", r#"{"y":"1"}"#)).unwrap();
    let bare = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#;
    let remaining = fixture.apply("m", "3", Some(&shared), bare).unwrap();
    assert_eq!(text(remaining.get("data").unwrap()), r#"{"y":"1"}"#);
    assert_eq!(remaining.get_path(&["metadata", "labels"]), None);
    assert_eq!((meta_name(&remaining), remaining.get_path(&["metadata", "uid"]).is_some()), ("a", true));
    let removed = fixture.apply("n", "4", Some(&remaining), bare).unwrap();
    assert_eq!(removed.get("data").filter(|data| data.fields().is_some_and(|data| !data.is_empty())), None);
    assert_eq!(owners(&removed), []);
}

fn meta_name(object: &Value) -> &str {
    crate::meta::name(object)
}

#[test]
fn associative_lists_are_merged_by_item() {
    let fixture = Fixture::new("v1", "Service");
    let config = |ports: &str| {
        format!(
            r#"{{"kind":"Service","apiVersion":"v1","metadata":{{"name":"s"}},"spec":{{"ports":{ports}}}}}"#
        )
    };
    let live = value(&config(
        r#"[{"port":1,"protocol":"TCP","name":"a"},{"port":9,"protocol":"UDP"},{"port":2,"protocol":"TCP","name":"b"}]"#,
    ));
    let order = |ports: &str| {
        let applied = fixture.force_apply("m", Some(&live), &config(ports)).unwrap();
        let ports = applied.get_path(&["spec", "ports"]).unwrap().items().iter();
        ports.map(|port| port.get("port").and_then(Value::as_int).unwrap()).collect::<Vec<_>>()
    };
    for (ports, expected) in [
        ("[]", vec![1, 9, 2]),
        (r#"[{"port":1}]"#, vec![1, 9, 2]),
        (r#"[{"port":2},{"port":1}]"#, vec![9, 2, 1]),
        (r#"[{"port":5},{"port":1},{"port":6},{"port":2}]"#, vec![5, 1, 9, 6, 2]),
        (r#"[{"port":1,"protocol":"UDP"}]"#, vec![1, 9, 2, 1]),
        // A key that is always printed has its zero value if it is not stated.
        (r#"[{"name":"a","port":0}]"#, vec![1, 9, 2, 0]),
    ] {
        assert_eq!(order(ports), expected, "{ports}");
    }
    for (ports, message) in [
        (r#"[{"port":1},{"port":1}]"#, r#".spec.ports: duplicate entries for key [port=1,protocol="TCP"]"#),
        (
            r#"[{"port":"x"}]"#,
            r#".spec.ports[port="x",protocol="TCP"].port: expected numeric (int or float), got string"#,
        ),
        (
            r#"[{"port":1,"zzz":1}]"#,
            r#".spec.ports[port=1,protocol="TCP"].zzz: field not declared in schema"#,
        ),
        ("7", ".spec.ports: expected list, got &{7}"),
    ] {
        let refused = fixture.force_apply("m", Some(&live), &config(ports)).unwrap_err();
        assert_eq!(
            refused,
            format!("failed to create typed patch object (/s; /v1, Kind=Service): {message}")
        );
    }
}

#[test]
fn reset_fields_keep_their_owners_in_all_versions() {
    let fixture = Fixture::new("autoscaling/v2", "HorizontalPodAutoscaler");
    let scaler = |rest: &str| {
        format!(
            r#"{{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2","metadata":{{"name":"a","uid":"u"}},
                "spec":{{"maxReplicas":3,"scaleTargetRef":{{"kind":"D","name":"d"}}}}{rest}}}"#
        )
    };
    let mut old = value(&scaler(r#","status":{"currentReplicas":2,"desiredReplicas":3}"#));
    let entry = r#"[{"manager":"m","operation":"Update","apiVersion":"autoscaling/v1","fieldsType":"FieldsV1",
        "fieldsV1":{"f:status":{"f:currentReplicas":{}}},"subresource":"status","time":"1"}]"#;
    old.entry("metadata").set("managedFields", value(entry));
    let mut new = value(&scaler(""));
    let reset: &[&[&str]] = &[&["status"]];
    let write = Write { reset, ..fixture.write("n", "2") };
    record(&fixture.versions(), &write, Some(&old), &mut new);
    assert_eq!(owners(&new), owned(&[("m Update 1", r#"{"f:status":{"f:currentReplicas":{}}}"#)]));
}

#[test]
fn apply_compares_literally_with_the_printed_object() {
    let fixture = Fixture::new("apps/v1", "Deployment");
    let paused = |paused: bool| {
        format!(
            r#"{{"kind":"Deployment","apiVersion":"apps/v1","metadata":{{"name":"d"}},"spec":{{"paused":{paused}}}}}"#
        )
    };
    // A stated zero value has an owner.
    let live = fixture.apply("a", "1", None, &paused(true)).unwrap();
    let refused = fixture.apply("b", "2", Some(&live), &paused(false)).unwrap_err();
    assert_eq!(refused, r#"Apply failed with 1 conflict: conflict with "a": .spec.paused"#);

    // An atomic list is printed with more fields than were stated.
    let slices = Fixture::new("discovery.k8s.io/v1", "EndpointSlice");
    let slice = |endpoint: &str| {
        format!(
            r#"{{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{{"name":"s"}},
                "addressType":"IPv4","endpoints":[{endpoint}]}}"#
        )
    };
    let short = slice(r#"{"addresses":["1.2.3.4"]}"#);
    let live = slices.apply("a", "1", None, &short).unwrap();
    assert!(slices.apply("b", "2", Some(&live), &short).unwrap_err().contains(": .endpoints"));
    let whole = slice(r#"{"addresses":["1.2.3.4"],"conditions":{}}"#);
    let same = slices.apply("b", "2", Some(&live), &whole).unwrap();
    assert!(
        owners(&same).iter().any(|(owner, _)| owner == "b Apply"),
        "nothing changed, so there is no time"
    );
}

#[test]
fn apply_of_wrong_kind_or_with_managed_fields_is_refused() {
    let fixture = Fixture::new("v1", "ConfigMap");
    let apply = |config: &str| fixture.apply("m", "1", None, config).unwrap_err();
    assert_eq!(apply(r#"{"kind":"Secret","apiVersion":"v1"}"#), "invalid object type: /v1, Kind=Secret");
    assert_eq!(apply("{}"), "invalid object type: /, Kind=");
    for entries in ["[]", "[{}]"] {
        let config =
            format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"managedFields":{entries}}}}}"#);
        assert_eq!(apply(&config), "metadata.managedFields must be nil");
    }
}

#[test]
fn conflicts_are_grouped_by_manager() {
    let fixture = Fixture::new("v1", "ConfigMap");
    let first = fixture.apply("m", "1", None, &map(r#"{"x":"1","y":"1"}"#).replace(r#","uid":"u""#, ""));
    let second = fixture.update("b", "2", Some(&first.unwrap()), &map(r#"{"x":"1","y":"1","z":"1"}"#));
    let refused = fixture.apply("n", "3", Some(&second), &map(r#"{"x":"2","y":"2","z":"2"}"#)).unwrap_err();
    assert_eq!(
        refused,
        "Apply failed with 3 conflicts: conflicts with \"b\" using v1:\n- .data.z\nconflicts with \"m\":\n- .data.x\n- .data.y"
    );
}

#[test]
fn kubectl_apply_uses_last_applied_annotation() {
    let fixture = Fixture::new("v1", "ConfigMap");
    let stated = map(r#"{"x":"1"}"#).replace(r#","uid":"u""#, "");
    let mut first = value(&map(r#"{"x":"1","y":"1"}"#));
    let annotations = first.entry("metadata").entry("annotations");
    annotations.set("kubectl.kubernetes.io/last-applied-configuration", stated.as_str());
    record(&fixture.versions(), &fixture.write("kubectl-client-side-apply", "1"), None, &mut first);
    let config = |data: &str| map(data).replace(r#","uid":"u""#, "");
    assert!(fixture.apply("other", "2", Some(&first), &config(r#"{"x":"2"}"#)).is_err());
    assert!(fixture.apply("kubectl", "2", Some(&first), &config(r#"{"y":"2"}"#)).is_err());
    let applied = fixture.apply("kubectl", "2", Some(&first), &config(r#"{"x":"2"}"#)).unwrap();
    let annotations = applied.get_path(&["metadata", "annotations"]).unwrap();
    let expected = r#"{"apiVersion":"v1","data":{"x":"2"},"kind":"ConfigMap","metadata":{"name":"a"}}"#;
    assert_eq!(annotations.str("kubectl.kubernetes.io/last-applied-configuration"), format!("{expected}\n"));
}

#[test]
fn manager_name_comes_from_option_or_user_agent() {
    for (stated, agent, name) in [
        ("m", "kubectl/v1.33", "m"),
        ("", "kubectl/v1.33 (linux)", "kubectl"),
        ("", "a\u{7}b", "ab"),
        ("", "", "unknown"),
        ("", "/x", "unknown"),
    ] {
        assert_eq!(manager_name(stated, agent), name);
    }
    assert_eq!(manager_name("", &"ä".repeat(100)).len(), 128);
}

fn element() -> impl Strategy<Value = PathElement> {
    let name = "[ab]";
    prop_oneof![
        4 => name.prop_map(|name| PathElement::field(&name)),
        1 => (0i64..3).prop_map(|port| PathElement::Key(Box::new([("port".into(), port.into())]))),
        1 => name.prop_map(|text| PathElement::Value(text.into())),
        1 => (0i64..2).prop_map(PathElement::Index),
    ]
}

fn set() -> impl Strategy<Value = FieldSet> {
    let path = proptest::collection::vec(element(), 1..4);
    proptest::collection::vec(path, 0..6).prop_map(|paths| {
        let to_set = |path: Vec<PathElement>| {
            path.into_iter().rev().fold(FieldSet::leaf(), |below, element| {
                let mut set = FieldSet::default();
                set.push(element, below);
                set
            })
        };
        paths.into_iter().map(to_set).fold(FieldSet::default(), |all, path| all.union(&path))
    })
}

#[test]
fn scale_view_shares_managers_of_replicas() {
    let (fixture, scale) = (Fixture::new("apps/v1", "ReplicaSet"), Fixture::new("autoscaling/v1", "Scale"));
    let field: &[&str] = &["spec", "replicas"];
    let view = scale_view::ScaleView {
        whole: fixture.versions(),
        version: &fixture.version,
        shown: &scale.version,
        field: field.to_vec(),
    };
    let object = |replicas: i64| {
        format!(
            r#"{{"kind":"ReplicaSet","apiVersion":"apps/v1","metadata":{{"name":"a","uid":"u"}},
                "spec":{{"replicas":{replicas},"minReadySeconds":7}}}}"#
        )
    };
    let scale_json = |replicas: i64| {
        format!(
            r#"{{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{{"name":"a","uid":"u"}},
                "spec":{{"replicas":{replicas}}}}}"#
        )
    };
    let whole = fixture.update("maker", "t1", None, &object(1));
    let mut part = value(&scale_json(1));
    view.share_managers(&whole, &mut part);
    let entry = &part.get_path(&["metadata", "managedFields"]).unwrap().items()[0];
    assert_eq!((entry.str("manager"), entry.str("apiVersion")), ("maker", "autoscaling/v1"));
    assert_eq!(text(entry.get("fieldsV1").unwrap()), r#"{"f:spec":{"f:replicas":{}}}"#);

    // Nothing changed: an updater still owns the field, but in a separate entry; an applier keeps its entry.
    let same = scale.update("scaler", "t2", Some(&part), &scale_json(1));
    let mut updated = value(&object(1));
    view.owners(&whole, &same).store(&mut updated);
    let entries = owners(&updated);
    let separate = ("maker Update".to_owned(), r#"{"f:spec":{"f:replicas":{}}}"#.to_owned());
    assert_eq!(entries.first(), Some(&separate));
    assert!(entries[1].0 == "maker Update t1" && !entries[1].1.contains("f:replicas"), "{entries:?}");
    assert_eq!(entries.len(), 2);
    let applied = fixture.apply("applier", "t1", None, &object(1)).unwrap();
    let mut part_of_applied = value(&scale_json(1));
    view.share_managers(&applied, &mut part_of_applied);
    let same = scale.update("scaler", "t2", Some(&part_of_applied), &scale_json(1));
    let mut updated = value(&object(1));
    view.owners(&applied, &same).store(&mut updated);
    assert_eq!(
        updated.get_path(&["metadata", "managedFields"]),
        applied.get_path(&["metadata", "managedFields"])
    );

    let more = scale.update("scaler", "t2", Some(&part), &scale_json(2));
    let owners = view.owners(&whole, &more);
    let names: Vec<_> =
        owners.0.iter().map(|owner| (owner.name.as_str(), owner.api_version.as_str())).collect();
    assert_eq!(names, [("maker", "apps/v1"), ("scaler", "apps/v1")]);
    assert!(owners.0[0].fields.intersection(&FieldSet::from_paths(&[field])).is_empty());
    assert_eq!(owners.0[1].fields, FieldSet::from_paths(&[field]));
    assert_eq!(owners.0[1].time, None);
}

proptest! {
    #[test]
    fn field_sets_obey_the_laws_of_sets(a in set(), b in set(), c in set()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(&a.union(&a), &a);
        prop_assert_eq!(a.difference(&a), FieldSet::default());
        prop_assert_eq!(&a.difference(&b).union(&a.intersection(&b)), &a);
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert!(a.recursive_difference(&b).difference(&a.difference(&b)).is_empty());
        prop_assert!(a.leaves().difference(&a).is_empty());
        prop_assert_eq!(a.paths().len(), a.difference(&b).paths().len() + a.intersection(&b).paths().len());
    }

    #[test]
    fn fields_v1_round_trips(a in set()) {
        prop_assert_eq!(fields_v1::read(&fields_v1::write(&a)).unwrap(), a);
    }

    /// Applies of several managers to one map of strings, compared with a model of the owners of each key.
    #[test]
    fn apply_agrees_with_a_model_of_key_owners(
        steps in proptest::collection::vec(
            (0usize..3, proptest::collection::btree_map("[abc]", "[12]", 0..4), any::<bool>()), 1..10),
    ) {
        let fixture = Fixture::new("v1", "ConfigMap");
        let mut live: Option<Value> = None;
        let mut data: BTreeMap<String, String> = BTreeMap::new();
        let mut owns: Vec<Vec<String>> = vec![Vec::new(); 3];
        for (manager, config, force) in steps {
            // An empty map that is stated has an owner of its own.
            let stated = serde_json::to_string(&Some(&config).filter(|config| !config.is_empty())).unwrap();
            let text = map(&stated).replace(r#","uid":"u""#, "").replace(r#","data":null"#, "");
            let applied = fixture.apply_as(&fixture.write(&format!("m{manager}"), "1"), live.as_ref(), &text, force);
            let others = |key: &String| (0..3).any(|other| other != manager && owns[other].contains(key));
            let contested = config.iter().any(|(key, value)| others(key) && data.get(key) != Some(value));
            prop_assert_eq!(applied.is_err(), contested && !force);
            let Ok(applied) = applied else { continue };
            for key in owns[manager].clone() {
                if !config.contains_key(&key) && !others(&key) {
                    data.remove(&key);
                }
            }
            for (key, value) in &config {
                if data.get(key) != Some(value) {
                    owns.iter_mut().for_each(|keys| keys.retain(|other| other != key));
                }
                data.insert(key.clone(), value.clone());
            }
            owns[manager] = config.keys().cloned().collect();
            let actual: BTreeMap<String, String> = applied.get("data").and_then(Value::fields).into_iter().flatten()
                .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect();
            prop_assert_eq!(&actual, &data);
            for (other, keys) in owns.iter().enumerate() {
                let entry = owners(&applied).into_iter().find(|(name, _)| name.starts_with(&format!("m{other} ")));
                let fields = entry.map_or(Value::object(), |(_, fields)| value(&fields));
                let owned_keys: Vec<String> = fields.get("f:data").and_then(Value::fields).into_iter().flatten()
                    .filter_map(|(key, _)| key.strip_prefix("f:").map(str::to_owned)).collect();
                prop_assert_eq!(&owned_keys, keys);
            }
            live = Some(applied);
        }
    }
}

#[test]
fn keep_times_ignores_the_order_of_managers() {
    let owners = |times: [&str; 2], order: [usize; 2]| {
        let owner = |index: usize| {
            format!(
                r#"{{"manager":"m{index}","operation":"Apply","apiVersion":"v1","time":"{}"}}"#,
                times[index]
            )
        };
        value(&format!(r#"{{"metadata":{{"managedFields":[{},{}]}}}}"#, owner(order[0]), owner(order[1])))
    };
    let old = owners(["1", "2"], [0, 1]);
    let mut new = owners(["3", "2"], [1, 0]);
    keep_times(&old, &mut new);
    assert_eq!(new, old);
    let mut other = owners(["3", "2"], [1, 1]);
    keep_times(&old, &mut other);
    assert_ne!(other, old);
}
