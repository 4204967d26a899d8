//! The descriptions of built-in types and fields.
//!
//! The build script extracts them from published packages (see the `texts` crate for the format of the two files). They are
//! searched in place, so a server that is never asked for them does not load them into memory.

/// All names and descriptions.
const WORDS: &str = include_str!(concat!(env!("OUT_DIR"), "/descriptions.txt"));
/// The index of the texts.
const INDEX: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.idx"));
/// The number of index entries per type, and per field.
const TYPE: usize = 6;
const FIELD: usize = 4;

/// The description of a type. `published` is its published name, such as `io.k8s.api.core.v1.PodSpec`.
pub fn of_type(published: &str) -> Option<&'static str> {
    text(find(published)? + 2)
}

/// The description of a field, by its JSON name.
pub fn of_field(published: &str, field: &str) -> Option<&'static str> {
    let at = find(published)?;
    let (first, count) = (number(at + 4)?, number(at + 5)?);
    let place = |field: usize| 1 + number(0).unwrap_or_default() * TYPE + field * FIELD;
    let mut fields = (first..first + count).map(place);
    // Some names have lost their capitals; no two fields of a type differ only in case.
    let at = fields.find(|at| words(*at).is_some_and(|name| name.eq_ignore_ascii_case(field)))?;
    text(at + 2)
}

/// The index position of a type.
fn find(published: &str) -> Option<usize> {
    let (mut from, mut to) = (0, number(0)?);
    while from < to {
        let middle = from + (to - from) / 2;
        let at = 1 + middle * TYPE;
        match words(at)?.cmp(published) {
            std::cmp::Ordering::Equal => return Some(at),
            std::cmp::Ordering::Less => from = middle + 1,
            std::cmp::Ordering::Greater => to = middle,
        }
    }
    None
}

/// The text at an index position, unless it is empty.
fn text(at: usize) -> Option<&'static str> {
    words(at).filter(|text| !text.is_empty())
}

fn words(at: usize) -> Option<&'static str> {
    let from = number(at)?;
    WORDS.get(from..from + number(at + 1)?)
}

fn number(at: usize) -> Option<usize> {
    let bytes = INDEX.get(at * 4..at * 4 + 4)?;
    bytes.try_into().ok().map(|bytes| u32::from_le_bytes(bytes) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

    #[test]
    fn types_and_fields_are_described() {
        let pod = of_type("io.k8s.api.core.v1.Pod").expect("the build found the packages with the texts");
        assert!(pod.starts_with("Pod is a collection of containers"), "{pod}");
        let name = of_field(&format!("{META}.ObjectMeta"), "name").unwrap();
        assert!(name.starts_with("Name must be unique within a namespace."), "{name}");
        let created = of_field(&format!("{META}.ObjectMeta"), "creationTimestamp").unwrap();
        assert!(created.contains(".\n\nPopulated by the system."), "paragraphs are kept: {created}");
        assert!(of_field("io.k8s.api.core.v1.ServiceSpec", "clusterIPs").is_some());
    }

    #[test]
    fn lists_are_described_by_the_second_package() {
        assert_eq!(of_type("io.k8s.api.core.v1.PodList"), Some("PodList is a list of Pods."));
        let kind = |published| of_field(published, "kind").unwrap();
        assert_eq!(kind("io.k8s.api.core.v1.PodList"), kind("io.k8s.api.core.v1.Pod"));
        let selector = of_field("io.k8s.api.extensions.v1beta1.NetworkPolicySpec", "podSelector").unwrap();
        assert!(selector.contains("applies.  The"), "two spaces are kept: {selector}");
    }

    #[test]
    fn what_is_unknown_is_silent() {
        assert_eq!(of_type("io.k8s.api.core.v1.Nope"), None);
        assert_eq!(of_field("io.k8s.api.core.v1.Pod", "nope"), None);
        assert_eq!(of_field("io.example.Nope", "name"), None);
        assert_eq!(of_type(""), None);
    }
}
