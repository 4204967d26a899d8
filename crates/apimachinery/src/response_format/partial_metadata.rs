//! The metadata for PartialObjectMetadata and table rows. The reference converts them from its internal version, which lacks one
//! annotation of the published versions.

use std::borrow::Cow;

/// The annotation that holds the templateGeneration of a published DaemonSet.
const TEMPLATE_GENERATION: &str = "\"deprecated.daemonset.template.generation\":\"";
/// The beginning of the JSON of a DaemonSet.
const DAEMON_SET: &[u8] = br#"{"kind":"DaemonSet","apiVersion":"apps/v1","#;

/// The metadata for the partial representation of an object with these bytes.
pub fn metadata<'a>(object: &[u8], metadata: &'a [u8]) -> Cow<'a, [u8]> {
    let cut = || {
        let text = std::str::from_utf8(metadata).ok()?;
        remove_annotation(text, text.find(TEMPLATE_GENERATION)?)
    };
    let cut = if object.starts_with(DAEMON_SET) { cut() } else { None };
    cut.map_or(Cow::Borrowed(metadata), |text| Cow::Owned(text.into_bytes()))
}

/// The text without the annotation that begins at `start`, and without the map if it was the only one.
fn remove_annotation(text: &str, start: usize) -> Option<String> {
    let value = start + TEMPLATE_GENERATION.len();
    let end = value + text.get(value..)?.find('"')? + 1;
    let (before, after) = (text.get(..start)?, text.get(end..)?);
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
    fn template_generation_annotation_is_removed_from_daemon_sets_only() {
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
            let partial =
                metadata(br#"{"kind":"DaemonSet","apiVersion":"apps/v1","metadata":{}}"#, text.as_bytes());
            assert_eq!(&*partial, expected.as_bytes());
            let other = metadata(br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{}}"#, text.as_bytes());
            assert_eq!(&*other, text.as_bytes(), "other kinds keep the annotation");
        }
    }
}
