//! Field ownership of a kind in two groups.

use super::*;
use crate::convert::VersionShape;

/// A kind in two groups.
const EVENTS_OF_TWO_GROUPS: ConversionTable = ConversionTable::new(&[VersionShape {
    group: "events.k8s.io",
    version: "v1",
    kind: "Event",
    hub: ("", "v1"),
    to_hub: |_| {},
    from_hub: |_| {},
}]);

#[test]
fn managers_of_another_group_are_dropped() {
    let (core, events) = (Fixture::new("v1", "Event"), GroupVersion::new("events.k8s.io", "v1"));
    let event = |reason: &str| {
        format!(r#"{{"kind":"Event","apiVersion":"v1","metadata":{{"name":"e"}},"reason":"{reason}"}}"#)
    };
    let old = core.update("m", "1", None, &event("a"));
    assert_eq!(owners(&old).len(), 1);
    let mut new = value(&event("b"));
    let write = Write { version: &events, ..core.write("n", "2") };
    let versions = Versions { conversion: Conversion::Table(EVENTS_OF_TWO_GROUPS), ..core.versions() };
    record(&versions, &write, Some(&old), &mut new);
    assert_eq!(owners(&new), owned(&[("n Update 2", r#"{"f:reason":{}}"#)]));
}
