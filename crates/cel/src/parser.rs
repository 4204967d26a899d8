//! The parser.

mod aggregates;
mod copy;

use crate::limits::{CEL_CHARS, CEL_DEPTH, CEL_HEIGHT};

use super::ast::{Expr, Kind, Literal};
use super::lexer::{self, Token, TokenKind};
use super::literal_values;
use super::macros;
use super::reserved_words;
use super::source::{Issues, Source};

/// The result of parsing.
pub struct Parsed {
    /// The root of the tree.
    pub root: Expr,
    /// The source position of each node, by ID.
    pub places: Vec<usize>,
}

/// Parses an expression. `binds` enables `cel.bind`.
pub fn parse(source: &Source, binds: bool, issues: &mut Issues) -> Option<Parsed> {
    if source.len() > CEL_CHARS {
        let size = source.len();
        issues
            .add(None, format!("expression code point size exceeds limit: size: {size}, limit {CEL_CHARS}"));
        return None;
    }
    let tokens = lexer::tokenize(source, issues);
    let mut parser =
        Parser { source, tokens, at: 0, binds, issues, places: Vec::new(), heights: Vec::new(), depth: 0 };
    let root = parser.whole().ok()?;
    let places = std::mem::take(&mut parser.places);
    issues.is_empty().then_some(Parsed { root, places })
}

/// Parsing was aborted, and the error is reported.
pub struct ParseAborted;

type Read<T> = Result<T, ParseAborted>;

pub struct Parser<'s> {
    source: &'s Source,
    tokens: Vec<Token>,
    at: usize,
    binds: bool,
    issues: &'s mut Issues,
    places: Vec<usize>,
    /// The height of each node, by ID.
    heights: Vec<usize>,
    /// The current recursion depth.
    depth: usize,
}

/// The tokens that may start an expression, as messages list them, with the alternatives that are listed with each.
const BEGINS: [(&str, &str); 20] = [
    ("'['", "*"),
    ("']'", "]"),
    ("'{'", "*"),
    ("'}'", "}"),
    ("'('", "*"),
    ("')'", ")"),
    ("'.'", "*"),
    ("','", ","),
    ("'-'", "*"),
    ("'!'", "*"),
    ("'?'", "?"),
    ("'true'", "*"),
    ("'false'", "*"),
    ("'null'", "*"),
    ("NUM_FLOAT", "*"),
    ("NUM_INT", "*"),
    ("NUM_UINT", "*"),
    ("STRING", "*"),
    ("BYTES", "*"),
    ("IDENTIFIER", "*"),
];

/// The list of tokens that may start an expression, for messages.
fn beginnings(others: &str) -> String {
    let fits = BEGINS.iter().filter(|(_, sign)| *sign == "*" || others.contains(sign));
    fits.map(|(name, _)| *name).collect::<Vec<&str>>().join(", ")
}

fn is_among(token: &Token, signs: &str) -> bool {
    matches!(token.word, TokenKind::Sign(sign) if signs.contains(sign))
}

impl<'s> Parser<'s> {
    /// Whether `cel.bind` is enabled.
    pub fn binds(&self) -> bool {
        self.binds
    }

    fn whole(&mut self) -> Read<Expr> {
        let root = self.expr("")?;
        if self.token().word == TokenKind::End {
            return Ok(root);
        }
        let what = if self.tokens.get(self.at + 1).is_some_and(|next| next.word == TokenKind::End) {
            "extraneous"
        } else {
            "mismatched"
        };
        self.wrong(&format!("{what} input '{}' expecting <EOF>", self.token().shown(self.source)))
    }

    fn token(&self) -> &Token {
        // The last token is the end.
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn take(&mut self) -> Token {
        let token = self.token().clone();
        self.at += 1;
        token
    }

    /// Consumes this token if it is next, and returns its position.
    fn sign(&mut self, sign: &str) -> Option<usize> {
        self.token().is(sign).then(|| self.take().start)
    }

    /// Reports an unexpected token and aborts.
    fn wrong<T>(&mut self, message: &str) -> Read<T> {
        let place = self.token().start;
        self.issues.add(place, format!("Syntax error: {message}"));
        Err(ParseAborted)
    }

    /// Reports a token that cannot start an expression. `others` are the other expected tokens. If it is superfluous, parsing
    /// continues after it; before an operator it stands for a broken expression.
    fn unexpected(&mut self, others: &str) -> Read<Option<Expr>> {
        let names = beginnings(others);
        let (place, shown) = (self.token().start, self.token().shown(self.source));
        let next = self.tokens.get(self.at + 1).filter(|_| self.token().word != TokenKind::End);
        if !next.is_some_and(|next| next.begins() || is_among(next, others)) {
            let message = format!("mismatched input '{shown}' expecting {{{names}}}");
            return match self.operator() {
                Some(_) => Ok(Some(self.issue(place, format!("Syntax error: {message}")))),
                None => self.wrong(&message),
            };
        }
        self.issues.add(place, format!("Syntax error: extraneous input '{shown}' expecting {{{names}}}"));
        self.take();
        Ok(None)
    }

    /// Expects a token. `ends`: the expression may end after it.
    fn expect(&mut self, sign: &str, ends: bool) -> Read<usize> {
        if let Some(place) = self.sign(sign) {
            return Ok(place);
        }
        let shown = self.token().shown(self.source);
        let next_fits = self.tokens.get(self.at + 1).is_some_and(|next| next.is(sign));
        if sign == ":" && !next_fits && self.token().begins() {
            return Ok(self.missing(sign, &shown));
        }
        if ends && !next_fits && self.token().word == TokenKind::End {
            return Ok(self.missing(sign, "<EOF>"));
        }
        self.wrong(&if next_fits {
            format!("extraneous input '{shown}' expecting '{sign}'")
        } else {
            format!("mismatched input '{shown}' expecting '{sign}'")
        })
    }

    /// Reports a missing token and continues as if it were there.
    fn missing(&mut self, sign: &str, before: &str) -> usize {
        let place = self.token().start;
        self.issues.add(place, format!("Syntax error: missing '{sign}' at '{before}'"));
        place
    }

    /// Reports an error and continues.
    pub fn issue(&mut self, place: usize, message: String) -> Expr {
        self.issues.add(place, message);
        self.made(place, Kind::Broken).unwrap_or(Expr { id: 0, kind: Kind::Broken })
    }

    /// A new node with its own ID.
    pub fn made(&mut self, place: usize, kind: Kind) -> Read<Expr> {
        let expr = Expr { id: self.places.len(), kind };
        let below = expr.parts().iter().filter_map(|part| self.heights.get(part.id)).max().copied();
        let height = below.unwrap_or(0) + 1;
        self.places.push(place);
        self.heights.push(height);
        if height > CEL_HEIGHT {
            self.issues.add(None, "max recursion depth exceeded".to_owned());
            return Err(ParseAborted);
        }
        Ok(expr)
    }

    /// The source position of a node.
    pub fn place(&self, expr: &Expr) -> usize {
        self.places.get(expr.id).copied().unwrap_or(0)
    }

    fn call(&mut self, place: usize, function: &str, args: Vec<Expr>) -> Read<Expr> {
        self.made(place, Kind::Call { function: function.to_owned(), target: None, args })
    }

    /// Parses an expression. `others` are the other expected tokens.
    fn expr(&mut self, others: &str) -> Read<Expr> {
        self.depth += 1;
        if self.depth > CEL_DEPTH {
            self.issues.add(None, format!("expression recursion limit exceeded: {CEL_DEPTH}"));
            return Err(ParseAborted);
        }
        let mut result = self.binary(0, others)?;
        if let Some(place) = self.sign("?") {
            let yes = self.binary(0, "")?;
            self.expect(":", false)?;
            let no = self.expr("")?;
            result = self.call(place, "_?_:_", vec![result, yes, no])?;
        }
        self.depth -= 1;
        Ok(result)
    }

    fn operator(&self) -> Option<(usize, &'static str, &'static str)> {
        let TokenKind::Sign(sign) = self.token().word else { return None };
        Some(match sign {
            "||" => (0, sign, "_||_"),
            "&&" => (1, sign, "_&&_"),
            "==" => (2, sign, "_==_"),
            "!=" => (2, sign, "_!=_"),
            "<" => (2, sign, "_<_"),
            "<=" => (2, sign, "_<=_"),
            ">" => (2, sign, "_>_"),
            ">=" => (2, sign, "_>=_"),
            "in" => (2, sign, "@in"),
            "+" => (3, sign, "_+_"),
            "-" => (3, sign, "_-_"),
            "*" => (4, sign, "_*_"),
            "/" => (4, sign, "_/_"),
            "%" => (4, sign, "_%_"),
            _ => return None,
        })
    }

    /// Parses operators of at least this precedence.
    fn binary(&mut self, level: usize, others: &str) -> Read<Expr> {
        let mut left = self.member(others)?;
        while let Some((own, sign, function)) = self.operator().filter(|(own, ..)| *own >= level) {
            if own > 1 {
                let place = self.take().start;
                let right = self.binary(own + 1, "")?;
                left = self.call(place, function, vec![left, right])?;
                continue;
            }
            // Chains of `&&` and `||` become a balanced tree of small depth.
            let (mut terms, mut places) = (vec![left], Vec::new());
            while let Some(place) = self.sign(sign) {
                places.push(place);
                terms.push(self.binary(own + 1, "")?);
            }
            let mut terms: Vec<Option<Expr>> = terms.into_iter().map(Some).collect();
            left = self.balanced(function, &mut terms, &places, 0, places.len() - 1)?;
        }
        Ok(left)
    }

    fn balanced(
        &mut self,
        function: &str,
        terms: &mut [Option<Expr>],
        places: &[usize],
        low: usize,
        high: usize,
    ) -> Read<Expr> {
        let mid = (low + high).div_ceil(2);
        let left = if mid == low {
            self.term(terms, mid)?
        } else {
            self.balanced(function, terms, places, low, mid - 1)?
        };
        let right = if mid == high {
            self.term(terms, mid + 1)?
        } else {
            self.balanced(function, terms, places, mid + 1, high)?
        };
        self.call(places.get(mid).copied().unwrap_or(0), function, vec![left, right])
    }

    fn term(&mut self, terms: &mut [Option<Expr>], at: usize) -> Read<Expr> {
        terms.get_mut(at).and_then(Option::take).ok_or(ParseAborted)
    }

    /// Parses unary operators, and postfix selections, calls and indexes.
    fn member(&mut self, others: &str) -> Read<Expr> {
        let place = self.token().start;
        for (sign, function) in [("!", "!_"), ("-", "-_")] {
            // A minus before a number is part of the literal.
            let is_number = |token: Option<&Token>| {
                matches!(token.map(|token| &token.word), Some(TokenKind::Int(_) | TokenKind::Float(_)))
            };
            if !self.token().is(sign) || (sign == "-" && is_number(self.tokens.get(self.at + 1))) {
                continue;
            }
            let mut count = 0;
            while self.sign(sign).is_some() {
                count += 1;
            }
            if sign == "-" && count == 1 && !self.token().begins() {
                self.no_alternative(place);
            }
            if sign == "!" && self.token().word == TokenKind::End {
                return self.wrong(&format!("extraneous input '<EOF>' expecting {{{}}}", beginnings("")));
            }
            let inner = self.tail("")?;
            return if count % 2 == 0 { Ok(inner) } else { self.call(place, function, vec![inner]) };
        }
        self.tail(others)
    }

    /// Reports an unexpected token after a minus, with the parser message for an undecided alternative.
    fn no_alternative(&mut self, from: usize) {
        let (at, is_end) = (self.token().start, self.token().word == TokenKind::End);
        let word = if is_end { String::new() } else { self.token().shown(self.source) };
        let before = self.source.text(from, at);
        let read = if is_end { before.trim_end() } else { before.as_str() };
        self.issues.add(at, format!("Syntax error: no viable alternative at input '{read}{word}'"));
    }

    fn tail(&mut self, others: &str) -> Read<Expr> {
        let mut expr = self.primary(others)?;
        loop {
            if let Some(place) = self.sign(".") {
                expr = self.dotted(expr, place)?;
            } else if let Some(place) = self.sign("[") {
                let function = if self.sign("?").is_some() { "_[?_]" } else { "_[_]" };
                let index = self.expr("?")?;
                self.expect("]", true)?;
                expr = self.call(place, function, vec![expr, index])?;
            } else {
                return Ok(expr);
            }
        }
    }

    fn dotted(&mut self, operand: Expr, place: usize) -> Read<Expr> {
        let optional = self.sign("?").is_some();
        let token = self.take();
        let field = match token.word {
            TokenKind::Name(name) => name,
            TokenKind::EscapedName => {
                return Ok(self.issue(token.start, "unsupported syntax: '`'".to_owned()));
            }
            TokenKind::Sign(word) if word.chars().all(char::is_alphabetic) => {
                self.at -= 1;
                return self.wrong(&format!("mismatched input '{word}' expecting IDENTIFIER"));
            }
            _ => {
                self.at -= 1;
                let mark = if optional { ".?" } else { "." };
                let shown =
                    if token.word == TokenKind::End { String::new() } else { token.shown(self.source) };
                return self.wrong(&format!("no viable alternative at input '{mark}{shown}'"));
            }
        };
        if optional {
            let name = self.made(token.start, Kind::Literal(Literal::String(field)))?;
            return self.call(place, "_?._", vec![operand, name]);
        }
        if let Some(open) = self.sign("(") {
            let args = self.arguments()?;
            return macros::member(self, open, &field, operand, args);
        }
        self.made(place, Kind::Select { operand: Box::new(operand), field, test: false })
    }

    /// Parses arguments and the closing parenthesis.
    fn arguments(&mut self) -> Read<Vec<Expr>> {
        let mut args = Vec::new();
        if self.sign(")").is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expr(if args.is_empty() { ")" } else { "" })?);
            if self.sign(",").is_none() {
                self.expect(")", true)?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self, others: &str) -> Read<Expr> {
        // A loop instead of recursion, because a text can have a hundred thousand superfluous tokens in a row.
        loop {
            if let Some(expr) = self.begun(others)? {
                return Ok(expr);
            }
        }
    }

    /// Parses the next primary expression; `None` if a superfluous token was skipped.
    fn begun(&mut self, others: &str) -> Read<Option<Expr>> {
        let token = self.token().clone();
        let literal = match &token.word {
            TokenKind::Sign("(") => {
                self.take();
                let inner = self.expr("")?;
                self.expect(")", true)?;
                return Ok(Some(inner));
            }
            TokenKind::Sign("[") => return self.list().map(Some),
            TokenKind::Sign("{") => return self.map().map(Some),
            TokenKind::Sign("-") => return self.negative(others),
            TokenKind::Sign(".") | TokenKind::Name(_) => return self.named().map(Some),
            TokenKind::Sign("true") => Ok(Literal::Bool(true)),
            TokenKind::Sign("false") => Ok(Literal::Bool(false)),
            TokenKind::Sign("null") => Ok(Literal::Null),
            TokenKind::Int(text) => literal_values::int(text, false),
            TokenKind::Uint(text) => literal_values::uint(text),
            TokenKind::Float(text) => literal_values::double(text, false),
            TokenKind::String(text) => literal_values::text(text),
            TokenKind::Bytes(text) => literal_values::bytes(text),
            TokenKind::Sign(_) | TokenKind::EscapedName | TokenKind::End => {
                return match self.unexpected(others)? {
                    Some(broken) => Ok(Some(broken)),
                    None if is_among(self.token(), others) => self.made(token.start, Kind::Broken).map(Some),
                    None => Ok(None),
                };
            }
        };
        self.take();
        self.literal(token.start, literal).map(Some)
    }

    /// Parses a negative number; `None` if the minus was superfluous.
    fn negative(&mut self, others: &str) -> Read<Option<Expr>> {
        let start = self.token().start;
        let literal = match self.tokens.get(self.at + 1).map(|number| &number.word) {
            Some(TokenKind::Int(text)) => literal_values::int(text, true),
            Some(TokenKind::Float(text)) => literal_values::double(text, true),
            _ => return self.unexpected(others),
        };
        self.at += 2;
        self.literal(start, literal).map(Some)
    }

    fn literal(&mut self, place: usize, literal: Result<Literal, String>) -> Read<Expr> {
        match literal {
            Ok(literal) => self.made(place, Kind::Literal(literal)),
            Err(why) => Ok(self.issue(place, why)),
        }
    }

    /// Parses an identifier, a call, or an object construction.
    fn named(&mut self) -> Read<Expr> {
        let start = self.token().start;
        let dot = if self.sign(".").is_some() { "." } else { "" };
        let token = self.take();
        let TokenKind::Name(name) = token.word else {
            self.at -= 1;
            let shown = self.token().shown(self.source);
            let is_word =
                matches!(token.word, TokenKind::Sign(word) if word.chars().all(char::is_alphabetic));
            return self.wrong(&match token.word {
                TokenKind::End => format!("no viable alternative at input '{dot}'"),
                _ if is_word => format!("mismatched input '{shown}' expecting IDENTIFIER"),
                _ => format!("no viable alternative at input '{dot}{shown}'"),
            });
        };
        if let Some(end) = self.object_ahead() {
            return self.object(dot, &name, end);
        }
        let is_reserved = reserved_words::RESERVED.contains(&name.as_str());
        if let Some(open) = self.sign("(") {
            let args = self.arguments()?;
            if is_reserved {
                return Ok(self.issue(start, format!("reserved identifier: {name}")));
            }
            return macros::global(self, open, &format!("{dot}{name}"), args);
        }
        if is_reserved {
            return Ok(self.issue(start, format!("reserved identifier: {name}")));
        }
        self.made(token.start, Kind::Ident(format!("{dot}{name}")))
    }
}
