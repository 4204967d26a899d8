//! The static token file: `token,user,uid[,"group,group"]`, one per line. Read once, at start.

use std::collections::{BTreeMap, HashMap};
use std::iter::Peekable;
use std::str::Chars;
use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verification, Verifier};
use pilothouse_types::identity::{Credentials, Identity};

/// The tokens of one file; by default none.
#[derive(Default)]
pub struct TokenFile {
    identities: HashMap<String, Arc<Identity>>,
}

impl TokenFile {
    /// Reads the text of a token file. Errors name the line.
    pub fn parse(text: &str) -> Result<TokenFile, String> {
        let mut identities = HashMap::new();
        for record in Records::new(text) {
            let (number, columns) = record?;
            let [token, user, uid, rest @ ..] = columns.as_slice() else {
                return Err(format!(
                    "line {number}: a token needs at least 3 columns (token, user name, user uid), found {}",
                    columns.len()
                ));
            };
            if token.is_empty() {
                tracing::warn!(line = number, "an empty token in the token file is ignored");
                continue;
            }
            let groups = rest.first().map(String::as_str).unwrap_or_default();
            let groups = groups.split(',').filter(|group| !group.is_empty()).map(str::to_owned).collect();
            let identity = Identity { name: user.clone(), uid: uid.clone(), groups, extra: BTreeMap::new() };
            if identities.insert(token.clone(), Arc::new(identity)).is_some() {
                tracing::warn!(
                    line = number,
                    "a token is listed twice in the token file; the later line counts"
                );
            }
        }
        Ok(TokenFile { identities })
    }
}

/// Parses CSV records, with the line that each begins in. Blanks are part of a column, and a quoted column may span lines, as in
/// kube-apiserver.
struct Records<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
}

impl<'a> Records<'a> {
    fn new(text: &'a str) -> Records<'a> {
        Records { rest: text.chars().peekable(), line: 1 }
    }

    /// The next character. All line endings become one character.
    fn next_char(&mut self) -> Option<char> {
        let mut next = self.rest.next()?;
        if next == '\r' && self.rest.peek() == Some(&'\n') {
            next = self.rest.next()?;
        }
        self.line += usize::from(next == '\n');
        Some(next)
    }

    /// Reads one column. The boolean tells whether it ends the record.
    fn column(&mut self) -> Result<(String, bool), &'static str> {
        let mut column = String::new();
        if self.rest.next_if_eq(&'"').is_none() {
            loop {
                match self.next_char() {
                    Some('"') => return Err("a quote inside a column that is not quoted"),
                    Some(',') => return Ok((column, false)),
                    None | Some('\n') => return Ok((column, true)),
                    Some(other) => column.push(other),
                }
            }
        }
        loop {
            match self.next_char().ok_or("a quote is not closed")? {
                '"' => match self.next_char() {
                    Some('"') => column.push('"'),
                    Some(',') => return Ok((column, false)),
                    None | Some('\n') => return Ok((column, true)),
                    Some(_) => return Err("something follows a quote that was closed"),
                },
                other => column.push(other),
            }
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<(usize, Vec<String>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        // Skip empty lines.
        while self.rest.peek().is_some_and(|next| matches!(next, '\r' | '\n')) {
            self.next_char();
        }
        self.rest.peek()?;
        let line = self.line;
        let mut columns = Vec::new();
        loop {
            match self.column() {
                Ok((column, is_last)) => {
                    columns.push(column);
                    if is_last {
                        return Some(Ok((line, columns)));
                    }
                }
                Err(reason) => return Some(Err(format!("line {line}: {reason}"))),
            }
        }
    }
}

impl Verifier for TokenFile {
    fn verify(&self, credentials: &Credentials) -> Answer<Verification> {
        let Some(token) = &credentials.bearer else {
            return Answer::Now(Verification::NoOpinion);
        };
        Answer::Now(match self.identities.get(token) {
            Some(identity) => Verification::Known(identity.clone()),
            None => Verification::NoOpinion,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_file_parses_quoted_columns() {
        let file = TokenFile::parse("t1,alice,1,\"devs,testers\"\r\n\n,nobody,2\nt2, bob,2,\n").unwrap();
        assert_eq!(file.identities["t1"].groups, ["devs", "testers"]);
        assert_eq!((file.identities["t2"].name.as_str(), file.identities["t2"].uid.as_str()), (" bob", "2"));
        assert!(file.identities["t2"].groups.is_empty());
        assert_eq!(file.identities.len(), 2, "empty tokens are ignored");
        let multiline = TokenFile::parse("\"a \"\"b\"\"\n\",\"u,v\",,g,more\nt,later,1\nt,last,2").unwrap();
        assert_eq!(
            (multiline.identities["a \"b\"\n"].name.as_str(), multiline.identities["t"].name.as_str()),
            ("u,v", "last")
        );
    }

    #[test]
    fn token_file_parse_error_names_the_line() {
        for (text, line, reason) in [
            ("a,b\n", 1, "3 columns (token, user name, user uid), found 2"),
            ("a,b,c\n \n", 2, "found 1"),
            ("a,b,c\n\nx,y,z,\"g\n\n", 3, "is not closed"),
            ("a,b,c,\"x\ny\"\nd,e\"f,g", 3, "not quoted"),
            ("a,b,\"c\"d", 1, "follows a quote"),
        ] {
            let error = TokenFile::parse(text).err().unwrap();
            assert!(
                error.starts_with(&format!("line {line}: ")) && error.contains(reason),
                "{text:?}: {error}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn token_file_parse_never_panics(text in "[a,\" \r\n]{0,40}") {
            let _ = TokenFile::parse(&text);
        }
    }
}
