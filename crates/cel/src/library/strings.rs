//! String functions. Indexes count characters.

use crate::limits::CEL_TEXT_BYTES;

use super::context::CallContext;
use super::operators::equal;
use crate::value::{Fault, List, Outcome, Val};

/// `text.trim()` and its like.
pub fn run<'v>(name: &str, args: &[Val<'v>], context: &mut CallContext) -> Outcome<'v> {
    match (name, args) {
        ("contains", [Val::String(text), Val::String(part)]) => Ok(Val::Bool(text.contains(&**part))),
        ("startsWith", [Val::String(text), Val::String(part)]) => Ok(Val::Bool(text.starts_with(&**part))),
        ("endsWith", [Val::String(text), Val::String(part)]) => Ok(Val::Bool(text.ends_with(&**part))),
        ("charAt", [Val::String(text), Val::Int(index)]) => char_at(text, *index),
        ("lowerAscii", [Val::String(text)]) => Ok(Val::from(text.to_ascii_lowercase())),
        ("upperAscii", [Val::String(text)]) => Ok(Val::from(text.to_ascii_uppercase())),
        ("trim", [Val::String(text)]) => Ok(Val::from(text.trim().to_owned())),
        ("strings.quote", [Val::String(text)]) => Ok(Val::from(quote(text))),
        ("substring", [Val::String(text), Val::Int(from)]) => substring(text, *from, None),
        ("substring", [Val::String(text), Val::Int(from), Val::Int(to)]) => substring(text, *from, Some(*to)),
        ("replace", [Val::String(text), Val::String(old), Val::String(new)]) => replace(text, old, new, -1),
        ("replace", [Val::String(text), Val::String(old), Val::String(new), Val::Int(limit)]) => {
            replace(text, old, new, *limit)
        }
        ("split", [Val::String(text), Val::String(separator)]) => split(text, separator, -1, context),
        ("split", [Val::String(text), Val::String(separator), Val::Int(limit)]) => {
            split(text, separator, *limit, context)
        }
        ("join", [Val::List(list)]) => join(list, ""),
        ("join", [Val::List(list), Val::String(separator)]) => join(list, separator),
        _ => Err(Fault::no_overload()),
    }
}

/// Escapes a key for a JSON Pointer.
pub fn escape_pointer_key<'v>(_: &str, args: &[Val<'v>], _: &mut CallContext) -> Outcome<'v> {
    match args {
        [Val::String(text)] => Ok(Val::from(text.replace('~', "~0").replace('/', "~1"))),
        _ => Err(Fault::no_overload()),
    }
}

fn out_of_range(index: i64) -> Fault {
    Fault::error(format!("index out of range: {index}"))
}

fn char_at<'v>(text: &str, index: i64) -> Outcome<'v> {
    let position = usize::try_from(index).map_err(|_| out_of_range(index))?;
    match text.chars().nth(position) {
        Some(letter) => Ok(Val::from(letter.to_string())),
        None if text.chars().count() == position => Ok(Val::from(String::new())),
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

fn replace<'v>(text: &str, old: &str, new: &str, limit: i64) -> Outcome<'v> {
    let count = usize::try_from(limit).unwrap_or(usize::MAX);
    // The size of the result is checked first: replacing every character by a long string could exceed memory.
    let matches =
        if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).take(count).count() };
    let size = text.len().saturating_add(matches.min(count).saturating_mul(new.len()));
    if size > CEL_TEXT_BYTES {
        return Err(Fault::Budget);
    }
    Ok(Val::from(text.replacen(old, new, count)))
}

fn split<'v>(text: &str, separator: &str, limit: i64, context: &mut CallContext) -> Outcome<'v> {
    let count = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut parts: Vec<Val<'v>> = Vec::new();
    let mut push_part = |part: &str| parts.push(Val::from(part.to_owned()));
    if count == 0 {
        return Ok(Val::from(parts));
    }
    context.charge_steps(text.len())?;
    if separator.is_empty() {
        // Splits into characters, with the rest in the last item.
        let mut rest = text;
        let mut part_count = 1;
        while let Some(letter) = rest.chars().next().filter(|_| part_count < count) {
            let (head, remaining) = rest.split_at(letter.len_utf8());
            push_part(head);
            rest = remaining;
            part_count += 1;
        }
        if !rest.is_empty() {
            push_part(rest);
        }
    } else {
        text.splitn(count, separator).for_each(push_part);
    }
    Ok(Val::from(parts))
}

fn join<'v>(list: &List<'v>, separator: &str) -> Outcome<'v> {
    let mut all = String::new();
    for (index, item) in list.iter().enumerate() {
        if index > 0 {
            all.push_str(separator);
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

fn quote(text: &str) -> String {
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
pub fn index_of<'v>(name: &str, args: &[Val<'v>], context: &mut CallContext) -> Outcome<'v> {
    let is_last = name == "lastIndexOf";
    match args {
        [Val::List(list), value] => {
            let mut result = -1;
            for (index, item) in list.iter().enumerate() {
                if equal(&item?, value, context)? {
                    result = index as i64;
                    if !is_last {
                        break;
                    }
                }
            }
            Ok(Val::Int(result))
        }
        [Val::String(text), Val::String(substring)] => find_index(text, substring, None, is_last, context),
        [Val::String(text), Val::String(substring), Val::Int(from)] => {
            find_index(text, substring, Some(*from), is_last, context)
        }
        _ => Err(Fault::no_overload()),
    }
}

fn find_index<'v>(
    text: &str,
    substring: &str,
    from: Option<i64>,
    is_last: bool,
    context: &mut CallContext,
) -> Outcome<'v> {
    let length = text.chars().count();
    if substring.is_empty() {
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
    context.charge_steps(text.len())?;
    let byte_offset = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(offset, _)| offset);
    let match_offset = if is_last {
        // The match may start at this index at the latest.
        let end = byte_offset(start).saturating_add(substring.len()).min(text.len());
        let end = (0..=end).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.get(..end).and_then(|head| head.rfind(substring))
    } else {
        let begin = byte_offset(start);
        text.get(begin..).and_then(|rest| rest.find(substring)).map(|offset| begin + offset)
    };
    Ok(Val::Int(
        match_offset.map_or(-1, |offset| text.get(..offset).unwrap_or_default().chars().count() as i64),
    ))
}

/// `text.matches(pattern)`, `text.find(pattern)`, `text.findAll(pattern)`.
pub fn match_pattern<'v>(name: &str, args: &[Val<'v>], context: &mut CallContext) -> Outcome<'v> {
    let (Some(Val::String(text)), Some(Val::String(pattern))) = (args.first(), args.get(1)) else {
        return Err(Fault::no_overload());
    };
    let pattern = context.pattern(pattern)?;
    Ok(match (name, args.get(2)) {
        ("matches", None) => Val::Bool(pattern.is_match(text)),
        ("find", None) => {
            Val::from(pattern.find(text).map(|matched| matched.as_str().to_owned()).unwrap_or_default())
        }
        ("findAll", limit) => {
            let limit = match limit {
                Some(Val::Int(limit)) => usize::try_from(*limit).unwrap_or(usize::MAX),
                None => usize::MAX,
                _ => return Err(Fault::no_overload()),
            };
            let matched = pattern.find_iter(text).take(limit);
            Val::from(matched.map(|matched| Val::from(matched.as_str().to_owned())).collect::<Vec<_>>())
        }
        _ => return Err(Fault::no_overload()),
    })
}
