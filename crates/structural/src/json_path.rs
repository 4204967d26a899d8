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
        from: Option<i64>,
        to: To,
        by: Option<i64>,
    },
    /// The union of several paths.
    Union(Vec<Vec<Step>>),
    /// All direct children.
    All,
    /// All descendants.
    Below,
    /// A constant. Text occurs once; numbers and booleans once per value that led here.
    Text(Value),
    Literal(Value),
    Where {
        left: Vec<Step>,
        operator: Option<Operator>,
        right: Vec<Step>,
    },
    /// An expression that parses but never evaluates.
    Nonsense,
}

/// The end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    /// Right after the first.
    Next,
    /// At the end.
    End,
    At(i64),
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
const MOST_RESULTS: usize = 10_000;

impl JsonPath {
    /// Parses a path. Errors are in the reference's words, also for a path that is too long or too deep.
    pub fn parse(text: &str) -> Result<JsonPath> {
        if text.len() > JSON_PATH_BYTES { Err(TOO_LONG.to_owned()) } else { steps(text, 0).map(JsonPath) }
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

/// `depth` counts the enclosing texts: each is a recursion.
fn steps(text: &str, depth: usize) -> Result<Vec<Step>> {
    if depth > JSON_PATH_DEPTH {
        return Err(TOO_LONG.to_owned());
    }
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if let Some(behind) = rest.strip_prefix("[?(") {
            rest = filter(behind, depth, &mut all)?;
            continue;
        }
        if let Some(behind) = rest.strip_prefix("..") {
            if all.last() == Some(&Step::Below) {
                return Err("invalid multiple recursive descent".to_owned());
            }
            all.push(Step::Below);
            rest = behind;
            if rest.starts_with(|c: char| c == '_' || c.is_alphanumeric()) {
                rest = field(rest, &mut all);
            }
            continue;
        }
        let behind = rest.get(letter.len_utf8()..).unwrap_or_default();
        rest = match letter {
            ' ' | '@' | '$' => behind,
            '[' => array(behind, depth, &mut all)?,
            '"' | '\'' => quote(rest, &mut all)?,
            '.' => field(behind, &mut all),
            '+' | '-' => number(rest, &mut all)?,
            letter if letter.is_numeric() => number(rest, &mut all)?,
            letter if letter == '_' || letter.is_alphabetic() => identifier(rest, &mut all),
            '}' => {
                // Text follows, and perhaps one more path.
                let next = behind.split_once('{').map_or("", |(_, next)| next);
                steps(next, depth + 1)?;
                return Ok(all);
            }
            '\r' | '\n' => return Err("unclosed action".to_owned()),
            letter => return Err(format!("unrecognized character in action: {}", code_of(letter))),
        };
    }
    Ok(all)
}

/// A character by its code point, and itself if it is printable.
fn code_of(letter: char) -> String {
    let code = format!("U+{:04X}", u32::from(letter));
    if letter.is_control() || letter.is_whitespace() { code } else { format!("{code} '{letter}'") }
}

/// A name up to the next unescaped terminator.
fn field<'t>(text: &'t str, all: &mut Vec<Step>) -> &'t str {
    let mut letters = text.char_indices();
    let mut end = text.len();
    while let Some((at, letter)) = letters.next() {
        if letter == '\\' {
            letters.next();
        } else if is_terminator(letter) {
            end = at;
            break;
        }
    }
    let (name, rest) = text.split_at(end);
    all.push(if name == "*" { Step::All } else { Step::Field(name.replace('\\', "")) });
    rest
}

fn identifier<'t>(text: &'t str, all: &mut Vec<Step>) -> &'t str {
    let (name, rest) = text.split_at(text.find(is_terminator).unwrap_or(text.len()));
    all.push(match name {
        "true" | "false" => Step::Literal(Value::Bool(name == "true")),
        _ => Step::Nonsense,
    });
    rest
}

fn number<'t>(text: &'t str, all: &mut Vec<Step>) -> Result<&'t str> {
    let signed = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = signed.find(|c: char| c != '.' && !c.is_numeric()).unwrap_or(signed.len());
    let (said, rest) = text.split_at(text.len() - signed.len() + digits);
    all.push(Step::Literal(match said.parse() {
        Ok(whole) => Value::Int(whole),
        Err(_) => Value::Float(said.parse().map_err(|_| format!("cannot parse number {said}"))?),
    }));
    Ok(rest)
}

/// Quoted text at the beginning of `text`.
fn quote<'t>(text: &'t str, all: &mut Vec<Step>) -> Result<&'t str> {
    const OPEN: &str = "unterminated quoted string";
    let mut letters = text.char_indices();
    let quote = letters.next().map_or('"', |(_, quote)| quote);
    let mut said = String::new();
    let mut bad = false;
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\n' => return Err(OPEN.to_owned()),
            letter if letter == quote => {
                let (whole, rest) = text.split_at(at + 1);
                if bad {
                    return Err(format!("unquote string {whole} error invalid syntax"));
                }
                all.push(Step::Text(Value::String(said)));
                return Ok(rest);
            }
            '\\' => match letters.next().map(|(_, letter)| letter) {
                None => return Err(OPEN.to_owned()),
                Some('n') => said.push('\n'),
                Some('t') => said.push('\t'),
                Some('r') => said.push('\r'),
                Some(letter) if letter == '\\' || letter == quote => said.push(letter),
                Some(_) => bad = true,
            },
            letter => said.push(letter),
        }
    }
    Err(OPEN.to_owned())
}

/// The contents of brackets, after the opening one.
fn array<'t>(text: &'t str, depth: usize, all: &mut Vec<Step>) -> Result<&'t str> {
    let closed = text.split_once(']').filter(|(inner, _)| !inner.contains('\n'));
    let (inner, rest) = closed.ok_or_else(|| "unterminated array".to_owned())?;
    if inner.contains(',') {
        let parts = inner.split(',').map(|part| steps(&format!("[{}]", part.trim_matches(' ')), depth + 1));
        all.push(Step::Union(parts.collect::<Result<_>>()?));
        return Ok(rest);
    }
    let quoted = inner.strip_prefix('\'').and_then(|inner| inner.strip_suffix('\''));
    if let Some(key) = quoted.filter(|key| !key.contains('\'')) {
        all.extend(steps(&format!(".{key}"), depth + 1)?);
        return Ok(rest);
    }
    all.push(slice(if inner == "*" { ":" } else { inner })?);
    Ok(rest)
}

fn slice(text: &str) -> Result<Step> {
    let parts: Vec<&str> = text.split(':').collect();
    let digits =
        |part: &&str| part.strip_prefix('-').unwrap_or(part).bytes().all(|byte| byte.is_ascii_digit());
    if parts.len() > 3 || !parts.iter().all(digits) {
        return Err(format!("invalid array index {text}"));
    }
    let number = |part: &&str| match *part {
        "" => Ok(None),
        part => part.parse().map(Some).map_err(|_| format!("array index {part} is not a number")),
    };
    let from = parts.first().map_or(Ok(None), number)?;
    let to = match parts.get(1).map(number).transpose()? {
        None => To::Next,
        Some(to) => to.map_or(To::End, To::At),
    };
    let by = parts.get(2).map_or(Ok(None), number)?;
    Ok(Step::Slice { from, to, by })
}

/// A filter, after its opening brackets.
fn filter<'t>(text: &'t str, depth: usize, all: &mut Vec<Step>) -> Result<&'t str> {
    let (mut opened, mut closed) = (None, false);
    let mut before = ' ';
    let mut end = None;
    for (at, letter) in text.char_indices() {
        match letter {
            '\n' => break,
            '"' | '\'' if opened.is_none() => opened = Some(letter),
            '"' | '\'' => closed |= opened == Some(letter) && before != '\\',
            ')' if opened.is_some() == closed => {
                end = Some(at);
                break;
            }
            _ => {}
        }
        before = letter;
    }
    let (inner, rest) = end.map(|end| text.split_at(end)).ok_or_else(|| "unterminated filter".to_owned())?;
    let rest = rest.strip_prefix(")]").ok_or_else(|| "unclosed array expect ]".to_owned())?;
    let signs = |c: char| matches!(c, '!' | '<' | '>' | '=');
    let parts = inner.find(signs).filter(|at| *at > 0).and_then(|at| {
        let (left, rest) = inner.split_at(at);
        // As many operator characters as there are, but an operand must be left.
        let end =
            rest.find(|c: char| !signs(c)).or_else(|| rest.len().checked_sub(1)).filter(|end| *end > 0)?;
        let (sign, right) = rest.split_at(end);
        Some((left, sign, right))
    });
    all.push(match parts {
        None => Step::Where { left: steps(inner, depth + 1)?, operator: None, right: Vec::new() },
        Some((left, sign, right)) => Step::Where {
            left: steps(left, depth + 1)?,
            operator: Some(match sign {
                "==" => Operator::Equal,
                "!=" => Operator::Unequal,
                "<" => Operator::Less,
                "<=" => Operator::LessOrEqual,
                ">" => Operator::Greater,
                ">=" => Operator::GreaterOrEqual,
                _ => Operator::Unknown,
            }),
            right: steps(right, depth + 1)?,
        },
    });
    Ok(rest)
}

/// The values at the end of a path from each of these; `None` if the path fails.
fn walk<'v>(steps: &'v [Step], from: Vec<&'v Value>) -> Option<Vec<&'v Value>> {
    let mut here = from;
    for step in steps {
        here = step.from(here)?;
        here.truncate(MOST_RESULTS);
    }
    Some(here)
}

/// The direct children of a value.
fn inside(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

fn below<'v>(value: &'v Value, all: &mut Vec<&'v Value>) {
    let is_full = !inside(value).is_empty() || value.as_str().is_some_and(|text| !text.is_empty());
    if is_full && all.len() < MOST_RESULTS {
        all.push(value);
        inside(value).into_iter().for_each(|inner| below(inner, all));
    }
}

impl Step {
    fn from<'v>(&'v self, here: Vec<&'v Value>) -> Option<Vec<&'v Value>> {
        Some(match self {
            Step::Field(name) => here
                .into_iter()
                .filter_map(|value| value.fields().and_then(|fields| fields.get(name)))
                .collect(),
            Step::All => here.into_iter().flat_map(inside).take(MOST_RESULTS).collect(),
            Step::Below => {
                let mut all = Vec::new();
                here.into_iter().for_each(|value| below(value, &mut all));
                all
            }
            Step::Text(text) => vec![text],
            Step::Literal(value) => vec![value; here.len()],
            Step::Union(parts) => {
                let mut all = Vec::new();
                for part in parts {
                    all.extend(walk(part, here.clone())?);
                    all.truncate(MOST_RESULTS);
                }
                all
            }
            Step::Slice { from, to, by } => {
                let mut all = Vec::new();
                for value in here.into_iter().filter(|value| !value.is_null()) {
                    let Value::Array(items) = value else { return None };
                    match range(items.len(), (*from, *to))? {
                        (from, to) if from == to => return Some(all),
                        (from, to) => {
                            let step =
                                by.map_or(Some(1), |by| usize::try_from(by).ok()).filter(|by| *by > 0)?;
                            let room = MOST_RESULTS.saturating_sub(all.len());
                            all.extend(items.get(from..to)?.iter().step_by(step).take(room));
                        }
                    }
                }
                all
            }
            Step::Where { left, operator, right } => {
                let mut all = Vec::new();
                for value in here {
                    let Value::Array(items) = value else { return None };
                    for item in items {
                        if holds(item, left, *operator, right)? && all.len() < MOST_RESULTS {
                            all.push(item);
                        }
                    }
                }
                all
            }
            Step::Nonsense => return None,
        })
    }
}

/// The range of a slice among so many items; both ends are equal if it is empty.
fn range(count: usize, (from, to): (Option<i64>, To)) -> Option<(usize, usize)> {
    let count = i64::try_from(count).ok()?;
    let first = from.unwrap_or(0);
    let begin = if first < 0 { first + count } else { first };
    let end = match to {
        To::End => count,
        To::At(at) if at < 0 => at + count,
        To::At(at) => at,
        // After the last item, if the first was counted from the end.
        To::Next if first < 0 => first + 1 + count,
        To::Next => first.saturating_add(1),
    };
    if begin == end {
        return Some((0, 0));
    }
    let fits = (0..count).contains(&begin) && (0..=count).contains(&end) && begin <= end;
    fits.then(|| Some((usize::try_from(begin).ok()?, usize::try_from(end).ok()?)))?
}

/// Whether an item satisfies a filter; `None` if the whole path fails.
fn holds(item: &Value, left: &[Step], operator: Option<Operator>, right: &[Step]) -> Option<bool> {
    let lefts = walk(left, vec![item]);
    let Some(operator) = operator else { return Some(lefts.is_some_and(|lefts| !lefts.is_empty())) };
    let (left, right) = match (&*lefts?, &*walk(right, vec![item])?) {
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
    fn paths_lead_into_objects() {
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
            // One missing item, and nothing is found at all.
            (".spec.l[7]", None),
            (".spec.l[9223372036854775807]", None),
            (".spec.l[-9223372036854775808:9223372036854775807:9223372036854775807]", None),
            (".spec.l[0:9].n", None),
            (".spec.color[0]", None),
            (".spec.['color']", None),
            (".", None),
            (".spec.color} and {.spec.on", Some(r#""red""#)),
        ];
        for (path, wanted) in table {
            let path = JsonPath::parse(path).unwrap();
            let found = path.first(&object).map(|value| String::from_utf8(json::to_json(value)).unwrap());
            assert_eq!(found.as_deref(), wanted, "{path:?}");
        }
        for (bad, why) in [
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
            assert_eq!(JsonPath::parse(bad).unwrap_err(), why, "{bad}");
        }
    }

    #[test]
    fn long_paths_are_none_and_none_is_deep() {
        assert!(steps("[0,1]", JSON_PATH_DEPTH).is_err());
        assert!(steps(".a", JSON_PATH_DEPTH).is_ok());
        let nested = format!(".a{}{}", "[?(@.a".repeat(4_000), ")]".repeat(4_000));
        assert!(steps(&nested, 0).is_err());
        assert!(steps(&"}{".repeat(4_000), 0).is_err());
        assert!(JsonPath::parse(&format!(".{}", "a".repeat(JSON_PATH_BYTES - 1))).is_ok());
        assert!(JsonPath::parse(&format!(".{}", "a".repeat(JSON_PATH_BYTES))).is_err());
    }

    #[test]
    fn no_path_finds_more_than_there_is_room_for() {
        let many = format!(r#"{{"l":[[{}0]]}}"#, "0,".repeat(MOST_RESULTS));
        let object = json::read(many.as_bytes()).unwrap();
        let unions = format!(".l[{}0]", "0,".repeat(50));
        for path in [format!("{unions}[*]"), format!("{unions}[0:]"), format!("{unions}[?(@==0)]")] {
            let steps = steps(&path, 0).unwrap();
            let mut here = vec![&object];
            for step in &steps {
                here = step.from(here).unwrap();
                assert!(here.len() <= MOST_RESULTS, "{path}: {}", here.len());
            }
        }
    }

    #[test]
    fn no_path_makes_it_panic() {
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
