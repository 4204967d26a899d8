//! Checks of the source tree: import directions, sizes of files and functions, and uses of the clock. See docs/ARCHITECTURE.md.

pub mod source;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use self::source::{Source, Tree, functions, sources};
use self::table::LAYERS;
use crate::root;

#[test]
fn module_imports_follow_layers() {
    let tree = Tree::read(&["src"]);
    let mut violations = Vec::new();
    for (index, layer) in LAYERS.iter().enumerate() {
        let is_not_below =
            |name: &&&str| !LAYERS[..index].iter().any(|lower_layer| lower_layer.name == **name);
        violations.extend(
            layer
                .allowed
                .iter()
                .filter(is_not_below)
                .map(|name| format!("{} may not be above {name}", layer.name)),
        );
    }
    for file in tree.files.iter().filter(|file| file.module != ["lib"]) {
        let Some(layer) = LAYERS.iter().find(|layer| file.module[0] == layer.name) else {
            violations.push(format!("{} is of no layer", file.path));
            continue;
        };
        let allowed = |name: &String| name == layer.name || layer.allowed.contains(&name.as_str());
        violations.extend(
            file.names()
                .iter()
                .filter(|name| !allowed(name))
                .map(|name| format!("{} names crate::{name}", file.path)),
        );
        violations
            .extend(file.external(layer.external).iter().map(|path| format!("{} names {path}", file.path)));
    }
    assert!(violations.is_empty(), "see LAYERS:\n{}", violations.join("\n"));
}

/// Crates of rules use no actors, no I/O and no clock.
#[test]
fn rule_crates_use_no_actors_io_or_clock() {
    let rule_crates =
        ["admission", "api", "apimachinery", "authorization", "cel", "etcd-layout", "kinds", "structural"];
    let tree = Tree::read(&rule_crates.map(|name| format!("crates/{name}/src")));
    let external = |file: &Source| {
        file.external(&["openssl::sha", "serde_json::"])
            .into_iter()
            .map(|path| format!("{} names {path}", file.path))
            .collect::<Vec<_>>()
    };
    let files = tree.files.iter().filter(|file| file.module != ["testing"]);
    let violations: Vec<String> = files.flat_map(external).collect();
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

/// Modules at the root of a crate import each other in one direction. What belongs together lies in one folder.
#[test]
fn root_modules_form_no_import_cycle() {
    let mut cycles = Vec::new();
    for folder in source_folders() {
        let tree = Tree::read(&[&folder]);
        let mut edges: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for file in tree.files.iter().filter(|file| file.module != ["lib"] && file.module != ["main"]) {
            edges.entry(&file.module[0]).or_default().extend(file.names());
        }
        for (module, names) in &edges {
            // All modules that are reachable through its imports.
            let mut reached: BTreeSet<&str> = BTreeSet::new();
            let mut pending: Vec<&str> =
                names.iter().map(String::as_str).filter(|name| name != module).collect();
            while let Some(next) = pending.pop() {
                if reached.insert(next) {
                    pending.extend(edges.get(next).into_iter().flatten().map(String::as_str));
                }
            }
            if reached.contains(module) {
                cycles.push(format!("{folder}: {module}"));
            }
        }
    }
    assert!(cycles.is_empty(), "import each other:\n{}", cycles.join("\n"));
}

#[test]
fn actors_crate_uses_no_http_or_object_code() {
    const ENGINE_IMPORTS: &[&str] =
        &["engine", "archive", "backup", "disk_bytes", "encryption", "event", "limits", "log_time"];
    let mut violations = Vec::new();
    for file in &Tree::read(&["actors/src", "crates/types/src"]).files {
        let external = file.external(&["actix::", "tokio::", "fs::", "redb::", "prometheus::", "process::"]);
        violations.extend(external.iter().map(|path| format!("{} names {path}", file.path)));
        // Engines do not import their users.
        if file.module[0] == "engine" {
            let names = file.names();
            let forbidden = names.iter().filter(|name| !ENGINE_IMPORTS.contains(&name.as_str()));
            violations.extend(forbidden.map(|name| format!("{} names crate::{name}", file.path)));
        }
    }
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

/// The source folders of all crates.
fn source_folders() -> Vec<String> {
    let members = fs::read_dir(root().join("crates")).unwrap();
    let names = members.map(|member| member.unwrap().file_name().into_string().unwrap());
    let mut folders: Vec<String> = names.map(|name| format!("crates/{name}/src")).collect();
    folders.extend(["src", "actors/src"].map(str::to_owned));
    folders
}

#[test]
fn source_files_stay_under_line_limit() {
    /// Files of tables alone may be long.
    const CEILING: usize = 600;
    let mut files = Vec::new();
    for folder in source_folders().iter().map(String::as_str).chain(["tests", "benches"]) {
        sources(&root().join(folder), &mut files);
    }
    let long: Vec<String> = files
        .iter()
        .filter_map(|file| {
            let lines = fs::read_to_string(file).unwrap().lines().count();
            (lines > CEILING)
                .then(|| format!("{}: {lines} lines", file.strip_prefix(root()).unwrap().display()))
        })
        .collect();
    assert!(long.is_empty(), "files over {CEILING} lines:\n{}", long.join("\n"));
}

#[test]
fn functions_stay_under_line_limit() {
    const CEILING: usize = 70;
    let tree = Tree::read(&source_folders());
    let long: BTreeSet<String> = tree
        .files
        .iter()
        .flat_map(|file| {
            functions(&file.code).map(move |(name, lines)| (format!("{} {name}", file.path), lines))
        })
        .filter_map(|(name, lines)| (lines > CEILING).then_some(name))
        .collect();
    assert!(long.is_empty(), "functions over {CEILING} lines: {long:?}");
}

/// Every watcher of a store must handle objects that cannot be read. Live indexes do so by `StoreIndex`, which has no defaults;
/// all others are listed here, with their handling.
#[test]
fn store_watchers_are_listed_with_unreadable_object_handling() {
    /// A file, what it does about unreadable objects, and the functions and types that do it.
    struct StoreWatcher(&'static str, &'static str, &'static [&'static str]);
    const STORE_WATCHERS: [StoreWatcher; 8] = [
        StoreWatcher("src/live_index.rs", "the index fails closed", &["fn fail_closed"]),
        StoreWatcher(
            "src/auth/token_objects.rs",
            "reads objects one by one: a token whose object cannot be read is refused",
            &[],
        ),
        StoreWatcher(
            "src/admission/lookup.rs",
            "the write is refused, and the object reported",
            &["fn decode", "struct LookupGuards"],
        ),
        StoreWatcher("src/registry/stores.rs", "only passes the message on", &[]),
        StoreWatcher(
            "src/controllers/informer.rs",
            "controllers do not receive such objects, and find them when they read",
            &[],
        ),
        StoreWatcher(
            "src/apiextensions/reconcile.rs",
            "the definition is not served, and the object reported",
            &["fn mark_unreadable", "struct LookupGuards"],
        ),
        StoreWatcher("src/http/handler/metrics.rs", "counts", &[]),
        StoreWatcher("src/verbs/list.rs", "the list fails and names the object", &[]),
    ];
    let tree = Tree::read(&["src"]);
    let is_watcher = |file: &&Source| {
        ["OpenWatch { freshness", ".open_watch("].iter().any(|call| file.code.contains(call))
    };
    let actual: BTreeSet<&str> =
        tree.files.iter().filter(is_watcher).map(|file| file.path.as_str()).collect();
    assert_eq!(actual, STORE_WATCHERS.iter().map(|StoreWatcher(path, ..)| *path).collect());
    for StoreWatcher(path, handling, symbols) in &STORE_WATCHERS {
        for symbol in *symbols {
            let is_declared = tree.files.iter().any(|file| file.code.contains(symbol));
            assert!(is_declared, "{path}: {handling}: there is no {symbol}");
        }
    }
}

#[test]
fn only_clock_module_reads_system_time() {
    let tree = Tree::read(&source_folders());
    let other_files = tree.files.iter().filter(|file| file.path != "crates/types/src/clock.rs");
    let violations: Vec<_> = other_files
        .filter(|file| ["SystemTime::now", "Instant::now"].iter().any(|call| file.code.contains(call)))
        .map(|file| &file.path)
        .collect();
    assert!(violations.is_empty(), "read the clock elsewhere: {violations:?}");
}

/// Every identifier of the ecosystem is declared as one constant.
#[test]
fn ecosystem_identifiers_are_declared_once() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut files = Vec::new();
    source_folders().iter().for_each(|folder| sources(&root().join(folder), &mut files));
    for path in files.iter().filter(|path| !path.ends_with("tests.rs")) {
        let source = fs::read_to_string(path).unwrap();
        for (name, text) in constants(&source).into_iter().filter(|(_, text)| is_identifier(text)) {
            let folder = path.strip_prefix(root()).unwrap().display();
            places.entry(text.to_owned()).or_default().push(format!("{folder}: {name}"));
        }
    }
    assert!(places.contains_key("application/json"), "{places:?}");
    places.retain(|_, places| places.len() > 1);
    let advice = "declare it in one place: well_known, if more than one part of the server uses it";
    assert_eq!(places, BTreeMap::new(), "{advice}");
}

/// Whether a text is an identifier of the ecosystem, such as a media type or a label.
fn is_identifier(text: &str) -> bool {
    let begins =
        ["system:", "kube-", "application/", "text/", "/."].iter().any(|start| text.starts_with(start));
    (begins || ["k8s.io", "kubernetes.io"].iter().any(|part| text.contains(part))) && !text.contains(' ')
}

/// Name and value of the string constants of a source file.
fn constants(source: &str) -> Vec<(&str, &str)> {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let declared = source.split("const ").skip(1).filter_map(|rest| rest.split_once(": &str ="));
    let texts = declared.filter_map(|(name, rest)| {
        let text = rest.trim_start().strip_prefix('"')?.split_once('"')?.0;
        Some((name, text))
    });
    texts.filter(|(name, _)| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')).collect()
}
