//! Copies subtrees, for macros that use an argument twice.

use crate::limits::CEL_CHARS;

use super::super::ast::{Entry, Expr, Fold, Init, Kind};
use super::{ParseAborted, Parser, Read};

impl Parser<'_> {
    /// A copy with new IDs. Nested copies double in size, so nodes are counted.
    pub fn copied(&mut self, expr: &Expr) -> Read<Expr> {
        if self.places.len() > CEL_CHARS {
            self.issues.add(None, "max recursion depth exceeded".to_owned());
            return Err(ParseAborted);
        }
        let kind = match &expr.kind {
            Kind::Broken => Kind::Broken,
            Kind::Literal(literal) => Kind::Literal(literal.clone()),
            Kind::Ident(name) => Kind::Ident(name.clone()),
            Kind::Select { operand, field, test } => {
                Kind::Select { operand: Box::new(self.copied(operand)?), field: field.clone(), test: *test }
            }
            Kind::Call { function, target, args } => {
                let target = target.as_deref().map(|target| self.copied(target)).transpose()?.map(Box::new);
                let args = args.iter().map(|arg| self.copied(arg)).collect::<Read<_>>()?;
                Kind::Call { function: function.clone(), target, args }
            }
            Kind::List { items } => {
                let copied = items.iter().map(|(item, optional)| Ok((self.copied(item)?, *optional)));
                Kind::List { items: copied.collect::<Read<_>>()? }
            }
            Kind::Map { entries } => {
                let copied = entries.iter().map(|entry| {
                    let (key, value) = (self.copied(&entry.key)?, self.copied(&entry.value)?);
                    Ok(Entry { key, value, optional: entry.optional })
                });
                Kind::Map { entries: copied.collect::<Read<_>>()? }
            }
            Kind::Object { name, fields } => {
                let copied = fields.iter().map(|field| {
                    let value = self.copied(&field.value)?;
                    let (id, name) = (
                        self.made(self.places.get(field.id).copied().unwrap_or(0), Kind::Broken)?.id,
                        field.name.clone(),
                    );
                    Ok(Init { id, name, value, optional: field.optional })
                });
                Kind::Object { name: name.clone(), fields: copied.collect::<Read<_>>()? }
            }
            Kind::Fold(fold) => {
                let [range, init, condition, step, result] =
                    [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result]
                        .map(|part| self.copied(part));
                Kind::Fold(Box::new(Fold {
                    range: range?,
                    init: init?,
                    condition: condition?,
                    step: step?,
                    result: result?,
                    var: fold.var.clone(),
                    var2: fold.var2.clone(),
                    accu: fold.accu.clone(),
                }))
            }
        };
        self.made(self.place(expr), kind)
    }
}
