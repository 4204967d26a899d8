//! Nobody spells an identifier a second time.

use std::collections::BTreeMap;
use std::path::Path;

/// Whether a text is a name that the ecosystem knows, rather than a word.
fn is_identifier(text: &str) -> bool {
    let begins =
        ["system:", "kube-", "application/", "text/", "/."].iter().any(|start| text.starts_with(start));
    (begins || ["k8s.io", "kubernetes.io"].iter().any(|part| text.contains(part))) && !text.contains(' ')
}

/// The constants of a source file that are texts: name and text.
fn constants(source: &str) -> Vec<(&str, &str)> {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let declared = source.split("const ").skip(1).filter_map(|rest| rest.split_once(": &str ="));
    let texts = declared.filter_map(|(name, rest)| {
        let text = rest.trim_start().strip_prefix('"')?.split_once('"')?.0;
        Some((name, text))
    });
    texts.filter(|(name, _)| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')).collect()
}

/// Reads every source file of a folder and what is below it, files of tests apart.
pub(in crate::api) fn each_source(folder: &Path, see: &mut impl FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            each_source(&path, see);
        } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
            see(&path, &std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn each_identifier_is_declared_once() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    each_source(&root, &mut |path, source| {
        for (name, text) in constants(source).into_iter().filter(|(_, text)| is_identifier(text)) {
            let place = path.strip_prefix(&root).unwrap().display();
            places.entry(text.to_owned()).or_default().push(format!("{place}: {name}"));
        }
    });
    assert!(places.contains_key(super::JSON) && places.contains_key(super::stores::LEASES), "{places:?}");
    places.retain(|_, places| places.len() > 1);
    assert_eq!(
        places,
        BTreeMap::new(),
        "declare it in one place: here, if more than one part of the server uses it"
    );
}
