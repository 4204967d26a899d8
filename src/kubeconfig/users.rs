//! Credentials for many servers: a kubeconfig whose users are named by the servers that they are for.

use std::path::Path;

use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::value::Value;

use super::{Access, file};

/// Credentials by server.
#[derive(Clone, Default)]
pub struct Users {
    named: Vec<(String, Access)>,
    /// The user of the current context, for all other servers.
    current: Option<String>,
}

impl Users {
    /// Reads the file. Paths in it are relative to its directory.
    pub fn read(path: &Path) -> Result<Users, String> {
        Users::parse(&file::bytes_of(path)?, path.parent().unwrap_or(Path::new("")))
            .map_err(|why| format!("{}: {why}", path.display()))
    }

    fn parse(text: &[u8], home: &Path) -> Result<Users, String> {
        let config = yaml::read(text)?;
        let list = |name: &str| config.get(name).map(Value::items).unwrap_or_default();
        let context = config.str("current-context");
        let context =
            list("contexts").iter().find(|entry| !context.is_empty() && entry.str("name") == context);
        let user = context.and_then(|entry| entry.at(&["context", "user"])).and_then(Value::as_str);
        let named = list("users").iter().map(|entry| {
            let name = entry.str("name").to_owned();
            let user = entry.get("user").unwrap_or(&Value::Null);
            let access = shown(user, home).map_err(|why| format!("user {name:?}: {why}"))?;
            Ok((name, access))
        });
        Ok(Users { named: named.collect::<Result<_, String>>()?, current: user.map(str::to_owned) })
    }

    /// The credentials for this host and port. The most specific name counts; a star stands for the beginning of one.
    pub fn of(&self, target: &str) -> Access {
        let with_port = self.by_name(target);
        let found = with_port.or_else(|| self.by_name(target.strip_suffix(":443")?));
        let found = found.or_else(|| self.named("*")).or_else(|| self.named(self.current.as_deref()?));
        found.cloned().unwrap_or_else(|| Access::to(""))
    }

    fn named(&self, name: &str) -> Option<&Access> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, access)| access)
    }

    fn by_name(&self, target: &str) -> Option<&Access> {
        let starred =
            target.match_indices('.').map(|(at, _)| format!("*{}", target.get(at..).unwrap_or_default()));
        self.named(target).or_else(|| starred.into_iter().find_map(|name| self.named(&name)))
    }
}

fn shown(user: &Value, home: &Path) -> Result<Access, String> {
    let mut access = Access::to("");
    access.identity_pem = file::identity(user, home)?;
    access.acting_as = file::acting_as(user)?;
    access.credentials = file::credentials(user, &Value::object(), &access, home)?;
    Ok(access)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig::Credentials;

    #[test]
    fn the_most_exact_name_counts() {
        let users = Users::parse(
            b"current-context: c
contexts: [{name: c, context: {user: fallback}}]
users:
- {name: 'a.n.svc:8443', user: {token: port}}
- {name: a.n.svc, user: {token: exact}}
- {name: '*.n.svc', user: {token: star}}
- {name: fallback, user: {username: u, password: p}}
",
            Path::new("/"),
        )
        .unwrap();
        let token = |target: &str| match users.of(target).credentials {
            Credentials::Token(token) => token,
            Credentials::Password(name, _) => name,
            _ => String::new(),
        };
        for (target, wanted) in [
            ("a.n.svc:8443", "port"),
            ("a.n.svc:443", "exact"),
            ("a.n.svc:444", "u"),
            ("b.n.svc:443", "star"),
            ("b.m.svc:443", "u"),
        ] {
            assert_eq!(token(target), wanted, "{target}");
        }
        assert!(Users::default().of("x:443").credentials == Credentials::None);
        assert!(Users::parse(b"users: [{name: x, user: {auth-provider: {}}}]", Path::new("/")).is_err());
    }
}
