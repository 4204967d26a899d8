//! The consequences and the cost of changes to definitions.

use pilothouse_apimachinery::json;
use tokio::sync::watch;

use super::*;

fn definition(plural: &str, kind: &str, made: &str) -> Value {
    let text = format!(
        r#"{{"metadata":{{"name":"{plural}.g","creationTimestamp":"{made}"}},"spec":{{"group":"g","scope":"Namespaced",
        "names":{{"plural":"{plural}","singular":"{plural}1","kind":"{kind}","listKind":"{kind}List"}},
        "versions":[{{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{{"type":"object"}}}}}}]}},
        "status":{{"storedVersions":["v1"]}}}}"#
    );
    json::read(text.as_bytes()).unwrap()
}

fn registry() -> Arc<Registry> {
    Arc::new(Registry::builtin().unwrap())
}

/// One round over the changes. Answers the definitions to write.
fn round(definition_set: &mut DefinitionSet, registry: &Arc<Registry>) -> (Vec<String>, Option<Defined>) {
    let written = definition_set.settle("now");
    definition_set.make(registry);
    (written, definition_set.news(watch::channel(()).1))
}

fn is_established(definition_set: &DefinitionSet, name: &str) -> bool {
    definition_set.value(name).is_some_and(|value| status::is_true(&value, status::ESTABLISHED))
}

#[test]
fn a_round_works_on_what_changed_alone() {
    let (registry, mut definition_set) = (registry(), DefinitionSet::new(10));
    for at in 0..500u64 {
        let before = definition_set.done;
        definition_set.take_in(
            &format!("k{at}s.g"),
            Revision(at + 2),
            definition(&format!("k{at}s"), &format!("K{at}"), "t"),
        );
        let (written, news) = round(&mut definition_set, &registry);
        assert_eq!(written, [format!("k{at}s.g")]);
        assert_eq!(news.map(|news| news.resources.len() as u64), Some(at + 1));
        let cost = (definition_set.done.settled - before.settled, definition_set.done.made - before.made);
        assert_eq!(cost, (1, 1), "whatever else there is");
    }
    // The written status comes back, at the cost of one check.
    let before = definition_set.done;
    let value = Value::clone(&definition_set.value("k7s.g").unwrap());
    definition_set.take_in("k7s.g", Revision(900), value);
    assert!(round(&mut definition_set, &registry).1.is_none());
    assert_eq!(
        (definition_set.done.settled - before.settled, definition_set.done.made - before.made),
        (1, 0)
    );
    assert_eq!(definition_set.versions().len(), 1);
    definition_set.remove("k7s.g");
    assert_eq!(round(&mut definition_set, &registry).1.map(|news| news.resources.len()), Some(499));
    assert_eq!(definition_set.done.settled - before.settled, 1, "nobody waits for its names");
    // The watches of its objects have time to tell of the last deletions.
    for is_released in [false, false, true] {
        assert_eq!(definition_set.unreleased.len(), usize::from(is_released));
        assert!(definition_set.has_releases());
        definition_set.tick_releases();
    }
    definition_set.take_in("k7s.g", Revision(901), definition("k7s", "K7", "2024-01-01T00:00:00Z"));
    assert!(!definition_set.has_releases(), "a store that is in use again is not released");
}

#[test]
fn names_belong_to_whom_they_were_given_and_then_to_the_oldest() {
    let (registry, mut definition_set) = (registry(), DefinitionSet::new(10));
    // Both at once: the older one gets the names, whatever its own name.
    definition_set.take_in("as.g", Revision(3), definition("as", "Kite", "2024-01-01T00:00:02Z"));
    definition_set.take_in("bs.g", Revision(2), definition("bs", "Kite", "2024-01-01T00:00:01Z"));
    round(&mut definition_set, &registry);
    assert!(is_established(&definition_set, "bs.g") && !is_established(&definition_set, "as.g"));
    // An even older one comes late: accepted names stay. So they do when their holder is written again.
    definition_set.take_in("cs.g", Revision(4), definition("cs", "Kite", "2023-01-01T00:00:00Z"));
    let held = Value::clone(&definition_set.value("bs.g").unwrap());
    definition_set.take_in("bs.g", Revision(9), held);
    round(&mut definition_set, &registry);
    assert!(is_established(&definition_set, "bs.g") && !is_established(&definition_set, "cs.g"));
    // It is removed: the oldest of the others is next, and only those are checked.
    definition_set.take_in("ds.g", Revision(10), definition("ds", "Dog", "2024-01-01T00:00:00Z"));
    round(&mut definition_set, &registry);
    let before = definition_set.done;
    definition_set.remove("bs.g");
    let (written, _) = round(&mut definition_set, &registry);
    assert_eq!(written, ["cs.g"]);
    assert!(is_established(&definition_set, "cs.g") && !is_established(&definition_set, "as.g"));
    assert!(
        definition_set.done.settled - before.settled <= 4,
        "two who wait, and once more for what they let go"
    );
}

#[test]
fn a_definition_that_cannot_be_read_keeps_its_names_and_its_store() {
    let (registry, mut definition_set) = (registry(), DefinitionSet::new(10));
    definition_set.take_in("as.g", Revision(2), definition("as", "Kite", "t"));
    round(&mut definition_set, &registry);
    definition_set.cannot_read("bad.g", Revision(5));
    assert!(definition_set.knows("bad.g", Revision(5)) && !definition_set.knows("bad.g", Revision(6)));
    assert!(definition_set.names().any(|name| name == "bad.g"), "its store is not let go");
    let (_, news) = round(&mut definition_set, &registry);
    assert_eq!(news.map(|news| news.unreadable.iter().cloned().collect()), Some(vec!["bad.g".to_owned()]));
    // Nobody knows whether the names of others are its own. Those that were given stay.
    definition_set.take_in("bs.g", Revision(7), definition("bs", "Dog", "t"));
    let mut other = definition("cs", "Cow", "t");
    other.entry("spec").set("group", "h");
    definition_set.take_in("cs.h", Revision(8), other);
    round(&mut definition_set, &registry);
    assert!(is_established(&definition_set, "as.g") && !is_established(&definition_set, "bs.g"));
    assert!(is_established(&definition_set, "cs.h"), "other groups go on");
    definition_set.remove("bad.g");
    let (_, news) = round(&mut definition_set, &registry);
    assert!(is_established(&definition_set, "bs.g") && news.is_some_and(|news| news.unreadable.is_empty()));
    // A served definition stays served when it can no longer be read.
    definition_set.cannot_read("as.g", Revision(9));
    assert!(round(&mut definition_set, &registry).1.is_none() && is_established(&definition_set, "as.g"));
}

#[test]
fn numbers_are_never_those_of_others() {
    let (registry, mut definition_set) = (registry(), DefinitionSet::new(10));
    definition_set.next_ordinal = LAST_ORDINAL - 1;
    definition_set.take_in("as.g", Revision(2), definition("as", "A", "t"));
    definition_set.take_in("bs.g", Revision(3), definition("bs", "B", "t"));
    let (_, news) = round(&mut definition_set, &registry);
    let numbers: Vec<u32> = news.unwrap().resources.iter().map(|resource| resource.ordinal).collect();
    assert_eq!(numbers, [LAST_ORDINAL - 1, 10]);
}
