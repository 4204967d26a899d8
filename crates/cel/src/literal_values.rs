//! The values of literals: numbers, and strings with quotes and escapes.

use super::ast::Literal;

/// An integer literal.
pub fn int(text: &str, negative: bool) -> Result<Literal, String> {
    let sign = if negative { "-" } else { "" };
    let number = match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(&format!("{sign}{digits}"), 16),
        None => format!("{sign}{text}").parse(),
    };
    number.map(Literal::Int).map_err(|_| "invalid int literal".to_owned())
}

/// An unsigned integer literal.
pub fn uint(text: &str) -> Result<Literal, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map(Literal::Uint).map_err(|_| "invalid uint literal".to_owned())
}

/// A double literal.
pub fn double(text: &str, negative: bool) -> Result<Literal, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(Literal::Double(if negative { -number } else { number })),
        _ => Err("invalid double literal".to_owned()),
    }
}

/// A string literal.
pub fn text(quoted: &str) -> Result<Literal, String> {
    let bytes = unescaped(quoted, false)?;
    String::from_utf8(bytes).map(Literal::String).map_err(|_| UNABLE.to_owned())
}

/// A bytes literal.
pub fn bytes(quoted: &str) -> Result<Literal, String> {
    unescaped(quoted, true).map(Literal::Bytes)
}

const UNABLE: &str = "unable to unescape string";

fn unescaped(quoted: &str, is_bytes: bool) -> Result<Vec<u8>, String> {
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
    let inner = inner.ok_or_else(|| UNABLE.to_owned())?;
    if is_raw {
        return Ok(inner.as_bytes().to_vec());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(letter) = rest.next() {
        if letter == '\\' {
            escape(&mut rest, is_bytes, &mut out)?;
        } else {
            push(letter, &mut out);
        }
    }
    Ok(out)
}

fn push(letter: char, out: &mut Vec<u8>) {
    out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
}

fn escape(rest: &mut std::str::Chars<'_>, is_bytes: bool, out: &mut Vec<u8>) -> Result<(), String> {
    let unable = || UNABLE.to_owned();
    let letter = rest.next().ok_or_else(unable)?;
    let number = |rest: &mut std::str::Chars<'_>, count: usize, radix: u32, first: u32| {
        (0..count).try_fold(first, |sum, _| {
            let digit = rest.next().and_then(|c| c.to_digit(radix)).ok_or_else(unable)?;
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
        'u' | 'U' if is_bytes => return Err(unable()),
        'u' => number(rest, 4, 16, 0)?,
        'U' => number(rest, 8, 16, 0)?,
        '0'..='3' => number(rest, 2, 8, u32::from(letter) - 48)?,
        _ => return Err(unable()),
    };
    if is_bytes {
        out.push(u8::try_from(code).unwrap_or_default());
    } else {
        push(char::from_u32(code).ok_or_else(|| "invalid unicode code point".to_owned())?, out);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_mean_what_they_say() {
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
        for (quoted, wanted) in good {
            assert_eq!(text(quoted), Ok(Literal::String(wanted.to_owned())), "{quoted}");
        }
        assert_eq!(bytes(r"'\xffé'"), Ok(Literal::Bytes(vec![0xff, 0xc3, 0xa9])));
        assert!(bytes(r"'\u00e9'").is_err() && text(r"'\ud800'").is_err() && text("'").is_err());
    }

    #[test]
    fn numbers_keep_their_bounds() {
        assert_eq!(int("9223372036854775808", true), Ok(Literal::Int(i64::MIN)));
        assert!(int("9223372036854775808", false).is_err());
        assert_eq!(int("0xff", true), Ok(Literal::Int(-255)));
        assert_eq!(uint("18446744073709551615"), Ok(Literal::Uint(u64::MAX)));
        assert!(uint("18446744073709551616").is_err() && double("1e999", false).is_err());
    }
}
