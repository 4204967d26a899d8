//! The words of the language.

/// Words that mean something, or stand between others.
const MEANT: [&str; 4] = ["true", "false", "null", "in"];

/// Words that mean nothing yet: no variable may be called so.
pub(super) const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Whether a name is a word of the language, so that nothing else can be called so.
pub fn is_reserved(name: &str) -> bool {
    MEANT.contains(&name) || RESERVED.contains(&name)
}
