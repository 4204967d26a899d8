//! The lexer.

use super::source::{Issues, Source};

/// The kind of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// An operator, delimiter or keyword: `+`, `in`, `true`.
    Symbol(&'static str),
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
    pub kind: TokenKind,
    /// The position of its first character.
    pub start: usize,
    /// The position after its last character.
    pub end: usize,
}

/// Operators and delimiters; longer ones before their prefixes.
const SYMBOLS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":",
    "+", "*", "/", "%",
];
/// The keywords.
const KEYWORDS: [&str; 4] = ["in", "true", "false", "null"];

/// Tokenizes a text. Invalid characters are reported and skipped.
pub fn tokenize(source: &Source, issues: &mut Issues) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut position = 0;
    while position < source.len() {
        let after = skip_blank(source, position);
        if after > position {
            position = after;
            continue;
        }
        match scan_token(source, position) {
            Ok((kind, end)) => {
                tokens.push(Token { kind, start: position, end });
                position = end;
            }
            Err(error_position) => {
                // The offending character is reported and skipped, too.
                let text = source.text(position, error_position + 1);
                issues.add(
                    position,
                    format!("Syntax error: token recognition error at: '{}'", escape_whitespace(&text)),
                );
                position = error_position + 1;
            }
        }
    }
    tokens.push(Token { kind: TokenKind::End, start: source.len(), end: source.len() });
    tokens
}

fn escape_whitespace(text: &str) -> String {
    text.replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r")
}

/// Skips whitespace and comments.
fn skip_blank(source: &Source, mut position: usize) -> usize {
    loop {
        match source.char_at(position) {
            Some(' ' | '\t' | '\r' | '\n' | '\u{c}') => position += 1,
            Some('/') if source.char_at(position + 1) == Some('/') => {
                while source.char_at(position).is_some_and(|c| c != '\n') {
                    position += 1;
                }
            }
            _ => return position,
        }
    }
}

/// The token at a position and its end, or the position of the error.
fn scan_token(source: &Source, start: usize) -> Result<(TokenKind, usize), usize> {
    let Some(first) = source.char_at(start) else { return Err(start) };
    let second = source.char_at(start + 1);
    match first {
        '0'..='9' => return Ok(scan_number(source, start)),
        '.' if second.is_some_and(|c| c.is_ascii_digit()) => return Ok(scan_number(source, start)),
        '"' | '\'' => {
            return scan_quoted(source, start, start, false)
                .map(|end| (TokenKind::String(source.text(start, end)), end));
        }
        '`' => return scan_escaped_name(source, start),
        _ => {}
    }
    if first.is_ascii_alphabetic() || first == '_' {
        // Without a closing quote the prefix is an identifier.
        if let Some(token) = scan_prefixed_literal(source, start) {
            return Ok(token);
        }
        let mut end = start;
        while source.char_at(end).is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
            end += 1;
        }
        let name = source.text(start, end);
        return Ok(match KEYWORDS.iter().find(|keyword| **keyword == name) {
            Some(keyword) => (TokenKind::Symbol(keyword), end),
            None => (TokenKind::Name(name), end),
        });
    }
    let matches_source = |symbol: &&&str| {
        symbol.chars().enumerate().all(|(index, c)| source.char_at(start + index) == Some(c))
    };
    match SYMBOLS.iter().find(matches_source) {
        Some(symbol) => Ok((TokenKind::Symbol(symbol), start + symbol.len())),
        // An incomplete operator fails at its second character.
        None if matches!(first, '=' | '&' | '|') => Err(start + 1),
        None => Err(start),
    }
}

/// A string or bytes literal with a prefix.
fn scan_prefixed_literal(source: &Source, start: usize) -> Option<(TokenKind, usize)> {
    let letter = |index: usize| source.char_at(start + index).map(|c| c.to_ascii_lowercase());
    let is_quote = |index: usize| matches!(source.char_at(start + index), Some('"' | '\''));
    let (is_bytes, is_raw, skip) = match (letter(0), letter(1)) {
        (Some('r'), _) if is_quote(1) => (false, true, 1),
        (Some('b'), _) if is_quote(1) => (true, false, 1),
        (Some('b'), Some('r')) if is_quote(2) => (true, true, 2),
        _ => return None,
    };
    let end = scan_quoted(source, start, start + skip, is_raw).ok()?;
    Some(if is_bytes {
        (TokenKind::Bytes(source.text(start + 1, end)), end)
    } else {
        (TokenKind::String(source.text(start, end)), end)
    })
}

/// The end of the literal whose quote is at `open`.
fn scan_quoted(source: &Source, start: usize, open: usize, is_raw: bool) -> Result<usize, usize> {
    let Some(quote) = source.char_at(open) else { return Err(start) };
    let is_triple = |position: usize| (0..3).all(|index| source.char_at(position + index) == Some(quote));
    let is_long = is_triple(open);
    let mut position = if is_long { open + 3 } else { open + 1 };
    loop {
        match source.char_at(position) {
            None => {
                // Unclosed triple quotes are an empty string and the start of another.
                return if is_long { Ok(open + 2) } else { Err(position) };
            }
            Some(c) if c == quote && !is_long => return Ok(position + 1),
            Some(c) if c == quote && is_triple(position) => return Ok(position + 3),
            Some('\n' | '\r') if !is_long => return Err(position),
            Some('\\') if !is_raw => position = scan_escape(source, position)?,
            Some(_) => position += 1,
        }
    }
}

/// The end of an escape sequence.
fn scan_escape(source: &Source, start: usize) -> Result<usize, usize> {
    let digits = |count: usize, is_valid: fn(char) -> bool| {
        for index in 0..count {
            if !source.char_at(start + 2 + index).is_some_and(is_valid) {
                return Err(start + 2 + index);
            }
        }
        Ok(start + 2 + count)
    };
    let hex = |c: char| c.is_ascii_hexdigit();
    match source.char_at(start + 1) {
        Some('a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`') => Ok(start + 2),
        Some('x' | 'X') => digits(2, hex),
        Some('u') => digits(4, hex),
        Some('U') => digits(8, hex),
        Some('0'..='3') => digits(2, |c| ('0'..='7').contains(&c)),
        _ => Err(start + 1),
    }
}

fn scan_escaped_name(source: &Source, start: usize) -> Result<(TokenKind, usize), usize> {
    let mut end = start + 1;
    while source
        .char_at(end)
        .is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' '))
    {
        end += 1;
    }
    if end > start + 1 && source.char_at(end) == Some('`') {
        Ok((TokenKind::EscapedName, end + 1))
    } else {
        Err(end)
    }
}

fn scan_number(source: &Source, start: usize) -> (TokenKind, usize) {
    let is_digit = |index: usize| source.char_at(index).is_some_and(|c| c.is_ascii_digit());
    let skip_digits = |mut index: usize| {
        while is_digit(index) {
            index += 1;
        }
        index
    };
    let is_unsigned = |end: usize| matches!(source.char_at(end), Some('u' | 'U'));
    let is_hex = |index: usize| source.char_at(index).is_some_and(|c| c.is_ascii_hexdigit());
    if source.char_at(start) == Some('0') && source.char_at(start + 1) == Some('x') && is_hex(start + 2) {
        let mut end = start + 2;
        while is_hex(end) {
            end += 1;
        }
        let text = source.text(start, end);
        return if is_unsigned(end) { (TokenKind::Uint(text), end + 1) } else { (TokenKind::Int(text), end) };
    }
    let integer_end = skip_digits(start);
    let mut end = integer_end;
    if source.char_at(end) == Some('.') && is_digit(end + 1) {
        end = skip_digits(end + 1);
    }
    if matches!(source.char_at(end), Some('e' | 'E')) {
        let sign = usize::from(matches!(source.char_at(end + 1), Some('+' | '-')));
        if is_digit(end + 1 + sign) {
            end = skip_digits(end + 1 + sign);
        }
    }
    let text = source.text(start, end);
    if end > integer_end {
        (TokenKind::Float(text), end)
    } else if is_unsigned(end) {
        (TokenKind::Uint(text), end + 1)
    } else {
        (TokenKind::Int(text), end)
    }
}

impl Token {
    /// The token as error messages print it.
    pub fn render(&self, source: &Source) -> String {
        match self.kind {
            TokenKind::End => "<EOF>".to_owned(),
            _ => escape_whitespace(&source.text(self.start, self.end)),
        }
    }

    /// Whether an expression may start with it.
    pub fn starts_expression(&self) -> bool {
        match self.kind {
            TokenKind::Symbol(symbol) => {
                matches!(symbol, "[" | "{" | "(" | "." | "-" | "!" | "true" | "false" | "null")
            }
            TokenKind::EscapedName | TokenKind::End => false,
            _ => true,
        }
    }

    /// Whether it is this operator, delimiter or keyword.
    pub fn is(&self, symbol: &str) -> bool {
        matches!(self.kind, TokenKind::Symbol(own) if own == symbol)
    }
}
