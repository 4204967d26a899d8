//! The values of literals: numbers, and strings with quotes and escapes.

use super::ast::Literal;

/// An integer literal.
pub fn parse_int(text: &str, negative: bool) -> Result<Literal, String> {
    let sign = if negative { "-" } else { "" };
    let number = match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(&format!("{sign}{digits}"), 16),
        None => format!("{sign}{text}").parse(),
    };
    number.map(Literal::Int).map_err(|_| "invalid int literal".to_owned())
}

/// An unsigned integer literal.
pub fn parse_uint(text: &str) -> Result<Literal, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map(Literal::Uint).map_err(|_| "invalid uint literal".to_owned())
}

/// A double literal.
pub fn parse_double(text: &str, negative: bool) -> Result<Literal, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(Literal::Double(if negative { -number } else { number })),
        _ => Err("invalid double literal".to_owned()),
    }
}

/// A string literal.
pub fn parse_string(quoted: &str) -> Result<Literal, String> {
    let bytes = unescape(quoted, false)?;
    String::from_utf8(bytes).map(Literal::String).map_err(|_| UNESCAPE_ERROR.to_owned())
}

/// A bytes literal.
pub fn parse_bytes(quoted: &str) -> Result<Literal, String> {
    unescape(quoted, true).map(Literal::Bytes)
}

const UNESCAPE_ERROR: &str = "unable to unescape string";

fn unescape(quoted: &str, is_bytes: bool) -> Result<Vec<u8>, String> {
    // Line endings are normalized.
    let text = quoted.replace("\r\n", "\n").replace('\r', "\n");
    let (text, is_raw) = match text.strip_prefix(['r', 'R']) {
        Some(rest) => (rest, true),
        None => (text.as_str(), false),
    };
    let inner = ["'''", "\"\"\"", "'", "\""].iter().find_map(|quote| {
        let open = text.strip_prefix(quote)?;
        open.strip_suffix(quote)
    });
    let inner = inner.ok_or_else(|| UNESCAPE_ERROR.to_owned())?;
    if is_raw {
        return Ok(inner.as_bytes().to_vec());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(letter) = rest.next() {
        if letter == '\\' {
            unescape_sequence(&mut rest, is_bytes, &mut out)?;
        } else {
            push_char(letter, &mut out);
        }
    }
    Ok(out)
}

fn push_char(letter: char, out: &mut Vec<u8>) {
    out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
}

fn unescape_sequence(
    rest: &mut std::str::Chars<'_>,
    is_bytes: bool,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let error = || UNESCAPE_ERROR.to_owned();
    let letter = rest.next().ok_or_else(error)?;
    let number = |rest: &mut std::str::Chars<'_>, count: usize, radix: u32, first: u32| {
        (0..count).try_fold(first, |sum, _| {
            let digit = rest.next().and_then(|c| c.to_digit(radix)).ok_or_else(error)?;
            Ok::<u32, String>(sum.wrapping_mul(radix).wrapping_add(digit))
        })
    };
    let code = match letter {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => 10,
        'r' => 13,
        't' => 9,
        'v' => 11,
        '\\' | '\'' | '"' | '`' | '?' => u32::from(letter),
        'x' | 'X' => number(rest, 2, 16, 0)?,
        'u' | 'U' if is_bytes => return Err(error()),
        'u' => number(rest, 4, 16, 0)?,
        'U' => number(rest, 8, 16, 0)?,
        '0'..='3' => number(rest, 2, 8, u32::from(letter) - 48)?,
        _ => return Err(error()),
    };
    if is_bytes {
        out.push(u8::try_from(code).unwrap_or_default());
    } else {
        push_char(char::from_u32(code).ok_or_else(|| "invalid unicode code point".to_owned())?, out);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_literals_are_unescaped() {
        let good: [(&str, &str); 8] = [
            ("'a'", "a"),
            (r#""a\"b\n""#, "a\"b\n"),
            (r"r'a\n'", r"a\n"),
            ("'''a'b'''", "a'b"),
            (r"'\x41\u00e9\U0001F600\101'", "Aé😀A"),
            ("R\"\"\"x\\\"\"\"", "x\\"),
            ("''", ""),
            ("'a\r\nb'", "a\nb"),
        ];
        for (quoted, expected) in good {
            assert_eq!(parse_string(quoted), Ok(Literal::String(expected.to_owned())), "{quoted}");
        }
        assert_eq!(parse_bytes(r"'\xffé'"), Ok(Literal::Bytes(vec![0xff, 0xc3, 0xa9])));
        assert!(
            parse_bytes(r"'\u00e9'").is_err()
                && parse_string(r"'\ud800'").is_err()
                && parse_string("'").is_err()
        );
    }

    #[test]
    fn number_literals_out_of_range_are_errors() {
        assert_eq!(parse_int("9223372036854775808", true), Ok(Literal::Int(i64::MIN)));
        assert!(parse_int("9223372036854775808", false).is_err());
        assert_eq!(parse_int("0xff", true), Ok(Literal::Int(-255)));
        assert_eq!(parse_uint("18446744073709551615"), Ok(Literal::Uint(u64::MAX)));
        assert!(parse_uint("18446744073709551616").is_err() && parse_double("1e999", false).is_err());
    }
}
