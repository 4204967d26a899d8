//! Parsing of source files: imports, functions, and items that are compiled for tests alone.

use super::table::EXTERNAL;
use super::*;

/// A source file without its tests and comments. Tests may import upper layers.
pub struct Source {
    /// From the root of the repository.
    pub path: String,
    /// The module path below its crate.
    pub module: Vec<String>,
    pub code: String,
}

pub struct Tree {
    pub files: Vec<Source>,
}

impl Tree {
    /// All files below some folders, except those that are compiled for tests alone.
    pub fn read(folders: &[impl AsRef<Path>]) -> Tree {
        let mut files = Vec::new();
        for folder in folders {
            let root = root().join(folder);
            let mut paths = Vec::new();
            sources(&root, &mut paths);
            assert!(!paths.is_empty(), "{} has no sources", root.display());
            let texts: Vec<_> = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
            let tests: Vec<_> =
                paths.iter().zip(&texts).flat_map(|(path, text)| test_files(path, text)).collect();
            let sources_without_tests =
                paths.iter().zip(&texts).filter(|(path, _)| !tests.iter().any(|test| path.starts_with(test)));
            files.extend(sources_without_tests.map(|(path, text)| Source {
                path: path.strip_prefix(self::root()).unwrap().display().to_string(),
                module: module(path.strip_prefix(&root).unwrap()),
                code: code_without_tests(text),
            }));
        }
        Tree { files }
    }
}

impl Source {
    /// The root modules of the crate that this file imports.
    pub fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        // The path from this module to the root of the crate.
        let up = "super::".repeat(self.module.len());
        for (start, word) in [("crate::", "crate::"), (up.as_str(), "super::")] {
            for (offset, _) in self.code.match_indices(start) {
                if self.code[..offset].ends_with(|before: char| before.is_alphanumeric() || before == '_')
                    || self.code[..offset].ends_with(word)
                {
                    continue;
                }
                names.extend(path_heads(&self.code[offset + start.len()..]));
            }
        }
        names
    }

    /// The paths of [`EXTERNAL`] that the file uses beyond the allowed ones.
    pub fn external(&self, allowed: &[&str]) -> BTreeSet<String> {
        let offsets = EXTERNAL.iter().flat_map(|start| {
            let offset = self.code.match_indices(start).map(|(offset, _)| offset);
            offset.filter(|offset| {
                !self.code[..*offset].ends_with(|before: char| before.is_alphanumeric() || before == '_')
            })
        });
        let texts = offsets.map(|offset| &self.code[offset..]);
        let forbidden = texts.filter(|text| !allowed.iter().any(|allowed| text.starts_with(allowed)));
        forbidden
            .map(|text| {
                text.chars().take_while(|char| char.is_alphanumeric() || "_:".contains(*char)).collect()
            })
            .collect()
    }
}

/// The first segment of a path, or of each path of a group in braces.
fn path_heads(rest: &str) -> Vec<String> {
    let first_word = |text: &str| -> String {
        text.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
    };
    let Some(group) = rest.strip_prefix('{') else { return vec![first_word(rest)] };
    let (mut depth, mut heads, mut is_start) = (0, Vec::new(), true);
    for (offset, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            _ if is_start && !char.is_whitespace() => {
                heads.push(first_word(&group[offset..]));
                is_start = false;
            }
            _ => {}
        }
    }
    heads
}

/// The functions of a file with their number of lines. Relies on the formatter, as [`split_tests`] does.
pub fn functions(code: &str) -> impl Iterator<Item = (&str, usize)> {
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

pub fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
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

/// Splits a file into the lines that are always compiled and the items that are compiled for tests alone. Relies on the formatter:
/// an item ends with a closing line of its indentation.
fn split_tests(text: &str) -> (Vec<&str>, Vec<Vec<&str>>) {
    let (mut always, mut tests) = (Vec::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            always.push(line);
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let mut item = Vec::new();
        for line in lines.by_ref() {
            item.push(line);
            let item_line = line.strip_prefix(indent).filter(|line| !line.starts_with(' '));
            if item_line.is_some_and(|line| !line.starts_with(['#', '/']) && line.ends_with(['}', ';', ',']))
            {
                break;
            }
        }
        tests.push(item);
    }
    (always, tests)
}

fn code_without_tests(text: &str) -> String {
    let (always, _) = split_tests(text);
    always.into_iter().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The files and folders of modules that a file declares for tests alone.
fn test_files(path: &Path, text: &str) -> Vec<PathBuf> {
    let (folder, stem) = (path.parent().unwrap(), path.file_stem().unwrap());
    let module_folder = if ["mod", "lib", "main"].iter().any(|root| stem == *root) {
        folder.to_owned()
    } else {
        folder.join(stem)
    };
    let (_, tests) = split_tests(text);
    let declared = tests.iter().filter_map(|item| {
        let last = item.last()?.trim();
        let name = last.strip_suffix(';')?.rsplit_once("mod ")?.1;
        let path = item.iter().find_map(|line| line.trim().strip_prefix("#[path = \"")?.strip_suffix("\"]"));
        Some((name.to_owned(), path))
    });
    declared
        .flat_map(|(name, path)| match path {
            Some(path) => vec![folder.join(path)],
            None => vec![module_folder.join(format!("{name}.rs")), module_folder.join(name)],
        })
        .collect()
}

#[test]
fn source_parser_skips_only_test_code() {
    let text = "#[cfg(test)]\nmod early;\nuse crate::verbs;\n\nimpl A {\n    #[cfg(test)]\n    fn b() {\n        crate::http();\n    \
                }\n    fn c() {\n        super::wire();\n    }\n}\n\n#[cfg(test)]\n#[path = \"far.rs\"]\nmod late;\nuse crate::{a::{b, c}, d};\n";
    let file =
        Source { path: "src/x.rs".to_owned(), module: vec!["x".to_owned()], code: code_without_tests(text) };
    assert_eq!(file.names().into_iter().collect::<Vec<_>>(), ["a", "d", "verbs", "wire"]);
    let tests = test_files(Path::new("src/x.rs"), text);
    assert_eq!(tests, ["src/x/early.rs", "src/x/early", "src/far.rs"].map(PathBuf::from));
    assert_eq!(functions(&file.code).collect::<Vec<_>>(), [("c", 3)]);
}
