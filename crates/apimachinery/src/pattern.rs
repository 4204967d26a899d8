//! Regular expressions of schemas: written for RE2, used by an engine with a slightly different syntax.

use std::collections::BTreeMap;

use regex::{Regex, RegexBuilder};

use crate::limits::{PATTERN_BYTES, PATTERN_TEXT_BYTES, PATTERNS_BYTES};

/// The patterns of one schema. Each is compiled once, and their total size is bounded.
#[derive(Debug)]
pub struct Patterns {
    compiled: BTreeMap<String, Option<Regex>>,
    remaining_bytes: usize,
}

impl Default for Patterns {
    fn default() -> Patterns {
        Patterns { compiled: BTreeMap::new(), remaining_bytes: PATTERNS_BYTES }
    }
}

/// The minimum size that is charged for a pattern.
const MIN_BYTES: usize = 4 << 10;
/// The maximum cache of the engine.
const CACHE_BYTES: usize = 256 << 10;

impl Patterns {
    /// The compiled pattern; `None` if it is invalid or too large, which every text then fails.
    pub fn compiled(&mut self, pattern: &str) -> Option<Regex> {
        if let Some(compiled) = self.compiled.get(pattern) {
            return compiled.clone();
        }
        let compiled = self.compile(pattern);
        self.compiled.insert(pattern.to_owned(), compiled.clone());
        compiled
    }

    /// Compiles a pattern and charges its size, also for a failure, which takes as long.
    fn compile(&mut self, pattern: &str) -> Option<Regex> {
        if pattern.len() > PATTERN_TEXT_BYTES || self.remaining_bytes < MIN_BYTES {
            return None;
        }
        let max_bytes = PATTERN_BYTES.min(self.remaining_bytes);
        let translated = translate(pattern);
        // The engine does not report the size of a pattern: the smallest limit that it accepts is used instead.
        let mut bound = MIN_BYTES;
        let compiled = loop {
            let Some(translated) = &translated else { break None };
            match RegexBuilder::new(translated).size_limit(bound).dfa_size_limit(CACHE_BYTES).build() {
                Ok(compiled) => break Some(compiled),
                Err(regex::Error::CompiledTooBig(_)) if bound < max_bytes => {
                    bound = (bound * 4).min(max_bytes);
                }
                Err(_) => break None,
            }
        };
        self.remaining_bytes = self.remaining_bytes.saturating_sub(bound + pattern.len());
        compiled
    }
}

/// A pattern in the syntax of the engine; `None` if it names a class that RE2 lacks.
fn translate(pattern: &str) -> Option<String> {
    let mut out = String::with_capacity(pattern.len() * 2);
    let mut rest = pattern;
    while let Some(letter) = rest.chars().next() {
        let after = &rest[letter.len_utf8()..];
        rest = match letter {
            '\\' if after.starts_with('Q') => {
                let quoted = &after[1..];
                let (text, after) = quoted.split_once("\\E").unwrap_or((quoted, ""));
                out.push_str(&regex::escape(text));
                after
            }
            '\\' => escape(after, false, &mut out).0,
            '[' => class(after, &mut out)?,
            // A brace without a count is a literal.
            '{' if !is_repetition(after) => {
                out.push_str("\\{");
                after
            }
            letter => {
                out.push(letter);
                after
            }
        };
    }
    Some(out)
}

/// Whether a brace opens a repetition: `{2}`, `{2,}`, `{2,3}`.
fn is_repetition(after: &str) -> bool {
    let Some((inner, _)) = after.split_once('}') else { return false };
    let (minimum, maximum) = inner.split_once(',').unwrap_or((inner, "0"));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !minimum.is_empty() && is_number(minimum) && is_number(maximum)
}

/// Writes an escape. Returns the rest, and whether it was a single character.
fn escape<'t>(text: &'t str, in_class: bool, out: &mut String) -> (&'t str, bool) {
    let Some(letter) = text.chars().next() else {
        out.push('\\');
        return (text, true);
    };
    let after = &text[letter.len_utf8()..];
    let set = match letter {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        's' => "[\\t\\n\\f\\r ]",
        'S' => "[^\\t\\n\\f\\r ]",
        'b' if !in_class => "(?-u:\\b)",
        'B' if !in_class => "(?-u:\\B)",
        _ => "",
    };
    if !set.is_empty() {
        out.push_str(set);
        return (after, false);
    }
    match letter {
        // In the engine these are word boundaries.
        '<' | '>' => out.push(letter),
        'p' | 'P' | 'x' => {
            let named = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
            let Some((name, after)) = named else {
                out.extend(['\\', letter]);
                return (after, letter == 'x');
            };
            let (letter, name) = match (letter, name.strip_prefix('^')) {
                ('p', Some(name)) => ('P', name),
                ('P', Some(name)) => ('p', name),
                _ => (letter, name),
            };
            out.extend(['\\', letter, '{']);
            out.push_str(name);
            out.push('}');
            return (after, letter == 'x');
        }
        letter => out.extend(['\\', letter]),
    }
    (after, true)
}

/// Writes a character class. In the engine classes nest, and have set operators.
fn class<'t>(text: &'t str, out: &mut String) -> Option<&'t str> {
    out.push('[');
    let mut rest = text;
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    let mut first = true;
    loop {
        // An unclosed class is refused later.
        let Some(letter) = rest.chars().next() else { return Some(rest) };
        if letter == ']' && !first {
            out.push(']');
            return Some(&rest[1..]);
        }
        first = false;
        if let Some((name, after)) = rest.strip_prefix("[:").and_then(|inner| inner.split_once(":]")) {
            if !CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
                return None;
            }
            out.push_str("[:");
            out.push_str(name);
            out.push_str(":]");
            rest = after;
            continue;
        }
        let single;
        (rest, single) = member(rest, out);
        // A dash makes a range unless it is the last character of the class.
        if single
            && let Some(end) = rest.strip_prefix('-')
            && !end.is_empty()
            && !end.starts_with(']')
        {
            out.push('-');
            (rest, _) = member(end, out);
        }
    }
}

/// Writes one member of a class.
fn member<'t>(text: &'t str, out: &mut String) -> (&'t str, bool) {
    let Some(letter) = text.chars().next() else { return (text, true) };
    let after = &text[letter.len_utf8()..];
    match letter {
        '\\' => return escape_in_class(after, out),
        '[' | ']' | '&' | '~' | '-' | '^' => out.extend(['\\', letter]),
        letter => out.push(letter),
    }
    (after, true)
}

/// Writes an escape in a class. The digits of a number stay with it, so that a range begins after them.
fn escape_in_class<'t>(text: &'t str, out: &mut String) -> (&'t str, bool) {
    let (mut rest, single) = escape(text, true, out);
    if text.starts_with('x') && !text.starts_with("x{") {
        let end = rest.bytes().take(2).take_while(u8::is_ascii_hexdigit).count();
        out.push_str(&rest[..end]);
        rest = &rest[end..];
    } else if text.starts_with(['p', 'P']) && !text[1..].starts_with('{') {
        let end = rest.chars().next().map_or(0, char::len_utf8);
        out.push_str(&rest[..end]);
        rest = &rest[end..];
    }
    (rest, single)
}

/// The named classes.
const CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_like_re2() {
        let table: [(&str, &[&str], &[&str]); 31] = [
            (r"^\w{1,63}$", &["abc", "_9"], &["é", "a-b", ""]),
            (r"^[^[]+$", &["abc"], &["a[b"]),
            (r"^\d+$", &["12"], &["١٢", "a"]),
            (r"^\D$", &["١", "a"], &["1"]),
            (r"^\W$", &["é", "-"], &["a", "_"]),
            (r"^\s$", &[" ", "\t", "\n"], &["\u{b}", "\u{a0}"]),
            (r"^\S$", &["\u{a0}", "x"], &[" "]),
            (r"^[\d.]+$", &["1.2"], &["١", "a"]),
            (r"^[^\s\d]$", &["a", "\u{a0}", "١"], &["1", " "]),
            (r"^[^\D]$", &["1"], &["a"]),
            (r"\bé", &["aé"], &[" é"]),
            (r"^a\Bb", &["ab"], &["a"]),
            (r"^[[:alpha:]_]$", &["a", "_"], &["1", ":", "["]),
            (r"^[[:^alpha:]]$", &["1"], &["a"]),
            (r"^[[:nope:]]$", &[], &["n", ":]"]),
            (r"^[a&&b]+$", &["a&b"], &["c"]),
            (r"^[a~~b]+$", &["a~b"], &["c"]),
            (r"^[+--]$", &["+", ",", "-"], &["."]),
            (r"^[a--]$", &[], &["a"]),
            (r"^[\w-.]+$", &["a-b.c"], &["a b"]),
            (r"^[a-z-9]+$", &["b-9"], &["8"]),
            (r"^[a-]+$", &["a-"], &["b"]),
            (r"^[]a]+$", &["]a"], &["b"]),
            (r"^[^]a]$", &["b"], &["]", "a"]),
            (r"^[\x41-\x43\]]+$", &["ABC]"], &["D", "-"]),
            (r"^\x{e9}\<\>$", &["é<>"], &["é"]),
            (r"^[\pN\p{^L}-]+$", &["1-"], &["a"]),
            (r"^\Qa.b[\E$", &["a.b["], &["axb["]),
            (r"^{a{,2}}$", &["{a{,2}}"], &["a"]),
            (r"^a{2}b{1,}c{0,1}$", &["aab", "aabbc"], &["ab"]),
            (r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", &["a-b.c"], &["-a", "A"]),
        ];
        for (pattern, valid, invalid) in table {
            let compiled = Patterns::default().compiled(pattern);
            let matches = |text: &str| compiled.as_ref().is_some_and(|compiled| compiled.is_match(text));
            valid.iter().for_each(|text| assert!(matches(text), "{pattern} {text} {:?}", translate(pattern)));
            invalid
                .iter()
                .for_each(|text| assert!(!matches(text), "{pattern} {text} {:?}", translate(pattern)));
        }
        // Invalid patterns must not panic.
        for pattern in [
            "\\",
            "[",
            "[^",
            "[\\",
            "[a-",
            "[a-\\",
            "\\p",
            "\\p{",
            "\\x",
            "[\\x",
            "[\\p",
            "[[:",
            "\\Q",
            "{",
            "(",
            "é\\é[é-",
        ] {
            let _ = Patterns::default().compiled(pattern);
        }
    }

    #[test]
    fn total_size_of_patterns_is_bounded() {
        let large = |number: usize| format!(r"^{number}\pL{{20}}$");
        let mut patterns = Patterns::default();
        let count = (0..100).filter(|number| patterns.compiled(&large(*number)).is_some()).count();
        assert!((1..100).contains(&count), "{count}");
        assert!(patterns.compiled("^late$").is_none());
        // A known pattern costs nothing.
        assert!(patterns.compiled(&large(0)).is_some());
        let mut patterns = Patterns::default();
        assert!((0..10_000).all(|_| patterns.compiled("^[a-z]+$").is_some()));
        // Too large patterns are charged as well, and invalid ones end at once.
        let refused =
            (0..100).filter(|number| patterns.compiled(&format!(r"{number}\pL{{900}}")).is_none()).count();
        assert!(refused == 100 && patterns.compiled("^b$").is_none());
        assert!(Patterns::default().compiled(&"a".repeat(PATTERN_TEXT_BYTES + 1)).is_none());
    }
}
