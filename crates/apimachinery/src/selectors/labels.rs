//! Label selectors: `env in (a,b),!canary,weight>3`.

use std::collections::BTreeSet;

use pilothouse_types::filter::LabelRule;

use crate::field::quoted;
use crate::names;
use crate::status::{self, Status};

/// Parses a label selector. The messages are part of the API.
pub fn parse(text: &str) -> status::Result<Vec<LabelRule>> {
    Parser::new(text).selector().map_err(Status::bad_request)
}

/// A token of a selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Sign(&'a str),
    End,
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Token::Word(text) | Token::Sign(text) => text,
            Token::End => "",
        }
    }

    /// Whether this can be a key or value. `in` and `notin` are operators only where one is expected.
    fn word(self) -> Option<&'a str> {
        match self {
            Token::Word(text) => Some(text),
            _ => None,
        }
    }
}

fn is_sign(byte: u8) -> bool {
    matches!(byte, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        // A zero byte ends the selector.
        Parser { rest: text.split('\0').next().unwrap_or_default() }
    }

    /// The next token and the rest.
    fn scan(&self) -> (Token<'a>, &'a str) {
        let rest = self.rest.trim_start_matches(|c: char| c.is_ascii() && is_space(c as u8));
        let Some(first) = rest.bytes().next() else {
            return (Token::End, rest);
        };
        if is_sign(first) {
            let long = ["==", "!="].iter().any(|sign| rest.starts_with(sign));
            let (sign, rest) = rest.split_at(if long { 2 } else { 1 });
            return (Token::Sign(sign), rest);
        }
        let end = rest.bytes().position(|byte| is_sign(byte) || is_space(byte)).unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        (Token::Word(word), rest)
    }

    fn peek(&self) -> Token<'a> {
        self.scan().0
    }

    fn next(&mut self) -> Token<'a> {
        let (token, rest) = self.scan();
        self.rest = rest;
        token
    }

    fn selector(&mut self) -> Result<Vec<LabelRule>, String> {
        let mut rules = Vec::new();
        loop {
            match self.peek() {
                Token::Word(_) | Token::Sign("!") => {}
                Token::End => return Ok(rules),
                other => {
                    return Err(format!(
                        "found '{}', expected: !, identifier, or 'end of string'",
                        other.text()
                    ));
                }
            }
            rules.push(self.requirement().map_err(|error| format!("unable to parse requirement: {error}"))?);
            match self.next() {
                Token::End => return Ok(rules),
                Token::Sign(",") => {
                    if let token @ (Token::End | Token::Sign(_)) = self.peek()
                        && token != Token::Sign("!")
                    {
                        return Err(format!("found '{}', expected: identifier after ','", token.text()));
                    }
                }
                other => return Err(format!("found '{}', expected: ',' or 'end of string'", other.text())),
            }
        }
    }

    fn requirement(&mut self) -> Result<LabelRule, String> {
        let mut token = self.next();
        let absent = token == Token::Sign("!");
        if absent {
            token = self.next();
        }
        let key = token.word().ok_or_else(|| format!("found '{}', expected: identifier", token.text()))?;
        let messages = names::qualified_name(key);
        if !messages.is_empty() {
            return Err(format!("<nil>: Invalid value: {}: {}", quoted(key), messages.join("; ")));
        }
        if absent {
            return Ok(LabelRule::Absent(key.into()));
        }
        if matches!(self.peek(), Token::End | Token::Sign(",")) {
            return Ok(LabelRule::Exists(key.into()));
        }
        let operator = self.next();
        let values = match operator.text() {
            "in" | "notin" => self.set()?,
            "=" | "==" | "!=" | ">" | "<" => self.single()?,
            other => return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        new_rule(key, operator.text(), values)
    }

    /// One value, which may be empty.
    fn single(&mut self) -> Result<BTreeSet<Box<str>>, String> {
        if matches!(self.peek(), Token::End | Token::Sign(",")) {
            return Ok(BTreeSet::from(["".into()]));
        }
        let token = self.next();
        match token.word() {
            Some(value) => Ok(BTreeSet::from([value.into()])),
            None => Err(format!("found '{}', expected: identifier", token.text())),
        }
    }

    /// Values in parentheses, which may be empty.
    fn set(&mut self) -> Result<BTreeSet<Box<str>>, String> {
        let open = self.next();
        if open != Token::Sign("(") {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        match self.peek() {
            Token::Word(_) | Token::Sign(",") => {}
            Token::Sign(")") => {
                self.next();
                return Ok(BTreeSet::from(["".into()]));
            }
            other => return Err(format!("found '{}', expected: ',', ')' or identifier", other.text())),
        }
        let mut values = BTreeSet::new();
        loop {
            match self.next() {
                Token::Word(value) => {
                    values.insert(value.into());
                    match self.peek() {
                        Token::Sign(",") => {}
                        Token::Sign(")") => break,
                        other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
                    }
                }
                Token::Sign(",") => {
                    if values.is_empty() {
                        values.insert("".into());
                    }
                    match self.peek() {
                        Token::Sign(")") => {
                            values.insert("".into());
                            break;
                        }
                        Token::Sign(",") => {
                            self.next();
                            values.insert("".into());
                        }
                        _ => {}
                    }
                }
                other => return Err(format!("found '{}', expected: ',', or identifier", other.text())),
            }
        }
        self.next();
        Ok(values)
    }
}

/// Makes a rule, if its values are valid.
fn new_rule(key: &str, operator: &str, values: BTreeSet<Box<str>>) -> Result<LabelRule, String> {
    let mut errors = Vec::new();
    let bound = values.first().and_then(|value| value.parse::<i64>().ok());
    if matches!(operator, ">" | "<") && bound.is_none() {
        for (index, value) in values.iter().enumerate() {
            let value = quoted(value);
            errors.push(format!(
                "values[{index}]: Invalid value: {value}: for 'Gt', 'Lt' operators, the value must be an integer"
            ));
        }
    }
    for (index, value) in values.iter().enumerate() {
        let messages = names::label_value(value);
        if !messages.is_empty() {
            errors.push(format!(
                "values[{index}][{key}]: Invalid value: {}: {}",
                quoted(value),
                messages.join("; ")
            ));
        }
    }
    match (errors.as_slice(), operator) {
        ([], "in" | "=" | "==") => Ok(LabelRule::In(key.into(), values)),
        ([], "notin" | "!=") => Ok(LabelRule::NotIn(key.into(), values)),
        ([], ">") => Ok(LabelRule::Above(key.into(), bound.unwrap_or_default())),
        ([], _) => Ok(LabelRule::Below(key.into(), bound.unwrap_or_default())),
        ([error], _) => Err(error.clone()),
        (errors, _) => Err(format!("[{}]", errors.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(values: &[&str]) -> BTreeSet<Box<str>> {
        values.iter().map(|value| Box::from(*value)).collect()
    }

    fn is(key: &str, values: &[&str]) -> LabelRule {
        LabelRule::In(key.into(), set(values))
    }

    fn not(key: &str, values: &[&str]) -> LabelRule {
        LabelRule::NotIn(key.into(), set(values))
    }

    #[test]
    fn label_selectors_with_each_operator_are_parsed() {
        let table: [(&str, Vec<LabelRule>); 19] = [
            ("", vec![]),
            ("  ", vec![]),
            ("a=b", vec![is("a", &["b"])]),
            ("a == b", vec![is("a", &["b"])]),
            ("a!=b", vec![not("a", &["b"])]),
            ("a=", vec![is("a", &[""])]),
            ("a=,b", vec![is("a", &[""]), LabelRule::Exists("b".into())]),
            ("x.io/a", vec![LabelRule::Exists("x.io/a".into())]),
            ("!a", vec![LabelRule::Absent("a".into())]),
            ("! a , b", vec![LabelRule::Absent("a".into()), LabelRule::Exists("b".into())]),
            ("a in (b,c)", vec![is("a", &["b", "c"])]),
            ("a notin (b)", vec![not("a", &["b"])]),
            ("a in ()", vec![is("a", &[""])]),
            ("a in (b,,c,)", vec![is("a", &["b", "", "c"])]),
            ("a in (,b)", vec![is("a", &["", "b"])]),
            ("in in (in,notin)", vec![is("in", &["in", "notin"])]),
            ("a>3", vec![LabelRule::Above("a".into(), 3)]),
            ("a<3,a=b", vec![LabelRule::Below("a".into(), 3), is("a", &["b"])]),
            ("a=b\0c", vec![is("a", &["b"])]),
        ];
        for (text, expected) in table {
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn malformed_label_selectors_have_the_reference_message() {
        let table = [
            ("env=prod=x", "found '=', expected: ',' or 'end of string'"),
            ("env in prod", "unable to parse requirement: found 'prod' expected: '('"),
            ("env in (a", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("env in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
            ("env in (a,", "unable to parse requirement: found '', expected: ',', or identifier"),
            ("=x", "found '=', expected: !, identifier, or 'end of string'"),
            ("env notin", "unable to parse requirement: found '' expected: '('"),
            ("env=bad value", "found 'value', expected: ',' or 'end of string'"),
            ("env=!x", "unable to parse requirement: found '!', expected: identifier"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            (
                "env>abc",
                "unable to parse requirement: values[0]: Invalid value: \"abc\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            (",", "found ',', expected: !, identifier, or 'end of string'"),
            ("env=prod,,tier=1", "found ',', expected: identifier after ','"),
            ("env=prod,", "found '', expected: identifier after ','"),
            ("env ~ x", "unable to parse requirement: found '~', expected: in, notin, =, ==, !=, gt, lt"),
            ("!env=x", "found '=', expected: ',' or 'end of string'"),
            (
                "-bad=x",
                "unable to parse requirement: <nil>: Invalid value: \"-bad\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ),
        ];
        for (text, expected) in table {
            let error = parse(text).unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (400, expected), "{text}");
        }
        let long = format!("env={}", "x".repeat(64));
        assert_eq!(
            parse(&long).unwrap_err().message,
            format!(
                "unable to parse requirement: values[0][env]: Invalid value: \"{}\": must be no more than 63 characters",
                "x".repeat(64)
            )
        );
        assert!(
            parse("env>-x").unwrap_err().message.starts_with("unable to parse requirement: [values[0]: ")
        );
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_label_selectors_never_panics(text in "([ab!=<>(),/.~\\-]| in | notin |\\PC){0,24}") {
            let _ = parse(&text);
        }

        #[test]
        fn spaces_between_tokens_are_ignored(key in "[a-z]{1,5}", values in prop::collection::vec("[a-z0-9]{1,4}", 1..4)) {
            let tight = parse(&format!("{key} in ({})", values.join(","))).unwrap();
            let loose = parse(&format!("  {key}  in\t( {} ) ", values.join(" , "))).unwrap();
            prop_assert_eq!(tight, loose);
        }
    }
}
