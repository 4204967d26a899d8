//! Format strings, the receivers of `string.format([...])`.

use pilothouse_apimachinery::field::quoted;

/// The maximum precision.
const MAX_PRECISION: usize = 1_000;

/// A segment of a format string.
pub enum Segment<'f> {
    /// Literal text.
    Literal(&'f str),
    /// A formatting clause: its verb and precision.
    Clause(char, Option<usize>),
}

/// Parses a format string up to the first error. `visit` is called for each segment, with the index of the next argument. Returns
/// the number of arguments that are used.
pub fn parse_format<'f>(
    format: &'f str,
    count: usize,
    mut visit: impl FnMut(Segment<'f>, usize) -> Result<(), String>,
) -> Result<usize, String> {
    let (mut rest, mut index) = (format, 0);
    while let Some(percent) = rest.find('%') {
        let (literal, rest_text) = rest.split_at(percent);
        visit(Segment::Literal(literal), index)?;
        let rest_text = rest_text.get(1..).unwrap_or_default();
        if let Some(remaining) = rest_text.strip_prefix('%') {
            visit(Segment::Literal("%"), index)?;
            rest = remaining;
            continue;
        }
        if rest_text.is_empty() {
            return Err("unexpected end of string".to_owned());
        }
        if index >= count {
            return Err(format!("index {index} out of range"));
        }
        let (verb, precision, remaining) =
            parse_clause(rest_text).map_err(|error| format!("could not parse formatting clause: {error}"))?;
        visit(Segment::Clause(verb, precision), index)
            .map_err(|error| format!("error during formatting: {error}"))?;
        index += 1;
        rest = remaining;
    }
    visit(Segment::Literal(rest), index)?;
    Ok(index)
}

fn parse_clause(text: &str) -> Result<(char, Option<usize>, &str), String> {
    let (precision, rest) = match text.strip_prefix('.') {
        None => (None, text),
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| {
                "error while parsing precision: could not find end of precision specifier".to_owned()
            })?;
            let (digits, rest) = rest.split_at(end);
            let number = digits.parse::<usize>().map_err(|_| {
                format!("error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing {}: invalid syntax", quoted(digits))
            })?;
            (Some(number.min(MAX_PRECISION)), rest)
        }
    };
    let verb = rest.chars().next().unwrap_or(' ');
    if !matches!(verb, 's' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o') {
        return Err(format!("unrecognized formatting clause \"{verb}\""));
    }
    Ok((verb, precision, rest.get(1..).unwrap_or_default()))
}

/// The message for a clause that does not support a type.
pub fn unsupported_type(verb: char, kind: &str) -> String {
    let message = match verb {
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'b' => "only integers and bools can be formatted as binary",
        'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
        'o' => "octal clause can only be used on integers",
        _ => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
        }
    };
    format!("{message}, was given {kind}")
}
