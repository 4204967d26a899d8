//! Parses list, map and object constructions.

use crate::syntax::tree_builder::ParseResult;

use super::Parser;
use crate::syntax::ast::{Entry, Expr, Init, Kind};
use crate::syntax::lexer::TokenKind;

impl Parser<'_> {
    /// The position of the brace, if a qualified name and a brace come next.
    pub(super) fn object_ahead(&self) -> Option<usize> {
        let mut index = self.next;
        loop {
            let token = self.tokens.get(index)?;
            if token.is("{") {
                return Some(index);
            }
            let name = self.tokens.get(index + 1)?;
            if !token.is(".") || !matches!(name.kind, TokenKind::Name(_)) {
                return None;
            }
            index += 2;
        }
    }

    pub(super) fn object(&mut self, dot: &str, first: &str, brace: usize) -> ParseResult<Expr> {
        let mut name = format!("{dot}{first}");
        while self.next < brace {
            if let TokenKind::Name(part) = self.take().kind {
                name.push('.');
                name.push_str(&part);
            }
        }
        let position = self.take().start;
        let mut fields = Vec::new();
        loop {
            if self.accept_closing("}", fields.is_empty())? {
                break;
            }
            let optional = self.accept("?").is_some();
            let TokenKind::Name(field) = self.take().kind else {
                self.next -= 1;
                let rendered = self.token().render(self.source);
                return self.fail(&format!(
                    "mismatched input '{rendered}' expecting {{'}}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}}"
                ));
            };
            let colon = self.expect(":", false)?;
            let value = self.expr("")?;
            let id = self.builder.new_node(colon, Kind::Broken)?.id;
            fields.push(Init { id, name: field, value, optional });
            if self.accept(",").is_none() {
                self.expect_closing("}")?;
                break;
            }
        }
        self.builder.new_node(position, Kind::Object { name, fields })
    }

    /// Expects the closing bracket after an item without a comma.
    fn expect_closing(&mut self, symbol: &str) -> ParseResult<()> {
        if self.accept(symbol).is_some() {
            return Ok(());
        }
        let rendered = self.token().render(self.source);
        if self.tokens.get(self.next + 1).is_some_and(|next| next.is(symbol) || next.is(",")) {
            return self.fail(&format!("extraneous input '{rendered}' expecting {{'{symbol}', ','}}"));
        }
        self.fail(&format!("mismatched input '{rendered}' expecting {{'{symbol}', ','}}"))
    }

    /// Consumes the closing bracket if it is next. A comma may precede it, even without items.
    fn accept_closing(&mut self, symbol: &str, is_empty: bool) -> ParseResult<bool> {
        if self.accept(symbol).is_some() {
            return Ok(true);
        }
        if self.token().is(",") {
            if is_empty {
                self.take();
            }
            return self.expect(symbol, true).map(|_| true);
        }
        Ok(false)
    }

    pub(super) fn list(&mut self) -> ParseResult<Expr> {
        let position = self.take().start;
        let mut items = Vec::new();
        loop {
            if self.accept_closing("]", items.is_empty())? {
                break;
            }
            let optional = self.accept("?").is_some();
            let item = self.expr(if items.is_empty() { "],?" } else { "]?" })?;
            items.push((item, optional));
            if self.accept(",").is_none() {
                self.expect_closing("]")?;
                break;
            }
        }
        self.builder.new_node(position, Kind::List { items })
    }

    pub(super) fn map(&mut self) -> ParseResult<Expr> {
        let position = self.take().start;
        let mut entries = Vec::new();
        loop {
            if self.accept_closing("}", entries.is_empty())? {
                break;
            }
            let optional = self.accept("?").is_some();
            let key = self.expr(if entries.is_empty() { "},?" } else { "}?" })?;
            self.expect(":", false)?;
            let value = self.expr("")?;
            entries.push(Entry { key, value, optional });
            if self.accept(",").is_none() {
                self.expect_closing("}")?;
                break;
            }
        }
        self.builder.new_node(position, Kind::Map { entries })
    }
}
