//! The descriptions of built-in types and fields.
//!
//! The build script extracts them from published packages (see the `texts` crate for the format of the two files). They are
//! searched in place, so a server that is never asked for them does not load them into memory.

/// All names and descriptions.
const TEXTS: &str = include_str!(concat!(env!("OUT_DIR"), "/descriptions.txt"));
/// The index of the texts.
const INDEX: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.idx"));
/// The number of 32-bit index words per type, and per field.
const TYPE_WORDS: usize = 6;
const FIELD_WORDS: usize = 4;

/// The description of a type. `published` is its published name, such as `io.k8s.api.core.v1.PodSpec`.
pub fn for_type(published: &str) -> Option<&'static str> {
    text(find(published)? + 2)
}

/// The description of a field, by its JSON name.
pub fn for_field(published: &str, field: &str) -> Option<&'static str> {
    let position = find(published)?;
    let (first, count) = (number(position + 4)?, number(position + 5)?);
    let field_position = |field: usize| 1 + number(0).unwrap_or_default() * TYPE_WORDS + field * FIELD_WORDS;
    let mut fields = (first..first + count).map(field_position);
    // Some names have lost their capitals; no two fields of a type differ only in case.
    let position =
        fields.find(|position| string(*position).is_some_and(|name| name.eq_ignore_ascii_case(field)))?;
    text(position + 2)
}

/// The index position of a type.
fn find(published: &str) -> Option<usize> {
    let (mut from, mut to) = (0, number(0)?);
    while from < to {
        let middle = from + (to - from) / 2;
        let position = 1 + middle * TYPE_WORDS;
        match string(position)?.cmp(published) {
            std::cmp::Ordering::Equal => return Some(position),
            std::cmp::Ordering::Less => from = middle + 1,
            std::cmp::Ordering::Greater => to = middle,
        }
    }
    None
}

/// The text at an index position, unless it is empty.
fn text(position: usize) -> Option<&'static str> {
    string(position).filter(|text| !text.is_empty())
}

fn string(position: usize) -> Option<&'static str> {
    let from = number(position)?;
    TEXTS.get(from..from + number(position + 1)?)
}

fn number(position: usize) -> Option<usize> {
    let bytes = INDEX.get(position * 4..position * 4 + 4)?;
    bytes.try_into().ok().map(|bytes| u32::from_le_bytes(bytes) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

    #[test]
    fn builtin_types_and_fields_have_descriptions() {
        let pod = for_type("io.k8s.api.core.v1.Pod").expect("descriptions are embedded");
        assert!(pod.starts_with("Pod is a collection of containers"), "{pod}");
        let name = for_field(&format!("{META}.ObjectMeta"), "name").unwrap();
        assert!(name.starts_with("Name must be unique within a namespace."), "{name}");
        let created = for_field(&format!("{META}.ObjectMeta"), "creationTimestamp").unwrap();
        assert!(created.contains(".\n\nPopulated by the system."), "paragraphs are kept: {created}");
        assert!(for_field("io.k8s.api.core.v1.ServiceSpec", "clusterIPs").is_some());
    }

    #[test]
    fn list_types_have_descriptions() {
        assert_eq!(for_type("io.k8s.api.core.v1.PodList"), Some("PodList is a list of Pods."));
        let kind = |published| for_field(published, "kind").unwrap();
        assert_eq!(kind("io.k8s.api.core.v1.PodList"), kind("io.k8s.api.core.v1.Pod"));
        let selector = for_field("io.k8s.api.extensions.v1beta1.NetworkPolicySpec", "podSelector").unwrap();
        assert!(selector.contains("applies.  The"), "two spaces are kept: {selector}");
    }

    #[test]
    fn unknown_types_and_fields_have_no_description() {
        assert_eq!(for_type("io.k8s.api.core.v1.Nope"), None);
        assert_eq!(for_field("io.k8s.api.core.v1.Pod", "nope"), None);
        assert_eq!(for_field("io.example.Nope", "name"), None);
        assert_eq!(for_type(""), None);
    }
}
