//! Reads the comments of the messages: one source file for each group version, in which comments are as their authors
//! broke them into lines, with marks for generators among them.

use std::fs;
use std::io;
use std::path::Path;

use super::{Descriptions, TypeDescriptions};

/// Reads every file below a folder. The directory determines the published names of its types.
pub(crate) fn read(folder: &Path) -> io::Result<Descriptions> {
    let mut texts = Descriptions::new();
    let mut folders = vec![(folder.to_owned(), "io.k8s".to_owned())];
    while let Some((folder, package)) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().replace('_', "-");
            if entry.path().is_dir() {
                folders.push((entry.path(), format!("{package}.{name}")));
            } else if name == "mod.rs" {
                messages(&fs::read_to_string(entry.path())?, &package, &mut texts);
            }
        }
    }
    Ok(texts)
}

fn messages(source: &str, package: &str, texts: &mut Descriptions) {
    let mut comment: Vec<&str> = Vec::new();
    let mut message = String::new();
    for line in source.lines() {
        let code = line.trim_start();
        if let Some(text) = code.strip_prefix("///") {
            comment.push(text.strip_prefix(' ').unwrap_or(text));
        } else if let Some(rest) = code.strip_prefix("pub struct ") {
            message = format!("{package}.{}", rest.split([' ', ';']).next().unwrap_or_default());
            texts.insert(
                message.clone(),
                TypeDescriptions { description: prose(&comment), ..TypeDescriptions::default() },
            );
            comment.clear();
        } else if let Some((field, _)) = code.strip_prefix("pub ").and_then(|rest| rest.split_once(':')) {
            if let Some(words) = texts.get_mut(&message) {
                words.fields.insert(field.trim_start_matches("r#").replace('_', ""), prose(&comment));
            }
            comment.clear();
        } else if !code.starts_with('#') {
            comment.clear();
        }
    }
}

/// The published form of a comment: its lines joined into paragraphs, without the marks and the notes to self.
fn prose(comment: &[&str]) -> String {
    let mut text = String::new();
    for line in comment.iter().map(|line| plain(line)) {
        let line = line.trim_end_matches(' ');
        let words = line.trim_start_matches(' ');
        if line == "---" {
            break;
        } else if line.is_empty() {
            text.pop();
            text.push_str("\n\n");
        } else if words.starts_with("TODO") || words.starts_with('+') {
            continue;
        } else if line.starts_with([' ', '\t']) {
            // An example keeps its line. The package indents it by one more than its author did.
            text.pop();
            text.extend(["\n", line.strip_prefix(' ').unwrap_or(line), "\n"]);
        } else {
            text.extend([line, " "]);
        }
    }
    text.trim().to_owned()
}

/// Removes what was added for rustdoc: angle brackets around links, and backslashes.
fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut in_link = false;
    for (index, c) in line.char_indices() {
        let rest = line.get(index + c.len_utf8()..).unwrap_or_default();
        match c {
            '<' if rest.starts_with("http://") || rest.starts_with("https://") => in_link = true,
            '>' if in_link => in_link = false,
            '\\' if rest.starts_with(['[', ']', '<', '>', '`']) => {}
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_become_published_descriptions() {
        let source = "\
/// ThingList is a list
/// of things.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ThingList {
    /// Standard metadata.
    /// More info: <https://example.com/a#b>
    /// +optional
    #[prost(message, optional, tag = \"1\")]
    pub metadata: ::core::option::Option<ListMeta>,
    /// The hosts\\[0\\].
    ///
    /// Example:
    ///    a < b
    /// TODO: say more
    #[prost(string, repeated, tag = \"2\")]
    pub host_i_ps: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, optional, tag = \"3\")]
    pub r#type: ::core::option::Option<::prost::alloc::string::String>,
}
";
        let mut texts = Descriptions::new();
        messages(source, "io.example.v1", &mut texts);
        let words = &texts["io.example.v1.ThingList"];
        assert_eq!(words.description, "ThingList is a list of things.");
        assert_eq!(words.fields["metadata"], "Standard metadata. More info: https://example.com/a#b");
        assert_eq!(words.fields["hostips"], "The hosts[0].\n\nExample:\n  a < b");
        assert_eq!(words.fields["type"], "");
    }
}
