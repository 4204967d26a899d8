//! Origins from which pages in browsers may call the server.

use std::str::FromStr;

use pilothouse_apimachinery::pattern::Patterns;
use regex::Regex;

/// A pattern of origins, in the syntax of RE2.
#[derive(Clone, Debug)]
pub struct AllowedOrigin {
    /// `None` matches nothing: an empty list of patterns has one that is empty.
    pattern: Option<Regex>,
}

impl AllowedOrigin {
    /// Whether a page of this origin, as the header says it, may call.
    pub fn allows(&self, origin: &str) -> bool {
        self.pattern.as_ref().is_some_and(|pattern| pattern.is_match(origin))
    }
}

impl FromStr for AllowedOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<AllowedOrigin, String> {
        if text.is_empty() {
            return Ok(AllowedOrigin { pattern: None });
        }
        // The reference looks at the text, too: what is not bound to a host allows more than it seems to.
        let is_bound = |marks: [&str; 2]| marks.iter().any(|mark| text.contains(mark));
        if !is_bound(["^", "//"]) || !is_bound(["$", ":"]) {
            return Err(
                "regular expression does not pin to start/end of host in the origin header".to_owned()
            );
        }
        match Patterns::default().compiled(text) {
            Some(pattern) => Ok(AllowedOrigin { pattern: Some(pattern) }),
            None => Err("it is not a regular expression".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_matched_by_bound_patterns() {
        let of_example: AllowedOrigin = r"//(.+\.)?example\.com(:|$)".parse().unwrap();
        for (origin, is_allowed) in [
            ("https://example.com", true),
            ("http://a.example.com:8080", true),
            ("https://example.com.evil.test", false),
            ("https://EXAMPLE.com", false),
            ("null", false),
        ] {
            assert_eq!(of_example.allows(origin), is_allowed, "{origin}");
        }
        assert!(!"".parse::<AllowedOrigin>().unwrap().allows(""));
        for refused in [".*", "^a", "example.com$", "^[$"] {
            assert!(refused.parse::<AllowedOrigin>().is_err(), "{refused}");
        }
    }
}
