//! JSONPaths of table columns and selectable fields: `.spec.color`, `.status.conditions[?(@.type=="Ready")].status`. The
//! semantics are the reference's, including its oddities: a quoted name is parsed as a path again, a dot before a bracket names
//! an empty field, and a missing list item makes the whole path find nothing.

use std::cmp::Ordering;

use pilothouse_apimachinery::value::Value;

use crate::limits::{JSON_PATH_BYTES, JSON_PATH_DEPTH};

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// A slice with a step.
    Slice {
        start: Option<i64>,
        end: SliceEnd,
        step: Option<i64>,
    },
    /// The union of several paths.
    Union(Vec<Vec<Step>>),
    /// All direct children.
    All,
    /// All descendants.
    Descendants,
    /// A constant. Text occurs once in the result; numbers and booleans once for each input value.
    Text(Value),
    Literal(Value),
    Filter {
        left: Vec<Step>,
        operator: Option<Operator>,
        right: Vec<Step>,
    },
    /// An expression that parses but never evaluates.
    Invalid,
}

/// The end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SliceEnd {
    /// After the first item: the slice has one item.
    AfterStart,
    /// The end of the list.
    End,
    /// An index; a negative one counts from the end.
    Index(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Unknown,
}

/// The result of parsing.
type Result<T> = std::result::Result<T, String>;

const TOO_LONG: &str = "the path is too long or too deep";

/// The maximum number of intermediate results.
const MAX_RESULTS: usize = 10_000;

impl JsonPath {
    /// Parses a path. Syntax errors are in the reference's words.
    pub fn parse(text: &str) -> Result<JsonPath> {
        if text.len() > JSON_PATH_BYTES {
            Err(TOO_LONG.to_owned())
        } else {
            parse_steps(text, 0).map(JsonPath)
        }
    }

    /// The first value at the end of the path.
    pub fn first<'v>(&'v self, object: &'v Value) -> Option<&'v Value> {
        walk(&self.0, vec![object])?.into_iter().next()
    }
}

/// The characters that end a name.
fn is_terminator(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

/// Parses the steps of a path. `depth` is the recursion depth.
fn parse_steps(text: &str, depth: usize) -> Result<Vec<Step>> {
    if depth > JSON_PATH_DEPTH {
        return Err(TOO_LONG.to_owned());
    }
    let mut steps = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if let Some(remaining) = rest.strip_prefix("[?(") {
            rest = parse_filter(remaining, depth, &mut steps)?;
            continue;
        }
        if let Some(remaining) = rest.strip_prefix("..") {
            if steps.last() == Some(&Step::Descendants) {
                return Err("invalid multiple recursive descent".to_owned());
            }
            steps.push(Step::Descendants);
            rest = remaining;
            if rest.starts_with(|c: char| c == '_' || c.is_alphanumeric()) {
                rest = parse_field(rest, &mut steps);
            }
            continue;
        }
        let remaining = rest.get(letter.len_utf8()..).unwrap_or_default();
        rest = match letter {
            ' ' | '@' | '$' => remaining,
            '[' => parse_brackets(remaining, depth, &mut steps)?,
            '"' | '\'' => parse_quoted(rest, &mut steps)?,
            '.' => parse_field(remaining, &mut steps),
            '+' | '-' => parse_number(rest, &mut steps)?,
            letter if letter.is_numeric() => parse_number(rest, &mut steps)?,
            letter if letter == '_' || letter.is_alphabetic() => parse_identifier(rest, &mut steps),
            '}' => {
                // Text follows, and perhaps one more path.
                let next = remaining.split_once('{').map_or("", |(_, next)| next);
                parse_steps(next, depth + 1)?;
                return Ok(steps);
            }
            '\r' | '\n' => return Err("unclosed action".to_owned()),
            letter => return Err(format!("unrecognized character in action: {}", render_char(letter))),
        };
    }
    Ok(steps)
}

/// A character by its code point, and itself if it is printable.
fn render_char(letter: char) -> String {
    let code = format!("U+{:04X}", u32::from(letter));
    if letter.is_control() || letter.is_whitespace() { code } else { format!("{code} '{letter}'") }
}

/// Parses a name up to the next unescaped terminator. Returns the rest.
fn parse_field<'t>(text: &'t str, steps: &mut Vec<Step>) -> &'t str {
    let mut letters = text.char_indices();
    let mut end = text.len();
    while let Some((index, letter)) = letters.next() {
        if letter == '\\' {
            letters.next();
        } else if is_terminator(letter) {
            end = index;
            break;
        }
    }
    let (name, rest) = text.split_at(end);
    steps.push(if name == "*" { Step::All } else { Step::Field(name.replace('\\', "")) });
    rest
}

fn parse_identifier<'t>(text: &'t str, steps: &mut Vec<Step>) -> &'t str {
    let (name, rest) = text.split_at(text.find(is_terminator).unwrap_or(text.len()));
    steps.push(match name {
        "true" | "false" => Step::Literal(Value::Bool(name == "true")),
        _ => Step::Invalid,
    });
    rest
}

fn parse_number<'t>(text: &'t str, steps: &mut Vec<Step>) -> Result<&'t str> {
    let signed = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = signed.find(|c: char| c != '.' && !c.is_numeric()).unwrap_or(signed.len());
    let (literal, rest) = text.split_at(text.len() - signed.len() + digits);
    steps.push(Step::Literal(match literal.parse() {
        Ok(integer) => Value::Int(integer),
        Err(_) => Value::Float(literal.parse().map_err(|_| format!("cannot parse number {literal}"))?),
    }));
    Ok(rest)
}

/// Quoted text at the beginning of `input`.
fn parse_quoted<'t>(input: &'t str, steps: &mut Vec<Step>) -> Result<&'t str> {
    const UNTERMINATED: &str = "unterminated quoted string";
    let mut letters = input.char_indices();
    let quote = letters.next().map_or('"', |(_, quote)| quote);
    let mut text = String::new();
    let mut is_invalid = false;
    while let Some((index, letter)) = letters.next() {
        match letter {
            '\n' => return Err(UNTERMINATED.to_owned()),
            letter if letter == quote => {
                let (literal, rest) = input.split_at(index + 1);
                if is_invalid {
                    return Err(format!("unquote string {literal} error invalid syntax"));
                }
                steps.push(Step::Text(Value::String(text)));
                return Ok(rest);
            }
            '\\' => match letters.next().map(|(_, letter)| letter) {
                None => return Err(UNTERMINATED.to_owned()),
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                Some(letter) if letter == '\\' || letter == quote => text.push(letter),
                Some(_) => is_invalid = true,
            },
            letter => text.push(letter),
        }
    }
    Err(UNTERMINATED.to_owned())
}

/// Parses the contents of brackets, after the opening one. Returns the rest.
fn parse_brackets<'t>(text: &'t str, depth: usize, steps: &mut Vec<Step>) -> Result<&'t str> {
    let split = text.split_once(']').filter(|(inner, _)| !inner.contains('\n'));
    let (inner, rest) = split.ok_or_else(|| "unterminated array".to_owned())?;
    if inner.contains(',') {
        let parts =
            inner.split(',').map(|part| parse_steps(&format!("[{}]", part.trim_matches(' ')), depth + 1));
        steps.push(Step::Union(parts.collect::<Result<_>>()?));
        return Ok(rest);
    }
    let quoted = inner.strip_prefix('\'').and_then(|inner| inner.strip_suffix('\''));
    if let Some(key) = quoted.filter(|key| !key.contains('\'')) {
        steps.extend(parse_steps(&format!(".{key}"), depth + 1)?);
        return Ok(rest);
    }
    steps.push(parse_slice(if inner == "*" { ":" } else { inner })?);
    Ok(rest)
}

fn parse_slice(text: &str) -> Result<Step> {
    let parts: Vec<&str> = text.split(':').collect();
    let is_integer =
        |part: &&str| part.strip_prefix('-').unwrap_or(part).bytes().all(|byte| byte.is_ascii_digit());
    if parts.len() > 3 || !parts.iter().all(is_integer) {
        return Err(format!("invalid array index {text}"));
    }
    let parse_index = |part: &&str| match *part {
        "" => Ok(None),
        part => part.parse().map(Some).map_err(|_| format!("array index {part} is not a number")),
    };
    let start = parts.first().map_or(Ok(None), parse_index)?;
    let end = match parts.get(1).map(parse_index).transpose()? {
        None => SliceEnd::AfterStart,
        Some(end) => end.map_or(SliceEnd::End, SliceEnd::Index),
    };
    let step = parts.get(2).map_or(Ok(None), parse_index)?;
    Ok(Step::Slice { start, end, step })
}

/// Parses a filter, after its opening brackets. Returns the rest.
fn parse_filter<'t>(text: &'t str, depth: usize, steps: &mut Vec<Step>) -> Result<&'t str> {
    let (mut open_quote, mut is_closed) = (None, false);
    let mut previous = ' ';
    let mut end = None;
    for (index, letter) in text.char_indices() {
        match letter {
            '\n' => break,
            '"' | '\'' if open_quote.is_none() => open_quote = Some(letter),
            '"' | '\'' => is_closed |= open_quote == Some(letter) && previous != '\\',
            ')' if open_quote.is_some() == is_closed => {
                end = Some(index);
                break;
            }
            _ => {}
        }
        previous = letter;
    }
    let (inner, rest) = end.map(|end| text.split_at(end)).ok_or_else(|| "unterminated filter".to_owned())?;
    let rest = rest.strip_prefix(")]").ok_or_else(|| "unclosed array expect ]".to_owned())?;
    let is_operator = |c: char| matches!(c, '!' | '<' | '>' | '=');
    let parts = inner.find(is_operator).filter(|index| *index > 0).and_then(|index| {
        let (left, rest) = inner.split_at(index);
        // As many operator characters as there are, but an operand must be left.
        let end = rest
            .find(|c: char| !is_operator(c))
            .or_else(|| rest.len().checked_sub(1))
            .filter(|end| *end > 0)?;
        let (operator, right) = rest.split_at(end);
        Some((left, operator, right))
    });
    steps.push(match parts {
        None => Step::Filter { left: parse_steps(inner, depth + 1)?, operator: None, right: Vec::new() },
        Some((left, operator, right)) => Step::Filter {
            left: parse_steps(left, depth + 1)?,
            operator: Some(match operator {
                "==" => Operator::Equal,
                "!=" => Operator::Unequal,
                "<" => Operator::Less,
                "<=" => Operator::LessOrEqual,
                ">" => Operator::Greater,
                ">=" => Operator::GreaterOrEqual,
                _ => Operator::Unknown,
            }),
            right: parse_steps(right, depth + 1)?,
        },
    });
    Ok(rest)
}

/// The values at the end of a path from each of these; `None` if the path fails.
fn walk<'v>(steps: &'v [Step], from: Vec<&'v Value>) -> Option<Vec<&'v Value>> {
    let mut values = from;
    for step in steps {
        values = step.apply(values)?;
        values.truncate(MAX_RESULTS);
    }
    Some(values)
}

/// The direct children of a value.
fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

fn push_descendants<'v>(value: &'v Value, descendants: &mut Vec<&'v Value>) {
    let has_content = !children(value).is_empty() || value.as_str().is_some_and(|text| !text.is_empty());
    if has_content && descendants.len() < MAX_RESULTS {
        descendants.push(value);
        children(value).into_iter().for_each(|inner| push_descendants(inner, descendants));
    }
}

impl Step {
    fn apply<'v>(&'v self, values: Vec<&'v Value>) -> Option<Vec<&'v Value>> {
        Some(match self {
            Step::Field(name) => values
                .into_iter()
                .filter_map(|value| value.fields().and_then(|fields| fields.get(name)))
                .collect(),
            Step::All => values.into_iter().flat_map(children).take(MAX_RESULTS).collect(),
            Step::Descendants => {
                let mut results = Vec::new();
                values.into_iter().for_each(|value| push_descendants(value, &mut results));
                results
            }
            Step::Text(text) => vec![text],
            Step::Literal(value) => vec![value; values.len()],
            Step::Union(parts) => {
                let mut results = Vec::new();
                for part in parts {
                    results.extend(walk(part, values.clone())?);
                    results.truncate(MAX_RESULTS);
                }
                results
            }
            Step::Slice { start, end, step } => {
                let mut results = Vec::new();
                for value in values.into_iter().filter(|value| !value.is_null()) {
                    let Value::Array(items) = value else { return None };
                    match slice_range(items.len(), *start, *end)? {
                        (start, end) if start == end => return Some(results),
                        (start, end) => {
                            let step = step
                                .map_or(Some(1), |step| usize::try_from(step).ok())
                                .filter(|step| *step > 0)?;
                            let remaining = MAX_RESULTS.saturating_sub(results.len());
                            results.extend(items.get(start..end)?.iter().step_by(step).take(remaining));
                        }
                    }
                }
                results
            }
            Step::Filter { left, operator, right } => {
                let mut results = Vec::new();
                for value in values {
                    let Value::Array(items) = value else { return None };
                    for item in items {
                        if filter_matches(item, left, *operator, right)? && results.len() < MAX_RESULTS {
                            results.push(item);
                        }
                    }
                }
                results
            }
            Step::Invalid => return None,
        })
    }
}

/// The range of a slice among so many items; both ends are equal if it is empty.
fn slice_range(count: usize, start: Option<i64>, end: SliceEnd) -> Option<(usize, usize)> {
    let count = i64::try_from(count).ok()?;
    let first = start.unwrap_or(0);
    let start = if first < 0 { first + count } else { first };
    let end = match end {
        SliceEnd::End => count,
        SliceEnd::Index(index) if index < 0 => index + count,
        SliceEnd::Index(index) => index,
        // After the last item, if the first was counted from the end.
        SliceEnd::AfterStart if first < 0 => first + 1 + count,
        SliceEnd::AfterStart => first.saturating_add(1),
    };
    if start == end {
        return Some((0, 0));
    }
    let is_valid = (0..count).contains(&start) && (0..=count).contains(&end) && start <= end;
    is_valid.then(|| Some((usize::try_from(start).ok()?, usize::try_from(end).ok()?)))?
}

/// Whether an item satisfies a filter; `None` if the whole path fails.
fn filter_matches(item: &Value, left: &[Step], operator: Option<Operator>, right: &[Step]) -> Option<bool> {
    let left_values = walk(left, vec![item]);
    let Some(operator) = operator else {
        return Some(left_values.is_some_and(|left_values| !left_values.is_empty()));
    };
    let (left, right) = match (&*left_values?, &*walk(right, vec![item])?) {
        ([], _) | (_, []) => return Some(false),
        ([left], [right]) => (*left, *right),
        _ => return None,
    };
    let order = match (left, right) {
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Int(left), Value::Int(right)) => left.cmp(right),
        (Value::Float(left), Value::Float(right)) => left.partial_cmp(right)?,
        // Booleans can be equal or not, but have no order.
        (Value::Bool(left), Value::Bool(right)) => {
            return match operator {
                Operator::Equal => Some(left == right),
                Operator::Unequal => Some(left != right),
                _ => None,
            };
        }
        _ => return None,
    };
    match operator {
        Operator::Equal => Some(order == Ordering::Equal),
        Operator::Unequal => Some(order != Ordering::Equal),
        Operator::Less => Some(order == Ordering::Less),
        Operator::LessOrEqual => Some(order.is_le()),
        Operator::Greater => Some(order == Ordering::Greater),
        Operator::GreaterOrEqual => Some(order.is_ge()),
        Operator::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_apimachinery::json;

    use super::*;

    #[test]
    fn json_path_finds_values() {
        let object = json::read(
            br#"{"spec":{"color":"red","a.b":1,"a":{"b":2},"on":true,"none":null,"l":[{"n":1},{"n":2},{"m":3}]},
                "status":{"conditions":[{"type":"A","status":"x"},{"type":"Ready","status":"True"}]}}"#,
        )
        .unwrap();
        let table = [
            (".spec.color", Some(r#""red""#)),
            (r".spec['a\.b']", Some("1")),
            (".spec['a.b']", Some("2")),
            (r".spec.a\.b", Some("1")),
            (".spec.l[1].n", Some("2")),
            (".spec.l[-2].n", Some("2")),
            (".spec.l[-1:].m", Some("3")),
            (".spec.l[-1].m", Some("3")),
            (".spec.l[0:2].n", Some("1")),
            (".spec.l[::2].m", Some("3")),
            (".spec.l[1:1].n", None),
            (".spec.l[*].n", Some("1")),
            (".spec.l[].n", Some("1")),
            (".spec.l[1,0].n", Some("2")),
            (".spec['color','on']", Some(r#""red""#)),
            (".spec.l[?(@.n>1)].n", Some("2")),
            (".spec.l[?(@.m)].m", Some("3")),
            ("..m", Some("3")),
            (".spec..n", Some("1")),
            ("$.spec.color", Some(r#""red""#)),
            (r#".status.conditions[?(@.type=="Ready")].status"#, Some(r#""True""#)),
            (r#".status.conditions[?( @.type == "Ready" )].status"#, Some(r#""True""#)),
            (".status.conditions[?(@.type!='A')].type", Some(r#""Ready""#)),
            (".status.conditions[?(@.type=='Nope')].status", None),
            (".status.conditions[?(@.type==Ready)].status", None),
            (".status.conditions[?(@.type==1)].status", None),
            (".spec.nothing.here", None),
            (".spec.none", Some("null")),
            (".spec.none.x", None),
            // A missing item makes the whole path find nothing.
            (".spec.l[7]", None),
            (".spec.l[9223372036854775807]", None),
            (".spec.l[-9223372036854775808:9223372036854775807:9223372036854775807]", None),
            (".spec.l[0:9].n", None),
            (".spec.color[0]", None),
            (".spec.['color']", None),
            (".", None),
            (".spec.color} and {.spec.on", Some(r#""red""#)),
        ];
        for (path, expected) in table {
            let path = JsonPath::parse(path).unwrap();
            let actual = path.first(&object).map(|value| String::from_utf8(json::to_json(value)).unwrap());
            assert_eq!(actual.as_deref(), expected, "{path:?}");
        }
    }

    #[test]
    fn json_path_syntax_errors_match_the_reference() {
        for (text, error) in [
            (".a[", "unterminated array"),
            (".a[?(@.x]", "unterminated filter"),
            (".a[?(@.x)", "unclosed array expect ]"),
            (".a....b", "invalid multiple recursive descent"),
            (r#".a["b"]"#, "invalid array index \"b\""),
            (".a[x]", "invalid array index x"),
            (".a[-]", "array index - is not a number"),
            (".a[1:2:3:4]", "invalid array index 1:2:3:4"),
            (".a #", "unrecognized character in action: U+0023 '#'"),
            (".a \u{b}", "unrecognized character in action: U+000B"),
            (".a\n", "unclosed action"),
            (".a}{#", "unrecognized character in action: U+0023 '#'"),
            ("-", "cannot parse number -"),
            ("'x", "unterminated quoted string"),
            (r"'\x'", r"unquote string '\x' error invalid syntax"),
            (".a[?(@.b[?(@.c)])]", "unterminated filter"),
        ] {
            assert_eq!(JsonPath::parse(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn json_path_limits_length_and_depth() {
        assert!(parse_steps("[0,1]", JSON_PATH_DEPTH).is_err());
        assert!(parse_steps(".a", JSON_PATH_DEPTH).is_ok());
        let nested = format!(".a{}{}", "[?(@.a".repeat(4_000), ")]".repeat(4_000));
        assert!(parse_steps(&nested, 0).is_err());
        assert!(parse_steps(&"}{".repeat(4_000), 0).is_err());
        assert!(JsonPath::parse(&format!(".{}", "a".repeat(JSON_PATH_BYTES - 1))).is_ok());
        assert!(JsonPath::parse(&format!(".{}", "a".repeat(JSON_PATH_BYTES))).is_err());
    }

    #[test]
    fn json_path_limits_intermediate_results() {
        let many = format!(r#"{{"l":[[{}0]]}}"#, "0,".repeat(MAX_RESULTS));
        let object = json::read(many.as_bytes()).unwrap();
        let unions = format!(".l[{}0]", "0,".repeat(50));
        for path in [format!("{unions}[*]"), format!("{unions}[0:]"), format!("{unions}[?(@==0)]")] {
            let steps = parse_steps(&path, 0).unwrap();
            let mut values = vec![&object];
            for step in &steps {
                values = step.apply(values).unwrap();
                assert!(values.len() <= MAX_RESULTS, "{path}: {}", values.len());
            }
        }
    }

    #[test]
    fn random_json_paths_do_not_panic() {
        let pieces = [
            "[", "]", "?(", ")", "'", "\"", ".", "*", ":", "-1", "@", "é", "\\", ",", "==", "a", " ", "{",
            "}",
        ];
        let object = json::read(br#"{"a":[{"a":"x"},1,null]}"#).unwrap();
        let mut state = 7usize;
        for _ in 0..20_000 {
            let mut text = ".a".to_owned();
            for _ in 0..state % 9 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(pieces[(state >> 33) % pieces.len()]);
            }
            state = state.wrapping_add(1);
            if let Ok(path) = JsonPath::parse(&text) {
                path.first(&object);
            }
        }
    }
}
