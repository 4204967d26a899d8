//! Keywords and reserved words of CEL.

/// Keywords.
const KEYWORDS: [&str; 4] = ["true", "false", "null", "in"];

/// Words that CEL reserves: no identifier may be one.
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

/// Whether a name is a keyword or reserved.
pub fn is_reserved(name: &str) -> bool {
    KEYWORDS.contains(&name) || RESERVED.contains(&name)
}
