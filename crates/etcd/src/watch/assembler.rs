//! Puts the events of a watch together, revision by revision.
//!
//! etcd sends the events of one revision in one response, together with those of other revisions, unless the response is split into
//! parts. A split can fall within a revision, so the last revision of a part is held back until it is known to be complete. What is
//! held back is therefore never more than one revision.

use prost::Message as _;

use crate::messages::{Event, EventType};

/// All events of one revision that the watch wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionEvents {
    /// The revision.
    pub revision: i64,
    /// Its events, in etcd's order. Each has a key.
    pub events: Vec<Event>,
}

/// The events of one watch.
#[derive(Debug)]
pub struct Assembler {
    /// The last revision of which everything has been returned.
    position: i64,
    /// The last revision of the parts so far, of which more may come.
    incomplete: Option<RevisionEvents>,
    incomplete_bytes: usize,
    max_bytes: usize,
}

impl Assembler {
    /// The events after this revision. Those of one revision may have `max_bytes`.
    pub fn new(position: i64, max_bytes: usize) -> Assembler {
        Assembler { position, incomplete: None, incomplete_bytes: 0, max_bytes }
    }

    /// The events of one response, or of one part if further parts follow. Returns the revisions that are complete.
    pub fn push(&mut self, events: Vec<Event>, has_more_parts: bool) -> Result<Vec<RevisionEvents>, String> {
        let mut complete = Vec::new();
        for event in events {
            let revision = self.check(&event)?;
            if self.incomplete.as_ref().is_some_and(|incomplete| incomplete.revision < revision) {
                complete.extend(self.finish());
            }
            if has_more_parts || self.incomplete_bytes > 0 {
                self.incomplete_bytes = self.incomplete_bytes.saturating_add(event.encoded_len());
                if self.incomplete_bytes > self.max_bytes {
                    let limit = self.max_bytes;
                    return Err(format!("the events of revision {revision} have more than {limit} bytes"));
                }
            }
            match &mut self.incomplete {
                Some(incomplete) => incomplete.events.push(event),
                None => self.incomplete = Some(RevisionEvents { revision, events: vec![event] }),
            }
        }
        if !has_more_parts {
            complete.extend(self.finish());
        }
        Ok(complete)
    }

    /// The revision of an event, if the event can follow what came before.
    fn check(&self, event: &Event) -> Result<i64, String> {
        let revision = event.kv.as_ref().ok_or("an event has no key")?.mod_revision;
        EventType::try_from(event.kind)
            .map_err(|_| format!("an event has the unknown type {}", event.kind))?;
        let (last, may_be_last) = match &self.incomplete {
            Some(incomplete) => (incomplete.revision, true),
            None => (self.position, false),
        };
        match revision > last || (may_be_last && revision == last) {
            true => Ok(revision),
            false => Err(format!("an event of revision {revision} comes after revision {last}")),
        }
    }

    fn finish(&mut self) -> Option<RevisionEvents> {
        let complete = self.incomplete.take()?;
        self.incomplete_bytes = 0;
        self.position = complete.revision;
        Some(complete)
    }

    /// Nothing up to this revision is missing.
    pub fn advance(&mut self, revision: i64) -> Result<(), String> {
        if self.incomplete.is_some() {
            return Err("a notice of progress comes between the parts of a response".to_owned());
        }
        self.position = self.position.max(revision);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::messages::KeyValue;

    fn event(revision: i64, key: usize) -> Event {
        let key: Bytes = key.to_string().into();
        let kv = KeyValue { key, mod_revision: revision, ..KeyValue::default() };
        Event { kind: 0, kv: Some(kv), prev_kv: None }
    }

    /// Revisions with at least one event each, not all consecutive.
    fn history() -> impl Strategy<Value = Vec<RevisionEvents>> {
        prop::collection::vec((1..4_i64, 1..5_usize), 0..20).prop_map(|steps| {
            let mut revision = 0;
            let revisions = steps.into_iter().map(|(step, count)| {
                revision += step;
                RevisionEvents { revision, events: (0..count).map(|key| event(revision, key)).collect() }
            });
            revisions.collect()
        })
    }

    proptest! {
        /// However a response is split, every revision comes once, whole and in order.
        #[test]
        fn parts_are_put_together(history in history(), cuts in prop::collection::vec(0..80_usize, 0..10)) {
            let events: Vec<Event> = history.iter().flat_map(|revision| revision.events.clone()).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(events.len())).collect();
            cuts.sort_unstable();
            cuts.push(events.len());
            let mut assembler = Assembler::new(0, usize::MAX);
            let (mut begin, mut assembled) = (0, Vec::new());
            for (index, end) in cuts.iter().enumerate() {
                let has_more_parts = index + 1 < cuts.len();
                let part = events[begin..*end].to_vec();
                assembled.extend(assembler.push(part, has_more_parts).unwrap());
                begin = *end;
            }
            prop_assert_eq!(assembled, history);
        }

        /// A stream that ends between two parts can be resumed after the last revision that was returned.
        #[test]
        fn what_was_cut_off_comes_again(history in history(), cut in 0..80_usize) {
            let events: Vec<Event> = history.iter().flat_map(|revision| revision.events.clone()).collect();
            let part = events[..cut.min(events.len())].to_vec();
            let mut assembled = Assembler::new(0, usize::MAX).push(part, true).unwrap();
            let position = assembled.last().map_or(0, |last| last.revision);
            let rest = events.into_iter().filter(|event| event.kv.as_ref().unwrap().mod_revision > position);
            let rest = Assembler::new(position, usize::MAX).push(rest.collect(), false).unwrap();
            assembled.extend(rest);
            prop_assert_eq!(assembled, history);
        }

        /// No events, whatever they are, make it fail in another way than by an error, or return revisions out of order.
        #[test]
        fn any_input_is_ordered_or_refused(
            parts in prop::collection::vec(
                (prop::collection::vec((any::<i8>(), -1..3_i32, any::<bool>()), 0..6), any::<bool>()),
                0..6,
            ),
        ) {
            let mut assembler = Assembler::new(0, 100);
            let mut last = 0;
            for (events, has_more_parts) in parts {
                let events = events.into_iter().map(|(revision, kind, has_key)| {
                    let event = event(i64::from(revision), 0);
                    Event { kind, kv: event.kv.filter(|_| has_key), prev_kv: None }
                });
                let Ok(revisions) = assembler.push(events.collect(), has_more_parts) else { break };
                for revision in revisions {
                    prop_assert!(revision.revision > last && !revision.events.is_empty());
                    last = revision.revision;
                }
            }
        }
    }

    #[test]
    fn repeated_and_late_events_are_refused() {
        let mut assembler = Assembler::new(5, usize::MAX);
        assert!(assembler.push(vec![event(5, 0)], false).is_err());
        assembler.push(vec![event(6, 0), event(8, 0)], false).unwrap();
        assert!(assembler.push(vec![event(8, 1)], false).is_err());
        assembler.advance(10).unwrap();
        assert!(assembler.push(vec![event(10, 0)], false).is_err());
        assert!(assembler.push(vec![event(12, 0), event(11, 0)], false).is_err());
    }

    #[test]
    fn parts_of_one_revision_have_a_bound() {
        let size = event(1, 0).encoded_len();
        let mut assembler = Assembler::new(0, 3 * size);
        for key in 0..3 {
            assembler.push(vec![event(1, key)], true).unwrap();
        }
        assert!(assembler.advance(1).is_err());
        let error = assembler.push(vec![event(1, 3)], true).unwrap_err();
        assert!(error.contains("revision 1 have more than"), "{error}");
        // Other revisions have a bound of their own.
        let mut assembler = Assembler::new(0, 2 * size);
        for revision in 1..10 {
            assembler.push(vec![event(revision, 0), event(revision, 1)], true).unwrap();
        }
    }
}
