//! Writes YAML: block style, keys in natural order, text quoted only if necessary.

use std::cmp::Ordering;

use super::yaml_style::{Style, is_break, is_printable, style};
use crate::json;
use crate::value::{Object, Value};

/// The column after which text is folded at the next single space.
const WIDTH: usize = 80;
/// The longest key on one line with its value.
const SIMPLE_KEY_BYTES: usize = 128;
const INDENT: usize = 2;

/// The YAML of a value.
pub fn to_yaml(value: Value) -> Vec<u8> {
    let mut document = Document::new();
    document.value(value);
    while document.step(usize::MAX) {}
    document.end();
    document.take()
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

/// A YAML document that is written step by step: the text so far can be taken at any time, and values are dropped as soon as they
/// are written.
pub(super) struct Document {
    out: String,
    column: usize,
    /// Whether a space or line break was written last.
    whitespace: bool,
    /// Whether the line contains only indentation and list markers so far.
    indention: bool,
    /// The unwritten rest of the collections in progress, the innermost last.
    frames: Vec<Frame>,
}

/// The unwritten rest of a collection or text, and its indentation.
enum Frame {
    Items(std::vec::IntoIter<Value>, usize),
    Fields(std::vec::IntoIter<(String, Value)>, usize),
    Text(Text),
    /// The value of a key that is too long for one line. The key itself comes first.
    LongValue(Value, usize),
}

/// A text that is being written in parts: at deep indentation the lines can be a hundred times as long as their content.
struct Text {
    text: String,
    style: Style,
    indent: usize,
    is_key: bool,
    /// The number of bytes that are written.
    position: usize,
    /// Whether the previous character was a space.
    after_space: bool,
    /// Whether a new line has to begin: only in the literal style.
    at_line_start: bool,
}

impl Document {
    pub(super) fn new() -> Document {
        let out = String::with_capacity(1024);
        Document { out, column: 0, whitespace: true, indention: true, frames: Vec::new() }
    }

    /// Begins the document that is this value; [`Document::step`] writes it.
    pub(super) fn value(&mut self, value: Value) {
        self.node(value, None, Context::Item);
    }

    /// Begins fields of the outermost mapping, which come in this order; [`Document::step`] writes them.
    pub(super) fn fields(&mut self, fields: Vec<(String, Value)>) {
        self.frames.push(Frame::Fields(fields.into_iter(), 0));
    }

    /// Writes a key of the outermost mapping, whose value is a list.
    pub(super) fn list(&mut self, key: &str) {
        self.line(0);
        self.key(key.to_owned(), 0);
    }

    /// Begins an item of that list; [`Document::step`] writes it.
    pub(super) fn item(&mut self, item: Value) {
        self.list_item(item, 0);
    }

    /// Ends the document.
    pub(super) fn end(&mut self) {
        self.line(0);
    }

    /// Whether everything that was begun is written.
    pub(super) fn is_idle(&self) -> bool {
        self.frames.is_empty()
    }

    /// The bytes of the text that was not taken yet.
    pub(super) fn len(&self) -> usize {
        self.out.len()
    }

    /// Takes the text so far.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out).into_bytes()
    }

    /// Writes the next part of what was begun: a key, a scalar, the beginning of a collection, or as much of a text as fits into
    /// `limit` bytes of output that was not taken yet. False if nothing is left.
    pub(super) fn step(&mut self, limit: usize) -> bool {
        match self.frames.pop() {
            None => return false,
            Some(Frame::Items(mut items, indent)) => {
                if let Some(item) = items.next() {
                    self.frames.push(Frame::Items(items, indent));
                    self.list_item(item, indent);
                }
            }
            Some(Frame::Fields(mut fields, indent)) => {
                if let Some((key, value)) = fields.next() {
                    self.frames.push(Frame::Fields(fields, indent));
                    self.field(key, value, indent);
                }
            }
            Some(Frame::Text(mut text)) => {
                if !self.continue_text(&mut text, limit) {
                    self.frames.push(Frame::Text(text));
                }
            }
            Some(Frame::LongValue(value, indent)) => {
                self.line(indent);
                self.mark(':');
                self.node(value, Some(indent), Context::LongValue);
            }
        }
        true
    }

    /// Begins a node inside a collection that is indented by `indent`; `None` for the document itself.
    fn node(&mut self, value: Value, indent: Option<usize>, context: Context) {
        let inner = indent.map_or(0, |indent| indent + INDENT);
        match value {
            Value::Object(fields) if fields.is_empty() => self.word("{}"),
            Value::Array(items) if items.is_empty() => self.word("[]"),
            Value::Object(fields) => self.frames.push(Frame::Fields(sorted(fields).into_iter(), inner)),
            Value::Array(items) => {
                // Items of a list below a key are not indented further than the key.
                let indent = if context == Context::Value { indent.unwrap_or(0) } else { inner };
                self.frames.push(Frame::Items(items.into_iter(), indent));
            }
            Value::Null => self.word("null"),
            Value::Bool(boolean) => self.word(if boolean { "true" } else { "false" }),
            Value::Int(number) => self.word(itoa::Buffer::new().format(number)),
            Value::Float(number) => self.word(&json::short_float(number)),
            Value::String(text) => {
                let text = self.text(text, inner.max(INDENT), false);
                self.frames.push(Frame::Text(text));
            }
        }
    }

    fn list_item(&mut self, item: Value, indent: usize) {
        self.line(indent);
        self.mark('-');
        self.node(item, Some(indent), Context::Item);
    }

    fn field(&mut self, key: String, value: Value, indent: usize) {
        self.line(indent);
        if key.len() <= SIMPLE_KEY_BYTES && !key.contains(is_break) {
            self.key(key, indent);
            self.node(value, Some(indent), Context::Value);
        } else {
            self.mark('?');
            self.frames.push(Frame::LongValue(value, indent));
            let key = self.text(key, indent + INDENT, false);
            self.frames.push(Frame::Text(key));
        }
    }

    /// Writes a key that fits on one line with its value.
    fn key(&mut self, key: String, indent: usize) {
        let mut key = self.text(key, indent + INDENT, true);
        self.continue_text(&mut key, usize::MAX);
        self.push(':');
        self.whitespace = false;
        self.indention = false;
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

    /// Begins a text.
    fn text(&mut self, text: String, indent: usize, is_key: bool) -> Text {
        let style = style(&text, is_key);
        self.space();
        match style {
            Style::Literal => self.literal_head(&text),
            Style::Plain => {}
            Style::Single => self.push('\''),
            Style::Double => self.push('"'),
        }
        Text { text, style, indent, is_key, position: 0, after_space: false, at_line_start: true }
    }

    /// Continues a text until it ends or the output has `limit` bytes. True if it ended.
    fn continue_text(&mut self, text: &mut Text, limit: usize) -> bool {
        match text.style {
            Style::Literal => self.literal(text, limit),
            Style::Plain | Style::Single | Style::Double => self.folded(text, limit),
        }
        if text.position < text.text.len() {
            return false;
        }
        match text.style {
            Style::Literal => return true,
            Style::Plain => {}
            Style::Single => self.push('\''),
            Style::Double => self.push('"'),
        }
        self.whitespace = false;
        self.indention = false;
        true
    }

    fn folded(&mut self, text: &mut Text, limit: usize) {
        let style = text.style;
        let mut chars = text.text.get(text.position..).unwrap_or_default().chars().peekable();
        while self.out.len() < limit
            && let Some(c) = chars.next()
        {
            let start = text.position;
            text.position += c.len_utf8();
            if c != ' ' {
                text.after_space = false;
                match style {
                    Style::Single if c == '\'' => self.out.push('\''),
                    Style::Double if !is_printable(c) || is_break(c) || c == '"' || c == '\\' => {
                        self.escape(c);
                        continue;
                    }
                    _ => {}
                }
                self.push(c);
                continue;
            }
            let next_is_space = chars.peek() == Some(&' ');
            let inside = style == Style::Plain || (start > 0 && text.position < text.text.len());
            let may_break = !text.is_key && !text.after_space && inside && self.column > WIDTH;
            if may_break && (style == Style::Double || !next_is_space) {
                self.indention = false;
                self.line(text.indent);
                if style == Style::Double && next_is_space {
                    self.push('\\');
                }
            } else {
                self.push(' ');
            }
            text.after_space = true;
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

    fn literal_head(&mut self, text: &str) {
        self.push('|');
        if text.starts_with(|c| c == ' ' || is_break(c)) {
            self.out.push('2');
        }
        let mut from_end = text.chars().rev();
        match (from_end.next().is_some_and(is_break), from_end.next()) {
            (false, _) => self.push('-'),
            (true, None) => self.push('+'),
            (true, Some(previous)) if is_break(previous) => self.push('+'),
            (true, Some(_)) => {}
        }
        self.newline();
        self.whitespace = true;
        self.indention = true;
    }

    fn literal(&mut self, text: &mut Text, limit: usize) {
        let mut chars = text.text.get(text.position..).unwrap_or_default().chars();
        while self.out.len() < limit
            && let Some(c) = chars.next()
        {
            text.position += c.len_utf8();
            if c == '\n' {
                self.newline();
                self.indention = true;
                text.at_line_start = true;
                continue;
            }
            if std::mem::take(&mut text.at_line_start) {
                self.line(text.indent);
            }
            self.push(c);
            self.indention = false;
        }
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

/// The fields of a mapping in the order of YAML.
pub(super) fn sorted(fields: Object) -> Vec<(String, Value)> {
    merge_sort(fields.into_iter().collect())
}

/// Sorts keys by [`natural_cmp`], which has cycles (`1a1` < `011` < `0a_1` < `1a1`): the sort of the standard library panics when
/// it meets one, and a client chooses the keys.
fn merge_sort(mut left: Vec<(String, Value)>) -> Vec<(String, Value)> {
    if left.len() < 2 {
        return left;
    }
    let right = left.split_off(left.len() / 2);
    let (left, right) = (merge_sort(left), merge_sort(right));
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(first), Some(second)) = (left.peek(), right.peek()) {
        let is_ordered = natural_cmp(&first.0, &second.0).is_le();
        merged.extend(if is_ordered { left.next() } else { right.next() });
    }
    merged.extend(left);
    merged.extend(right);
    merged
}

/// The natural order of keys: letters after everything else, digits by their numbers.
fn natural_cmp(left: &str, right: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let Some(index) = a.iter().zip(&b).position(|(x, y)| x != y) else { return a.len().cmp(&b.len()) };
    let (x, y) = (a.get(index).copied().unwrap_or_default(), b.get(index).copied().unwrap_or_default());
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => return x.cmp(&y),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // A zero inside a longer number is one of its digits, not a leading zero.
    let before = a.get(..index).unwrap_or_default();
    let inside = before.iter().rev().take_while(|c| c.is_ascii_digit()).any(|c| *c != '0');
    let start = u64::from((x == '0' || y == '0') && inside);
    let run = |chars: &[char]| {
        let digits = chars.iter().skip(index).map_while(|c| c.to_digit(10));
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
    use proptest::prelude::*;

    use super::*;
    use crate::codec::yaml;
    use crate::json;

    fn yaml(json: &str) -> String {
        String::from_utf8(to_yaml(json::read(json.as_bytes()).unwrap())).unwrap()
    }

    #[test]
    fn collections_are_written_in_block_style() {
        let text = yaml(r#"{"b":[{"x":1,"y":[]},"s",["p","q"]],"a":{"k":{"l":null}},"c":{}}"#);
        let expected = "a:\n  k:\n    l: null\nb:\n- x: 1\n  \"y\": []\n- s\n- - p\n  - q\nc: {}\n";
        assert_eq!(text, expected);
        assert_eq!(yaml("[]"), "[]\n");
        assert_eq!(yaml("\"a\""), "a\n");
    }

    #[test]
    fn text_is_quoted_where_it_would_be_misread() {
        for (text, expected) in [
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
            assert_eq!(to_yaml(Value::from(text)), format!("{expected}\n").into_bytes(), "{text}");
        }
    }

    #[test]
    fn multiline_text_is_written_as_literal_block() {
        assert_eq!(
            yaml(r#"{"a":"x\n  y\n","b":"x\ny","c":"x\n\n","d":1}"#),
            "a: |\n  x\n    y\nb: |-\n  x\n  y\nc: |+\n  x\n\nd: 1\n"
        );
        assert_eq!(yaml(r#"{"a":" x\ny"}"#), "a: |2-\n   x\n  y\n");
    }

    #[test]
    fn long_text_is_folded_at_a_space() {
        let words = vec!["word"; 30].join(" ");
        let text = yaml(&format!("{{\"key\":\"{words}\"}}"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].len() > 80 && lines[0].len() < 90 && lines[1].starts_with("  word"));
    }

    #[test]
    fn merge_key_is_quoted() {
        let text = yaml(r#"{"<<":"<<"}"#);
        assert_eq!(text, "\"<<\": <<\n");
        assert_eq!(to_yaml(yaml::read(text.as_bytes()).unwrap()), text.as_bytes());
    }

    #[test]
    fn keys_are_sorted_in_natural_order() {
        let text = yaml(r#"{"a10":1,"a9":1,"a":1,"A":1,"_":1,"1":1}"#);
        let keys: Vec<&str> = text.lines().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(keys, ["_", "\"1\"", "A", "a", "a9", "a10"]);
    }

    #[test]
    fn keys_whose_order_has_a_cycle_are_written() {
        assert_eq!(natural_cmp("1a1", "011"), Ordering::Less);
        assert_eq!(natural_cmp("011", "0a_1"), Ordering::Less);
        assert_eq!(natural_cmp("0a_1", "1a1"), Ordering::Less);
        let signs = ["0", "1", "2", "_", "a", "-", "."];
        let pairs = || signs.iter().flat_map(|one| signs.map(|other| format!("{one}{other}")));
        let keys = pairs().flat_map(|start| pairs().map(move |end| start.clone() + &end));
        let fields: Object = keys.map(|key| (key, Value::Null)).collect();
        assert_eq!(sorted(fields).len(), signs.len().pow(4));
    }

    #[test]
    fn floats_have_the_shortest_form() {
        assert_eq!(
            yaml("[1.5,1e20,1234567.5,0.00001,-3]"),
            "- 1.5\n- 1e+20\n- 1.2345675e+06\n- 1e-05\n- -3\n"
        );
    }

    proptest! {
        #[test]
        fn yaml_output_round_trips(
            fields in proptest::collection::btree_map("[ -~]{1,12}", "[ -~\n]{0,100}", 0..5)
        ) {
            let value = Value::Object(fields.into_iter().map(|(key, text)| (key, Value::String(text))).collect());
            let text = to_yaml(value.clone());
            let read = yaml::read(&text).map_err(|error| {
                TestCaseError::fail(format!("{error}: {}", String::from_utf8_lossy(&text)))
            })?;
            prop_assert_eq!(read, value, "{}", String::from_utf8_lossy(&text));
        }
    }
}
