//! Parses list, map and object constructions.

use super::super::ast::{Entry, Expr, Init, Kind};
use super::super::lexer::TokenKind;
use super::{Parser, Read};

impl Parser<'_> {
    /// The position of the brace, if a qualified name and a brace come next.
    pub(super) fn object_ahead(&self) -> Option<usize> {
        let mut at = self.at;
        loop {
            let token = self.tokens.get(at)?;
            if token.is("{") {
                return Some(at);
            }
            let name = self.tokens.get(at + 1)?;
            if !token.is(".") || !matches!(name.word, TokenKind::Name(_)) {
                return None;
            }
            at += 2;
        }
    }

    pub(super) fn object(&mut self, dot: &str, first: &str, brace: usize) -> Read<Expr> {
        let mut name = format!("{dot}{first}");
        while self.at < brace {
            if let TokenKind::Name(part) = self.take().word {
                name.push('.');
                name.push_str(&part);
            }
        }
        let place = self.take().start;
        let mut fields = Vec::new();
        loop {
            if self.closed("}", fields.is_empty())? {
                break;
            }
            let optional = self.sign("?").is_some();
            let TokenKind::Name(field) = self.take().word else {
                self.at -= 1;
                let shown = self.token().shown(self.source);
                return self.wrong(&format!(
                    "mismatched input '{shown}' expecting {{'}}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}}"
                ));
            };
            let colon = self.expect(":", false)?;
            let value = self.expr("")?;
            let id = self.made(colon, Kind::Broken)?.id;
            fields.push(Init { id, name: field, value, optional });
            if self.sign(",").is_none() {
                self.closing("}")?;
                break;
            }
        }
        self.made(place, Kind::Object { name, fields })
    }

    /// Expects the closing bracket after an item without a comma.
    fn closing(&mut self, sign: &str) -> Read<()> {
        if self.sign(sign).is_some() {
            return Ok(());
        }
        let shown = self.token().shown(self.source);
        if self.tokens.get(self.at + 1).is_some_and(|next| next.is(sign) || next.is(",")) {
            return self.wrong(&format!("extraneous input '{shown}' expecting {{'{sign}', ','}}"));
        }
        self.wrong(&format!("mismatched input '{shown}' expecting {{'{sign}', ','}}"))
    }

    /// Consumes the closing bracket if it is next. A comma may precede it, even without items.
    fn closed(&mut self, sign: &str, is_empty: bool) -> Read<bool> {
        if self.sign(sign).is_some() {
            return Ok(true);
        }
        if self.token().is(",") {
            if is_empty {
                self.take();
            }
            return self.expect(sign, true).map(|_| true);
        }
        Ok(false)
    }

    pub(super) fn list(&mut self) -> Read<Expr> {
        let place = self.take().start;
        let mut items = Vec::new();
        loop {
            if self.closed("]", items.is_empty())? {
                break;
            }
            let optional = self.sign("?").is_some();
            let item = self.expr(if items.is_empty() { "],?" } else { "]?" })?;
            items.push((item, optional));
            if self.sign(",").is_none() {
                self.closing("]")?;
                break;
            }
        }
        self.made(place, Kind::List { items })
    }

    pub(super) fn map(&mut self) -> Read<Expr> {
        let place = self.take().start;
        let mut entries = Vec::new();
        loop {
            if self.closed("}", entries.is_empty())? {
                break;
            }
            let optional = self.sign("?").is_some();
            let key = self.expr(if entries.is_empty() { "},?" } else { "}?" })?;
            self.expect(":", false)?;
            let value = self.expr("")?;
            entries.push(Entry { key, value, optional });
            if self.sign(",").is_none() {
                self.closing("}")?;
                break;
            }
        }
        self.made(place, Kind::Map { entries })
    }
}
