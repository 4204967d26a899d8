//! Lines of input, up to a length.

use std::io::{self, BufRead};

/// One line of input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line without its line ending.
    Complete(Vec<u8>),
    /// A line that was longer than allowed, and was dropped.
    TooLong,
    /// The end of the input.
    End,
}

/// Reads the next line of at most `max_bytes`. A longer one is read to its end without being held.
pub(super) fn next_line(input: &mut impl BufRead, max_bytes: usize) -> io::Result<Line> {
    let mut line = Vec::new();
    let (mut has_input, mut too_long) = (false, false);
    loop {
        let chunk = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            chunk => chunk?,
        };
        if chunk.is_empty() {
            break;
        }
        has_input = true;
        let end = memchr::memchr(b'\n', chunk);
        let length = end.unwrap_or(chunk.len());
        too_long |= line.len() + length > max_bytes;
        if too_long {
            line = Vec::new();
        } else {
            line.extend_from_slice(chunk.get(..length).unwrap_or_default());
        }
        input.consume(end.map_or(length, |position| position + 1));
        if end.is_some() {
            break;
        }
    }
    Ok(match (has_input, too_long) {
        (false, _) => Line::End,
        (true, true) => Line::TooLong,
        (true, false) => Line::Complete(line),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_dropped_and_the_rest_is_read() {
        let mut input = io::BufReader::with_capacity(2, &b"abc\nabcd\n\nx"[..]);
        let mut next = || next_line(&mut input, 3).unwrap();
        let complete = |text: &str| Line::Complete(text.as_bytes().to_vec());
        assert_eq!(next(), complete("abc"));
        assert_eq!(next(), Line::TooLong);
        assert_eq!(next(), complete(""));
        assert_eq!(next(), complete("x"));
        assert_eq!(next(), Line::End);
    }
}
