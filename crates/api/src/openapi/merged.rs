//! Merges the OpenAPI v2 documents of extension API servers into that of this server. Parsing is shallow: only the names of
//! paths, definitions and parameters, and their references. The rest stays text, because a document may have many megabytes and its
//! tree would take tens of times as much.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use pilothouse_apimachinery::codec::raw_fields::{RawFields, raw_fields};
use pilothouse_apimachinery::json::write_string;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::limits::{OPENAPI_COMPARED_BYTES, OPENAPI_NEW_NAMES, OPENAPI_PART_OVERHEAD, OPENAPI_PARTS};

/// The prefixes of references to definitions and parameters.
const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";
/// The extension that lists the kinds of a definition. Definitions that differ only in it are equal.
const KINDS: &str = "x-kubernetes-group-version-kind";

/// Named parts of a document, each the text of an object.
type NamedObjects = BTreeMap<String, String>;

/// The document of a server about one group version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedSpec {
    paths: NamedObjects,
    definitions: NamedObjects,
    parameters: NamedObjects,
}

/// A document and its unparsed parts.
struct Document<'t> {
    fields: RawFields<'t>,
}

impl<'t> Document<'t> {
    fn read(text: &'t [u8]) -> Option<Document<'t>> {
        raw_fields(text).map(|fields| Document { fields })
    }

    /// The objects in a field. A missing field has none; a field that is not an object is an error.
    fn parts(&self, name: &str) -> Option<BTreeMap<String, &'t str>> {
        let Some((_, field)) = self.fields.iter().rfind(|(field, _)| field == name) else {
            return Some(BTreeMap::new());
        };
        let parts = raw_fields(field.get().as_bytes())?.into_iter().map(|(name, part)| (name, part.get()));
        Some(parts.filter(|(_, part)| part.starts_with('{')).collect())
    }
}

fn owned(parts: BTreeMap<String, &str>) -> NamedObjects {
    parts.into_iter().map(|(name, part)| (name, part.to_owned())).collect()
}

impl ServedSpec {
    /// An upper bound of what [`ServedSpec::read`] takes beside the text itself.
    pub fn reading_bytes(text: &[u8]) -> usize {
        text.len().saturating_add(count_parts(text).saturating_mul(OPENAPI_PART_OVERHEAD))
    }

    /// Reads the part of another server's document about this version. `None` if it is invalid or has too many parts.
    pub fn read(text: &[u8], group: &str, version: &str) -> Option<ServedSpec> {
        if count_parts(text) > OPENAPI_PARTS {
            return None;
        }
        let document = Document::read(text)?;
        let prefix = format!("/apis/{group}/{version}/");
        let is_of_version = |path: &str| path.starts_with(&prefix);
        let mut paths = document.parts("paths")?;
        paths.retain(|path, part| is_of_version(path) && is_well_formed(part));
        let parameters =
            referenced_parts(paths.values().copied(), PARAMETERS, &document.parts("parameters")?);
        let roots = paths.values().chain(parameters.values()).copied();
        let definitions = referenced_parts(roots, DEFINITIONS, &document.parts("definitions")?);
        Some(ServedSpec {
            definitions: owned(definitions),
            parameters: owned(parameters),
            paths: owned(paths),
        })
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        let all = [&self.paths, &self.definitions, &self.parameters].into_iter().flatten();
        all.map(|(name, part)| name.len() + part.len() + OPENAPI_PART_OVERHEAD).sum()
    }

    /// Adds another document, except for known paths. Parts with a known name but other content are renamed.
    fn join(&mut self, other: &ServedSpec) {
        let new: Vec<&String> = other.paths.keys().filter(|path| !self.paths.contains_key(*path)).collect();
        if new.is_empty() {
            return;
        }
        let mut renamed = renames(&self.definitions, &other.definitions, DEFINITIONS);
        renamed.extend(renames(&self.parameters, &other.parameters, PARAMETERS));
        let new_name = |prefix: &str, name: &String| -> String {
            let known = renamed.get(&format!("{prefix}{name}"));
            known.map_or(name.clone(), |new| new.strip_prefix(prefix).unwrap_or(new).to_owned())
        };
        for (old, part) in &other.definitions {
            self.definitions
                .entry(new_name(DEFINITIONS, old))
                .or_insert_with(|| rename_references(part, &renamed));
        }
        for (old, part) in &other.parameters {
            self.parameters
                .entry(new_name(PARAMETERS, old))
                .or_insert_with(|| rename_references(part, &renamed));
        }
        for path in new {
            if let Some(part) = other.paths.get(path) {
                self.paths.insert(path.clone(), rename_references(part, &renamed));
            }
        }
    }
}

/// The fields of a document and of the objects in them: an upper bound if the text is JSON.
fn count_parts(text: &[u8]) -> usize {
    /// The depth of the fields of `paths`, `definitions` and `parameters`.
    const PARTS: usize = 2;
    let (mut depth, mut count, mut is_in_string, mut is_escaped) = (0_usize, 0_usize, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in_string => is_escaped = true,
            b'"' => is_in_string = !is_in_string,
            _ if is_in_string => {}
            b'{' | b'[' => {
                depth += 1;
                // The first field follows a brace, and each other one a comma.
                count += usize::from(depth <= PARTS);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => count += usize::from(depth <= PARTS),
            _ => {}
        }
    }
    count
}

/// Whether a part is JSON that every parser of it accepts: not too deep. Makes no tree.
fn is_well_formed(part: &str) -> bool {
    /// Any value, with the parser's limit of depth, which `IgnoredAny` does not have.
    struct BoundedAny;
    impl<'de> Deserialize<'de> for BoundedAny {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<BoundedAny, D::Error> {
            from.deserialize_any(BoundedAny)
        }
    }
    impl<'de> Visitor<'de> for BoundedAny {
        type Value = BoundedAny;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any value")
        }

        fn visit_bool<E>(self, _: bool) -> Result<BoundedAny, E> {
            Ok(self)
        }

        fn visit_i64<E>(self, _: i64) -> Result<BoundedAny, E> {
            Ok(self)
        }

        fn visit_u64<E>(self, _: u64) -> Result<BoundedAny, E> {
            Ok(self)
        }

        fn visit_f64<E>(self, _: f64) -> Result<BoundedAny, E> {
            Ok(self)
        }

        fn visit_str<E>(self, _: &str) -> Result<BoundedAny, E> {
            Ok(self)
        }

        fn visit_unit<E>(self) -> Result<BoundedAny, E> {
            Ok(self)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<BoundedAny, A::Error> {
            while items.next_element::<BoundedAny>()?.is_some() {}
            Ok(self)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<BoundedAny, A::Error> {
            while fields.next_entry::<IgnoredAny, BoundedAny>()?.is_some() {}
            Ok(self)
        }
    }
    serde_json::from_str::<BoundedAny>(part).is_ok()
}

/// The parts that these refer to, transitively.
fn referenced_parts<'t>(
    roots: impl Iterator<Item = &'t str>,
    prefix: &str,
    all: &BTreeMap<String, &'t str>,
) -> BTreeMap<String, &'t str> {
    let mut referenced = BTreeMap::new();
    let mut pending: Vec<&str> = roots.collect();
    while let Some(part) = pending.pop() {
        for (_, reference) in references(part) {
            let Some((name, part)) = reference.strip_prefix(prefix).and_then(|name| all.get_key_value(name))
            else {
                continue;
            };
            if !referenced.contains_key(name) && is_well_formed(part) {
                referenced.insert(name.clone(), *part);
                pending.push(part);
            }
        }
    }
    referenced
}

/// The references of a part, and their positions in its text.
fn references(part: &str) -> impl Iterator<Item = (Range<usize>, &str)> {
    // The first quote cannot be inside of a string: there it would be escaped.
    const KEY: &str = "\"$ref\"";
    let keys = memchr::memmem::find_iter(part.as_bytes(), KEY).map(|start| start + KEY.len());
    keys.filter_map(move |end| {
        let rest = part.get(end..)?.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        let reference = rest.get(..rest.find(['"', '\\'])?)?;
        let begin = part.len() - rest.len();
        Some((begin..begin + reference.len(), reference))
    })
}

/// A part with renamed references.
fn rename_references(part: &str, renamed: &BTreeMap<String, String>) -> String {
    let (mut out, mut copied) = (String::with_capacity(part.len()), 0);
    for (range, reference) in references(part) {
        let Some(new) = renamed.get(reference) else { continue };
        out.push_str(part.get(copied..range.start).unwrap_or_default());
        out.push_str(new);
        copied = range.end;
    }
    out.push_str(part.get(copied..).unwrap_or_default());
    out
}

/// Whether two parts are equal, except for their kinds.
fn equals_except_kinds(ours: &str, other: &str) -> bool {
    let read = |part: &str| {
        let mut part: serde_json::Value = serde_json::from_str(part).ok()?;
        part.as_object_mut()?.remove(KINDS);
        Some(part)
    };
    let is_small = |part: &str| part.len() <= OPENAPI_COMPARED_BYTES;
    ours == other
        || (is_small(ours) && is_small(other) && read(ours).is_some_and(|ours| Some(ours) == read(other)))
}

/// New names for parts that differ from ours of the same name, each with its prefix.
fn renames(ours: &NamedObjects, others: &NamedObjects, prefix: &str) -> BTreeMap<String, String> {
    let differs =
        |name: &String, part: &str| ours.get(name).is_some_and(|known| !equals_except_kinds(known, part));
    let mut unnamed: Vec<(&String, &String)> =
        others.iter().filter(|(name, part)| differs(name, part)).collect();
    let differing: Vec<&String> = unnamed.iter().map(|(name, _)| *name).collect();
    let mut renamed = BTreeMap::new();
    for number in 2..2 + OPENAPI_NEW_NAMES {
        // New names if all of them get the same suffix. One set at a time: there may be a hundred thousand names.
        let suffix_all = || -> BTreeMap<String, String> {
            let names = differing.iter().map(|name| format!("{prefix}{name}"));
            names.map(|name| (name.clone(), format!("{name}_v{number}"))).collect()
        };
        let suffixed = LazyCell::new(suffix_all);
        unnamed.retain(|(name, part)| {
            let new = format!("{name}_v{number}");
            let fits = match ours.get(&new) {
                None => !others.contains_key(&new),
                // It may have been renamed already, for another version of the same server.
                Some(known) => equals_except_kinds(known, &rename_references(part, &suffixed)),
            };
            if fits {
                renamed.insert(format!("{prefix}{name}"), format!("{prefix}{new}"));
            }
            !fits
        });
    }
    renamed
}

/// Our document, merged with those of other servers. `None` if ours is invalid.
pub fn merge<'d>(ours: &[u8], others: impl IntoIterator<Item = &'d ServedSpec>) -> Option<Vec<u8>> {
    let document = Document::read(ours)?;
    let parts = |name: &str| document.parts(name).map(owned);
    let mut merged = ServedSpec {
        paths: parts("paths")?,
        definitions: parts("definitions")?,
        parameters: parts("parameters")?,
    };
    others.into_iter().for_each(|other| merged.join(other));
    let mut out = Vec::with_capacity(ours.len() + merged.bytes());
    out.push(b'{');
    for (name, value) in &document.fields {
        write_key(&mut out, name);
        match name.as_str() {
            "paths" => write_objects(&mut out, &merged.paths),
            "definitions" => write_objects(&mut out, &merged.definitions),
            "parameters" => write_objects(&mut out, &merged.parameters),
            _ => out.extend_from_slice(value.get().as_bytes()),
        }
    }
    out.push(b'}');
    Some(out)
}

fn write_objects(out: &mut Vec<u8>, parts: &NamedObjects) {
    out.push(b'{');
    for (name, part) in parts {
        write_key(out, name);
        out.extend_from_slice(part.as_bytes());
    }
    out.push(b'}');
}

/// Begins a field, with a comma after the previous one.
fn write_key(out: &mut Vec<u8>, name: &str) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    write_string(out, name);
    out.push(b':');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_spec(document: &Value) -> ServedSpec {
        ServedSpec::read(document.to_string().as_bytes(), "x.io", "v1").unwrap()
    }

    fn merged(ours: &Value, others: &[ServedSpec]) -> Value {
        serde_json::from_slice(&merge(ours.to_string().as_bytes(), others).unwrap()).unwrap()
    }

    fn reference(name: &str) -> Value {
        json!({"$ref": format!("#/definitions/{name}")})
    }

    #[test]
    fn extension_spec_keeps_only_parts_of_its_version() {
        let read = read_spec(&json!({
            "swagger": "2.0",
            "paths": {
                "/apis/x.io/v1/things": {"get": {"schema": reference("Thing"),
                    "parameters": [{"$ref": "#/parameters/limit"}]}},
                "/apis/x.io/v2/things": {"get": {"schema": reference("Other")}},
                "/api/v1/pods": {"get": {}},
                "/apis/x.io/v1/odd": 7,
            },
            "definitions": {
                "Thing": {"properties": {"self": reference("Thing"), "meta": reference("Meta"), "none": reference("None")}},
                "Meta": {"type": "object"},
                "Other": {"type": "object"},
                "Text": {"description": "says \"$ref\": \"#/definitions/Other\""},
            },
            "parameters": {"limit": {"in": "query"}, "unused": {"in": "query"}},
        }));
        assert_eq!(read.paths.keys().collect::<Vec<_>>(), ["/apis/x.io/v1/things"]);
        assert_eq!(read.definitions.keys().collect::<Vec<_>>(), ["Meta", "Thing"]);
        assert_eq!(read.parameters.keys().collect::<Vec<_>>(), ["limit"]);
        assert!(!read.is_empty() && read.bytes() > 100);
        assert!(ServedSpec::read(b"{}", "x.io", "v1").unwrap().is_empty());
        for invalid in [&b"7"[..], b"nonsense", b""] {
            assert_eq!(ServedSpec::read(invalid, "x.io", "v1"), None);
        }
    }

    #[test]
    fn deep_parts_of_extension_spec_are_dropped_and_large_ones_kept() {
        let large = "x".repeat(2 * OPENAPI_COMPARED_BYTES);
        let deep = format!("{}1{}", "[".repeat(1_000), "]".repeat(1_000));
        let text = format!(
            r#"{{"paths":{{"/apis/x.io/v1/a":{{"x":"{large}"}},"/apis/x.io/v1/b":{{"x":{deep}}},"/apis/x.io/v1/c":{{"n":null,"f":1.5,"i":-1,"t":[true,2]}}}}}}"#
        );
        let read = ServedSpec::read(text.as_bytes(), "x.io", "v1").unwrap();
        assert_eq!(read.paths.keys().collect::<Vec<_>>(), ["/apis/x.io/v1/a", "/apis/x.io/v1/c"]);
    }

    /// Each name would have to be tried with every number: as many as there are names, and a map of all names for each.
    #[test]
    fn new_names_are_tried_a_bounded_number_of_times() {
        let numbered = |number: usize| if number < 2 { "A".to_owned() } else { format!("A_v{number}") };
        let definitions = |kind: &str| -> NamedObjects {
            (1..200).map(|number| (numbered(number), format!(r#"{{"type":"{kind}"}}"#))).collect()
        };
        let renamed = renames(&definitions("string"), &definitions("integer"), DEFINITIONS);
        assert!(!renamed.contains_key("#/definitions/A"), "its new names are all taken");
        let name = |number: usize| format!("{DEFINITIONS}{}", numbered(number));
        assert_eq!(renamed.get(&name(199)), Some(&format!("{}_v2", name(199))));
    }

    #[test]
    fn extension_spec_with_too_many_parts_is_left_out() {
        let with_parts = |count: usize| {
            let parts: Vec<String> = (0..count).map(|index| format!(r#""{index}":{{}}"#)).collect();
            format!(r#"{{"definitions":{{{}}}}}"#, parts.join(","))
        };
        // The two braces count, too.
        assert!(ServedSpec::read(with_parts(OPENAPI_PARTS - 2).as_bytes(), "x.io", "v1").is_some());
        assert_eq!(ServedSpec::read(with_parts(OPENAPI_PARTS + 1).as_bytes(), "x.io", "v1"), None);
        let nested = format!(r#"{{"definitions":{{"a":[{}]}}}}"#, vec!["{}"; OPENAPI_PARTS + 1].join(","));
        assert!(
            ServedSpec::read(nested.as_bytes(), "x.io", "v1").is_some(),
            "objects inside a part are free"
        );
    }

    #[test]
    fn parts_of_a_document_are_counted_without_its_strings() {
        assert_eq!(count_parts(br#"{"a":{"b":{"c":{},"d":[1,2]}},"e":"{,\\\"{,"}"#), 3);
        assert_eq!(count_parts(b"}}]"), 0);
        let document = br#"{"paths":{"/a":{},"/b":{}},"definitions":{"A":{}}}"#;
        assert!(count_parts(document) >= 3);
        assert!(ServedSpec::reading_bytes(document) >= document.len() + 3 * 256);
    }

    #[test]
    fn large_definitions_are_equal_only_if_their_texts_are() {
        let filler = "x".repeat(OPENAPI_COMPARED_BYTES);
        let with_kind = |kind: &str| json!({"d": filler, KINDS: [{"kind": kind}]}).to_string();
        assert!(equals_except_kinds(&with_kind("A"), &with_kind("A")));
        assert!(!equals_except_kinds(&with_kind("A"), &with_kind("B")), "they are not parsed");
        assert!(equals_except_kinds(r#"{"a":1,"x-kubernetes-group-version-kind":[]}"#, r#"{"a":1}"#));
    }

    #[test]
    fn merge_keeps_own_parts_and_renames_conflicting_ones() {
        let ours = json!({
            "swagger": "2.0", "info": {"title": "T"},
            "paths": {"/api/v1/pods": {"get": {}}, "/apis/x.io/v1/ours": {"get": {}}},
            "definitions": {"Meta": {"type": "object", KINDS: [{"kind": "A"}]}, "Thing": {"type": "string"}},
            "parameters": {"limit": {"in": "query", "type": "integer"}},
            "security": [{"BearerToken": []}],
        });
        let theirs = read_spec(&json!({
            "paths": {
                "/apis/x.io/v1/ours": {"get": {"schema": reference("Thing")}},
                "/apis/x.io/v1/things": {"get": {"schema": reference("Thing"),
                    "parameters": [{"$ref": "#/parameters/limit"}]}},
            },
            "definitions": {
                "Thing": {"properties": {"self": reference("Thing"), "meta": reference("Meta")}},
                "Meta": {"type": "object", KINDS: [{"kind": "B"}]},
            },
            "parameters": {"limit": {"in": "query", "type": "string"}},
        }));
        let all = merged(&ours, std::slice::from_ref(&theirs));
        assert_eq!(all["paths"]["/apis/x.io/v1/ours"], json!({"get": {}}), "own paths win");
        let things = &all["paths"]["/apis/x.io/v1/things"]["get"];
        assert_eq!(things["schema"], reference("Thing_v2"));
        assert_eq!(things["parameters"][0]["$ref"], "#/parameters/limit_v2");
        assert_eq!(all["parameters"]["limit_v2"]["type"], "string");
        assert_eq!(all["definitions"]["Thing"]["type"], "string");
        assert_eq!(
            all["definitions"]["Thing_v2"]["properties"],
            json!({"self": reference("Thing_v2"), "meta": reference("Meta")}),
            "self references are renamed too"
        );
        assert_eq!(
            all["definitions"].as_object().unwrap().len(),
            3,
            "definitions that differ only in kinds are shared"
        );
        assert_eq!((&all["info"]["title"], &all["security"]), (&json!("T"), &ours["security"]));
        assert_eq!(merged(&ours, &[]), ours);
        let more = ServedSpec {
            paths: [("/apis/x.io/v1/new".to_owned(), "{}".to_owned())].into(),
            ..theirs.clone()
        };
        let twice = merged(&ours, &[theirs, more]);
        assert_eq!(twice["parameters"], all["parameters"], "a renamed part is reused");
        assert_eq!(twice["definitions"], all["definitions"], "also a recursive one");
    }
}
