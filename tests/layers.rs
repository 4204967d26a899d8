//! The direction of imports, the size of files and functions, and who reads the clock. See docs/ARCHITECTURE.md.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that meets the unexpected fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A part of the tree and what it may name. Everything else fails.
struct Layer {
    /// The module: a file, a folder, or both, below `src`.
    name: &'static str,
    /// The modules it may name, besides itself. All of them stand above it in the list, so nobody can name each other.
    may: &'static [&'static str],
    /// Which of [`OUTSIDE`] it may name.
    outside: &'static [&'static str],
}

/// What stands for a world of its own, as a path to it begins: a layer says which of them it knows.
const OUTSIDE: &[&str] = &[
    "actix::",
    "actix_http::",
    "actix_rt::",
    "actix_server::",
    "actix_service::",
    "actix_web::",
    "clap::",
    "fs::",
    "h2::",
    "openssl::",
    "pilothouse::",
    "pilothouse_actors::",
    "process::",
    "prometheus::",
    "redb::",
    "serde_json::",
    "TcpListener",
    "TcpStream",
    "tokio::",
    "UdpSocket",
];

/// Modules of `src`, from the ground up.
const LAYERS: &[Layer] = &[
    Layer { name: "limits", may: &[], outside: &[] },
    Layer { name: "signatures", may: &[], outside: &["openssl::"] },
    Layer { name: "frames", may: &["limits"], outside: &["openssl::", "tokio::"] },
    Layer { name: "socket", may: &["limits"], outside: &["TcpStream", "tokio::"] },
    Layer { name: "config", may: &["limits"], outside: &["clap::", "fs::read", "openssl::"] },
    Layer {
        name: "telemetry",
        may: &["limits", "config"],
        outside: &["fs::File", "pilothouse::", "pilothouse_actors::"],
    },
    Layer { name: "random", may: &["telemetry"], outside: &["openssl::", "process::abort"] },
    Layer {
        name: "kubeconfig",
        may: &["limits"],
        outside: &["fs::File", "openssl::", "pilothouse_actors::", "process::", "tokio::"],
    },
    Layer {
        name: "metrics",
        may: &["limits", "telemetry"],
        outside: &[
            "fs::metadata",
            "fs::read_dir",
            "fs::read_to_string",
            "openssl::",
            "pilothouse_actors::",
            "prometheus::",
        ],
    },
    Layer {
        name: "pki",
        may: &["limits", "signatures", "config"],
        outside: &["fs::", "openssl::", "pilothouse_actors::"],
    },
    Layer {
        name: "upstream",
        may: &["limits", "socket", "kubeconfig"],
        outside: &["TcpStream", "fs::File", "openssl::", "pilothouse_actors::", "tokio::"],
    },
    Layer {
        name: "webhook",
        may: &["limits", "kubeconfig", "upstream"],
        outside: &["TcpStream", "openssl::", "pilothouse_actors::", "tokio::"],
    },
    Layer {
        name: "audit_backends",
        may: &["limits", "config", "metrics", "webhook"],
        outside: &["fs::", "pilothouse_actors::", "tokio::"],
    },
    Layer { name: "audit", may: &["limits", "audit_backends"], outside: &["pilothouse_actors::"] },
    Layer {
        name: "auth",
        may: &["limits", "signatures", "config", "kubeconfig", "metrics", "pki", "webhook"],
        outside: &["actix::", "openssl::", "pilothouse_actors::", "prometheus::", "serde_json::", "tokio::"],
    },
    Layer {
        name: "backend",
        may: &[
            "limits",
            "random",
            "signatures",
            "kubeconfig",
            "metrics",
            "upstream",
            "webhook",
            "audit",
            "auth",
        ],
        outside: &["actix::", "openssl::", "pilothouse_actors::", "serde_json::", "tokio::"],
    },
    Layer {
        name: "heavy_pool",
        may: &["limits", "metrics"],
        outside: &["actix::", "pilothouse_actors::", "tokio::"],
    },
    Layer {
        name: "verbs",
        may: &[
            "limits",
            "random",
            "signatures",
            "kubeconfig",
            "metrics",
            "upstream",
            "webhook",
            "auth",
            "backend",
            "heavy_pool",
        ],
        outside: &["actix::", "openssl::", "pilothouse_actors::", "serde_json::", "tokio::"],
    },
    Layer {
        name: "bootstrap",
        may: &["backend", "verbs"],
        outside: &["pilothouse_actors::", "serde_json::"],
    },
    Layer {
        name: "flowcontrol",
        may: &["limits", "metrics", "auth", "backend"],
        outside: &["actix::", "pilothouse_actors::", "prometheus::"],
    },
    Layer {
        name: "definitions",
        may: &["limits", "backend", "bootstrap", "verbs"],
        outside: &["actix::", "pilothouse_actors::", "tokio::"],
    },
    Layer {
        name: "controllers",
        may: &["limits", "random", "metrics", "pki", "auth", "backend", "bootstrap", "verbs"],
        outside: &["actix::", "openssl::", "pilothouse_actors::", "serde_json::", "tokio::"],
    },
    Layer {
        name: "http",
        may: &[
            "limits",
            "random",
            "frames",
            "socket",
            "config",
            "telemetry",
            "metrics",
            "pki",
            "upstream",
            "audit",
            "auth",
            "backend",
            "heavy_pool",
            "verbs",
            "flowcontrol",
        ],
        outside: &[
            "TcpListener",
            "TcpStream",
            "actix::",
            "actix_http::",
            "actix_rt::",
            "actix_server::",
            "actix_service::",
            "actix_web::",
            "h2::",
            "openssl::",
            "pilothouse_actors::",
            "prometheus::",
            "serde_json::",
            "tokio::",
        ],
    },
    Layer {
        name: "application",
        may: &["config", "pki", "upstream", "http"],
        outside: &["pilothouse_actors::"],
    },
    Layer {
        name: "assembly",
        may: &[
            "limits",
            "config",
            "kubeconfig",
            "metrics",
            "pki",
            "upstream",
            "webhook",
            "audit",
            "auth",
            "backend",
            "heavy_pool",
            "bootstrap",
            "verbs",
            "flowcontrol",
            "definitions",
            "audit_backends",
            "controllers",
            "http",
            "application",
        ],
        outside: &["actix::", "fs::", "pilothouse_actors::", "redb::", "tokio::"],
    },
    Layer {
        name: "server",
        may: &["limits", "config", "pki", "upstream", "http", "application", "assembly"],
        outside: &["actix_rt::", "fs::", "pilothouse_actors::", "tokio::"],
    },
    Layer {
        name: "commands",
        may: &["limits"],
        outside: &["TcpStream", "clap::", "fs::read", "openssl::", "process::ExitCode", "serde_json::"],
    },
    Layer { name: "main", may: &[], outside: &["pilothouse::", "process::", "tokio::"] },
];

#[test]
fn imports_point_down() {
    let tree = Tree::read(&["src"]);
    let mut wrong = Vec::new();
    for (at, layer) in LAYERS.iter().enumerate() {
        let lower = |name: &&&str| !LAYERS[..at].iter().any(|below| below.name == **name);
        wrong
            .extend(layer.may.iter().filter(lower).map(|up| format!("{} may not be above {up}", layer.name)));
    }
    for file in tree.files.iter().filter(|file| file.module != ["lib"]) {
        let Some(layer) = LAYERS.iter().find(|layer| file.module[0] == layer.name) else {
            wrong.push(format!("{} is of no layer", file.path));
            continue;
        };
        let allowed = |name: &String| name == layer.name || layer.may.contains(&name.as_str());
        wrong.extend(
            file.names()
                .iter()
                .filter(|name| !allowed(name))
                .map(|name| format!("{} names crate::{name}", file.path)),
        );
        wrong.extend(file.outside(layer.outside).iter().map(|path| format!("{} names {path}", file.path)));
    }
    assert!(wrong.is_empty(), "see LAYERS:\n{}", wrong.join("\n"));
}

/// Crates of rules know no actors, no I/O and no clock.
#[test]
fn rules_are_pure() {
    let pure = ["admission", "api", "apimachinery", "authorization", "cel", "kinds", "structural"];
    let tree = Tree::read(&pure.map(|name| format!("crates/{name}/src")));
    let outside = |file: &Source| {
        file.outside(&["openssl::sha", "serde_json::"])
            .into_iter()
            .map(|path| format!("{} names {path}", file.path))
            .collect::<Vec<_>>()
    };
    let files = tree.files.iter().filter(|file| file.module != ["testing"]);
    let wrong: Vec<String> = files.flat_map(outside).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Modules at the root of a crate import each other in one direction. What belongs together lies in one folder.
#[test]
fn modules_form_no_cycle() {
    /// A knot that is left: the parts of the expression language know each other.
    const KNOTS: &[(&str, &[&str])] = &[(
        "crates/cel/src",
        &[
            "checker",
            "cost",
            "estimate",
            "estimate_calls",
            "eval",
            "functions",
            "library",
            "macros",
            "parser",
            "plan",
            "value",
        ],
    )];
    let mut cycles = Vec::new();
    for place in crates() {
        let tree = Tree::read(&[&place]);
        let mut edges: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for file in tree.files.iter().filter(|file| file.module != ["lib"] && file.module != ["main"]) {
            edges.entry(&file.module[0]).or_default().extend(file.names());
        }
        let knot = KNOTS.iter().find(|(known, _)| *known == place).map_or(&[] as &[_], |(_, knot)| knot);
        for (module, names) in &edges {
            // All that can be reached from what it names.
            let mut reached: BTreeSet<&str> = BTreeSet::new();
            let mut open: Vec<&str> =
                names.iter().map(String::as_str).filter(|name| name != module).collect();
            while let Some(next) = open.pop() {
                if reached.insert(next) {
                    open.extend(edges.get(next).into_iter().flatten().map(String::as_str));
                }
            }
            if reached.contains(module) && !knot.contains(module) {
                cycles.push(format!("{place}: {module}"));
            }
        }
    }
    assert!(cycles.is_empty(), "import each other:\n{}", cycles.join("\n"));
}

#[test]
fn the_lower_crate_knows_neither_http_nor_objects() {
    const ENGINES_MAY: &[&str] = &["engine", "archive", "event", "limits"];
    let mut wrong = Vec::new();
    for file in &Tree::read(&["actors/src", "crates/types/src"]).files {
        let outside = file.outside(&["actix::", "tokio::", "fs::", "redb::", "prometheus::", "process::"]);
        wrong.extend(outside.iter().map(|path| format!("{} names {path}", file.path)));
        // Engines keep records and know nobody who uses them.
        if file.module[0] == "engine" {
            let names = file.names();
            let wild = names.iter().filter(|name| !ENGINES_MAY.contains(&name.as_str()));
            wrong.extend(wild.map(|name| format!("{} names crate::{name}", file.path)));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The source folders of all crates.
fn crates() -> Vec<String> {
    let members = fs::read_dir(root().join("crates")).unwrap();
    let names = members.map(|member| member.unwrap().file_name().into_string().unwrap());
    let mut folders: Vec<String> = names.map(|name| format!("crates/{name}/src")).collect();
    folders.extend(["src", "actors/src"].map(str::to_owned));
    folders
}

#[test]
fn files_stay_small() {
    /// Tables stand alone in their files and may be long.
    const CEILING: usize = 1_000;
    let mut files = Vec::new();
    for place in crates().iter().map(String::as_str).chain(["tests", "benches"]) {
        sources(&root().join(place), &mut files);
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
fn functions_stay_small() {
    const CEILING: usize = 100;
    let tree = Tree::read(&crates());
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

/// Whoever follows a store must say what becomes of an object that cannot be read. Views do so by `StoreIndex`, which has no
/// defaults; everybody else is listed here, with what they do.
#[test]
fn stores_are_followed_by_views_that_fail_closed() {
    const FOLLOWERS: [(&str, &str); 8] = [
        ("src/auth/live_index.rs", "StoreIndex::fail_closed"),
        (
            "src/auth/token_objects.rs",
            "reads objects one by one: a token whose object cannot be read is refused",
        ),
        ("src/backend/admission/lookup.rs", "Source::decode refuses the write; LookedUp reports the object"),
        ("src/backend/stores.rs", "only passes the message on"),
        (
            "src/controllers/informer.rs",
            "controllers are not told of such objects, and find them when they read",
        ),
        ("src/definitions/reconcile.rs", "DefinitionSet::cannot_read; LookedUp reports the object"),
        ("src/http/handler/metrics.rs", "counts"),
        ("src/verbs/list.rs", "the list fails and names the object"),
    ];
    let tree = Tree::read(&["src"]);
    let follows =
        |file: &&Source| ["OpenWatch { permit", ".open_watch("].iter().any(|call| file.code.contains(call));
    let found: BTreeSet<&str> = tree.files.iter().filter(follows).map(|file| file.path.as_str()).collect();
    assert_eq!(found, FOLLOWERS.iter().map(|(path, _)| *path).collect());
}

#[test]
fn only_the_clock_reads_the_clock() {
    let tree = Tree::read(&crates());
    let elsewhere = tree.files.iter().filter(|file| file.path != "crates/types/src/clock.rs");
    let wrong: Vec<_> = elsewhere
        .filter(|file| ["SystemTime::now", "Instant::now"].iter().any(|call| file.code.contains(call)))
        .map(|file| &file.path)
        .collect();
    assert!(wrong.is_empty(), "read the clock elsewhere: {wrong:?}");
}

/// Nobody spells an identifier a second time.
#[test]
fn each_identifier_is_declared_once() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut files = Vec::new();
    crates().iter().for_each(|place| sources(&root().join(place), &mut files));
    for path in files.iter().filter(|path| !path.ends_with("tests.rs")) {
        let source = fs::read_to_string(path).unwrap();
        for (name, text) in constants(&source).into_iter().filter(|(_, text)| is_identifier(text)) {
            let place = path.strip_prefix(root()).unwrap().display();
            places.entry(text.to_owned()).or_default().push(format!("{place}: {name}"));
        }
    }
    assert!(places.contains_key("application/json"), "{places:?}");
    places.retain(|_, places| places.len() > 1);
    let advice = "declare it in one place: well_known, if more than one part of the server uses it";
    assert_eq!(places, BTreeMap::new(), "{advice}");
}

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

/// One source file without its tests and comments: tests may reach up to set a scene.
struct Source {
    /// From the root of the repository.
    path: String,
    /// The module that it is, below its crate.
    module: Vec<String>,
    code: String,
}

struct Tree {
    files: Vec<Source>,
}

impl Tree {
    /// All files below some folders, but for those that only tests are made from.
    fn read(places: &[impl AsRef<Path>]) -> Tree {
        let mut files = Vec::new();
        for place in places {
            let root = root().join(place);
            let mut paths = Vec::new();
            sources(&root, &mut paths);
            assert!(!paths.is_empty(), "{} has no sources", root.display());
            let texts: Vec<_> = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
            let tests: Vec<_> =
                paths.iter().zip(&texts).flat_map(|(path, text)| test_files(path, text)).collect();
            let kept =
                paths.iter().zip(&texts).filter(|(path, _)| !tests.iter().any(|test| path.starts_with(test)));
            files.extend(kept.map(|(path, text)| Source {
                path: path.strip_prefix(self::root()).unwrap().display().to_string(),
                module: module(path.strip_prefix(&root).unwrap()),
                code: code(text),
            }));
        }
        Tree { files }
    }
}

impl Source {
    /// The modules at the root of the crate that this file names.
    fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        // As many steps up as lead to the root of the crate.
        let up = "super::".repeat(self.module.len());
        for (start, word) in [("crate::", "crate::"), (up.as_str(), "super::")] {
            for (at, _) in self.code.match_indices(start) {
                if self.code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
                    || self.code[..at].ends_with(word)
                {
                    continue;
                }
                names.extend(heads(&self.code[at + start.len()..]));
            }
        }
        names
    }

    /// What the file names of [`OUTSIDE`] beyond what is allowed.
    fn outside(&self, allowed: &[&str]) -> BTreeSet<String> {
        let found = OUTSIDE.iter().flat_map(|start| {
            let at = self.code.match_indices(start).map(|(at, _)| at);
            at.filter(|at| {
                !self.code[..*at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
            })
        });
        let texts = found.map(|at| &self.code[at..]);
        let wild = texts.filter(|text| !allowed.iter().any(|allowed| text.starts_with(allowed)));
        wild.map(|text| {
            text.chars().take_while(|char| char.is_alphanumeric() || "_:".contains(*char)).collect()
        })
        .collect()
    }
}

/// The first steps of a path, or of each path of a group in braces.
fn heads(rest: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
    };
    let Some(group) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let (mut depth, mut heads, mut begins) = (0, Vec::new(), true);
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if begins && !char.is_whitespace() => {
                heads.push(word(&group[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    heads
}

/// The functions of a file with their lines. As [`parts`], this trusts the formatter.
fn functions(code: &str) -> impl Iterator<Item = (&str, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    (0..lines.len()).filter_map(move |first| {
        let line = lines[first].trim_start();
        let (before, rest) = line.split_once("fn ").filter(|_| !line.starts_with("//"))?;
        let modifiers = ["pub", "const", "async", "default", "extern", "unsafe", "\"C\""];
        let is_item =
            before.split_whitespace().all(|word| modifiers.iter().any(|known| word.starts_with(known)));
        let name = rest.split(['(', '<']).next().filter(|_| is_item)?;
        let closing = format!("{}}}", &lines[first][..lines[first].len() - line.len()]);
        let last = lines[first..].iter().position(|line| *line == closing || line.ends_with("{}"))?;
        Some((name, last + 1))
    })
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(place: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(place).unwrap_or_else(|error| panic!("{}: {error}", place.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// `a/b.rs` and `a/b/mod.rs` are both the module `a::b`.
fn module(path: &Path) -> Vec<String> {
    let mut steps: Vec<String> =
        path.with_extension("").iter().map(|step| step.to_str().unwrap().to_owned()).collect();
    steps.pop_if(|last| last == "mod");
    steps
}

/// A text cut into what is compiled always and, item by item, what is compiled for tests alone. The formatter has been here, so an
/// item ends where a line of its depth closes it.
fn parts(text: &str) -> (Vec<&str>, Vec<Vec<&str>>) {
    let (mut kept, mut tests) = (Vec::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push(line);
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let mut item = Vec::new();
        for line in lines.by_ref() {
            item.push(line);
            let of_item = line.strip_prefix(indent).filter(|line| !line.starts_with(' '));
            if of_item.is_some_and(|line| !line.starts_with(['#', '/']) && line.ends_with(['}', ';', ','])) {
                break;
            }
        }
        tests.push(item);
    }
    (kept, tests)
}

fn code(text: &str) -> String {
    let (kept, _) = parts(text);
    kept.into_iter().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The files and folders of modules that a file declares for tests alone.
fn test_files(path: &Path, text: &str) -> Vec<PathBuf> {
    let (folder, stem) = (path.parent().unwrap(), path.file_stem().unwrap());
    let below = if ["mod", "lib", "main"].iter().any(|root| stem == *root) {
        folder.to_owned()
    } else {
        folder.join(stem)
    };
    let (_, tests) = parts(text);
    let declared = tests.iter().filter_map(|item| {
        let last = item.last()?.trim();
        let name = last.strip_suffix(';')?.rsplit_once("mod ")?.1;
        let path = item.iter().find_map(|line| line.trim().strip_prefix("#[path = \"")?.strip_suffix("\"]"));
        Some((name.to_owned(), path))
    });
    declared
        .flat_map(|(name, path)| match path {
            Some(path) => vec![folder.join(path)],
            None => vec![below.join(format!("{name}.rs")), below.join(name)],
        })
        .collect()
}

#[test]
fn nothing_but_tests_is_left_out() {
    let text = "#[cfg(test)]\nmod early;\nuse crate::verbs;\n\nimpl A {\n    #[cfg(test)]\n    fn b() {\n        crate::http();\n    \
                }\n    fn c() {\n        super::wire();\n    }\n}\n\n#[cfg(test)]\n#[path = \"far.rs\"]\nmod late;\nuse crate::{a::{b, c}, d};\n";
    let file = Source { path: "src/x.rs".to_owned(), module: vec!["x".to_owned()], code: code(text) };
    assert_eq!(file.names().into_iter().collect::<Vec<_>>(), ["a", "d", "verbs", "wire"]);
    let tests = test_files(Path::new("src/x.rs"), text);
    assert_eq!(tests, ["src/x/early.rs", "src/x/early", "src/far.rs"].map(PathBuf::from));
    assert_eq!(functions(&file.code).collect::<Vec<_>>(), [("c", 3)]);
}
