//! The metadata for PartialObjectMetadata and table rows. The reference makes them from its internal form, which lacks one
//! annotation of the published form.

use std::borrow::Cow;

/// The annotation in which the published form of a DaemonSet counts its templates.
const TEMPLATE_COUNT: &str = "\"deprecated.daemonset.template.generation\":\"";
/// How the bytes of a DaemonSet begin.
const DAEMON_SET: &[u8] = br#"{"kind":"DaemonSet","apiVersion":"apps/v1","#;

/// The metadata that a partial object shows, of an object with these bytes.
pub fn metadata<'a>(object: &[u8], metadata: &'a [u8]) -> Cow<'a, [u8]> {
    let cut = || {
        let text = std::str::from_utf8(metadata).ok()?;
        without(text, text.find(TEMPLATE_COUNT)?)
    };
    let cut = if object.starts_with(DAEMON_SET) { cut() } else { None };
    cut.map_or(Cow::Borrowed(metadata), |text| Cow::Owned(text.into_bytes()))
}

/// The text without the entry that begins at `at`, and without the annotations if it was the only one.
fn without(text: &str, at: usize) -> Option<String> {
    let value = at + TEMPLATE_COUNT.len();
    let end = value + text.get(value..)?.find('"')? + 1;
    let (before, after) = (text.get(..at)?, text.get(end..)?);
    let joined = match (before.strip_suffix(','), after.strip_prefix(',')) {
        (Some(before), _) => format!("{before}{after}"),
        (None, Some(after)) => format!("{before}{after}"),
        (None, None) => {
            let before = before.strip_suffix("\"annotations\":{")?;
            let after = after.strip_prefix('}')?;
            match before.strip_suffix(',') {
                Some(before) => format!("{before}{after}"),
                None => format!("{before}{}", after.strip_prefix(',').unwrap_or(after)),
            }
        }
    };
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_templates_is_left_out() {
        let count = r#""deprecated.daemonset.template.generation":"12""#;
        let table = [
            (format!(r#"{{"name":"a","annotations":{{{count}}},"x":1}}"#), r#"{"name":"a","x":1}"#),
            (format!(r#"{{"annotations":{{{count}}},"x":1}}"#), r#"{"x":1}"#),
            (
                format!(r#"{{"name":"a","annotations":{{"a":"b",{count}}}}}"#),
                r#"{"name":"a","annotations":{"a":"b"}}"#,
            ),
            (format!(r#"{{"annotations":{{{count},"z":"b"}}}}"#), r#"{"annotations":{"z":"b"}}"#),
            (r#"{"name":"a"}"#.to_owned(), r#"{"name":"a"}"#),
        ];
        for (text, expected) in table {
            let shown =
                metadata(br#"{"kind":"DaemonSet","apiVersion":"apps/v1","metadata":{}}"#, text.as_bytes());
            assert_eq!(&*shown, expected.as_bytes());
            let other = metadata(br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{}}"#, text.as_bytes());
            assert_eq!(&*other, text.as_bytes(), "anybody may use the name elsewhere");
        }
    }
}
