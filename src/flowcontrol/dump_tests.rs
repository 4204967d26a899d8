use super::*;

#[test]
fn dump_table_columns_are_aligned() {
    let rows = [["PriorityLevelName", "Index", "x"], ["a", "1234567", ""], ["ünter", "0", "last"]];
    let rows = rows.map(|row| row.map(str::to_owned).to_vec());
    let expected =
        "PriorityLevelName, Index,   x\na,                 1234567, \nünter,             0,       last\n";
    assert_eq!(align(&rows), expected);
    assert_eq!(align(&[]), "");
}

#[test]
fn dump_formats_times_durations_and_work_like_kube_apiserver() {
    assert_eq!(format_time(Timestamp(1_700_000_000_120_000)), "2023-11-14T22:13:20.12Z");
    assert_eq!(format_time(Timestamp(1_700_000_000_000_000)), "2023-11-14T22:13:20Z");
    let micros = |micros| format_duration(Duration::from_micros(micros));
    assert_eq!([micros(0), micros(500), micros(1_500), micros(2_500_000)], ["0s", "500µs", "1.5ms", "2.5s"]);
    assert_eq!([seat_seconds(0.0), seat_seconds(3_000.0)], ["0.00000000ss", "0.00300000ss"]);
    assert_eq!(seat_seconds(61_000_000.25), "61.00000025ss");
    assert_eq!(seat_seconds(-1.0), "0.00000000ss");
}

#[test]
fn dump_cell_of_client_text_is_one_bounded_line() {
    assert_eq!(cell_text("a\tb\nc"), "a b c");
    assert_eq!(cell_text(&"ü".repeat(1_000)).chars().count(), DUMP_TEXT_CHARS);
}
