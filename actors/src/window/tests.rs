use bytes::Bytes;
use pilothouse_types::memory::MemoryLedger;
use pilothouse_types::object::{Draft, Key, Object, Pairs};

use super::*;
use crate::archive::{Archive, ArchiveError, Span};
use crate::event::Change;
use crate::log_time::WriteTime;

fn event(revision: u64) -> Arc<Event> {
    let bytes = Bytes::from_static(br#"{"resourceVersion":""}"#);
    let draft = Draft {
        key: Key::cluster("a"),
        bytes,
        revision_offset: 20,
        item_offset: 1,
        labels: Pairs::default(),
        fields: Pairs::default(),
    };
    let object = Arc::new(Object::new(draft, Revision(revision)));
    let accepted_at = WriteTime { log: second(revision), ..WriteTime::default() };
    Arc::new(Event::new(Change::Replaced, object, None, accepted_at))
}

fn second(second: u64) -> LogTime {
    LogTime(second * 1_000_000)
}

fn revisions(read: Read) -> Vec<u64> {
    match read {
        Read::Events(events) => events.iter().map(|event| event.revision().0).collect(),
        Read::Expired(floor) => panic!("expired at {floor}"),
        Read::Archived(_, through) => panic!("archived up to {through}"),
    }
}

#[test]
fn read_returns_events_after_cursor() {
    let window = Window::new(Revision(1), 1 << 20);
    for revision in 2..=6 {
        window.append(event(revision));
    }
    assert_eq!(revisions(window.read(Revision(1), 10)), [2, 3, 4, 5, 6]);
    assert_eq!(revisions(window.read(Revision(3), 2)), [4, 5]);
    assert_eq!(revisions(window.read(Revision(6), 2)), [0; 0]);
    assert_eq!(window.head(), Revision(6));
}

#[test]
fn events_of_one_revision_are_read_together() {
    let window = Window::new(Revision(1), 1 << 20);
    window.append(event(2));
    window.append_all([event(3), event(3), event(3), event(4)]);
    assert_eq!(revisions(window.read(Revision(1), 1)), [2]);
    assert_eq!(revisions(window.read(Revision(1), 2)), [2, 3, 3, 3]);
    assert_eq!(revisions(window.read(Revision(2), 1)), [3, 3, 3]);
    assert_eq!(revisions(window.read(Revision(3), 1)), [4]);
}

#[test]
fn who_begins_within_a_gap_misses_something() {
    let window = Window::new(Revision(1), 1 << 20);
    window.append(event(2));
    window.append_all([event(7), event(9)]);
    window.mark_gap(Revision(4), Revision(9));
    let around: Vec<_> = (1..=10).filter(|cursor| window.gap_around(Revision(*cursor)).is_some()).collect();
    assert_eq!(around, [5, 6, 7, 8]);
    assert_eq!(revisions(window.read(Revision(1), 2)), [2, 7], "who comes from before reads across it");
    for gap in 2..=WINDOW_GAPS as u64 + 1 {
        window.mark_gap(Revision(gap * 10), Revision(gap * 10 + 5));
    }
    assert_eq!(window.gap_around(Revision(12)), Some(Revision(25)), "the two oldest are one");
    assert_eq!(window.gap_around(Revision(27)), None);
    window.forget_before(second(8), 10);
    window.mark_gap(Revision(1_000), Revision(1_005));
    assert!(window.gap_around(Revision(1_003)).is_some());
}

#[test]
fn what_was_seen_may_be_ahead_of_the_newest_event() {
    let window = Window::new(Revision(1), 1 << 20);
    window.append(event(5));
    window.advance_seen(Revision(9));
    window.advance_seen(Revision(7));
    assert_eq!((window.head(), window.seen()), (Revision(5), Revision(9)));
    window.append(event(12));
    assert_eq!((window.head(), window.seen()), (Revision(12), Revision(12)));
    window.restart(Revision(8));
    assert_eq!((window.head(), window.seen(), window.floor()), (Revision(8), Revision(8), Revision(8)));
    assert_eq!(window.extent(), Extent { appended: 2, ..Extent::default() });
}

#[test]
fn cursor_before_floor_is_expired() {
    let window = Window::new(Revision(1), 1 << 20);
    for revision in 2..=6 {
        window.append(event(revision));
    }
    let dropped = window.forget_before(second(4), 10);
    assert_eq!(dropped.iter().map(|stub| stub.revision.0).collect::<Vec<_>>(), [2, 3]);
    assert!(matches!(window.read(Revision(2), 9), Read::Expired(Revision(3))));
    assert_eq!(revisions(window.read(Revision(3), 9)), [4, 5, 6]);
}

#[test]
fn full_window_drops_old_events_but_keeps_the_newest() {
    let window = Window::new(Revision(1), 320);
    assert!(window.append(event(2)).is_empty());
    assert_eq!(window.append(event(3)).len(), 1);
    assert_eq!(revisions(window.read(Revision(2), 9)), [3]);
}

struct EmptyArchive;

impl Archive for EmptyArchive {
    fn read(&self, _: &TypeName, _: Span) -> Result<Vec<Event>, ArchiveError> {
        Err(ArchiveError::Gone)
    }
}

#[test]
fn evicted_events_are_read_from_archive_until_they_expire() {
    let archive_reader = ArchiveReader::new(Arc::new(EmptyArchive), TypeName::new("pods"));
    let window = Window::new(Revision(1), 320).with_archive(Some(archive_reader));
    for revision in 2..=5 {
        assert!(window.append(event(revision)).is_empty(), "the log has it");
    }
    assert_eq!(revisions(window.read(Revision(4), 9)), [5]);
    assert!(matches!(window.read(Revision(1), 9), Read::Archived(_, Revision(4))));
    assert_eq!((window.floor(), window.extent().archived), (Revision(1), 3));
    let dropped = window.forget_before(second(4), 10);
    assert_eq!(dropped.iter().map(|stub| stub.revision.0).collect::<Vec<_>>(), [2, 3]);
    assert!(matches!(window.read(Revision(2), 9), Read::Expired(Revision(3))));
    assert!(matches!(window.read(Revision(3), 9), Read::Archived(..)));
    assert_eq!(window.forget_before(second(9), 10).len(), 2);
    assert_eq!((window.floor(), window.extent()), (Revision(5), Extent { appended: 4, ..Extent::default() }));
}

#[test]
fn idle_window_shrinks_when_memory_is_short() {
    const LIMIT: usize = 64 << 20;
    let ledger = MemoryLedger::new(Some(LIMIT));
    let all = ledger.cache("windows", LIMIT);
    let bounds = WindowBounds { total_budget: all.clone(), ..WindowBounds::from(LIMIT) };
    let archive_reader = ArchiveReader::new(Arc::new(EmptyArchive), TypeName::new("pods"));
    let in_log = Window::new(Revision(1), bounds.clone()).with_archive(Some(archive_reader));
    let in_memory = Window::new(Revision(1), bounds);
    ledger.observe(0);
    for revision in 2..=9_000 {
        in_log.append(event(revision));
        in_memory.append(event(revision));
    }
    let whole = all.bytes();
    assert!(in_log.shrink(10).is_empty());
    assert_eq!(all.bytes(), whole, "there is enough memory");
    ledger.observe(LIMIT - LIMIT / 16);
    in_log.shrink(10);
    assert_eq!(in_log.extent().archived, 10);
    in_log.shrink(usize::MAX);
    assert!(all.bytes() <= whole / 2 + WINDOW_LEAST_BYTES, "{} of {whole}", all.bytes());
    assert!(matches!(in_log.read(Revision(1), 1), Read::Archived(..)));
    in_memory.shrink(usize::MAX);
    assert_eq!(revisions(in_memory.read(Revision(1), 1)), [2], "it could not be read again");
}
