//! The descriptions of the API, taken out of published packages while the server is built; and the words that its facts
//! table allows in fields, as constants.
//!
//! What a type or a field is for is told in sentences that are not ours, so they are not in this repository. Two packages
//! on the registry carry them, and both are needed: `k8s-openapi` has the published texts to the letter, but of no list
//! kind, because its lists are one generic type; `k8s-pb` has the lists, and versions that are served no more and whose
//! words some printed columns still use, in the form of source comments.
//!
//! [`bundle`] finds and reads both, and gives two files for the server to embed: all words, and an index into them.

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
pub struct Words {
    /// What the type is for; empty when nobody says.
    pub about: String,
    /// What its fields are for, by their names. The names of the second package have lost their capitals, so whoever
    /// looks one up does not mind them.
    pub fields: BTreeMap<String, String>,
}

/// The descriptions of every type, by its published name.
pub type Texts = BTreeMap<String, Words>;

/// A package: its name, its version, and where in it the texts are.
type Package = (&'static str, &'static str, &'static str);

/// The published texts.
const SCHEMAS: Package = ("k8s-openapi", "0.29.0", "src/v1_33");
/// The comments of the messages.
const MESSAGES: Package = ("k8s-pb", "0.8.0", "src");
/// A kind whose `kind` and `apiVersion` are described as those of every kind are.
const ANY_KIND: &str = "io.k8s.api.core.v1.ConfigMap";

/// What was found, and where.
#[derive(Debug, Default)]
pub struct Found {
    /// The descriptions.
    pub texts: Texts,
    /// The folders they were read from.
    pub folders: Vec<PathBuf>,
    /// What went wrong; the descriptions are then incomplete, and a build goes on without them.
    pub problems: Vec<String>,
}

/// Finds and reads both packages. `manifest` is the manifest of the package that is built, `cargo` the cargo that
/// builds it.
pub fn read(manifest: &Path, cargo: &Path) -> Found {
    let mut found = Found::default();
    type Reader = fn(&Path) -> std::io::Result<Texts>;
    let readers: [(Package, Reader); 2] = [(SCHEMAS, schemas::read), (MESSAGES, messages::read)];
    for ((package, version, below), reader) in readers {
        let Some(folder) = find::package(package, version, manifest, cargo) else {
            found.problems.push(format!("the sources of {package} {version} are nowhere"));
            continue;
        };
        match reader(&folder.join(below)) {
            Ok(texts) => merge(&mut found.texts, texts),
            Err(error) => found.problems.push(format!("{}: {error}", folder.display())),
        }
        found.folders.push(folder);
    }
    describe_every_kind(&mut found.texts);
    found
}

/// The first who describes a type describes all of it.
fn merge(texts: &mut Texts, more: Texts) {
    for (name, words) in more {
        texts.entry(name).or_insert(words);
    }
}

/// Messages do not carry `kind` and `apiVersion`, so the second package has no words for them.
fn describe_every_kind(texts: &mut Texts) {
    let Some(any) = texts.get(ANY_KIND) else { return };
    let of = |field: &str| any.fields.get(field).cloned();
    let (Some(kind), Some(api_version)) = (of("kind"), of("apiVersion")) else { return };
    for words in texts.values_mut().filter(|words| words.fields.contains_key("metadata")) {
        words.fields.entry("kind".to_owned()).or_insert_with(|| kind.clone());
        words.fields.entry("apiVersion".to_owned()).or_insert_with(|| api_version.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_are_those_of_the_manifest() {
        let manifest = include_str!("../Cargo.toml");
        for (package, version, _) in [SCHEMAS, MESSAGES] {
            let line = manifest.lines().find(|line| line.starts_with(package)).unwrap();
            assert!(line.contains(&format!("\"={version}\"")), "{line}");
        }
    }

    #[test]
    fn every_kind_says_what_kind_and_version_are() {
        let words = |fields: &[&str]| Words {
            about: String::new(),
            fields: fields.iter().map(|name| ((*name).to_owned(), format!("about {name}"))).collect(),
        };
        let mut texts = Texts::new();
        texts.insert(ANY_KIND.to_owned(), words(&["kind", "apiVersion", "metadata"]));
        texts.insert("io.example.List".to_owned(), words(&["metadata", "items"]));
        texts.insert("io.example.Part".to_owned(), words(&["name"]));
        describe_every_kind(&mut texts);
        assert_eq!(texts["io.example.List"].fields["apiVersion"], "about apiVersion");
        assert!(!texts["io.example.Part"].fields.contains_key("kind"));
    }

    #[test]
    fn the_first_who_describes_a_type_wins() {
        let one = |about: &str| {
            Texts::from([("T".to_owned(), Words { about: about.to_owned(), ..Words::default() })])
        };
        let mut texts = one("first");
        merge(&mut texts, one("second"));
        assert_eq!(texts["T"].about, "first");
    }
}
