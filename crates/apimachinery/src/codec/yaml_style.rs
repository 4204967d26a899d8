//! The style in which a text is written in YAML: plain if it is read back as text, quoted if not.

use super::yaml_plain::reads_as_text;

/// The style of text.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

pub(super) fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

pub(super) fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

/// The merge key, which must be quoted as an ordinary key.
const MERGE: &str = "<<";

/// The style that text needs: plain if it is read back as text, quoted if not.
pub(super) fn style(text: &str, key: bool) -> Style {
    let features = Features::from_text(text);
    let literal = text.contains('\n') && !key && !features.trailing_space && !features.unusual;
    let style = if literal {
        Style::Literal
    } else if text.contains('\n') || !reads_as_text(text) || (key && text == MERGE) {
        Style::Double
    } else if features.plain {
        Style::Plain
    } else {
        Style::Single
    };
    if style == Style::Single && features.unusual { Style::Double } else { style }
}

/// The properties of a text that decide its style.
struct Features {
    plain: bool,
    trailing_space: bool,
    /// Characters, or spaces beside breaks, that need double quotes.
    unusual: bool,
}

impl Features {
    fn from_text(text: &str) -> Features {
        let is_blank = |c: char| matches!(c, ' ' | '\t') || is_break(c);
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let (mut unusual, mut breaks) = (false, false);
        let mut previous = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let is_last_of_word = chars.peek().is_none_or(|next| matches!(next, ' ' | '\t'));
            indicators |= match (previous, c) {
                (None, '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>') => true,
                (None, '\'' | '"' | '%' | '@' | '`') => true,
                (None, '?' | '-') | (_, ':') => is_last_of_word,
                (Some(previous), '#') => is_blank(previous),
                _ => false,
            };
            unusual |= !is_printable(c);
            breaks |= is_break(c);
            // A space before a break survives only in double quotes.
            unusual |= previous == Some(' ') && is_break(c);
            previous = Some(c);
        }
        let trailing_space = text.ends_with(' ');
        let plain = !indicators && !unusual && !breaks && !text.starts_with(' ') && !trailing_space;
        Features { plain, trailing_space, unusual }
    }
}
