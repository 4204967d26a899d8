//! The page that lists a directory, and its links.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use crate::log_files::ListedName;

/// The page of these names.
pub(super) fn page(names: &[ListedName]) -> String {
    let mut page =
        String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for ListedName { name, is_directory } in names {
        let slash = if *is_directory { "/" } else { "" };
        let (link, text) = (link(name.as_bytes()), escaped(&name.to_string_lossy()));
        let _infallible = writeln!(page, "<a href=\"{link}{slash}\">{text}{slash}</a>");
    }
    page.push_str("</pre>\n");
    page
}

/// A name as a relative reference. One with a colon would be read as a scheme, if nothing were before it.
pub(super) fn link(name: &[u8]) -> String {
    let mut link = String::with_capacity(name.len());
    if name.contains(&b':') {
        link.push_str("./");
    }
    for byte in name {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(byte) {
            link.push(char::from(*byte));
        } else {
            let _infallible = write!(link, "%{byte:02X}");
        }
    }
    link
}

/// Text between tags.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_links_and_text() {
        let name = |name: &str, is_directory| ListedName { name: name.into(), is_directory };
        let page = page(&[
            name("pods", true),
            name("a?b#c", false),
            name("\"><script>'&", false),
            name("12:30.log", false),
        ]);
        for line in [
            "<a href=\"pods/\">pods/</a>",
            "<a href=\"a%3Fb%23c\">a?b#c</a>",
            "<a href=\"%22%3E%3Cscript%3E%27&\">&#34;&gt;&lt;script&gt;&#39;&amp;</a>",
            "<a href=\"./12:30.log\">12:30.log</a>",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        assert!(page.starts_with("<!doctype html>\n") && page.ends_with("</pre>\n"));
    }
}
