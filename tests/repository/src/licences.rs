//! Every dependency has a licence that deny.toml allows. Works offline and without cargo-deny.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::root;

/// Whether an SPDX licence expression can be satisfied with these licences.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let expression = expression.replace('/', " OR ");
    let plain = expression.replace(['(', ')'], "");
    // No dependency nests deeper than a choice within a conjunction, or the other way round.
    if expression.contains('(') {
        plain.split(" AND ").all(|alternative| {
            alternative.split(" OR ").any(|name| allowed.contains(name.trim().trim_end_matches('+')))
        })
    } else {
        plain.split(" OR ").any(|alternative| {
            alternative.split(" AND ").all(|name| allowed.contains(name.trim().trim_end_matches('+')))
        })
    }
}

#[test]
fn dependencies_have_allowed_licences() {
    let deny = fs::read_to_string(root().join("deny.toml")).unwrap();
    let (_, list) = deny.split_once("allow = [").unwrap();
    let (list, _) = list.split_once(']').unwrap();
    let allowed: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--offline", "--locked", "--filter-platform"])
        .arg("x86_64-unknown-linux-gnu")
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "{}", packages.len());
    let refused: Vec<String> = packages
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(|licence| is_allowed(licence, &allowed)))
        .map(|package| format!("{}: {}", package["name"], package["license"]))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn licence_expressions_are_evaluated() {
    let allowed = BTreeSet::from(["MIT", "Zlib"]);
    for (expression, expected) in [
        ("MIT", true),
        ("MIT OR GPL-3.0", true),
        ("MIT/GPL-3.0", true),
        ("GPL-3.0", false),
        ("MIT AND GPL-3.0", false),
        ("MIT AND Zlib", true),
        ("(MIT OR GPL-3.0) AND Zlib", true),
        ("(MIT OR Zlib) AND GPL-3.0", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}
