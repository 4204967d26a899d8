//! The parser.

mod aggregates;

use crate::limits::{CEL_CHARS, CEL_DEPTH};
use crate::reserved_words;

use super::ast::{Expr, Kind, Literal};
use super::lexer::{self, Token, TokenKind};
use super::literal_values;
use super::macros::{Expander, OptionalMacros};
use super::source::{Issues, Source};
use super::tree_builder::{ParseAborted, ParseResult, TreeBuilder};

/// The result of parsing.
pub struct ParsedExpression {
    /// The root of the tree.
    pub root: Expr,
    /// The source position of each node, by ID.
    pub positions: Vec<usize>,
}

/// Parses an expression. `macros` are expanded beside those that every environment has.
pub fn parse(source: &Source, macros: OptionalMacros, issues: &mut Issues) -> Option<ParsedExpression> {
    if source.len() > CEL_CHARS {
        let size = source.len();
        issues
            .add(None, format!("expression code point size exceeds limit: size: {size}, limit {CEL_CHARS}"));
        return None;
    }
    let tokens = lexer::tokenize(source, issues);
    let builder = TreeBuilder::new(issues);
    let mut parser = Parser { source, tokens, next: 0, macros, builder, depth: 0 };
    let root = parser.root_expression().ok()?;
    let positions = parser.builder.into_positions();
    issues.is_empty().then_some(ParsedExpression { root, positions })
}

struct Parser<'s> {
    source: &'s Source,
    tokens: Vec<Token>,
    /// The index of the next token.
    next: usize,
    /// Whether `cel.bind` is enabled.
    macros: OptionalMacros,
    builder: TreeBuilder<'s>,
    /// The current recursion depth.
    depth: usize,
}

/// The tokens that may start an expression, as messages list them, with the alternatives that are listed with each.
const EXPRESSION_STARTS: [(&str, &str); 20] = [
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

/// The tokens that may start an expression, and the alternatives, as messages list them.
fn expression_starts(alternatives: &str) -> String {
    let listed =
        EXPRESSION_STARTS.iter().filter(|(_, symbol)| *symbol == "*" || alternatives.contains(symbol));
    listed.map(|(name, _)| *name).collect::<Vec<&str>>().join(", ")
}

fn is_among(token: &Token, symbols: &str) -> bool {
    matches!(token.kind, TokenKind::Symbol(symbol) if symbols.contains(symbol))
}

impl<'s> Parser<'s> {
    fn root_expression(&mut self) -> ParseResult<Expr> {
        let root = self.expr("")?;
        if self.token().kind == TokenKind::End {
            return Ok(root);
        }
        let problem = if self.tokens.get(self.next + 1).is_some_and(|next| next.kind == TokenKind::End) {
            "extraneous"
        } else {
            "mismatched"
        };
        self.fail(&format!("{problem} input '{}' expecting <EOF>", self.token().render(self.source)))
    }

    fn token(&self) -> &Token {
        // The last token is the end.
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn take(&mut self) -> Token {
        let token = self.token().clone();
        self.next += 1;
        token
    }

    /// Consumes this token if it is next, and returns its position.
    fn accept(&mut self, symbol: &str) -> Option<usize> {
        self.token().is(symbol).then(|| self.take().start)
    }

    /// Reports an unexpected token and aborts.
    fn fail<T>(&mut self, message: &str) -> ParseResult<T> {
        let position = self.token().start;
        self.builder.report(position, format!("Syntax error: {message}"));
        Err(ParseAborted)
    }

    /// Reports a token that cannot start an expression. `alternatives` are the other expected tokens. If it is superfluous, parsing
    /// continues after it; before an operator it stands for a broken expression.
    fn unexpected(&mut self, alternatives: &str) -> ParseResult<Option<Expr>> {
        let expected = expression_starts(alternatives);
        let (position, rendered) = (self.token().start, self.token().render(self.source));
        let next = self.tokens.get(self.next + 1).filter(|_| self.token().kind != TokenKind::End);
        if !next.is_some_and(|next| next.starts_expression() || is_among(next, alternatives)) {
            let message = format!("mismatched input '{rendered}' expecting {{{expected}}}");
            return match self.operator() {
                Some(_) => Ok(Some(self.builder.broken_node(position, format!("Syntax error: {message}")))),
                None => self.fail(&message),
            };
        }
        self.builder.report(
            position,
            format!("Syntax error: extraneous input '{rendered}' expecting {{{expected}}}"),
        );
        self.take();
        Ok(None)
    }

    /// Expects a token. `may_end`: the expression may end after it.
    fn expect(&mut self, symbol: &str, may_end: bool) -> ParseResult<usize> {
        if let Some(position) = self.accept(symbol) {
            return Ok(position);
        }
        let rendered = self.token().render(self.source);
        let next_fits = self.tokens.get(self.next + 1).is_some_and(|next| next.is(symbol));
        if symbol == ":" && !next_fits && self.token().starts_expression() {
            return Ok(self.missing(symbol, &rendered));
        }
        if may_end && !next_fits && self.token().kind == TokenKind::End {
            return Ok(self.missing(symbol, "<EOF>"));
        }
        self.fail(&if next_fits {
            format!("extraneous input '{rendered}' expecting '{symbol}'")
        } else {
            format!("mismatched input '{rendered}' expecting '{symbol}'")
        })
    }

    /// Reports a missing token and continues as if it were there.
    fn missing(&mut self, symbol: &str, next_text: &str) -> usize {
        let position = self.token().start;
        self.builder.report(position, format!("Syntax error: missing '{symbol}' at '{next_text}'"));
        position
    }

    /// Expands macros at a position.
    fn expander(&mut self, position: usize) -> Expander<'_, 's> {
        Expander { builder: &mut self.builder, position, optional: self.macros }
    }

    fn call(&mut self, position: usize, function: &str, args: Vec<Expr>) -> ParseResult<Expr> {
        self.builder.new_node(position, Kind::Call { function: function.to_owned(), target: None, args })
    }

    /// Parses an expression. `alternatives` are the other expected tokens.
    fn expr(&mut self, alternatives: &str) -> ParseResult<Expr> {
        self.depth += 1;
        if self.depth > CEL_DEPTH {
            self.builder.report(None, format!("expression recursion limit exceeded: {CEL_DEPTH}"));
            return Err(ParseAborted);
        }
        let mut result = self.binary(0, alternatives)?;
        if let Some(position) = self.accept("?") {
            let yes = self.binary(0, "")?;
            self.expect(":", false)?;
            let no = self.expr("")?;
            result = self.call(position, "_?_:_", vec![result, yes, no])?;
        }
        self.depth -= 1;
        Ok(result)
    }

    fn operator(&self) -> Option<(usize, &'static str, &'static str)> {
        let TokenKind::Symbol(symbol) = self.token().kind else { return None };
        Some(match symbol {
            "||" => (0, symbol, "_||_"),
            "&&" => (1, symbol, "_&&_"),
            "==" => (2, symbol, "_==_"),
            "!=" => (2, symbol, "_!=_"),
            "<" => (2, symbol, "_<_"),
            "<=" => (2, symbol, "_<=_"),
            ">" => (2, symbol, "_>_"),
            ">=" => (2, symbol, "_>=_"),
            "in" => (2, symbol, "@in"),
            "+" => (3, symbol, "_+_"),
            "-" => (3, symbol, "_-_"),
            "*" => (4, symbol, "_*_"),
            "/" => (4, symbol, "_/_"),
            "%" => (4, symbol, "_%_"),
            _ => return None,
        })
    }

    /// Parses operators of at least this precedence.
    fn binary(&mut self, min_precedence: usize, alternatives: &str) -> ParseResult<Expr> {
        let mut left = self.member(alternatives)?;
        while let Some((precedence, symbol, function)) =
            self.operator().filter(|(precedence, ..)| *precedence >= min_precedence)
        {
            if precedence > 1 {
                let position = self.take().start;
                let right = self.binary(precedence + 1, "")?;
                left = self.call(position, function, vec![left, right])?;
                continue;
            }
            // Chains of `&&` and `||` become a balanced tree of small depth.
            let (mut terms, mut positions) = (vec![left], Vec::new());
            while let Some(position) = self.accept(symbol) {
                positions.push(position);
                terms.push(self.binary(precedence + 1, "")?);
            }
            let mut terms: Vec<Option<Expr>> = terms.into_iter().map(Some).collect();
            left = self.balanced_tree(function, &mut terms, &positions, 0, positions.len() - 1)?;
        }
        Ok(left)
    }

    fn balanced_tree(
        &mut self,
        function: &str,
        terms: &mut [Option<Expr>],
        positions: &[usize],
        low: usize,
        high: usize,
    ) -> ParseResult<Expr> {
        let mid = (low + high).div_ceil(2);
        let left = if mid == low {
            self.term(terms, mid)?
        } else {
            self.balanced_tree(function, terms, positions, low, mid - 1)?
        };
        let right = if mid == high {
            self.term(terms, mid + 1)?
        } else {
            self.balanced_tree(function, terms, positions, mid + 1, high)?
        };
        self.call(positions.get(mid).copied().unwrap_or(0), function, vec![left, right])
    }

    fn term(&mut self, terms: &mut [Option<Expr>], index: usize) -> ParseResult<Expr> {
        terms.get_mut(index).and_then(Option::take).ok_or(ParseAborted)
    }

    /// Parses unary operators, and postfix selections, calls and indexes.
    fn member(&mut self, alternatives: &str) -> ParseResult<Expr> {
        let position = self.token().start;
        for (symbol, function) in [("!", "!_"), ("-", "-_")] {
            // A minus before a number is part of the literal.
            let is_number = |token: Option<&Token>| {
                matches!(token.map(|token| &token.kind), Some(TokenKind::Int(_) | TokenKind::Float(_)))
            };
            if !self.token().is(symbol) || (symbol == "-" && is_number(self.tokens.get(self.next + 1))) {
                continue;
            }
            let mut count = 0;
            while self.accept(symbol).is_some() {
                count += 1;
            }
            if symbol == "-" && count == 1 && !self.token().starts_expression() {
                self.report_no_alternative(position);
            }
            if symbol == "!" && self.token().kind == TokenKind::End {
                return self
                    .fail(&format!("extraneous input '<EOF>' expecting {{{}}}", expression_starts("")));
            }
            let inner = self.postfix("")?;
            return if count % 2 == 0 { Ok(inner) } else { self.call(position, function, vec![inner]) };
        }
        self.postfix(alternatives)
    }

    /// Reports an unexpected token after a minus, with the parser message for an undecided alternative.
    fn report_no_alternative(&mut self, start: usize) {
        let (position, is_end) = (self.token().start, self.token().kind == TokenKind::End);
        let next_text = if is_end { String::new() } else { self.token().render(self.source) };
        let preceding = self.source.text(start, position);
        let input = if is_end { preceding.trim_end() } else { preceding.as_str() };
        self.builder
            .report(position, format!("Syntax error: no viable alternative at input '{input}{next_text}'"));
    }

    fn postfix(&mut self, alternatives: &str) -> ParseResult<Expr> {
        let mut expr = self.primary(alternatives)?;
        loop {
            if let Some(position) = self.accept(".") {
                expr = self.selection(expr, position)?;
            } else if let Some(position) = self.accept("[") {
                let function = if self.accept("?").is_some() { "_[?_]" } else { "_[_]" };
                let index = self.expr("?")?;
                self.expect("]", true)?;
                expr = self.call(position, function, vec![expr, index])?;
            } else {
                return Ok(expr);
            }
        }
    }

    fn selection(&mut self, operand: Expr, position: usize) -> ParseResult<Expr> {
        let optional = self.accept("?").is_some();
        let token = self.take();
        let field = match token.kind {
            TokenKind::Name(name) => name,
            TokenKind::EscapedName => {
                return Ok(self.builder.broken_node(token.start, "unsupported syntax: '`'".to_owned()));
            }
            TokenKind::Symbol(keyword) if keyword.chars().all(char::is_alphabetic) => {
                self.next -= 1;
                return self.fail(&format!("mismatched input '{keyword}' expecting IDENTIFIER"));
            }
            _ => {
                self.next -= 1;
                let prefix = if optional { ".?" } else { "." };
                let rendered =
                    if token.kind == TokenKind::End { String::new() } else { token.render(self.source) };
                return self.fail(&format!("no viable alternative at input '{prefix}{rendered}'"));
            }
        };
        if optional {
            let name = self.builder.new_node(token.start, Kind::Literal(Literal::String(field)))?;
            return self.call(position, "_?._", vec![operand, name]);
        }
        if let Some(open) = self.accept("(") {
            let args = self.arguments()?;
            return self.expander(open).expand_member(&field, operand, args);
        }
        self.builder.new_node(position, Kind::Select { operand: Box::new(operand), field, test: false })
    }

    /// Parses arguments and the closing parenthesis.
    fn arguments(&mut self) -> ParseResult<Vec<Expr>> {
        let mut args = Vec::new();
        if self.accept(")").is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expr(if args.is_empty() { ")" } else { "" })?);
            if self.accept(",").is_none() {
                self.expect(")", true)?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self, alternatives: &str) -> ParseResult<Expr> {
        // A loop instead of recursion, because a text can have a hundred thousand superfluous tokens in a row.
        loop {
            if let Some(expr) = self.try_primary(alternatives)? {
                return Ok(expr);
            }
        }
    }

    /// Parses the next primary expression; `None` if a superfluous token was skipped.
    fn try_primary(&mut self, alternatives: &str) -> ParseResult<Option<Expr>> {
        let token = self.token().clone();
        let literal = match &token.kind {
            TokenKind::Symbol("(") => {
                self.take();
                let inner = self.expr("")?;
                self.expect(")", true)?;
                return Ok(Some(inner));
            }
            TokenKind::Symbol("[") => return self.list().map(Some),
            TokenKind::Symbol("{") => return self.map().map(Some),
            TokenKind::Symbol("-") => return self.negative(alternatives),
            TokenKind::Symbol(".") | TokenKind::Name(_) => return self.identifier().map(Some),
            TokenKind::Symbol("true") => Ok(Literal::Bool(true)),
            TokenKind::Symbol("false") => Ok(Literal::Bool(false)),
            TokenKind::Symbol("null") => Ok(Literal::Null),
            TokenKind::Int(text) => literal_values::parse_int(text, false),
            TokenKind::Uint(text) => literal_values::parse_uint(text),
            TokenKind::Float(text) => literal_values::parse_double(text, false),
            TokenKind::String(text) => literal_values::parse_string(text),
            TokenKind::Bytes(text) => literal_values::parse_bytes(text),
            TokenKind::Symbol(_) | TokenKind::EscapedName | TokenKind::End => {
                return match self.unexpected(alternatives)? {
                    Some(broken) => Ok(Some(broken)),
                    None if is_among(self.token(), alternatives) => {
                        self.builder.new_node(token.start, Kind::Broken).map(Some)
                    }
                    None => Ok(None),
                };
            }
        };
        self.take();
        self.literal(token.start, literal).map(Some)
    }

    /// Parses a negative number; `None` if the minus was superfluous.
    fn negative(&mut self, alternatives: &str) -> ParseResult<Option<Expr>> {
        let start = self.token().start;
        let literal = match self.tokens.get(self.next + 1).map(|number| &number.kind) {
            Some(TokenKind::Int(text)) => literal_values::parse_int(text, true),
            Some(TokenKind::Float(text)) => literal_values::parse_double(text, true),
            _ => return self.unexpected(alternatives),
        };
        self.next += 2;
        self.literal(start, literal).map(Some)
    }

    fn literal(&mut self, position: usize, literal: Result<Literal, String>) -> ParseResult<Expr> {
        match literal {
            Ok(literal) => self.builder.new_node(position, Kind::Literal(literal)),
            Err(message) => Ok(self.builder.broken_node(position, message)),
        }
    }

    /// Parses an identifier, a call, or an object construction.
    fn identifier(&mut self) -> ParseResult<Expr> {
        let start = self.token().start;
        let dot = if self.accept(".").is_some() { "." } else { "" };
        let token = self.take();
        let TokenKind::Name(name) = token.kind else {
            self.next -= 1;
            let rendered = self.token().render(self.source);
            let is_keyword =
                matches!(token.kind, TokenKind::Symbol(keyword) if keyword.chars().all(char::is_alphabetic));
            return self.fail(&match token.kind {
                TokenKind::End => format!("no viable alternative at input '{dot}'"),
                _ if is_keyword => format!("mismatched input '{rendered}' expecting IDENTIFIER"),
                _ => format!("no viable alternative at input '{dot}{rendered}'"),
            });
        };
        if let Some(end) = self.object_ahead() {
            return self.object(dot, &name, end);
        }
        let is_reserved = reserved_words::RESERVED.contains(&name.as_str());
        if let Some(open) = self.accept("(") {
            let args = self.arguments()?;
            if is_reserved {
                return Ok(self.builder.broken_node(start, format!("reserved identifier: {name}")));
            }
            return self.expander(open).expand_global(&format!("{dot}{name}"), args);
        }
        if is_reserved {
            return Ok(self.builder.broken_node(start, format!("reserved identifier: {name}")));
        }
        self.builder.new_node(token.start, Kind::Ident(format!("{dot}{name}")))
    }
}
