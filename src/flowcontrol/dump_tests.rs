use super::*;

#[test]
fn cells_stand_below_each_other() {
    let rows = [["PriorityLevelName", "Index", "x"], ["a", "1234567", ""], ["ünter", "0", "last"]];
    let rows = rows.map(|row| row.map(str::to_owned).to_vec());
    let wanted =
        "PriorityLevelName, Index,   x\na,                 1234567, \nünter,             0,       last\n";
    assert_eq!(aligned(&rows), wanted);
    assert_eq!(aligned(&[]), "");
}

#[test]
fn times_spans_and_work_are_written_as_the_reference_does() {
    assert_eq!(instant(Timestamp(1_700_000_000_120_000)), "2023-11-14T22:13:20.12Z");
    assert_eq!(instant(Timestamp(1_700_000_000_000_000)), "2023-11-14T22:13:20Z");
    let micros = |micros| span(Duration::from_micros(micros));
    assert_eq!([micros(0), micros(500), micros(1_500), micros(2_500_000)], ["0s", "500µs", "1.5ms", "2.5s"]);
    assert_eq!([seat_seconds(0.0), seat_seconds(3_000.0)], ["0.00000000ss", "0.00300000ss"]);
    assert_eq!(seat_seconds(61_000_000.25), "61.00000025ss");
    assert_eq!(seat_seconds(-1.0), "0.00000000ss");
}

#[test]
fn what_a_client_chose_stays_in_its_cell() {
    assert_eq!(shown("a\tb\nc"), "a b c");
    assert_eq!(shown(&"ü".repeat(1_000)).chars().count(), VISIT_CHARS);
}
