use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn uid(number: u8) -> Uid {
    Uid::new(&format!("00000000-0000-4000-8000-0000000000{number:02x}"))
}

fn location(number: u8) -> ObjectLocation {
    ObjectLocation { type_number: 0, key: Key::namespaced("n", &number.to_string()) }
}

fn owner(number: u8, blocks: bool) -> Owner {
    Owner { uid: uid(number), blocks, matches: true }
}

#[test]
fn uids_of_different_texts_differ() {
    let text = "0a1b2c3d-0000-4000-8000-00000000000f";
    assert_eq!(Uid::new(text), Uid::new(text));
    assert_ne!(Uid::new(text), Uid::new(&text.to_uppercase()), "uids are texts and compared as such");
    assert_ne!(Uid::new("a"), Uid::new("b"));
    assert_ne!(Uid::new(""), uid(0));
}

#[test]
fn graph_has_no_node_for_unrelated_objects() {
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    graph.observe(uid(1), location(1), &[], DeletionMode::None, &mut tasks);
    graph.observe(uid(1), location(1), &[], DeletionMode::Background, &mut tasks);
    graph.remove(uid(1), &mut tasks);
    assert_eq!((graph.len(), tasks), (0, Vec::new()));
}

#[test]
fn graph_checks_dependents_of_unobserved_owner_until_confirmed() {
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    graph.observe(uid(2), location(2), &[owner(1, false)], DeletionMode::None, &mut tasks);
    assert_eq!(std::mem::take(&mut tasks), [Task::Attempt(uid(2))]);
    graph.confirm(uid(1), location(1));
    graph.observe(uid(3), location(3), &[owner(1, false)], DeletionMode::None, &mut tasks);
    assert_eq!(tasks, []);
    let mismatched = Owner { matches: false, ..owner(1, false) };
    graph.observe(uid(4), location(4), &[mismatched], DeletionMode::None, &mut tasks);
    assert_eq!(std::mem::take(&mut tasks), [Task::Attempt(uid(4))]);
    graph.remove(uid(1), &mut tasks);
    assert_eq!(tasks, [Task::Attempt(uid(2)), Task::Attempt(uid(3)), Task::Attempt(uid(4))]);
    assert!(graph.is_deleted(uid(1)));
}

/// Dependents may wait long in the queue, while thousands of other owners are deleted and their kind is removed.
#[test]
fn deleted_owner_is_remembered_while_referenced() {
    let numbered = |number: usize| Uid::new(&format!("00000000-0000-4000-8000-{number:012x}"));
    let count = MAX_DELETED_UIDS + 10;
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    for number in 0..count {
        let owners = [Owner { uid: numbered(number), blocks: false, matches: true }];
        graph.observe(numbered(count + number), location(2), &owners, DeletionMode::None, &mut tasks);
        graph.confirm(numbered(number), location(1));
    }
    tasks.clear();
    (0..count).for_each(|number| graph.remove(numbered(number), &mut tasks));
    assert_eq!(tasks.len(), count);
    assert!((0..count).all(|number| graph.is_deleted(numbered(number))), "every one of them");
    graph.confirm(numbered(0), location(1));
    assert_eq!(graph.location(numbered(0)), None, "a lookup from before its deletion does not count");
    (0..count).for_each(|number| graph.remove(numbered(count + number), &mut tasks));
    assert_eq!(graph.len(), 0, "no node outlives the last reference");
}

#[test]
fn deleted_owner_is_remembered_before_its_dependents_are_observed() {
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    graph.remove(uid(1), &mut tasks);
    graph.observe(uid(2), location(2), &[owner(1, false)], DeletionMode::None, &mut tasks);
    assert_eq!(tasks, [Task::Attempt(uid(2))]);
    assert!(graph.is_deleted(uid(1)));
}

#[test]
fn foreground_deletion_checks_dependents_and_is_checked_when_they_are_deleted() {
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    graph.observe(uid(2), location(2), &[owner(1, true)], DeletionMode::None, &mut tasks);
    graph.observe(uid(3), location(3), &[owner(1, false)], DeletionMode::None, &mut tasks);
    tasks.clear();
    graph.observe(uid(1), location(1), &[], DeletionMode::Foreground, &mut tasks);
    assert_eq!(
        std::mem::take(&mut tasks),
        [Task::Attempt(uid(2)), Task::Attempt(uid(3)), Task::Attempt(uid(1))]
    );
    graph.observe(uid(1), location(1), &[], DeletionMode::Foreground, &mut tasks);
    assert_eq!(tasks, [], "once");
    assert_eq!(graph.blocking(uid(1)), [uid(2)]);
    graph.observe(uid(2), location(2), &[owner(1, false)], DeletionMode::None, &mut tasks);
    assert_eq!(std::mem::take(&mut tasks), [Task::Attempt(uid(1))]);
    assert!(graph.blocking(uid(1)).is_empty());
    graph.remove(uid(2), &mut tasks);
    graph.remove(uid(3), &mut tasks);
    assert_eq!(tasks, [Task::Attempt(uid(1)), Task::Attempt(uid(1))]);
    graph.remove(uid(1), &mut tasks);
    assert_eq!(graph.len(), 0);
}

#[test]
fn orphaning_is_queued_once() {
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    graph.observe(uid(1), location(1), &[], DeletionMode::Orphan, &mut tasks);
    graph.observe(uid(1), location(1), &[], DeletionMode::Orphan, &mut tasks);
    assert_eq!(tasks, [Task::Orphan(uid(1))]);
}

#[test]
fn graph_entry_takes_at_most_200_bytes() {
    // Random insertion fills two thirds of a tree's nodes.
    let entry = size_of::<(Uid, Node)>() + size_of::<Uid>();
    assert!(entry * 3 / 2 <= 200, "{entry}");
}

/// The naive model: the owner references of each object.
#[derive(Default)]
struct Naive(BTreeMap<u8, (BTreeMap<u8, bool>, DeletionMode)>);

#[derive(Clone, Debug)]
enum Step {
    Observe(u8, BTreeMap<u8, bool>, u8),
    Remove(u8),
    Confirm(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let object = 0_u8..6;
    let owners = prop::collection::btree_map(0_u8..6, any::<bool>(), 0..3);
    let step = prop_oneof![
        3 => (object.clone(), owners, 0_u8..4).prop_map(|(object, owners, mode)| Step::Observe(object, owners, mode)),
        1 => object.clone().prop_map(Step::Remove),
        1 => object.prop_map(Step::Confirm),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// The graph agrees with a scan of all objects, and every dependent of a removed object is checked.
    #[test]
    fn graph_agrees_with_naive_model(steps in steps()) {
        let (mut graph, mut naive, mut deleted) = (Graph::default(), Naive::default(), BTreeSet::new());
        for step in steps {
            let mut tasks = Vec::new();
            // The UID of a deleted object is never used again.
            let (Step::Observe(object, ..) | Step::Remove(object) | Step::Confirm(object)) = step;
            if deleted.contains(&object) {
                continue;
            }
            match step {
                Step::Observe(object, owners, mode) => {
                    let mode = [DeletionMode::None, DeletionMode::Background, DeletionMode::Foreground, DeletionMode::Orphan][usize::from(mode)];
                    let all: Vec<Owner> = owners.iter().map(|(number, blocks)| owner(*number, *blocks)).collect();
                    graph.observe(uid(object), location(object), &all, mode, &mut tasks);
                    naive.0.insert(object, (owners, mode));
                }
                Step::Remove(object) => {
                    graph.remove(uid(object), &mut tasks);
                    naive.0.remove(&object);
                    deleted.insert(object);
                    for (dependent, (owners, _)) in &naive.0 {
                        let is_dependent = owners.contains_key(&object);
                        prop_assert!(!is_dependent || tasks.contains(&Task::Attempt(uid(*dependent))));
                    }
                }
                Step::Confirm(object) => graph.confirm(uid(object), location(object)),
            }
            for object in 0..6 {
                let references = |(_, (owners, _)): &(&u8, &(BTreeMap<u8, bool>, DeletionMode))| owners.contains_key(&object);
                let expected: BTreeSet<Uid> = naive.0.iter().filter(references).map(|(number, _)| uid(*number)).collect();
                let actual: BTreeSet<Uid> = graph.dependents(uid(object)).into_iter().collect();
                // Also for deleted objects: they are remembered while referenced.
                prop_assert_eq!(actual, expected);
                prop_assert!(!deleted.contains(&object) || graph.is_deleted(uid(object)));
            }
        }
    }
}
