//! Bearer tokens from a file: `token,user,uid[,"group,group"]`, one a line. Read once, at start.

use std::collections::HashMap;
use std::sync::Arc;

use pilothouse_actors::answer::Answer;
use pilothouse_actors::authenticator::{Verdict, Verifier};
use pilothouse_actors::identity::{Credentials, Identity};

/// Knows the tokens of one file; by default none.
#[derive(Default)]
pub struct TokenFile {
    known: HashMap<String, Arc<Identity>>,
}

impl TokenFile {
    /// Reads the text of a token file. Errors name the line.
    pub fn parse(text: &str) -> Result<TokenFile, String> {
        let mut known = HashMap::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let number = number + 1;
            let columns = columns(line).ok_or_else(|| format!("line {number}: a quote is not closed"))?;
            let [token, user, uid, rest @ ..] = columns.as_slice() else {
                return Err(format!(
                    "line {number}: a token needs at least 3 columns: token, user name, user uid"
                ));
            };
            if token.is_empty() {
                tracing::warn!(line = number, "an empty token is skipped");
                continue;
            }
            let groups = rest.first().map(String::as_str).unwrap_or_default();
            let groups = groups
                .split(',')
                .map(str::trim)
                .filter(|group| !group.is_empty())
                .map(str::to_owned)
                .collect();
            let identity = Identity {
                name: user.clone(),
                uid: uid.clone(),
                groups,
                extra: std::collections::BTreeMap::default(),
            };
            if known.insert(token.clone(), Arc::new(identity)).is_some() {
                tracing::warn!(line = number, "a token stands twice; the later line counts");
            }
        }
        Ok(TokenFile { known })
    }
}

/// The columns of one CSV line; `None` if a quote is left open.
fn columns(line: &str) -> Option<Vec<String>> {
    let mut columns = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.trim_end_matches('\r').chars().peekable();
    while let Some(c) = chars.next() {
        let column = columns.last_mut()?;
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                column.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => columns.push(String::new()),
            // White space before a column is no part of it.
            ' ' if !quoted && column.is_empty() => {}
            c => column.push(c),
        }
    }
    (!quoted).then_some(columns)
}

impl Verifier for TokenFile {
    fn verify(&self, credentials: &Credentials) -> Answer<Verdict> {
        let Some(token) = &credentials.bearer else {
            return Answer::Now(Verdict::NoOpinion);
        };
        Answer::Now(match self.known.get(token) {
            Some(identity) => Verdict::Known(identity.clone()),
            None => Verdict::NoOpinion,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_may_be_quoted() {
        let file = TokenFile::parse("t1,alice,1,\"devs,testers\"\n\nt2, bob,2\n").unwrap();
        assert_eq!(file.known["t1"].groups, ["devs", "testers"]);
        assert_eq!(file.known["t2"].name, "bob");
        assert!(file.known["t2"].groups.is_empty());
    }

    #[test]
    fn broken_lines_are_named() {
        assert!(TokenFile::parse("a,b\n").is_err_and(|error| error.starts_with("line 1:")));
        assert!(TokenFile::parse("a,b,c\nx,y,z,\"g\n").is_err_and(|error| error.starts_with("line 2:")));
    }
}
