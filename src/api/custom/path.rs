//! Simple paths into objects: `.spec.color`, `.status.conditions[?(@.type=="Ready")].status`.

use std::cmp::Ordering;

use crate::api::codec::json;
use crate::api::limits::{JSON_PATH_BYTES, JSON_PATH_DEPTH};
use crate::api::value::Value;

/// A path that was read once.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    Where { left: Vec<Step>, operator: Operator, right: Value },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Exists,
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// How many results a path may have on its way.
const MOST_RESULTS: usize = 10_000;

impl JsonPath {
    /// Reads a path; `None` if it is none, none that is understood, or a longer or deeper one than is taken.
    pub fn parse(text: &str) -> Option<JsonPath> {
        if text.len() > JSON_PATH_BYTES { None } else { steps(text, 0).map(JsonPath) }
    }

    /// The first value at the end of the path.
    pub fn first<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        walk(&self.0, object).into_iter().next()
    }
}

/// `depth` counts the conditions around the text: each is a call within a call.
fn steps(text: &str, depth: usize) -> Option<Vec<Step>> {
    if depth > JSON_PATH_DEPTH {
        return None;
    }
    let mut all = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(behind) = rest.strip_prefix('.') {
            // A dot right before a bracket names nothing.
            if behind.starts_with('[') {
                rest = behind;
                continue;
            }
            let (name, behind) = name(behind);
            match name.as_str() {
                "" => return None,
                "*" => all.push(Step::All),
                _ => all.push(Step::Field(name)),
            }
            rest = behind;
        } else {
            let inner = rest.strip_prefix('[')?;
            let end = closing(inner)?;
            all.push(subscript(inner.get(..end)?, depth)?);
            rest = inner.get(end + 1..)?;
        }
    }
    Some(all)
}

/// A name up to the next dot or bracket that no backslash stands before.
fn name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '.' | '[' => return (name, text.get(at..).unwrap_or_default()),
            '\\' => name.extend(letters.next().map(|(_, letter)| letter)),
            letter => name.push(letter),
        }
    }
    (name, "")
}

/// Where the bracket closes that is open already.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0usize, None);
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (Some(open), letter) if open == letter => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(letter),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn unquoted(text: &str) -> Option<&str> {
    let text = text.trim();
    ['\'', '"'].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote))
}

fn subscript(text: &str, depth: usize) -> Option<Step> {
    let text = text.trim();
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(name) = unquoted(text) {
        return Some(Step::Field(name.to_owned()));
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        return condition(filter, depth);
    }
    text.parse().ok().map(Step::Index)
}

fn condition(text: &str, depth: usize) -> Option<Step> {
    const OPERATORS: [(&str, Operator); 6] = [
        ("==", Operator::Equal),
        ("!=", Operator::Unequal),
        ("<=", Operator::LessOrEqual),
        (">=", Operator::GreaterOrEqual),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ];
    let found = OPERATORS.iter().find_map(|(sign, operator)| Some((text.find(sign)?, *sign, *operator)));
    let (left, operator, right) = match found {
        Some((at, sign, operator)) => (&text[..at], operator, &text[at + sign.len()..]),
        None => (text, Operator::Exists, "null"),
    };
    let left = steps(left.trim().strip_prefix('@')?, depth + 1)?;
    let right = match unquoted(right) {
        Some(text) => Value::from(text),
        None => json::read(right.trim().as_bytes()).ok()?,
    };
    Some(Step::Where { left, operator, right })
}

fn walk<'v>(steps: &[Step], object: &'v Value) -> Vec<&'v Value> {
    let mut here = vec![object];
    for step in steps {
        let next = here.into_iter().flat_map(|value| step.from(value));
        here = next.take(MOST_RESULTS).collect();
    }
    here
}

impl Step {
    fn from<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        match self {
            Step::Field(name) => value.fields().and_then(|fields| fields.get(name)).into_iter().collect(),
            Step::Index(index) => {
                let items = value.items();
                let from_end = i64::try_from(items.len()).unwrap_or(i64::MAX);
                let index = if *index < 0 { from_end + index } else { *index };
                usize::try_from(index).ok().and_then(|index| items.get(index)).into_iter().collect()
            }
            Step::All => match value {
                Value::Array(items) => items.iter().collect(),
                Value::Object(fields) => fields.values().collect(),
                _ => Vec::new(),
            },
            Step::Where { left, operator, right } => {
                let holds = |item: &&Value| {
                    let found = walk(left, item).into_iter().next();
                    found.is_some_and(|found| operator.holds(found, right))
                };
                value.items().iter().filter(holds).collect()
            }
        }
    }
}

impl Operator {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let number = |value: &Value| match value {
            Value::Int(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        };
        let order = match (left, right) {
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            _ => number(left).zip(number(right)).and_then(|(left, right)| left.partial_cmp(&right)),
        };
        match self {
            Operator::Exists => true,
            Operator::Equal => left == right || order == Some(Ordering::Equal),
            Operator::Unequal => left != right && order != Some(Ordering::Equal),
            Operator::Less => order == Some(Ordering::Less),
            Operator::LessOrEqual => order.is_some_and(Ordering::is_le),
            Operator::Greater => order == Some(Ordering::Greater),
            Operator::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_into_objects() {
        let object = json::read(
            br#"{"spec":{"color":"red","a.b":1,"l":[{"n":1},{"n":2}]},
                "status":{"conditions":[{"type":"A","status":"x"},{"type":"Ready","status":"True"}]}}"#,
        )
        .unwrap();
        let table = [
            (".spec.color", Some(r#""red""#)),
            (".spec['a.b']", Some("1")),
            (r".spec.a\.b", Some("1")),
            (".spec.l[1].n", Some("2")),
            (".spec.l[-1].n", Some("2")),
            (".spec.l[*].n", Some("1")),
            (".spec.l[?(@.n>1)].n", Some("2")),
            (r#".status.conditions[?(@.type=="Ready")].status"#, Some(r#""True""#)),
            (".status.conditions[?(@.type=='Nope')].status", None),
            (".spec.nothing.here", None),
            (".spec.l[7]", None),
        ];
        for (path, wanted) in table {
            let path = JsonPath::parse(path).unwrap();
            let found = path.first(&object).map(|value| String::from_utf8(json::to_json(value)).unwrap());
            assert_eq!(found.as_deref(), wanted, "{path:?}");
        }
        for bad in ["spec", ".", ".a[", ".a[?(x)]", ".a..b"] {
            assert_eq!(JsonPath::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn long_and_deep_paths_are_none() {
        let nested = |depth: usize| format!(".a{}{}", "[?(@.a".repeat(depth), ")]".repeat(depth));
        assert!(JsonPath::parse(&nested(JSON_PATH_DEPTH)).is_some());
        assert_eq!(JsonPath::parse(&nested(JSON_PATH_DEPTH + 1)), None);
        assert_eq!(JsonPath::parse(&nested(4_000)), None);
        // The depth alone keeps the stack, whatever length is taken.
        assert_eq!(steps(&nested(4_000), 0), None);
        assert!(JsonPath::parse(&format!(".{}", "a".repeat(JSON_PATH_BYTES - 1))).is_some());
        assert_eq!(JsonPath::parse(&format!(".{}", "a".repeat(JSON_PATH_BYTES))), None);
    }
}
