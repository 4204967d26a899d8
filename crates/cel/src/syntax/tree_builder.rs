//! Builds the nodes of the syntax tree, for the parser and for the expansion of macros.

use crate::limits::{CEL_CHARS, CEL_HEIGHT};

use super::ast::{Entry, Expr, Fold, Init, Kind};
use super::source::Issues;

/// Parsing was aborted, and the error is reported.
pub struct ParseAborted;

/// A part of the tree, unless parsing was aborted.
pub type ParseResult<T> = Result<T, ParseAborted>;

/// Gives every node an ID, a source position and a bounded height.
pub struct TreeBuilder<'s> {
    issues: &'s mut Issues,
    positions: Vec<usize>,
    /// The height of each node, by ID.
    heights: Vec<usize>,
}

impl<'s> TreeBuilder<'s> {
    /// A builder without nodes.
    pub fn new(issues: &'s mut Issues) -> TreeBuilder<'s> {
        TreeBuilder { issues, positions: Vec::new(), heights: Vec::new() }
    }

    /// The source position of each node, by ID.
    pub fn into_positions(self) -> Vec<usize> {
        self.positions
    }

    /// Reports an error.
    pub fn report(&mut self, position: impl Into<Option<usize>>, message: String) {
        self.issues.add(position, message);
    }

    /// Reports an error. The node stands for the expression that has it.
    pub fn broken_node(&mut self, position: usize, message: String) -> Expr {
        self.report(position, message);
        self.new_node(position, Kind::Broken).unwrap_or(Expr { id: 0, kind: Kind::Broken })
    }

    /// A new node with its own ID.
    pub fn new_node(&mut self, position: usize, kind: Kind) -> ParseResult<Expr> {
        let expr = Expr { id: self.positions.len(), kind };
        let child_height = expr.parts().iter().filter_map(|part| self.heights.get(part.id)).max().copied();
        let height = child_height.unwrap_or(0) + 1;
        self.positions.push(position);
        self.heights.push(height);
        if height > CEL_HEIGHT {
            self.report(None, "max recursion depth exceeded".to_owned());
            return Err(ParseAborted);
        }
        Ok(expr)
    }

    /// The source position of a node.
    pub fn position_of(&self, expr: &Expr) -> usize {
        self.positions.get(expr.id).copied().unwrap_or(0)
    }

    /// A copy with new IDs, for macros that use an argument twice. Nested copies double in size, so the number of nodes is limited.
    pub fn clone_subtree(&mut self, expr: &Expr) -> ParseResult<Expr> {
        if self.positions.len() > CEL_CHARS {
            self.report(None, "max recursion depth exceeded".to_owned());
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
