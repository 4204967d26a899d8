use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn uid(number: u8) -> Uid {
    Uid::new(&format!("00000000-0000-4000-8000-0000000000{number:02x}"))
}

fn place(number: u8) -> ObjectLocation {
    ObjectLocation { of: 0, key: Key::namespaced("n", &number.to_string()) }
}

fn owner(number: u8, blocks: bool) -> Owner {
    Owner { uid: uid(number), blocks, fits: true }
}

#[test]
fn uids_of_any_text_are_told_apart() {
    let text = "0a1b2c3d-0000-4000-8000-00000000000f";
    assert_eq!(Uid::new(text), Uid::new(text));
    assert_ne!(Uid::new(text), Uid::new(&text.to_uppercase()), "uids are texts and compared as such");
    assert_ne!(Uid::new("a"), Uid::new("b"));
    assert_ne!(Uid::new(""), uid(0));
}

#[test]
fn what_is_in_no_relation_is_not_kept() {
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    graph.observe(uid(1), place(1), &[], DeletionMode::No, &mut tasks);
    graph.observe(uid(1), place(1), &[], DeletionMode::Plainly, &mut tasks);
    graph.remove(uid(1), &mut tasks);
    assert_eq!((graph.len(), tasks), (0, Vec::new()));
}

#[test]
fn an_owner_that_nobody_saw_makes_its_dependents_doubtful_until_it_is_confirmed() {
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    graph.observe(uid(2), place(2), &[owner(1, false)], DeletionMode::No, &mut tasks);
    assert_eq!(std::mem::take(&mut tasks), [Task::Attempt(uid(2))]);
    graph.confirm(uid(1), place(1));
    graph.observe(uid(3), place(3), &[owner(1, false)], DeletionMode::No, &mut tasks);
    assert_eq!(tasks, []);
    let stranger = Owner { fits: false, ..owner(1, false) };
    graph.observe(uid(4), place(4), &[stranger], DeletionMode::No, &mut tasks);
    assert_eq!(std::mem::take(&mut tasks), [Task::Attempt(uid(4))]);
    graph.remove(uid(1), &mut tasks);
    assert_eq!(tasks, [Task::Attempt(uid(2)), Task::Attempt(uid(3)), Task::Attempt(uid(4))]);
    assert!(graph.is_gone(uid(1)));
}

/// Dependents may wait long for their turn, while thousands of other owners go and the kind of all of them ends.
#[test]
fn an_owner_is_remembered_as_gone_while_somebody_names_it() {
    let numbered = |number: usize| Uid::new(&format!("00000000-0000-4000-8000-{number:012x}"));
    let count = GONE_REMEMBERED + 10;
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    for number in 0..count {
        let owners = [Owner { uid: numbered(number), blocks: false, fits: true }];
        graph.observe(numbered(count + number), place(2), &owners, DeletionMode::No, &mut tasks);
        graph.confirm(numbered(number), place(1));
    }
    tasks.clear();
    (0..count).for_each(|number| graph.remove(numbered(number), &mut tasks));
    assert_eq!(tasks.len(), count);
    assert!((0..count).all(|number| graph.is_gone(numbered(number))), "every one of them");
    graph.confirm(numbered(0), place(1));
    assert_eq!(graph.place(numbered(0)), None, "what was found before it went is not there for that");
    (0..count).for_each(|number| graph.remove(numbered(count + number), &mut tasks));
    assert_eq!(graph.len(), 0, "nothing is kept for longer");
}

#[test]
fn an_owner_that_went_before_its_dependents_were_heard_of_is_remembered_for_a_while() {
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    graph.remove(uid(1), &mut tasks);
    graph.observe(uid(2), place(2), &[owner(1, false)], DeletionMode::No, &mut tasks);
    assert_eq!(tasks, [Task::Attempt(uid(2))]);
    assert!(graph.is_gone(uid(1)));
}

#[test]
fn a_foreground_deletion_looks_at_dependents_and_is_looked_at_when_they_go() {
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    graph.observe(uid(2), place(2), &[owner(1, true)], DeletionMode::No, &mut tasks);
    graph.observe(uid(3), place(3), &[owner(1, false)], DeletionMode::No, &mut tasks);
    tasks.clear();
    graph.observe(uid(1), place(1), &[], DeletionMode::Foreground, &mut tasks);
    assert_eq!(
        std::mem::take(&mut tasks),
        [Task::Attempt(uid(2)), Task::Attempt(uid(3)), Task::Attempt(uid(1))]
    );
    graph.observe(uid(1), place(1), &[], DeletionMode::Foreground, &mut tasks);
    assert_eq!(tasks, [], "once");
    assert_eq!(graph.blocking(uid(1)), [uid(2)]);
    graph.observe(uid(2), place(2), &[owner(1, false)], DeletionMode::No, &mut tasks);
    assert_eq!(std::mem::take(&mut tasks), [Task::Attempt(uid(1))]);
    assert!(graph.blocking(uid(1)).is_empty());
    graph.remove(uid(2), &mut tasks);
    graph.remove(uid(3), &mut tasks);
    assert_eq!(tasks, [Task::Attempt(uid(1)), Task::Attempt(uid(1))]);
    graph.remove(uid(1), &mut tasks);
    assert_eq!(graph.len(), 0);
}

#[test]
fn orphaning_is_asked_for_once() {
    let (mut graph, mut tasks) = (Graph::default(), Vec::new());
    graph.observe(uid(1), place(1), &[], DeletionMode::Orphaning, &mut tasks);
    graph.observe(uid(1), place(1), &[], DeletionMode::Orphaning, &mut tasks);
    assert_eq!(tasks, [Task::Orphan(uid(1))]);
}

#[test]
fn a_hundred_thousand_dependents_take_little() {
    // Counted by the sizes of what the trees hold, at the two thirds that random insertion fills.
    let entry = size_of::<(Uid, Node)>() + size_of::<Uid>();
    assert!(entry * 3 / 2 <= 200, "{entry}");
}

/// The naive picture: what each object says, and nothing else.
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
        3 => (object.clone(), owners, 0_u8..4).prop_map(|(object, owners, going)| Step::Observe(object, owners, going)),
        1 => object.clone().prop_map(Step::Remove),
        1 => object.prop_map(Step::Confirm),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// The index says the same as looking at every object; and whoever can be concerned by a change is looked at.
    #[test]
    fn the_index_agrees_with_looking_at_everything(steps in steps()) {
        let (mut graph, mut naive, mut dead) = (Graph::default(), Naive::default(), BTreeSet::new());
        for step in steps {
            let mut tasks = Vec::new();
            // A uid that has gone never comes again.
            let (Step::Observe(of, ..) | Step::Remove(of) | Step::Confirm(of)) = step;
            if dead.contains(&of) {
                continue;
            }
            match step {
                Step::Observe(object, owners, going) => {
                    let going = [DeletionMode::No, DeletionMode::Plainly, DeletionMode::Foreground, DeletionMode::Orphaning][usize::from(going)];
                    let all: Vec<Owner> = owners.iter().map(|(number, blocks)| owner(*number, *blocks)).collect();
                    graph.observe(uid(object), place(object), &all, going, &mut tasks);
                    naive.0.insert(object, (owners, going));
                }
                Step::Remove(object) => {
                    graph.remove(uid(object), &mut tasks);
                    naive.0.remove(&object);
                    dead.insert(object);
                    for (dependent, (owners, _)) in &naive.0 {
                        let concerned = owners.contains_key(&object);
                        prop_assert!(!concerned || tasks.contains(&Task::Attempt(uid(*dependent))));
                    }
                }
                Step::Confirm(object) => graph.confirm(uid(object), place(object)),
            }
            for object in 0..6 {
                let names = |(_, (owners, _)): &(&u8, &(BTreeMap<u8, bool>, DeletionMode))| owners.contains_key(&object);
                let wanted: BTreeSet<Uid> = naive.0.iter().filter(names).map(|(number, _)| uid(*number)).collect();
                let found: BTreeSet<Uid> = graph.dependents(uid(object)).into_iter().collect();
                // Also of what has gone: it is remembered as gone while somebody names it.
                prop_assert_eq!(found, wanted);
                prop_assert!(!dead.contains(&object) || graph.is_gone(uid(object)));
            }
        }
    }
}
