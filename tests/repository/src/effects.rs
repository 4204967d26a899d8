//! Nothing of an operator is dead: every field of the flags is read, and every feature gate is asked for.

use std::collections::BTreeSet;

use crate::layers::source::{Source, Tree, functions};

/// What only checks the flags, or talks about them. A field that nothing else reads has no effect.
const CHECKS: [&str; 2] = ["validate", "warning"];

/// The words of some code.
fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|character: char| !(character.is_alphanumeric() || character == '_'))
        .filter(|word| !word.is_empty())
}

/// The fields that some code reads: after a dot, or in a pattern that takes a group of flags apart.
fn fields_read<'a>(code: &'a str, groups: &BTreeSet<String>) -> BTreeSet<&'a str> {
    let end = |text: &str| {
        text.find(|character: char| !(character.is_alphanumeric() || character == '_')).unwrap_or(text.len())
    };
    let mut read = BTreeSet::new();
    for (offset, _) in code.match_indices('.') {
        let rest = &code[offset + 1..];
        let word = &rest[..end(rest)];
        if !rest[word.len()..].starts_with('(') {
            read.insert(word);
        }
    }
    for group in groups {
        for (offset, _) in code.match_indices(&format!("{group} {{")) {
            let pattern = code[offset..].split('}').next().unwrap_or_default();
            read.extend(words(pattern));
        }
    }
    read
}

/// A flag: the group that has it, and its field.
struct Flag {
    group: String,
    field: String,
}

/// The fields with a flag of the structures that are parsed from the command line.
fn flags(tree: &Tree) -> Vec<Flag> {
    let mut flags = Vec::new();
    for file in &tree.files {
        let mut group: Option<String> = None;
        let (mut is_arguments, mut attribute) = (false, String::new());
        for line in file.code.lines().map(str::trim) {
            if line.starts_with("#[derive(") {
                is_arguments = words(line).any(|word| word == "Args");
            } else if let Some(rest) = line.strip_prefix("pub struct ").filter(|_| is_arguments) {
                group = rest.split([' ', '<']).next().map(str::to_owned);
            } else if line == "}" {
                (group, is_arguments) = (None, false);
            } else if line.starts_with("#[arg(") || !attribute.is_empty() && !line.starts_with("pub ") {
                attribute.push_str(line);
            } else if let (Some(group), Some(rest)) = (&group, line.strip_prefix("pub ")) {
                if words(&attribute).any(|word| word == "long") {
                    let field = words(rest).next().unwrap_or_default().to_owned();
                    flags.push(Flag { group: group.clone(), field });
                }
                attribute.clear();
            }
        }
    }
    flags
}

/// The functions of a file with their code.
fn bodies(file: &Source) -> Vec<(&str, String)> {
    let lines: Vec<&str> = file.code.lines().collect();
    let mut found = Vec::new();
    let mut from = 0;
    for (name, length) in functions(&file.code) {
        let head = format!("fn {name}");
        let Some(first) = lines[from..].iter().position(|line| line.contains(&head)).map(|at| at + from)
        else {
            continue;
        };
        found.push((name, lines[first..(first + length).min(lines.len())].join("\n")));
        from = first + 1;
    }
    found
}

/// The fields of flags that are read where they take effect: outside of the configuration, or in a function of it that is used there.
fn live_fields(config: &Tree, others: &[&Source], groups: &BTreeSet<String>) -> BTreeSet<String> {
    let outside =
        || others.iter().filter(|file| words(&file.code).any(|word| word == "config" || word == "flags"));
    let mut live: BTreeSet<String> =
        outside().flat_map(|file| fields_read(&file.code, groups)).map(str::to_owned).collect();
    let mut used: BTreeSet<String> =
        others.iter().flat_map(|file| words(&file.code)).map(str::to_owned).collect();
    let functions: Vec<(&str, String)> = config.files.iter().flat_map(bodies).collect();
    let takes_effect = |name: &str| !CHECKS.iter().any(|check| name.starts_with(check));
    let mut pending: Vec<&(&str, String)> = functions.iter().filter(|(name, _)| takes_effect(name)).collect();
    loop {
        let (reached, rest): (Vec<_>, Vec<_>) =
            pending.into_iter().partition(|(name, _)| used.contains(*name));
        if reached.is_empty() {
            return live;
        }
        for (_, body) in reached {
            live.extend(fields_read(body, groups).into_iter().map(str::to_owned));
            used.extend(words(body).map(str::to_owned));
        }
        pending = rest;
    }
}

#[test]
fn every_flag_has_a_reader() {
    let tree = Tree::read(&["src"]);
    let (config, others): (Vec<Source>, Vec<Source>) =
        tree.files.into_iter().partition(|file| file.module[0] == "config");
    let config = Tree { files: config };
    let flags = flags(&config);
    assert!(flags.len() > 150, "{} flags were found", flags.len());
    let groups = flags.iter().map(|flag| flag.group.clone()).collect();
    let others: Vec<&Source> = others.iter().collect();
    let live = live_fields(&config, &others, &groups);
    let dead: Vec<String> = flags
        .iter()
        .filter(|flag| !live.contains(&flag.field))
        .map(|flag| format!("{}::{}", flag.group, flag.field))
        .collect();
    assert!(dead.is_empty(), "nothing reads these flags:\n{}", dead.join("\n"));
}

/// What stands between two lines of a file.
fn between<'a>(code: &'a str, begin: &str, end: &str) -> &'a str {
    let code = code.split_once(begin).unwrap_or_else(|| panic!("no {begin}")).1;
    code.split_once(end).unwrap_or_else(|| panic!("no {end}")).0
}

fn file<'a>(tree: &'a Tree, path: &str) -> &'a Source {
    tree.files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("no {path}"))
}

/// Whether a gate has an effect is said by its place: a constant, or a feature of kinds. It has none if nobody asks for it.
#[test]
fn every_gate_with_an_effect_is_asked_for() {
    let tree = Tree::read(&[
        "src",
        "crates/api/src",
        "crates/apimachinery/src",
        "crates/kinds/src",
        "crates/admission/src",
    ]);
    let (gates, features) = ("crates/api/src/gates.rs", "crates/apimachinery/src/features.rs");
    let names = |code: &str, separator: &str| -> Vec<String> {
        let lines = code.lines().map(str::trim).filter_map(|line| line.split_once(separator));
        lines.map(|(name, _)| name.to_owned()).collect()
    };
    let constants = names(between(&file(&tree, gates).code, "\ngates! {", "\n}"), " = ");
    let variants = names(between(&file(&tree, features).code, "\nfeatures! {", "\n}"), ": ");
    assert!(constants.len() > 30 && variants.len() > 30, "{constants:?} {variants:?}");
    let others = tree.files.iter().filter(|file| file.path != gates && file.path != features);
    let code: Vec<&str> = others.map(|file| file.code.as_str()).collect();
    // An import alone asks for nothing.
    let items = code.iter().flat_map(|code| code.split(';'));
    let used: BTreeSet<&str> =
        items.filter(|item| !item.trim_start().starts_with("use ")).flat_map(words).collect();
    let mut schema_gates = String::new();
    for entry in std::fs::read_dir(crate::root().join("crates/apimachinery/schema")).unwrap() {
        schema_gates += &std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
    }
    let in_schema: BTreeSet<&str> = words(&schema_gates).collect();
    let unused: Vec<&String> = constants
        .iter()
        .chain(&variants)
        .filter(|name| !used.contains(name.as_str()) && !in_schema.contains(name.as_str()))
        .collect();
    assert!(unused.is_empty(), "nobody asks for these gates: {unused:?}");
}

#[test]
fn dead_flags_are_found() {
    let source = |path: &str, module: &str, code: &str| Source {
        path: path.to_owned(),
        module: vec![module.to_owned()],
        code: code.to_owned(),
    };
    let group = "#[derive(Args, Clone)]\npub struct Group {\n    #[arg(long)]\n    pub used: bool,\n    #[arg(\n        long\n    )]\n    \
                 pub by_method: u32,\n    #[arg(long)]\n    pub checked: u32,\n    #[arg(long)]\n    pub in_pattern: u32,\n    \
                 #[arg(skip)]\n    pub other: u32,\n}\n\nimpl Group {\n    pub fn bound(&self) -> u32 {\n        self.by_method\n    }\n    \
                 pub fn validate(&self) -> u32 {\n        self.checked\n    }\n}\n";
    let config = Tree { files: vec![source("src/config/x.rs", "config", group)] };
    let outside = source(
        "src/server.rs",
        "server",
        "fn a(config: &Config) {\n    b(config.group.used, config.group.bound());\n    config.validate();\n    \
         let Group { in_pattern, .. } = config.group;\n}\n",
    );
    let flags = flags(&config);
    let fields: Vec<&str> = flags.iter().map(|flag| flag.field.as_str()).collect();
    assert_eq!(fields, ["used", "by_method", "checked", "in_pattern"]);
    let live = live_fields(&config, &[&outside], &BTreeSet::from(["Group".to_owned()]));
    let dead: Vec<&&str> = fields.iter().filter(|field| !live.contains(**field)).collect();
    assert_eq!(dead, [&"checked"]);
}
