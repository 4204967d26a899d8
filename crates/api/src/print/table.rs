//! Tables in JSON, written in parts, because long lists are streamed.

use pilothouse_apimachinery::json::{write_string, write_value};
use pilothouse_apimachinery::response_format::MetaVersion;
use pilothouse_apimachinery::value::Value;

use super::Completion;
use super::columns::ColumnDefinition;

/// Appends the beginning of a table, up to the bracket that opens its rows. `list_meta` is the JSON of the metadata.
/// Without columns they are null, as in all events of a watch but the first.
pub fn head(out: &mut Vec<u8>, columns: Option<&[ColumnDefinition]>, version: MetaVersion, list_meta: &[u8]) {
    before_rows(out, columns, version, list_meta);
    out.push(b'[');
}

/// Appends a row after `head`. `is_first` tells whether it needs no comma. Without an object it is null.
pub fn row(
    out: &mut Vec<u8>,
    is_first: bool,
    cells: &[Value],
    completion: Option<Completion>,
    object: Option<&[u8]>,
) {
    if !is_first {
        out.push(b',');
    }
    row_start(out, cells, completion);
    row_end(out, object);
}

/// Appends the beginning of a row, up to what follows its object.
pub(super) fn row_start(out: &mut Vec<u8>, cells: &[Value], completion: Option<Completion>) {
    out.extend_from_slice(b"{\"cells\":[");
    for (position, cell) in cells.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        write_value(out, cell);
    }
    out.push(b']');
    if let Some(Completion { reason, message }) = completion {
        out.extend_from_slice(br#","conditions":[{"type":"Completed","status":"True","reason":"#);
        write_string(out, reason);
        out.extend_from_slice(b",\"message\":");
        write_string(out, message);
        out.extend_from_slice(b"}]");
    }
}

/// Appends the rest of a row.
pub(super) fn row_end(out: &mut Vec<u8>, object: Option<&[u8]>) {
    out.extend_from_slice(b",\"object\":");
    out.extend_from_slice(object.unwrap_or(b"null"));
    out.push(b'}');
}

/// Appends the end of a table after its rows.
pub fn tail(out: &mut Vec<u8>) {
    out.extend_from_slice(b"]}");
}

/// Appends a whole table without rows. For a resource without columns of its own (custom ones always have some) the rows are
/// null.
pub fn without_rows(
    out: &mut Vec<u8>,
    columns: Option<&[ColumnDefinition]>,
    version: MetaVersion,
    list_meta: &[u8],
    has_own_columns: bool,
) {
    before_rows(out, columns, version, list_meta);
    out.extend_from_slice(if has_own_columns { b"[]}" } else { b"null}" });
}

/// PartialObjectMetadata of an object: the default `object` of a row.
pub fn metadata_only(object: &Value, version: MetaVersion) -> Value {
    let mut partial = Value::object();
    partial.set("kind", "PartialObjectMetadata");
    partial.set("apiVersion", version.api_version());
    partial.set("metadata", object.get("metadata").cloned().unwrap_or_else(Value::object));
    partial
}

fn before_rows(
    out: &mut Vec<u8>,
    columns: Option<&[ColumnDefinition]>,
    version: MetaVersion,
    list_meta: &[u8],
) {
    out.extend_from_slice(br#"{"kind":"Table","apiVersion":"#);
    write_string(out, version.api_version());
    out.extend_from_slice(b",\"metadata\":");
    out.extend_from_slice(list_meta);
    out.extend_from_slice(b",\"columnDefinitions\":");
    match columns {
        None => out.extend_from_slice(b"null"),
        Some(columns) => write_columns(out, columns),
    }
    out.extend_from_slice(b",\"rows\":");
}

fn write_columns(out: &mut Vec<u8>, columns: &[ColumnDefinition]) {
    out.push(b'[');
    for (position, column) in columns.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        for (key, text) in [
            ("{\"name\":", &*column.name),
            (",\"type\":", &*column.kind),
            (",\"format\":", &*column.format),
            (",\"description\":", &*column.description),
        ] {
            out.extend_from_slice(key.as_bytes());
            write_string(out, text);
        }
        out.extend_from_slice(format!(",\"priority\":{}}}", column.priority).as_bytes());
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::testing::value;

    fn name_column() -> ColumnDefinition {
        ColumnDefinition {
            name: "Name".into(),
            kind: "string".into(),
            format: "name".into(),
            description: "A \"name\".".into(),
            priority: 1,
        }
    }

    #[test]
    fn table_is_written_in_parts() {
        let mut out = Vec::new();
        head(&mut out, Some(&[name_column()]), MetaVersion::V1, br#"{"resourceVersion":"7"}"#);
        row(
            &mut out,
            true,
            &[Value::from("a"), Value::from(1_i64), Value::Null],
            None,
            Some(br#"{"kind":"X"}"#),
        );
        let completion = Completion { reason: "Failed", message: "The pod failed." };
        row(&mut out, false, &[Value::from(true)], Some(completion), None);
        tail(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            concat!(
                r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"#,
                r#""columnDefinitions":[{"name":"Name","type":"string","format":"name","#,
                r#""description":"A \"name\".","priority":1}],"rows":["#,
                r#"{"cells":["a",1,null],"object":{"kind":"X"}},"#,
                r#"{"cells":[true],"conditions":[{"type":"Completed","status":"True","reason":"Failed","#,
                r#""message":"The pod failed."}],"object":null}]}"#
            )
        );
    }

    #[test]
    fn table_without_rows_has_empty_list_or_null() {
        for (own, rows) in [(true, "[]"), (false, "null")] {
            let mut out = Vec::new();
            without_rows(&mut out, None, MetaVersion::V1beta1, b"{}", own);
            let expected = format!(
                r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1beta1","metadata":{{}},"columnDefinitions":null,"rows":{rows}}}"#
            );
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn metadata_only_drops_the_rest_of_the_object() {
        let partial = metadata_only(&value(r#"{"metadata":{"name":"a"},"spec":{}}"#), MetaVersion::V1beta1);
        let expected =
            r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1","metadata":{"name":"a"}}"#;
        assert_eq!(partial, value(expected));
        assert!(metadata_only(&Value::Null, MetaVersion::V1).get("metadata").is_some());
    }
}
