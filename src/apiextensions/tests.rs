//! The consequences and the cost of changes to definitions.

use pilothouse_apimachinery::json;
use pilothouse_types::clock::Clock;
use tokio::sync::watch;

use super::*;

fn definition(plural: &str, kind: &str, created: &str) -> Value {
    let text = format!(
        r#"{{"metadata":{{"name":"{plural}.g","creationTimestamp":"{created}"}},"spec":{{"group":"g","scope":"Namespaced",
        "names":{{"plural":"{plural}","singular":"{plural}1","kind":"{kind}","listKind":"{kind}List"}},
        "versions":[{{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{{"type":"object"}}}}}}]}},
        "status":{{"storedVersions":["v1"]}}}}"#
    );
    json::read(text.as_bytes()).unwrap()
}

fn registry() -> Arc<Registry> {
    Arc::new(Registry::builtin().unwrap())
}

/// One round over the changes. Returns the definitions to write.
fn round(definition_set: &mut DefinitionSet, registry: &Arc<Registry>) -> (Vec<String>, Option<Defined>) {
    let changed = definition_set.settle_names("now");
    definition_set.build_resources(registry, &Clock::system());
    (changed, definition_set.take_changes(watch::channel(()).1))
}

fn is_established(definition_set: &DefinitionSet, name: &str) -> bool {
    definition_set.value(name).is_some_and(|value| status::is_true(&value, status::ESTABLISHED))
}

#[test]
fn definitions_round_costs_only_the_changed_definitions() {
    let (registry, mut definition_set) = (registry(), DefinitionSet::new(10));
    for number in 0..500u64 {
        let before = definition_set.work_counts;
        definition_set.put(
            &format!("k{number}s.g"),
            Revision(number + 2),
            definition(&format!("k{number}s"), &format!("K{number}"), "t"),
        );
        let (changed, defined) = round(&mut definition_set, &registry);
        assert_eq!(changed, [format!("k{number}s.g")]);
        assert_eq!(defined.map(|defined| defined.resources.len() as u64), Some(number + 1));
        let cost = (
            definition_set.work_counts.settled - before.settled,
            definition_set.work_counts.made - before.made,
        );
        assert_eq!(cost, (1, 1), "regardless of the other definitions");
    }
    // The written status comes back, at the cost of one check.
    let before = definition_set.work_counts;
    let value = Value::clone(&definition_set.value("k7s.g").unwrap());
    definition_set.put("k7s.g", Revision(900), value);
    assert!(round(&mut definition_set, &registry).1.is_none());
    assert_eq!(
        (definition_set.work_counts.settled - before.settled, definition_set.work_counts.made - before.made),
        (1, 0)
    );
    assert_eq!(definition_set.versions().len(), 1);
    definition_set.remove("k7s.g");
    assert_eq!(round(&mut definition_set, &registry).1.map(|defined| defined.resources.len()), Some(499));
    assert_eq!(definition_set.work_counts.settled - before.settled, 1, "no definition disputes its names");
    // The watches of its objects have time to send the last deletions.
    for is_released in [false, false, true] {
        assert_eq!(definition_set.unreleased.len(), usize::from(is_released));
        assert!(definition_set.has_stores_to_release());
        definition_set.tick_releases();
    }
    definition_set.put("k7s.g", Revision(901), definition("k7s", "K7", "2024-01-01T00:00:00Z"));
    assert!(!definition_set.has_stores_to_release(), "a store that is in use again is not released");
}

#[test]
fn accepted_names_stay_and_free_names_go_to_the_oldest_definition() {
    let (registry, mut definition_set) = (registry(), DefinitionSet::new(10));
    // Both at once: the older one gets the names, whatever its own name.
    definition_set.put("as.g", Revision(3), definition("as", "Kite", "2024-01-01T00:00:02Z"));
    definition_set.put("bs.g", Revision(2), definition("bs", "Kite", "2024-01-01T00:00:01Z"));
    round(&mut definition_set, &registry);
    assert!(is_established(&definition_set, "bs.g") && !is_established(&definition_set, "as.g"));
    // An even older one comes late: accepted names stay. So they do when their holder is written again.
    definition_set.put("cs.g", Revision(4), definition("cs", "Kite", "2023-01-01T00:00:00Z"));
    let accepted = Value::clone(&definition_set.value("bs.g").unwrap());
    definition_set.put("bs.g", Revision(9), accepted);
    round(&mut definition_set, &registry);
    assert!(is_established(&definition_set, "bs.g") && !is_established(&definition_set, "cs.g"));
    // It is removed: the oldest of the others is next, and only those are checked.
    definition_set.put("ds.g", Revision(10), definition("ds", "Dog", "2024-01-01T00:00:00Z"));
    round(&mut definition_set, &registry);
    let before = definition_set.work_counts;
    definition_set.remove("bs.g");
    let (changed, _) = round(&mut definition_set, &registry);
    assert_eq!(changed, ["cs.g"]);
    assert!(is_established(&definition_set, "cs.g") && !is_established(&definition_set, "as.g"));
    assert!(
        definition_set.work_counts.settled - before.settled <= 4,
        "two disputing definitions, and once more for the names that they give up"
    );
}

#[test]
fn unreadable_definition_keeps_its_names_and_its_store() {
    let (registry, mut definition_set) = (registry(), DefinitionSet::new(10));
    definition_set.put("as.g", Revision(2), definition("as", "Kite", "t"));
    round(&mut definition_set, &registry);
    definition_set.mark_unreadable("bad.g", Revision(5));
    assert!(
        definition_set.is_current("bad.g", Revision(5)) && !definition_set.is_current("bad.g", Revision(6))
    );
    assert!(definition_set.names().any(|name| name == "bad.g"), "its store is not released");
    let (_, defined) = round(&mut definition_set, &registry);
    assert_eq!(
        defined.map(|defined| defined.unreadable.iter().cloned().collect()),
        Some(vec!["bad.g".to_owned()])
    );
    // New names might be those of the unreadable definition. Accepted names stay.
    definition_set.put("bs.g", Revision(7), definition("bs", "Dog", "t"));
    let mut other = definition("cs", "Cow", "t");
    other.entry("spec").set("group", "h");
    definition_set.put("cs.h", Revision(8), other);
    round(&mut definition_set, &registry);
    assert!(is_established(&definition_set, "as.g") && !is_established(&definition_set, "bs.g"));
    assert!(is_established(&definition_set, "cs.h"), "other groups are not affected");
    definition_set.remove("bad.g");
    let (_, defined) = round(&mut definition_set, &registry);
    assert!(
        is_established(&definition_set, "bs.g")
            && defined.is_some_and(|defined| defined.unreadable.is_empty())
    );
    // A served definition stays served when it can no longer be read.
    definition_set.mark_unreadable("as.g", Revision(9));
    assert!(round(&mut definition_set, &registry).1.is_none() && is_established(&definition_set, "as.g"));
}

#[test]
fn definition_ordinals_wrap_around_after_the_last_one() {
    let (registry, mut definition_set) = (registry(), DefinitionSet::new(10));
    definition_set.next_ordinal = LAST_ORDINAL - 1;
    definition_set.put("as.g", Revision(2), definition("as", "A", "t"));
    definition_set.put("bs.g", Revision(3), definition("bs", "B", "t"));
    let (_, defined) = round(&mut definition_set, &registry);
    let ordinals: Vec<u32> = defined.unwrap().resources.iter().map(|resource| resource.ordinal).collect();
    assert_eq!(ordinals, [LAST_ORDINAL - 1, 10]);
}

/// Watches compare ordinals: one that begins while its definition starts to terminate must not end for that.
#[test]
fn terminating_definition_keeps_its_ordinals() {
    let (registry, mut definition_set) = (registry(), DefinitionSet::new(10));
    definition_set.put("as.g", Revision(2), definition("as", "A", "t"));
    let mut resource_after = |change: &dyn Fn(&mut Value)| {
        let mut value = Value::clone(&definition_set.value("as.g").unwrap());
        change(&mut value);
        definition_set.put("as.g", Revision(3), value);
        let defined = round(&mut definition_set, &registry).1.unwrap();
        let custom = defined.resources[0].custom.clone().unwrap();
        (custom.ordinals.clone(), custom.is_terminating, defined.changed.len())
    };
    let (ordinals, ..) = resource_after(&|_| {});
    let condition = json::read(br#"{"type":"Terminating","status":"True"}"#).unwrap();
    let terminate = |value: &mut Value| {
        let Value::Array(conditions) = value.entry("status").entry("conditions") else {
            panic!("no conditions")
        };
        conditions.push(condition.clone());
    };
    assert_eq!(resource_after(&terminate), (ordinals.clone(), true, 0));
    let preserve = |value: &mut Value| value.entry("spec").set("preserveUnknownFields", Value::Bool(false));
    let (changed_ordinals, _, closed_types) = resource_after(&preserve);
    assert!(changed_ordinals != ordinals && closed_types == 1);
}
