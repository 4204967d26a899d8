//! Checks the syntax of patterns in schemas for common mistakes: brackets, groups, repetitions, escapes.

/// The error in a pattern, as Go's regexp parser reports it.
pub fn check(pattern: &str) -> Result<(), String> {
    let fail = |detail: &str, part: &str| Err(format!("error parsing regexp: {detail}: `{part}`"));
    let (mut groups, mut is_repeatable) = (0usize, false);
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let after = rest.get(c.len_utf8()..).unwrap_or_default();
        let mut next = after;
        match c {
            '\\' => match after.chars().next() {
                None => return fail("trailing backslash at end of expression", ""),
                Some(escaped) => {
                    next = after.get(escaped.len_utf8()..).unwrap_or_default();
                    if escaped.is_ascii_digit() && escaped != '0' {
                        return fail("invalid escape sequence", &format!("\\{escaped}"));
                    }
                    is_repeatable = true;
                }
            },
            '[' => {
                let Some(end) = class_end(after) else { return fail("missing closing ]", rest) };
                next = after.get(end..).unwrap_or_default();
                is_repeatable = true;
            }
            '(' => {
                groups += 1;
                for prefix in ["?=", "?!", "?<=", "?<!", "?>"] {
                    if after.starts_with(prefix) {
                        let rendered = format!("({}", prefix.get(..2).unwrap_or(prefix));
                        return fail("invalid or unsupported Perl syntax", &rendered);
                    }
                }
                if after.starts_with('?') {
                    let end = after.find([':', '>', ')']).map_or(after.len(), |end| end + 1);
                    let flags_only = after.get(..end).is_some_and(|head| head.ends_with(')'));
                    groups -= usize::from(flags_only);
                    next = after.get(end..).unwrap_or_default();
                }
                is_repeatable = false;
            }
            ')' => {
                if groups == 0 {
                    return fail("unexpected )", pattern);
                }
                groups -= 1;
                is_repeatable = true;
            }
            '*' | '+' | '?' => {
                if !is_repeatable {
                    return fail("missing argument to repetition operator", &c.to_string());
                }
                // A question mark makes the repetition lazy; another operator would repeat a repetition.
                next = after.strip_prefix('?').unwrap_or(after);
                if let Some(more) = next.chars().next().filter(|more| matches!(more, '*' | '+' | '?')) {
                    return fail("invalid nested repetition operator", &format!("{c}{more}"));
                }
            }
            '|' => is_repeatable = false,
            _ => is_repeatable = true,
        }
        rest = next;
    }
    if groups > 0 { fail("missing closing )", pattern) } else { Ok(()) }
}

/// The end of a character class, after its opening bracket.
fn class_end(text: &str) -> Option<usize> {
    let start = text.strip_prefix('^').map_or(0, |_| 1);
    let (mut escaped, mut in_named_class) = (false, false);
    for (index, c) in text.char_indices().skip_while(|(index, _)| *index < start) {
        let is_first = index == start;
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' if text.get(index..).is_some_and(|rest| rest.starts_with("[:")) => in_named_class = true,
            ']' if in_named_class => in_named_class = false,
            ']' if !is_first => return Some(index + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_accepts_valid_and_reports_invalid_patterns() {
        for pattern in [
            "",
            "^a-z$",
            "[a-z0-9]([-a-z0-9]*[a-z0-9])?",
            r"\d+\.\d+",
            "(?i)x",
            "(?:a|b)+?",
            "[]a]",
            "[[:alpha:]]",
            "(?P<n>x)",
            "a{2,3}",
        ] {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
        let table = [
            ("[", "missing closing ]: `[`"),
            ("a(b", "missing closing ): `a(b`"),
            ("a)", "unexpected ): `a)`"),
            ("*a", "missing argument to repetition operator: `*`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("a\\", "trailing backslash at end of expression: ``"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            (r"(a)\1", r"invalid escape sequence: `\1`"),
        ];
        for (pattern, expected) in table {
            assert_eq!(check(pattern), Err(format!("error parsing regexp: {expected}")), "{pattern}");
        }
    }

    proptest::proptest! {
        #[test]
        fn check_never_panics(text in "[\\PC]{0,40}") {
            let _ = check(&text);
        }
    }
}
