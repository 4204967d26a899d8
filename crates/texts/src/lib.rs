//! API descriptions, extracted from published packages at build time, and the enum values of the schema table as constants.
//!
//! The descriptions are not ours, so they are not in this repository. Two packages on the registry contain them, and both are
//! needed: `k8s-openapi` has the published texts verbatim, but not those of list kinds, because its list type is generic;
//! `k8s-pb` has the lists, and versions that are no longer served but whose texts some printer columns still use, as source
//! comments.
//!
//! [`read`] finds and reads both. [`Bundle`] packs the result into two files for the server to embed: all texts, and an index.

mod allowed;
mod bundle;
mod find;
mod messages;
mod schemas;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use allowed::constants;
pub use bundle::Bundle;

/// The descriptions of one type.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TypeDescriptions {
    /// The description of the type; empty if there is none.
    pub description: String,
    /// The descriptions of its fields, by name. Names from `k8s-pb` have lost their capitals, so lookups ignore case.
    pub fields: BTreeMap<String, String>,
}

/// The descriptions of every type, by its published name.
pub type Descriptions = BTreeMap<String, TypeDescriptions>;

/// A package: its name, its version, and the directory of the sources that have descriptions.
type Package = (&'static str, &'static str, &'static str);

/// The texts of the OpenAPI document.
const SCHEMAS: Package = ("k8s-openapi", "0.29.0", "src/v1_33");
/// The comments of the protobuf messages.
const MESSAGES: Package = ("k8s-pb", "0.8.0", "src");
/// A kind from which the descriptions of `kind` and `apiVersion` are copied to all other kinds.
const ANY_KIND: &str = "io.k8s.api.core.v1.ConfigMap";

/// The result of [`read`].
#[derive(Debug, Default)]
pub struct ReadResult {
    /// The descriptions.
    pub texts: Descriptions,
    /// The directories that were read.
    pub folders: Vec<PathBuf>,
    /// Errors. The descriptions are then incomplete, and the build continues without them.
    pub problems: Vec<String>,
}

/// Finds and reads both packages. `manifest` is the manifest of the package that is built, `cargo` the cargo binary.
pub fn read(manifest: &Path, cargo: &Path) -> ReadResult {
    let mut result = ReadResult::default();
    type Reader = fn(&Path) -> std::io::Result<Descriptions>;
    let readers: [(Package, Reader); 2] = [(SCHEMAS, schemas::read), (MESSAGES, messages::read)];
    for ((package, version, directory), reader) in readers {
        let Some(folder) = find::package(package, version, manifest, cargo) else {
            result.problems.push(format!("the sources of {package} {version} were not found"));
            continue;
        };
        match reader(&folder.join(directory)) {
            Ok(texts) => merge(&mut result.texts, texts),
            Err(error) => result.problems.push(format!("{}: {error}", folder.display())),
        }
        result.folders.push(folder);
    }
    describe_every_kind(&mut result.texts);
    result
}

/// Adds types that are not described yet.
fn merge(texts: &mut Descriptions, more: Descriptions) {
    for (name, words) in more {
        texts.entry(name).or_insert(words);
    }
}

/// Protobuf messages do not have `kind` and `apiVersion`, so `k8s-pb` does not describe them.
fn describe_every_kind(texts: &mut Descriptions) {
    let Some(any) = texts.get(ANY_KIND) else { return };
    let description = |field: &str| any.fields.get(field).cloned();
    let (Some(kind), Some(api_version)) = (description("kind"), description("apiVersion")) else { return };
    for words in texts.values_mut().filter(|words| words.fields.contains_key("metadata")) {
        words.fields.entry("kind".to_owned()).or_insert_with(|| kind.clone());
        words.fields.entry("apiVersion".to_owned()).or_insert_with(|| api_version.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_versions_match_the_manifest() {
        let manifest = include_str!("../Cargo.toml");
        for (package, version, _) in [SCHEMAS, MESSAGES] {
            let line = manifest.lines().find(|line| line.starts_with(package)).unwrap();
            assert!(line.contains(&format!("\"={version}\"")), "{line}");
        }
    }

    #[test]
    fn describe_every_kind_adds_kind_and_api_version() {
        let words = |fields: &[&str]| TypeDescriptions {
            description: String::new(),
            fields: fields.iter().map(|name| ((*name).to_owned(), format!("about {name}"))).collect(),
        };
        let mut texts = Descriptions::new();
        texts.insert(ANY_KIND.to_owned(), words(&["kind", "apiVersion", "metadata"]));
        texts.insert("io.example.List".to_owned(), words(&["metadata", "items"]));
        texts.insert("io.example.Part".to_owned(), words(&["name"]));
        describe_every_kind(&mut texts);
        assert_eq!(texts["io.example.List"].fields["apiVersion"], "about apiVersion");
        assert!(!texts["io.example.Part"].fields.contains_key("kind"));
    }

    #[test]
    fn merge_keeps_the_first_description() {
        let texts_with = |description: &str| {
            Descriptions::from([(
                "T".to_owned(),
                TypeDescriptions { description: description.to_owned(), ..TypeDescriptions::default() },
            )])
        };
        let mut texts = texts_with("first");
        merge(&mut texts, texts_with("second"));
        assert_eq!(texts["T"].description, "first");
    }
}
