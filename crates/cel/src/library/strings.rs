//! String functions. Indexes count characters.

use crate::limits::CEL_TEXT_BYTES;

use super::super::eval::CallContext;
use super::super::value::{Fault, List, Outcome, Val};
use super::operators::equal;

/// `text.trim()` and its like.
pub fn run<'v>(name: &str, args: &[Val<'v>], work: &mut CallContext) -> Outcome<'v> {
    match (name, args) {
        ("contains", [Val::String(text), Val::String(part)]) => Ok(Val::Bool(text.contains(&**part))),
        ("startsWith", [Val::String(text), Val::String(part)]) => Ok(Val::Bool(text.starts_with(&**part))),
        ("endsWith", [Val::String(text), Val::String(part)]) => Ok(Val::Bool(text.ends_with(&**part))),
        ("charAt", [Val::String(text), Val::Int(index)]) => char_at(text, *index),
        ("lowerAscii", [Val::String(text)]) => Ok(Val::from(text.to_ascii_lowercase())),
        ("upperAscii", [Val::String(text)]) => Ok(Val::from(text.to_ascii_uppercase())),
        ("trim", [Val::String(text)]) => Ok(Val::from(text.trim().to_owned())),
        ("strings.quote", [Val::String(text)]) => Ok(Val::from(quoted(text))),
        ("substring", [Val::String(text), Val::Int(from)]) => substring(text, *from, None),
        ("substring", [Val::String(text), Val::Int(from), Val::Int(to)]) => substring(text, *from, Some(*to)),
        ("replace", [Val::String(text), Val::String(old), Val::String(new)]) => replace(text, old, new, -1),
        ("replace", [Val::String(text), Val::String(old), Val::String(new), Val::Int(most)]) => {
            replace(text, old, new, *most)
        }
        ("split", [Val::String(text), Val::String(by)]) => split(text, by, -1, work),
        ("split", [Val::String(text), Val::String(by), Val::Int(most)]) => split(text, by, *most, work),
        ("join", [Val::List(list)]) => join(list, ""),
        ("join", [Val::List(list), Val::String(between)]) => join(list, between),
        _ => Err(Fault::no_overload()),
    }
}

/// Escapes a key for a JSON Pointer.
pub fn pointer_key<'v>(_: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    match args {
        [Val::String(text)] => Ok(Val::from(text.replace('~', "~0").replace('/', "~1"))),
        _ => Err(Fault::no_overload()),
    }
}

fn out_of_range(index: i64) -> Fault {
    Fault::error(format!("index out of range: {index}"))
}

fn char_at<'v>(text: &str, index: i64) -> Outcome<'v> {
    let place = usize::try_from(index).map_err(|_| out_of_range(index))?;
    match text.chars().nth(place) {
        Some(letter) => Ok(Val::from(letter.to_string())),
        None if text.chars().count() == place => Ok(Val::from(String::new())),
        None => Err(out_of_range(index)),
    }
}

fn substring<'v>(text: &str, from: i64, to: Option<i64>) -> Outcome<'v> {
    let length = text.chars().count() as i64;
    let end = to.unwrap_or(length);
    if to.is_some() && from > end {
        return Err(Fault::error(format!("invalid substring range. start: {from}, end: {end}")));
    }
    for index in [from, end] {
        if index < 0 || index > length {
            return Err(out_of_range(index));
        }
    }
    Ok(Val::from(text.chars().skip(from as usize).take((end - from) as usize).collect::<String>()))
}

fn replace<'v>(text: &str, old: &str, new: &str, most: i64) -> Outcome<'v> {
    let count = usize::try_from(most).unwrap_or(usize::MAX);
    // The size of the result is checked first: replacing every character by a long string could exceed memory.
    let places =
        if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).take(count).count() };
    let size = text.len().saturating_add(places.min(count).saturating_mul(new.len()));
    if size > CEL_TEXT_BYTES {
        return Err(Fault::Budget);
    }
    Ok(Val::from(text.replacen(old, new, count)))
}

fn split<'v>(text: &str, by: &str, most: i64, work: &mut CallContext) -> Outcome<'v> {
    let count = usize::try_from(most).unwrap_or(usize::MAX);
    let mut parts: Vec<Val<'v>> = Vec::new();
    let mut put = |part: &str| parts.push(Val::from(part.to_owned()));
    if count == 0 {
        return Ok(Val::from(parts));
    }
    work.effort(text.len())?;
    if by.is_empty() {
        // Splits into characters, with the rest in the last item.
        let mut rest = text;
        let mut made = 1;
        while let Some(letter) = rest.chars().next().filter(|_| made < count) {
            let (head, behind) = rest.split_at(letter.len_utf8());
            put(head);
            rest = behind;
            made += 1;
        }
        if !rest.is_empty() {
            put(rest);
        }
    } else {
        text.splitn(count, by).for_each(put);
    }
    Ok(Val::from(parts))
}

fn join<'v>(list: &List<'v>, between: &str) -> Outcome<'v> {
    let mut all = String::new();
    for (index, item) in list.iter().enumerate() {
        if index > 0 {
            all.push_str(between);
        }
        match item? {
            Val::String(text) => all.push_str(&text),
            other => return Err(Fault::error(format!("join: invalid input: {other}"))),
        }
        if all.len() > CEL_TEXT_BYTES {
            return Err(Fault::Budget);
        }
    }
    Ok(Val::from(all))
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        match letter {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

/// `indexOf` and `lastIndexOf` of strings and lists.
pub fn position<'v>(name: &str, args: &[Val<'v>], work: &mut CallContext) -> Outcome<'v> {
    let is_last = name == "lastIndexOf";
    match args {
        [Val::List(list), value] => {
            let mut found = -1;
            for (index, item) in list.iter().enumerate() {
                if equal(&item?, value, work)? {
                    found = index as i64;
                    if !is_last {
                        break;
                    }
                }
            }
            Ok(Val::Int(found))
        }
        [Val::String(text), Val::String(part)] => place(text, part, None, is_last, work),
        [Val::String(text), Val::String(part), Val::Int(from)] => {
            place(text, part, Some(*from), is_last, work)
        }
        _ => Err(Fault::no_overload()),
    }
}

fn place<'v>(
    text: &str,
    part: &str,
    from: Option<i64>,
    is_last: bool,
    work: &mut CallContext,
) -> Outcome<'v> {
    let length = text.chars().count();
    if part.is_empty() {
        return Ok(Val::Int(from.unwrap_or(if is_last { length as i64 } else { 0 })));
    }
    let start = match from {
        Some(from) => usize::try_from(from).map_err(|_| out_of_range(from))?,
        None if is_last => length.saturating_sub(1),
        None => 0,
    };
    if start >= length {
        return Ok(Val::Int(-1));
    }
    work.effort(text.len())?;
    let byte = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
    let found = if is_last {
        // The match may start at this index at the latest.
        let end = byte(start).saturating_add(part.len()).min(text.len());
        let end = (0..=end).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.get(..end).and_then(|head| head.rfind(part))
    } else {
        let begin = byte(start);
        text.get(begin..).and_then(|rest| rest.find(part)).map(|at| begin + at)
    };
    Ok(Val::Int(found.map_or(-1, |at| text.get(..at).unwrap_or_default().chars().count() as i64)))
}

/// `text.matches(pattern)`, `text.find(pattern)`, `text.findAll(pattern)`.
pub fn pattern<'v>(name: &str, args: &[Val<'v>], work: &mut CallContext) -> Outcome<'v> {
    let (Some(Val::String(text)), Some(Val::String(pattern))) = (args.first(), args.get(1)) else {
        return Err(Fault::no_overload());
    };
    let pattern = work.pattern(pattern)?;
    Ok(match (name, args.get(2)) {
        ("matches", None) => Val::Bool(pattern.is_match(text)),
        ("find", None) => {
            Val::from(pattern.find(text).map(|found| found.as_str().to_owned()).unwrap_or_default())
        }
        ("findAll", most) => {
            let most = match most {
                Some(Val::Int(most)) => usize::try_from(*most).unwrap_or(usize::MAX),
                None => usize::MAX,
                _ => return Err(Fault::no_overload()),
            };
            let found = pattern.find_iter(text).take(most);
            Val::from(found.map(|found| Val::from(found.as_str().to_owned())).collect::<Vec<_>>())
        }
        _ => return Err(Fault::no_overload()),
    })
}
