//! The lexer.

use super::source::{Issues, Source};

/// The kind of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// An operator, delimiter or keyword: `+`, `in`, `true`.
    Sign(&'static str),
    /// An identifier.
    Name(String),
    /// An identifier in backquotes.
    EscapedName,
    /// `12`, `0xff`.
    Int(String),
    /// `12u`.
    Uint(String),
    /// `1.5`, `1e9`.
    Float(String),
    /// A string literal with its quotes and prefix.
    String(String),
    /// A bytes literal with its quotes, without the prefix `b`.
    Bytes(String),
    /// The end of the text.
    End,
}

/// A token and its position.
#[derive(Clone, Debug)]
pub struct Token {
    /// Its kind.
    pub word: TokenKind,
    /// The position of its first character.
    pub start: usize,
    /// The position after its last character.
    pub end: usize,
}

/// Operators and delimiters; longer ones before their prefixes.
const SIGNS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":",
    "+", "*", "/", "%",
];
/// The keywords.
const KEPT: [&str; 4] = ["in", "true", "false", "null"];

/// Tokenizes a text. Invalid characters are reported and skipped.
pub fn tokenize(source: &Source, issues: &mut Issues) -> Vec<Token> {
    let mut words = Vec::new();
    let mut at = 0;
    while at < source.len() {
        let after = blank(source, at);
        if after > at {
            at = after;
            continue;
        }
        match word(source, at) {
            Ok((word, end)) => {
                words.push(Token { word, start: at, end });
                at = end;
            }
            Err(stop) => {
                // The offending character is reported and skipped, too.
                let text = source.text(at, stop + 1);
                issues.add(at, format!("Syntax error: token recognition error at: '{}'", shown(&text)));
                at = stop + 1;
            }
        }
    }
    words.push(Token { word: TokenKind::End, start: source.len(), end: source.len() });
    words
}

fn shown(text: &str) -> String {
    text.replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r")
}

/// Skips whitespace and comments.
fn blank(source: &Source, mut at: usize) -> usize {
    loop {
        match source.at(at) {
            Some(' ' | '\t' | '\r' | '\n' | '\u{c}') => at += 1,
            Some('/') if source.at(at + 1) == Some('/') => {
                while source.at(at).is_some_and(|c| c != '\n') {
                    at += 1;
                }
            }
            _ => return at,
        }
    }
}

/// The token at a position and its end, or the position of the error.
fn word(source: &Source, at: usize) -> Result<(TokenKind, usize), usize> {
    let Some(first) = source.at(at) else { return Err(at) };
    let second = source.at(at + 1);
    match first {
        '0'..='9' => return Ok(number(source, at)),
        '.' if second.is_some_and(|c| c.is_ascii_digit()) => return Ok(number(source, at)),
        '"' | '\'' => {
            return quoted(source, at, at, false).map(|end| (TokenKind::String(source.text(at, end)), end));
        }
        '`' => return escaped(source, at),
        _ => {}
    }
    if first.is_ascii_alphabetic() || first == '_' {
        // Without a closing quote the prefix is an identifier.
        if let Some(found) = prefixed(source, at) {
            return Ok(found);
        }
        let mut end = at;
        while source.at(end).is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
            end += 1;
        }
        let name = source.text(at, end);
        return Ok(match KEPT.iter().find(|kept| **kept == name) {
            Some(kept) => (TokenKind::Sign(kept), end),
            None => (TokenKind::Name(name), end),
        });
    }
    let fits = |sign: &&&str| sign.chars().enumerate().all(|(index, c)| source.at(at + index) == Some(c));
    match SIGNS.iter().find(fits) {
        Some(sign) => Ok((TokenKind::Sign(sign), at + sign.len())),
        // An incomplete operator fails at its second character.
        None if matches!(first, '=' | '&' | '|') => Err(at + 1),
        None => Err(at),
    }
}

/// A string or bytes literal with a prefix.
fn prefixed(source: &Source, at: usize) -> Option<(TokenKind, usize)> {
    let letter = |index: usize| source.at(at + index).map(|c| c.to_ascii_lowercase());
    let is_quote = |index: usize| matches!(source.at(at + index), Some('"' | '\''));
    let (is_bytes, is_raw, skip) = match (letter(0), letter(1)) {
        (Some('r'), _) if is_quote(1) => (false, true, 1),
        (Some('b'), _) if is_quote(1) => (true, false, 1),
        (Some('b'), Some('r')) if is_quote(2) => (true, true, 2),
        _ => return None,
    };
    let end = quoted(source, at, at + skip, is_raw).ok()?;
    Some(if is_bytes {
        (TokenKind::Bytes(source.text(at + 1, end)), end)
    } else {
        (TokenKind::String(source.text(at, end)), end)
    })
}

/// The end of the literal whose quote is at `open`.
fn quoted(source: &Source, start: usize, open: usize, is_raw: bool) -> Result<usize, usize> {
    let Some(quote) = source.at(open) else { return Err(start) };
    let triple = |at: usize| (0..3).all(|index| source.at(at + index) == Some(quote));
    let is_long = triple(open);
    let mut at = if is_long { open + 3 } else { open + 1 };
    loop {
        match source.at(at) {
            None => {
                // Unclosed triple quotes are an empty string and the start of another.
                return if is_long { Ok(open + 2) } else { Err(at) };
            }
            Some(c) if c == quote && !is_long => return Ok(at + 1),
            Some(c) if c == quote && triple(at) => return Ok(at + 3),
            Some('\n' | '\r') if !is_long => return Err(at),
            Some('\\') if !is_raw => at = escape(source, at)?,
            Some(_) => at += 1,
        }
    }
}

/// The end of an escape sequence.
fn escape(source: &Source, at: usize) -> Result<usize, usize> {
    let digits = |count: usize, fits: fn(char) -> bool| {
        for index in 0..count {
            if !source.at(at + 2 + index).is_some_and(fits) {
                return Err(at + 2 + index);
            }
        }
        Ok(at + 2 + count)
    };
    let hex = |c: char| c.is_ascii_hexdigit();
    match source.at(at + 1) {
        Some('a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`') => Ok(at + 2),
        Some('x' | 'X') => digits(2, hex),
        Some('u') => digits(4, hex),
        Some('U') => digits(8, hex),
        Some('0'..='3') => digits(2, |c| ('0'..='7').contains(&c)),
        _ => Err(at + 1),
    }
}

fn escaped(source: &Source, at: usize) -> Result<(TokenKind, usize), usize> {
    let mut end = at + 1;
    while source
        .at(end)
        .is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' '))
    {
        end += 1;
    }
    if end > at + 1 && source.at(end) == Some('`') { Ok((TokenKind::EscapedName, end + 1)) } else { Err(end) }
}

fn number(source: &Source, at: usize) -> (TokenKind, usize) {
    let digit = |at: usize| source.at(at).is_some_and(|c| c.is_ascii_digit());
    let skip = |mut at: usize| {
        while digit(at) {
            at += 1;
        }
        at
    };
    let unsigned = |end: usize| matches!(source.at(end), Some('u' | 'U'));
    let is_hex = |at: usize| source.at(at).is_some_and(|c| c.is_ascii_hexdigit());
    if source.at(at) == Some('0') && source.at(at + 1) == Some('x') && is_hex(at + 2) {
        let mut end = at + 2;
        while is_hex(end) {
            end += 1;
        }
        let text = source.text(at, end);
        return if unsigned(end) { (TokenKind::Uint(text), end + 1) } else { (TokenKind::Int(text), end) };
    }
    let whole = skip(at);
    let mut end = whole;
    if source.at(end) == Some('.') && digit(end + 1) {
        end = skip(end + 1);
    }
    if matches!(source.at(end), Some('e' | 'E')) {
        let sign = usize::from(matches!(source.at(end + 1), Some('+' | '-')));
        if digit(end + 1 + sign) {
            end = skip(end + 1 + sign);
        }
    }
    let text = source.text(at, end);
    if end > whole {
        (TokenKind::Float(text), end)
    } else if unsigned(end) {
        (TokenKind::Uint(text), end + 1)
    } else {
        (TokenKind::Int(text), end)
    }
}

impl Token {
    /// The token as messages show it.
    pub fn shown(&self, source: &Source) -> String {
        match self.word {
            TokenKind::End => "<EOF>".to_owned(),
            _ => shown(&source.text(self.start, self.end)),
        }
    }

    /// Whether an expression may start with it.
    pub fn begins(&self) -> bool {
        match self.word {
            TokenKind::Sign(sign) => {
                matches!(sign, "[" | "{" | "(" | "." | "-" | "!" | "true" | "false" | "null")
            }
            TokenKind::EscapedName | TokenKind::End => false,
            _ => true,
        }
    }

    /// Whether it is this operator, delimiter or keyword.
    pub fn is(&self, sign: &str) -> bool {
        matches!(self.word, TokenKind::Sign(own) if own == sign)
    }
}
