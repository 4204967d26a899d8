//! Sets of indexes as Jobs write them: `1,3-5,7`.

use pilothouse_apimachinery::field::quoted;

/// The first and last index of one interval.
fn interval(text: &str, completions: i64) -> Result<(i64, i64), String> {
    let mut parts = text.split('-');
    let (first, last, more) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    if more.is_some() {
        return Err(format!(
            "the fragment {} violates the requirement that an index interval can have at most two parts \
             separated by '-'",
            quoted(text)
        ));
    }
    let number = |text: &str| match text.parse::<i64>() {
        Err(_) => Err(format!("cannot convert string to integer for index: {}", quoted(text))),
        Ok(index) if index >= completions => Err(format!("too large index: {}", quoted(text))),
        Ok(index) => Ok(index),
    };
    let first = number(first)?;
    let Some(last) = last else { return Ok((first, first)) };
    let last = number(last)?;
    if first >= last {
        return Err(out_of_order(first, last));
    }
    Ok((first, last))
}

fn out_of_order(previous: i64, current: i64) -> String {
    format!("non-increasing order, previous: {previous}, current: {current}")
}

/// The number of indexes, or the syntax error.
pub fn count(text: &str, completions: i64) -> Result<i64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let (mut total, mut previous) = (0, None);
    for part in text.split(',') {
        let (first, last) = interval(part, completions)?;
        if let Some(previous) = previous.filter(|previous| *previous >= first) {
            return Err(out_of_order(previous, first));
        }
        total += last - first + 1;
        previous = Some(last);
    }
    Ok(total)
}

/// The first index that is in both sets. Invalid intervals are skipped: [`count`] reports them.
pub fn overlap(first: &str, second: &str, completions: i64) -> Option<i64> {
    let parse = |text: &str| -> Vec<(i64, i64)> {
        text.split(',').filter_map(|part| interval(part, completions).ok()).collect()
    };
    let (first, second) = (parse(first), parse(second));
    let (mut left, mut right) = (first.iter().peekable(), second.iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        if a.0 <= b.1 && b.0 <= a.1 {
            return Some(a.0.max(b.0));
        }
        if a.0 <= b.0 {
            left.next();
        } else {
            right.next();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_sets_are_counted_or_refused() {
        for (text, expected) in [("", 0), ("0", 1), ("1,3-5,7", 5)] {
            assert_eq!(count(text, 10), Ok(expected), "{text}");
        }
        let table = [
            ("x", "cannot convert string to integer for index: \"x\""),
            ("1-2-3", "the fragment \"1-2-3\" violates"),
            ("10", "too large index: \"10\""),
            ("1-10", "too large index: \"10\""),
            ("5-5", "non-increasing order, previous: 5, current: 5"),
            ("1-3,2", "non-increasing order, previous: 3, current: 2"),
        ];
        for (text, expected) in table {
            let detail = count(text, 10).unwrap_err();
            assert!(detail.starts_with(expected), "{text}: {detail}");
        }
        assert_eq!(overlap("1,3-5", "2,4", 10), Some(4));
        assert_eq!(overlap("1,3-5", "2,x,6", 10), None);
    }
}
