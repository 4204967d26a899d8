//! What is wrong with a YAML document, in the words that clients of the ecosystem know.

use granit_parser::Marker;

/// What is wrong on a line that the scanner has found it on: the first one is not named.
pub(super) fn at_line(line: usize, what: &str) -> String {
    if line > 1 { format!("line {line}: {what}") } else { what.to_owned() }
}

/// The parser's report in those words, and where it was made.
pub(super) fn told(text: &str, report: &str, place: &Marker) -> String {
    let (last, line) = (text.lines().count(), place.line());
    let at =
        |line: usize, what: &str| if line > 0 { format!("line {line}: {what}") } else { what.to_owned() };
    // Faults of the grammar are told with the line before theirs, and none of those with the first.
    let before = line.saturating_sub(1);
    let of_scanner = |what: &str| at_line(line, what);
    let of_end = || at_line(text.matches('\n').count() + 1, "found unexpected end of stream");
    if let Some(open) = report.strip_prefix("unclosed bracket '").and_then(|rest| rest.chars().next()) {
        return at(last, unfinished(text, open));
    }
    if report.starts_with("mismatched bracket") {
        return at(before, NO_CONTENT);
    }
    if report.starts_with("unexpected character: ") {
        let control = report.contains("\\u{");
        return if control {
            "control characters are not allowed".to_owned()
        } else {
            of_scanner("found character that cannot start any token")
        };
    }
    if report.starts_with("invalid trailing content after") {
        let is_flow = text.trim_start().starts_with('{');
        return at(before, if is_flow { "did not find expected ',' or '}'" } else { NO_KEY });
    }
    if report.starts_with("tabs disallowed within this context") {
        return of_scanner("found character that cannot start any token");
    }
    match report {
        "misplaced bracket" if begins_node(text, place) => at(before, NO_CONTENT),
        "misplaced bracket" => at(before, NO_KEY),
        "unexpected EOF while parsing a block mapping" | "unexpected EOF while parsing a block sequence" => {
            at(before, NO_CONTENT)
        }
        "unexpected EOF while parsing an implicit flow mapping" => at(before, NO_CONTENT),
        NO_KEY | NO_CONTENT => at(before, report),
        "simple key expected ':'" => at(line + 1, "could not find expected ':'"),
        "invalid indentation in multiline quoted scalar" | "unclosed quote" => of_end(),
        _ => match report.split_once(", ") {
            Some((context, what)) if context.starts_with("while ") => match what {
                NO_KEY | NO_CONTENT | "did not find expected '-' indicator" => at(before, what),
                "found high surrogate without following low surrogate" => {
                    of_scanner("found invalid Unicode character escape code")
                }
                _ => of_scanner(what),
            },
            _ => of_scanner(report),
        },
    }
}

const NO_KEY: &str = "did not find expected key";
const NO_CONTENT: &str = "did not find expected node content";

/// Whether a bracket that closes nothing stands where a node should begin.
fn begins_node(text: &str, place: &Marker) -> bool {
    let before = place.byte_offset().and_then(|offset| text.get(..offset)).unwrap_or_default();
    let row = before.rsplit('\n').next().unwrap_or_default().trim_end();
    row.is_empty() || row.ends_with([':', '-'])
}

/// What is missing where a bracket is never closed.
fn unfinished(text: &str, open: char) -> &'static str {
    match (text.trim_end().ends_with(['{', '[', ',', ':']), open) {
        (true, _) => NO_CONTENT,
        (false, '{') => "did not find expected ',' or '}'",
        (false, _) => "did not find expected ',' or ']'",
    }
}

/// Whether a document says that it is of another version than the one that is read.
pub(super) fn is_foreign(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let version = lines.next().and_then(|first| first.strip_prefix("%YAML "));
    version.is_some_and(|version| version.trim() != "1.1")
}

/// The first document of a text: nobody reads what follows.
pub(super) fn first_document(text: &str) -> &str {
    let ends = |line: &str| {
        ["---", "..."].iter().any(|mark| {
            line.strip_prefix(mark)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
        })
    };
    let (mut at, mut begun) = (0, false);
    for line in text.split_inclusive('\n') {
        if begun && ends(line) {
            return text.get(..at).unwrap_or(text);
        }
        let trimmed = line.trim();
        begun |=
            !(trimmed.is_empty() || trimmed.starts_with('#') || trimmed.starts_with('%') || trimmed == "---");
        at += line.len();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::yaml::read;
    use super::*;

    #[test]
    fn faults_are_told_in_known_words() {
        let table = [
            ("{", "line 1: did not find expected node content"),
            ("{a: b", "line 1: did not find expected ',' or '}'"),
            ("a: [1\n", "line 1: did not find expected ',' or ']'"),
            ("[{]", "did not find expected node content"),
            ("a: @x\n", "found character that cannot start any token"),
            ("a: \"\\q\"\n", "found unknown escape character"),
            ("a: |x\n  b\n", "did not find expected comment or line break"),
            ("a: *x\n", "unknown anchor 'x' referenced"),
            ("a: &\\ b\n", "did not find expected alphabetic or numeric character"),
            ("a: }\n", "did not find expected node content"),
            ("a: ,\n", "did not find expected node content"),
            ("- a\n- []\n - b\n", "line 2: did not find expected '-' indicator"),
            ("---\n'\n", "line 3: found unexpected end of stream"),
            ("a: 1\nb\n", "line 3: could not find expected ':'"),
            ("\"", "found unexpected end of stream"),
            ("a: 'x\n", "line 2: found unexpected end of stream"),
            ("a:\n\tb: c\n", "line 2: found character that cannot start any token"),
            ("a: 1\nb: 'it's'\n", "line 1: did not find expected key"),
            ("{\"a\":\"b\" \"c\":1}", "did not find expected ',' or '}'"),
            ("%YAML 1.2\n---\na: b\n", "found incompatible YAML document"),
        ];
        for (text, expected) in table {
            assert_eq!(read(text.as_bytes()).unwrap_err(), expected, "{text:?}");
        }
    }

    #[test]
    fn one_document_is_read() {
        for text in ["a: 1\n---\nb: 2\n", "---\na: 1\n--- x\n", "# c\n---\na: 1\n...\n- [", "a: 1\n"] {
            assert_eq!(
                first_document(text).trim_start_matches("# c\n").trim_start_matches("---\n"),
                "a: 1\n"
            );
            assert!(read(text.as_bytes()).is_ok(), "{text:?}");
        }
        assert_eq!(first_document("a: |\n  ---\n"), "a: |\n  ---\n", "an indented mark is text");
        assert!(read(br#"{"a":1} and more"#).is_ok());
        assert!(read(br#"{"a":1}}"#).is_ok());
    }
}
