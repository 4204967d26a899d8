//! The meaning of an event for one watch.
//!
//! A selector defines a view of the type. A change can move an object into the view, within it, or out of it. So the same event
//! may be ADDED for one watch and MODIFIED for another.

use std::sync::Arc;

use pilothouse_types::filter::Filter;
use pilothouse_types::object::{Object, Variant};

use crate::event::{Change, Event};

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WatchEventType {
    /// The object is in the view now and was not before.
    Added,
    /// The object was in the view and still is.
    Modified,
    /// The object was in the view and no longer is.
    Deleted,
}

impl WatchEventType {
    /// The number under which an event caches its frame for this variant and event type. All watches see the same object of a
    /// deletion, see [`object_for`], so both numbers identify the frame. Variants are small numbers, far below the two bits that
    /// are lost here.
    pub fn frame_variant(self, variant: Variant) -> Variant {
        let kind = match self {
            WatchEventType::Added => 0,
            WatchEventType::Modified => 1,
            WatchEventType::Deleted => 2,
        };
        Variant((variant.0 << 2) | kind)
    }
}

/// The object as it was before the event; `None` if there was none.
pub fn before(event: &Event) -> Option<&Arc<Object>> {
    let removed = (event.change == Change::Removed).then_some(&event.object);
    event.previous.as_ref().or(removed)
}

/// The object as it is after the event; `None` if it was removed.
pub fn after(event: &Event) -> Option<&Arc<Object>> {
    (event.change != Change::Removed).then_some(&event.object)
}

/// The event type for a watch with this filter; `None` if the event is not sent.
pub fn event_type_for(filter: &Filter, event: &Event) -> Option<WatchEventType> {
    // The key never changes, so most events that do not match are dropped here.
    if !filter.matches_key(&event.object.key) {
        return None;
    }
    let matches = |object: Option<&Arc<Object>>| object.is_some_and(|object| filter.matches(object));
    match (matches(before(event)), matches(after(event))) {
        (false, true) => Some(WatchEventType::Added),
        (true, true) => Some(WatchEventType::Modified),
        (true, false) => Some(WatchEventType::Deleted),
        (false, false) => None,
    }
}

/// The state of the object that the event shows. [`object_for`] returns it at the revision of the event.
pub fn visible_object(event_type: WatchEventType, event: &Event) -> &Arc<Object> {
    match (event_type, event.change, &event.previous) {
        (WatchEventType::Deleted, Change::Replaced, Some(previous)) => previous,
        _ => &event.object,
    }
}

/// The object of the event. An object that left the view is shown in its last state inside the view, at the revision of the
/// event: the client must not see its new state, and resumes from that revision.
pub fn object_for(event_type: WatchEventType, event: &Event) -> Arc<Object> {
    let object = visible_object(event_type, event);
    if Arc::ptr_eq(object, &event.object) {
        Arc::clone(object)
    } else {
        Arc::new(object.at_revision(event.revision()))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pilothouse_types::filter::FieldRule;
    use pilothouse_types::object::{Draft, Key, Pairs, Revision};

    use super::*;
    use crate::log_time::WriteTime;

    fn object(node: &str, revision: u64) -> Arc<Object> {
        let draft = Draft {
            key: Key::namespaced("n", "a"),
            bytes: Bytes::from(format!(r#"{{"node":"{node}","resourceVersion":""}}"#)),
            revision_offset: node.len() + 30,
            item_offset: 1,
            labels: Pairs::default(),
            fields: Pairs::from_iter([("node", node)]),
        };
        Arc::new(Object::new(draft, Revision(revision)))
    }

    #[test]
    fn event_type_follows_from_selector_match_before_and_after() {
        let filter =
            Filter { fields: vec![FieldRule::Equals("node".into(), "1".into())], ..Filter::default() };
        let replaced = |from: &str, to: &str| {
            Event::new(Change::Replaced, object(to, 3), Some(object(from, 2)), WriteTime::default())
        };
        let created = |node: &str| Event::new(Change::Created, object(node, 3), None, WriteTime::default());
        let removed = |node: &str| {
            Event::new(Change::Removed, object(node, 3), Some(object(node, 2)), WriteTime::default())
        };
        let cases = [
            (created("1"), Some(WatchEventType::Added)),
            (created("2"), None),
            (replaced("1", "1"), Some(WatchEventType::Modified)),
            (replaced("2", "1"), Some(WatchEventType::Added)),
            (replaced("1", "2"), Some(WatchEventType::Deleted)),
            (replaced("2", "2"), None),
            (removed("1"), Some(WatchEventType::Deleted)),
            (removed("2"), None),
        ];
        for (event, expected) in cases {
            assert_eq!(
                event_type_for(&filter, &event),
                expected,
                "{:?} {:?}",
                event.change,
                event.object.bytes
            );
        }
        let elsewhere = Filter { namespace: Some("m".into()), ..Filter::default() };
        assert_eq!(event_type_for(&elsewhere, &created("1")), None);
    }

    #[test]
    fn deleted_event_shows_last_matching_state_at_event_revision() {
        let event = Event::new(Change::Replaced, object("2", 12), Some(object("1", 9)), WriteTime::default());
        let deleted = object_for(WatchEventType::Deleted, &event);
        assert_eq!(&deleted.bytes[..], br#"{"node":"1","resourceVersion":"12"}"#);
        assert_eq!(deleted.revision, Revision(12));
        assert_eq!(
            &object_for(WatchEventType::Added, &event).bytes[..],
            br#"{"node":"2","resourceVersion":"12"}"#
        );
    }

    #[test]
    fn frame_variant_is_unique_per_variant_and_event_type() {
        let all: std::collections::BTreeSet<Variant> = (0..4)
            .flat_map(|v| {
                [WatchEventType::Added, WatchEventType::Modified, WatchEventType::Deleted]
                    .map(|event_type| event_type.frame_variant(Variant(v)))
            })
            .collect();
        assert_eq!(all.len(), 12);
    }
}
