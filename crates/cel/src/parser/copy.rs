//! Copies subtrees, for macros that use an argument twice.

use crate::limits::CEL_CHARS;

use super::{ParseAborted, ParseResult, Parser};
use crate::ast::{Entry, Expr, Fold, Init, Kind};

impl Parser<'_> {
    /// A copy with new IDs. Nested copies double in size, so the number of nodes is limited.
    pub fn clone_subtree(&mut self, expr: &Expr) -> ParseResult<Expr> {
        if self.positions.len() > CEL_CHARS {
            self.issues.add(None, "max recursion depth exceeded".to_owned());
            return Err(ParseAborted);
        }
        let kind = match &expr.kind {
            Kind::Broken => Kind::Broken,
            Kind::Literal(literal) => Kind::Literal(literal.clone()),
            Kind::Ident(name) => Kind::Ident(name.clone()),
            Kind::Select { operand, field, test } => Kind::Select {
                operand: Box::new(self.clone_subtree(operand)?),
                field: field.clone(),
                test: *test,
            },
            Kind::Call { function, target, args } => {
                let target =
                    target.as_deref().map(|target| self.clone_subtree(target)).transpose()?.map(Box::new);
                let args = args.iter().map(|arg| self.clone_subtree(arg)).collect::<ParseResult<_>>()?;
                Kind::Call { function: function.clone(), target, args }
            }
            Kind::List { items } => {
                let clones = items.iter().map(|(item, optional)| Ok((self.clone_subtree(item)?, *optional)));
                Kind::List { items: clones.collect::<ParseResult<_>>()? }
            }
            Kind::Map { entries } => {
                let clones = entries.iter().map(|entry| {
                    let (key, value) = (self.clone_subtree(&entry.key)?, self.clone_subtree(&entry.value)?);
                    Ok(Entry { key, value, optional: entry.optional })
                });
                Kind::Map { entries: clones.collect::<ParseResult<_>>()? }
            }
            Kind::Object { name, fields } => {
                let clones = fields.iter().map(|field| {
                    let value = self.clone_subtree(&field.value)?;
                    let (id, name) = (
                        self.new_node(self.positions.get(field.id).copied().unwrap_or(0), Kind::Broken)?.id,
                        field.name.clone(),
                    );
                    Ok(Init { id, name, value, optional: field.optional })
                });
                Kind::Object { name: name.clone(), fields: clones.collect::<ParseResult<_>>()? }
            }
            Kind::Fold(fold) => {
                let [range, init, condition, step, result] =
                    [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result]
                        .map(|part| self.clone_subtree(part));
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
        self.new_node(self.position_of(expr), kind)
    }
}
