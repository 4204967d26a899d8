//! Writes YAML: block style, keys in natural order, text quoted only if necessary.

use std::cmp::Ordering;

use super::json;
use super::yaml_plain::reads_as_text;
use crate::api::value::{Object, Value};

/// The column after which text is folded at the next single space.
const WIDTH: usize = 80;
/// The longest key on one line with its value.
const SIMPLE_KEY_BYTES: usize = 128;
const INDENT: usize = 2;

/// The YAML of a value.
pub fn to_yaml(value: &Value) -> Vec<u8> {
    let mut writer =
        Writer { out: String::with_capacity(1024), column: 0, whitespace: true, indention: true };
    writer.node(value, None, Context::Item);
    writer.line(0);
    writer.out.into_bytes()
}

/// The position of a node.
#[derive(Clone, Copy, PartialEq)]
enum Context {
    /// The document itself, or an item of a list.
    Item,
    /// After a key on the same line.
    Value,
    /// After a key that is too long for one line.
    LongValue,
}

struct Writer {
    out: String,
    column: usize,
    /// Whether a space or line break was written last.
    whitespace: bool,
    /// Whether the line contains only indentation and list markers so far.
    indention: bool,
}

/// The style of text.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

impl Writer {
    /// Writes a node inside a collection that is indented by `indent`; `None` for the document itself.
    fn node(&mut self, value: &Value, indent: Option<usize>, context: Context) {
        let inner = indent.map_or(0, |indent| indent + INDENT);
        match value {
            Value::Object(fields) if fields.is_empty() => self.word("{}"),
            Value::Array(items) if items.is_empty() => self.word("[]"),
            Value::Object(fields) => self.mapping(fields, inner),
            Value::Array(items) => {
                // Items of a list below a key are not indented further than the key.
                let at = if context == Context::Value { indent.unwrap_or(0) } else { inner };
                for item in items {
                    self.line(at);
                    self.mark('-');
                    self.node(item, Some(at), Context::Item);
                }
            }
            Value::Null => self.word("null"),
            Value::Bool(truth) => self.word(if *truth { "true" } else { "false" }),
            Value::Int(number) => self.word(itoa::Buffer::new().format(*number)),
            Value::Float(number) => self.word(&json::short_float(*number)),
            Value::String(text) => self.text(text, inner.max(INDENT), false),
        }
    }

    fn mapping(&mut self, fields: &Object, indent: usize) {
        let mut entries: Vec<(&String, &Value)> = fields.iter().collect();
        entries.sort_by(|a, b| natural(a.0, b.0));
        for (key, value) in entries {
            self.line(indent);
            if key.len() <= SIMPLE_KEY_BYTES && !key.contains(is_break) {
                self.text(key, indent + INDENT, true);
                self.push(':');
                self.whitespace = false;
                self.indention = false;
                self.node(value, Some(indent), Context::Value);
            } else {
                self.mark('?');
                self.text(key, indent + INDENT, false);
                self.line(indent);
                self.mark(':');
                self.node(value, Some(indent), Context::LongValue);
            }
        }
    }

    fn push(&mut self, c: char) {
        self.out.push(c);
        self.column += 1;
    }

    fn newline(&mut self) {
        self.out.push('\n');
        self.column = 0;
    }

    /// Moves to `indent` on an otherwise empty line.
    fn line(&mut self, indent: usize) {
        if !self.indention || self.column > indent || (self.column == indent && !self.whitespace) {
            self.newline();
        }
        while self.column < indent {
            self.push(' ');
        }
        self.whitespace = true;
        self.indention = true;
    }

    /// Writes an indicator that other nodes may follow on the same line.
    fn mark(&mut self, mark: char) {
        self.space();
        self.push(mark);
        self.whitespace = false;
    }

    fn space(&mut self) {
        if !self.whitespace {
            self.push(' ');
        }
    }

    fn word(&mut self, word: &str) {
        self.space();
        for c in word.chars() {
            self.push(c);
        }
        self.whitespace = false;
        self.indention = false;
    }

    fn text(&mut self, text: &str, indent: usize, key: bool) {
        let style = style(text, key);
        match style {
            Style::Literal => self.literal(text, indent),
            Style::Plain => {
                self.space();
                self.folded(text, indent, style, key);
            }
            Style::Single | Style::Double => {
                let quote = if style == Style::Single { '\'' } else { '"' };
                self.space();
                self.push(quote);
                self.folded(text, indent, style, key);
                self.push(quote);
            }
        }
        if style != Style::Literal {
            self.whitespace = false;
            self.indention = false;
        }
    }

    fn folded(&mut self, text: &str, indent: usize, style: Style, key: bool) {
        let mut spaces = false;
        let mut chars = text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            if c != ' ' {
                match style {
                    Style::Single if c == '\'' => self.out.push('\''),
                    Style::Double if !is_printable(c) || is_break(c) || c == '"' || c == '\\' => {
                        self.escape(c);
                        spaces = false;
                        continue;
                    }
                    _ => {}
                }
                self.push(c);
                spaces = false;
                continue;
            }
            let next_is_space = chars.peek().is_some_and(|(_, next)| *next == ' ');
            let inside = style == Style::Plain || (at > 0 && at + 1 < text.len());
            let may_break = !key && !spaces && inside && self.column > WIDTH;
            if may_break && (style == Style::Double || !next_is_space) {
                self.indention = false;
                self.line(indent);
                if style == Style::Double && next_is_space {
                    self.push('\\');
                }
            } else {
                self.push(' ');
            }
            spaces = true;
        }
    }

    fn escape(&mut self, c: char) {
        let short = match c {
            '\0' => "0",
            '\u{7}' => "a",
            '\u{8}' => "b",
            '\t' => "t",
            '\n' => "n",
            '\u{b}' => "v",
            '\u{c}' => "f",
            '\r' => "r",
            '\u{1b}' => "e",
            '"' => "\"",
            '\\' => "\\",
            '\u{85}' => "N",
            '\u{a0}' => "_",
            '\u{2028}' => "L",
            '\u{2029}' => "P",
            _ => "",
        };
        let code = u32::from(c);
        let text = match code {
            _ if !short.is_empty() => format!("\\{short}"),
            0..=0xff => format!("\\x{code:02X}"),
            0x100..=0xffff => format!("\\u{code:04X}"),
            _ => format!("\\U{code:08X}"),
        };
        for c in text.chars() {
            self.push(c);
        }
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.space();
        self.push('|');
        if text.starts_with(|c| c == ' ' || is_break(c)) {
            self.out.push('2');
        }
        let mut from_end = text.chars().rev();
        match (from_end.next().is_some_and(is_break), from_end.next()) {
            (false, _) => self.push('-'),
            (true, None) => self.push('+'),
            (true, Some(before)) if is_break(before) => self.push('+'),
            (true, Some(_)) => {}
        }
        self.newline();
        self.whitespace = true;
        self.indention = true;
        let mut fresh = true;
        for c in text.chars() {
            if c == '\n' {
                self.newline();
                self.indention = true;
                fresh = true;
                continue;
            }
            if fresh {
                self.line(indent);
                fresh = false;
            }
            self.push(c);
            self.indention = false;
        }
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

/// The merge key, which must be quoted as an ordinary key.
const MERGE: &str = "<<";

/// The style that text needs: plain if it is read back as text, quoted if not.
fn style(text: &str, key: bool) -> Style {
    let features = Features::of(text);
    let literal = text.contains('\n') && !key && !features.trailing_space && !features.unusual;
    let wanted = if literal {
        Style::Literal
    } else if text.contains('\n') || !reads_as_text(text) || (key && text == MERGE) {
        Style::Double
    } else if features.plain {
        Style::Plain
    } else {
        Style::Single
    };
    if wanted == Style::Single && features.unusual { Style::Double } else { wanted }
}

/// The properties of a text that decide its style.
struct Features {
    plain: bool,
    trailing_space: bool,
    /// Characters, or spaces beside breaks, that need double quotes.
    unusual: bool,
}

impl Features {
    fn of(text: &str) -> Features {
        let blank = |c: char| matches!(c, ' ' | '\t') || is_break(c);
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let (mut unusual, mut breaks) = (false, false);
        let mut before = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let followed = chars.peek().is_none_or(|next| matches!(next, ' ' | '\t'));
            indicators |= match (before, c) {
                (None, '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>') => true,
                (None, '\'' | '"' | '%' | '@' | '`') => true,
                (None, '?' | '-') | (_, ':') => followed,
                (Some(before), '#') => blank(before),
                _ => false,
            };
            unusual |= !is_printable(c);
            breaks |= is_break(c);
            // A space before a break survives only in double quotes.
            unusual |= before == Some(' ') && is_break(c);
            before = Some(c);
        }
        let trailing_space = text.ends_with(' ');
        let plain = !indicators && !unusual && !breaks && !text.starts_with(' ') && !trailing_space;
        Features { plain, trailing_space, unusual }
    }
}

/// A double as a key: with single precision.
pub(super) fn key_float(number: f64) -> String {
    let single = number as f32;
    match single {
        f32::INFINITY => ".inf".to_owned(),
        f32::NEG_INFINITY => "-.inf".to_owned(),
        single if single.is_nan() => ".nan".to_owned(),
        single => json::scientific_if_long(single),
    }
}

/// The natural order of keys: letters after everything else, digits by their numbers.
fn natural(one: &str, other: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let Some(at) = a.iter().zip(&b).position(|(x, y)| x != y) else { return a.len().cmp(&b.len()) };
    let (x, y) = (a.get(at).copied().unwrap_or_default(), b.get(at).copied().unwrap_or_default());
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => return x.cmp(&y),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // A zero inside a longer number is one of its digits, not a leading zero.
    let before = a.get(..at).unwrap_or_default();
    let inside = before.iter().rev().take_while(|c| c.is_ascii_digit()).any(|c| *c != '0');
    let start = u64::from((x == '0' || y == '0') && inside);
    let run = |chars: &[char]| {
        let digits = chars.iter().skip(at).map_while(|c| c.to_digit(10));
        let (mut number, mut count) = (start, 0);
        for digit in digits {
            number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
            count += 1;
        }
        (number, count)
    };
    run(&a).cmp(&run(&b)).then(x.cmp(&y))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::codec::{json, yaml};
    use proptest::prelude::*;

    fn yaml(json: &str) -> String {
        String::from_utf8(to_yaml(&json::read(json.as_bytes()).unwrap())).unwrap()
    }

    #[test]
    fn blocks_are_indented_as_people_know_them() {
        let text = yaml(r#"{"b":[{"x":1,"y":[]},"s",["p","q"]],"a":{"k":{"l":null}},"c":{}}"#);
        let expected = "a:\n  k:\n    l: null\nb:\n- x: 1\n  \"y\": []\n- s\n- - p\n  - q\nc: {}\n";
        assert_eq!(text, expected);
        assert_eq!(yaml("[]"), "[]\n");
        assert_eq!(yaml("\"a\""), "a\n");
    }

    #[test]
    fn text_is_quoted_where_it_would_be_misread() {
        for (given, printed) in [
            ("true", "\"true\""),
            ("yes", "\"yes\""),
            ("1", "\"1\""),
            ("0x1f", "\"0x1f\""),
            ("1e3", "\"1e3\""),
            ("1.5Gi", "1.5Gi"),
            ("100m", "100m"),
            ("2024-01-01T00:00:00Z", "\"2024-01-01T00:00:00Z\""),
            ("2024-01-01", "\"2024-01-01\""),
            ("2024-13-01", "2024-13-01"),
            ("1:30", "\"1:30\""),
            ("10.0.0.1", "10.0.0.1"),
            ("", "\"\""),
            ("a: b", "'a: b'"),
            ("a:b", "a:b"),
            ("#x", "'#x'"),
            ("a #x", "'a #x'"),
            ("*", "'*'"),
            ("- a", "'- a'"),
            ("-a", "-a"),
            ("it's", "it's"),
            ("'it", "'''it'"),
            (" a", "' a'"),
            ("a\tb", "\"a\\tb\""),
            ("\u{1f600}", "\"\\U0001F600\""),
            ("é", "é"),
            ("{}", "'{}'"),
        ] {
            assert_eq!(to_yaml(&Value::from(given)), format!("{printed}\n").into_bytes(), "{given}");
        }
    }

    #[test]
    fn text_of_several_lines_stands_as_it_is() {
        assert_eq!(
            yaml(r#"{"a":"x\n  y\n","b":"x\ny","c":"x\n\n","d":1}"#),
            "a: |\n  x\n    y\nb: |-\n  x\n  y\nc: |+\n  x\n\nd: 1\n"
        );
        assert_eq!(yaml(r#"{"a":" x\ny"}"#), "a: |2-\n   x\n  y\n");
    }

    #[test]
    fn long_text_is_broken_at_a_space() {
        let words = vec!["word"; 30].join(" ");
        let text = yaml(&format!("{{\"key\":\"{words}\"}}"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].len() > 80 && lines[0].len() < 90 && lines[1].starts_with("  word"));
    }

    #[test]
    fn a_key_that_looks_like_an_order_to_merge_is_quoted() {
        let text = yaml(r#"{"<<":"<<"}"#);
        assert_eq!(text, "\"<<\": <<\n");
        assert_eq!(to_yaml(&yaml::read(text.as_bytes()).unwrap()), text.as_bytes());
    }

    #[test]
    fn keys_sort_naturally() {
        let text = yaml(r#"{"a10":1,"a9":1,"a":1,"A":1,"_":1,"1":1}"#);
        let keys: Vec<&str> = text.lines().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(keys, ["_", "\"1\"", "A", "a", "a9", "a10"]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            yaml("[1.5,1e20,1234567.5,0.00001,-3]"),
            "- 1.5\n- 1e+20\n- 1.2345675e+06\n- 1e-05\n- -3\n"
        );
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            fields in proptest::collection::btree_map("[ -~]{1,12}", "[ -~\n]{0,100}", 0..5)
        ) {
            let value = Value::Object(fields.into_iter().map(|(key, text)| (key, Value::String(text))).collect());
            let text = to_yaml(&value);
            let read = yaml::read(&text).map_err(|error| {
                TestCaseError::fail(format!("{error}: {}", String::from_utf8_lossy(&text)))
            })?;
            prop_assert_eq!(read, value, "{}", String::from_utf8_lossy(&text));
        }
    }
}
