//! Credentials for many servers: a kubeconfig whose users are named by the servers that they are for.

use std::path::Path;

use pilothouse_apimachinery::codec::yaml;
use pilothouse_apimachinery::value::Value;

use super::{Access, file};

/// Credentials by server.
#[derive(Clone, Default)]
pub struct Users {
    by_user: Vec<(String, Access)>,
    /// The user of the current context, for all other servers.
    current: Option<String>,
}

impl Users {
    /// Reads the file. Paths in it are relative to its directory.
    pub fn read(path: &Path) -> Result<Users, String> {
        Users::parse(&file::read_file(path)?, path.parent().unwrap_or(Path::new("")))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    fn parse(text: &[u8], directory: &Path) -> Result<Users, String> {
        let config = yaml::read(text)?;
        let list = |name: &str| config.get(name).map(Value::items).unwrap_or_default();
        let context = config.str("current-context");
        let context =
            list("contexts").iter().find(|entry| !context.is_empty() && entry.str("name") == context);
        let user = context.and_then(|entry| entry.get_path(&["context", "user"])).and_then(Value::as_str);
        let by_user = list("users").iter().map(|entry| {
            let name = entry.str("name").to_owned();
            let user = entry.get("user").unwrap_or(&Value::Null);
            let access = parse_user(user, directory).map_err(|error| format!("user {name:?}: {error}"))?;
            Ok((name, access))
        });
        Ok(Users { by_user: by_user.collect::<Result<_, String>>()?, current: user.map(str::to_owned) })
    }

    /// The credentials for this host and port. The most specific name wins; `*` stands for the leading labels of a name.
    pub fn for_server(&self, target: &str) -> Access {
        let with_port = self.find_by_host(target);
        let access = with_port.or_else(|| self.find_by_host(target.strip_suffix(":443")?));
        let access = access.or_else(|| self.find("*")).or_else(|| self.find(self.current.as_deref()?));
        access.cloned().unwrap_or_else(|| Access::to_server(""))
    }

    fn find(&self, name: &str) -> Option<&Access> {
        self.by_user.iter().find(|(user, _)| user == name).map(|(_, access)| access)
    }

    fn find_by_host(&self, target: &str) -> Option<&Access> {
        let wildcards = target
            .match_indices('.')
            .map(|(position, _)| format!("*{}", target.get(position..).unwrap_or_default()));
        self.find(target).or_else(|| wildcards.into_iter().find_map(|name| self.find(&name)))
    }
}

fn parse_user(user: &Value, directory: &Path) -> Result<Access, String> {
    let mut access = Access::to_server("");
    access.identity_pem = file::identity(user, directory)?;
    access.impersonation = file::impersonation(user)?;
    access.credentials = file::credentials(user, &Value::object(), &access, directory)?;
    Ok(access)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig::Credentials;

    #[test]
    fn most_specific_server_name_selects_credentials() {
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
        let token = |target: &str| match users.for_server(target).credentials {
            Credentials::Token(token) => token,
            Credentials::Password(name, _) => name,
            _ => String::new(),
        };
        for (target, expected) in [
            ("a.n.svc:8443", "port"),
            ("a.n.svc:443", "exact"),
            ("a.n.svc:444", "u"),
            ("b.n.svc:443", "star"),
            ("b.m.svc:443", "u"),
        ] {
            assert_eq!(token(target), expected, "{target}");
        }
        assert!(Users::default().for_server("x:443").credentials == Credentials::None);
        assert!(Users::parse(b"users: [{name: x, user: {auth-provider: {}}}]", Path::new("/")).is_err());
    }
}
