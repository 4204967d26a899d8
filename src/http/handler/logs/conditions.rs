//! Conditional requests for something that has a date and no ETag.

use std::time::SystemTime;

use actix_web::http::header::{self, HeaderMap, HeaderName, HttpDate};

use crate::http::handler::render::text;
use crate::log_files::Modified;

/// What the conditions of a request come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conditions<'a> {
    /// The client gets it, or these ranges of it.
    Met(&'a str),
    /// The client has it: 304.
    NotModified,
    /// It is not what the client expects: 412.
    Failed,
}

/// Checks the headers in the order that HTTP prescribes.
pub(super) fn check(headers: &HeaderMap, modified: Option<Modified>) -> Conditions<'_> {
    let value = |name| text(headers, name).trim();
    let (expected, known) = (value(header::IF_MATCH), value(header::IF_NONE_MATCH));
    let is_expected = match expected {
        "" => is_later(headers, header::IF_UNMODIFIED_SINCE, modified).is_none_or(|is_later| !is_later),
        tags => tags.starts_with('*'),
    };
    if !is_expected {
        return Conditions::Failed;
    }
    let is_known = match known {
        "" => is_unmodified(headers, modified),
        tags => tags.split(',').any(|tag| tag.trim() == "*"),
    };
    if is_known {
        return Conditions::NotModified;
    }
    let range = value(header::RANGE);
    let is_same = match value(header::IF_RANGE) {
        "" => true,
        date => modified.is_some() && seconds(date) == modified.map(Modified::seconds),
    };
    Conditions::Met(if is_same { range } else { "" })
}

/// Whether If-Modified-Since says that the client has it.
pub(super) fn is_unmodified(headers: &HeaderMap, modified: Option<Modified>) -> bool {
    is_later(headers, header::IF_MODIFIED_SINCE, modified) == Some(false)
}

/// Whether it was changed after the date in a header; `None` if either date is missing.
fn is_later(headers: &HeaderMap, name: HeaderName, modified: Option<Modified>) -> Option<bool> {
    Some(modified?.seconds() > seconds(text(headers, name))?)
}

fn seconds(date: &str) -> Option<u64> {
    let date = SystemTime::from(date.parse::<HttpDate>().ok()?);
    date.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    const BEFORE: &str = "Sun, 09 Sep 2001 01:46:39 GMT";
    const SAME: &str = "Sun, 09 Sep 2001 01:46:40 GMT";

    fn with(lines: &[(HeaderName, &str)], modified: Option<Modified>, expected: Conditions<'_>) {
        let request = lines.iter().fold(TestRequest::default(), |request, (name, value)| {
            request.insert_header((name.clone(), *value))
        });
        assert_eq!(check(request.to_http_request().headers(), modified), expected, "{lines:?}");
    }

    #[test]
    fn dates_decide_about_a_file() {
        let modified = Modified::from_seconds(1_000_000_000);
        let range = (header::RANGE, "bytes=0-1");
        let ranges = Conditions::Met("bytes=0-1");
        let whole = Conditions::Met("");
        for (lines, expected) in [
            (vec![], whole),
            (vec![(header::IF_MODIFIED_SINCE, SAME)], Conditions::NotModified),
            (vec![(header::IF_MODIFIED_SINCE, BEFORE)], whole),
            (vec![(header::IF_MODIFIED_SINCE, "soon")], whole),
            (vec![(header::IF_UNMODIFIED_SINCE, SAME)], whole),
            (vec![(header::IF_UNMODIFIED_SINCE, BEFORE)], Conditions::Failed),
            (vec![(header::IF_MATCH, "\"a\"")], Conditions::Failed),
            (vec![(header::IF_MATCH, "*"), (header::IF_UNMODIFIED_SINCE, BEFORE)], whole),
            (vec![(header::IF_NONE_MATCH, "*")], Conditions::NotModified),
            (vec![(header::IF_NONE_MATCH, "\"a\""), (header::IF_MODIFIED_SINCE, SAME)], whole),
            (vec![range.clone()], ranges),
            (vec![range.clone(), (header::IF_RANGE, SAME)], ranges),
            (vec![range.clone(), (header::IF_RANGE, BEFORE)], whole),
            (vec![range.clone(), (header::IF_RANGE, "\"a\"")], whole),
        ] {
            with(&lines, modified, expected);
        }
        with(&[(header::IF_MODIFIED_SINCE, SAME)], None, whole);
        with(&[range, (header::IF_RANGE, SAME)], None, whole);
    }
}
