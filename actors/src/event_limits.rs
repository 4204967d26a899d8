//! How many events the windows of types hold in memory, where an operator says so.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pilothouse_types::object::TypeName;

use crate::event::Event;
use crate::limits::{EVENTS_STAY, WINDOW_LEAST_EVENTS};

/// The maximum numbers of events in memory. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct EventLimits {
    /// That of a type that has none of its own; `None` for no limit.
    default: Option<usize>,
    by_type: Arc<BTreeMap<TypeName, usize>>,
}

impl EventLimits {
    /// The limits of some types, and that of all others, if any. None is less than [`WINDOW_LEAST_EVENTS`].
    pub fn new(default: Option<usize>, by_type: impl IntoIterator<Item = (TypeName, usize)>) -> EventLimits {
        let at_least = |limit: usize| limit.max(WINDOW_LEAST_EVENTS);
        let by_type = by_type.into_iter().map(|(name, limit)| (name, at_least(limit)));
        EventLimits { default: default.map(at_least), by_type: Arc::new(by_type.collect()) }
    }

    /// The limit of one type.
    #[must_use]
    pub fn for_type(&self, name: &TypeName) -> EventLimits {
        let limit = self.by_type.get(name).copied().or(self.default);
        EventLimits { default: limit, by_type: Arc::default() }
    }

    /// Whether the oldest of these events should leave memory. Those that cannot be read again stay for a while in any case: whoever has
    /// not read them yet would have to list everything again.
    pub(crate) fn exceeded_by(&self, events: &VecDeque<Arc<Event>>, can_read_again: bool) -> bool {
        let (Some(oldest), Some(newest)) = (events.front(), events.back()) else { return false };
        let is_old = || newest.accepted_at.log.since(oldest.accepted_at.log) > EVENTS_STAY;
        self.default.is_some_and(|limit| events.len() > limit) && (can_read_again || is_old())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pilothouse_types::object::{Draft, Key, Object, Pairs, Revision};

    use super::*;
    use crate::archive::{Archive, ArchiveError, ArchiveReader, Span};
    use crate::event::Change;
    use crate::log_time::{LogTime, WriteTime};
    use crate::window::{Read, Window, WindowBounds};

    struct EmptyArchive;

    impl Archive for EmptyArchive {
        fn read(&self, _: &TypeName, _: Span) -> Result<Vec<Event>, ArchiveError> {
            Err(ArchiveError::Gone)
        }
    }

    /// An event whose revision is also the second in which it happened.
    fn event(revision: u64) -> Arc<Event> {
        let draft = Draft {
            key: Key::cluster("a"),
            bytes: Bytes::from_static(br#"{"resourceVersion":""}"#),
            revision_offset: 20,
            item_offset: 1,
            labels: Pairs::default(),
            fields: Pairs::default(),
        };
        let object = Arc::new(Object::new(draft, Revision(revision)));
        let accepted_at = WriteTime { log: LogTime(revision * 1_000_000), ..WriteTime::default() };
        Arc::new(Event::new(Change::Replaced, object, None, accepted_at))
    }

    fn pods() -> TypeName {
        TypeName::new("pods")
    }

    /// A window of pods after 499 events in as many seconds.
    fn window(limits: &EventLimits, archive_reader: Option<ArchiveReader>) -> Window {
        let bounds = WindowBounds { events: limits.for_type(&pods()), ..WindowBounds::from(1 << 30) };
        let window = Window::new(Revision(1), bounds).with_archive(archive_reader);
        for revision in 2..=500 {
            window.append(event(revision));
        }
        window
    }

    #[test]
    fn types_have_limits_of_their_own_or_the_default() {
        let nodes = TypeName::new("nodes");
        let limits = EventLimits::new(Some(300), [(pods(), 1_000), (nodes.clone(), 0)]);
        let limit = |limits: &EventLimits, name: &TypeName| limits.for_type(name).default;
        assert_eq!(limit(&limits, &pods()), Some(1_000));
        assert_eq!(limit(&limits, &nodes), Some(WINDOW_LEAST_EVENTS));
        assert_eq!(limit(&limits, &TypeName::new("secrets")), Some(300));
        let only_pods = EventLimits::new(None, [(pods(), 1_000)]);
        assert_eq!(limit(&only_pods, &nodes), None);
        assert_eq!(window(&only_pods, None).extent().events, 499);
    }

    #[test]
    fn events_beyond_the_limit_are_read_from_the_log_again() {
        let archive_reader = ArchiveReader::new(Arc::new(EmptyArchive), pods());
        let window = window(&EventLimits::new(None, [(pods(), 0)]), Some(archive_reader));
        assert_eq!((window.extent().events, window.extent().archived), (WINDOW_LEAST_EVENTS, 399));
        assert!(matches!(window.read(Revision(1), 1), Read::Archived(..)));
        assert!(matches!(window.read(Revision(400), 1), Read::Events(_)));
    }

    #[test]
    fn recent_events_that_cannot_be_read_again_stay() {
        let pods_limit = |limit| EventLimits::new(None, [(pods(), limit)]);
        let stay = usize::try_from(EVENTS_STAY.as_secs()).unwrap();
        assert!(stay < WINDOW_LEAST_EVENTS, "the limit is what counts below");
        assert_eq!(window(&pods_limit(0), None).extent().events, WINDOW_LEAST_EVENTS);
        let bounds = WindowBounds { events: pods_limit(0).for_type(&pods()), ..WindowBounds::from(1 << 30) };
        let busy = Window::new(Revision(1), bounds);
        busy.append_all((0..1_000).map(|_| event(2)));
        assert_eq!(busy.extent().events, 1_000, "all of them are recent");
        busy.append(event(2 + EVENTS_STAY.as_secs()));
        assert_eq!(busy.extent().events, 1_001);
        busy.append(event(3 + EVENTS_STAY.as_secs()));
        assert_eq!(busy.extent().events, WINDOW_LEAST_EVENTS);
        assert!(matches!(busy.read(Revision(1), 1), Read::Expired(Revision(2))));
    }
}
