//! The Range header, as Go's file server reads it.

use std::ops::Range;

use crate::limits::LOG_RANGES;

/// Why a Range header is refused, with 416.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeError {
    /// It is no range of bytes.
    Malformed,
    /// All ranges begin behind the end.
    NoOverlap,
}

impl RangeError {
    /// The text of the response.
    pub(super) fn message(self) -> &'static str {
        match self {
            RangeError::Malformed => "invalid range",
            RangeError::NoOverlap => "invalid range: failed to overlap",
        }
    }
}

/// The ranges of a file of this size that a header asks for; none for the whole file.
pub(super) fn parse(header: &str, size: u64) -> Result<Vec<Range<u64>>, RangeError> {
    if header.is_empty() {
        return Ok(Vec::new());
    }
    let list = header.strip_prefix("bytes=").ok_or(RangeError::Malformed)?;
    let mut ranges = Vec::new();
    let mut is_behind_end = false;
    for range in list.split(',').map(str::trim).filter(|range| !range.is_empty()) {
        match parse_range(range, size)? {
            Some(range) => ranges.push(range),
            None => is_behind_end = true,
        }
    }
    if ranges.is_empty() && is_behind_end && size > 0 {
        return Err(RangeError::NoOverlap);
    }
    // Ranges that overlap each other would make a response larger than the file.
    let requested = ranges.iter().fold(0_u64, |sum, range| sum.saturating_add(range.end - range.start));
    if requested > size || ranges.len() > LOG_RANGES {
        ranges.clear();
    }
    Ok(ranges)
}

/// One range; `None` if it begins behind the end.
fn parse_range(range: &str, size: u64) -> Result<Option<Range<u64>>, RangeError> {
    let (first, last) = range.split_once('-').ok_or(RangeError::Malformed)?;
    let (first, last) = (first.trim(), last.trim());
    if first.is_empty() {
        return Ok(Some(size.saturating_sub(number(last)?)..size));
    }
    let first = number(first)?;
    if first >= size {
        return Ok(None);
    }
    if last.is_empty() {
        return Ok(Some(first..size));
    }
    let last = number(last)?;
    if last < first {
        return Err(RangeError::Malformed);
    }
    Ok(Some(first..last.saturating_add(1).min(size)))
}

/// A number of Go's type for sizes.
fn number(text: &str) -> Result<u64, RangeError> {
    let number = text.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok());
    number.ok_or(RangeError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_the_end_of_the_file() {
        for (header, expected) in [
            ("", &[][..]),
            ("bytes=0-3", &[(0, 4)][..]),
            ("bytes=7-", &[(7, 10)][..]),
            ("bytes=-3", &[(7, 10)][..]),
            ("bytes=-30", &[(0, 10)][..]),
            ("bytes=8-99", &[(8, 10)][..]),
            ("bytes= 0 - 1 , ,4-5", &[(0, 2), (4, 6)][..]),
            ("bytes=0-1,20-30", &[(0, 2)][..]),
            ("bytes=0-9,0-9", &[][..]),
            ("bytes=0-9223372036854775807", &[(0, 10)][..]),
        ] {
            let ranges: Vec<_> =
                parse(header, 10).unwrap().iter().map(|range| (range.start, range.end)).collect();
            assert_eq!(ranges, expected, "{header}");
        }
        assert_eq!(parse("bytes=5-", 0), Ok(vec![]), "an empty file is sent as a whole");
        let many = format!("bytes={}", vec!["0-0"; LOG_RANGES + 1].join(","));
        assert_eq!(parse(&many, 1 << 20), Ok(vec![]));
    }

    #[test]
    fn malformed_and_distant_ranges_are_refused() {
        for header in ["lines=0-1", "bytes=1", "bytes=a-b", "bytes=5-4", "bytes=--1", "bytes=-", "bytes=0--1"]
        {
            assert_eq!(parse(header, 10), Err(RangeError::Malformed), "{header}");
        }
        assert_eq!(parse("bytes=9223372036854775808-", 10), Err(RangeError::Malformed));
        for header in ["bytes=10-", "bytes=10-20,30-40"] {
            assert_eq!(parse(header, 10), Err(RangeError::NoOverlap), "{header}");
        }
    }
}
