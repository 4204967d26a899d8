//! `pilothouse share-keys`: gives servers that share an etcd the same CA and the same key of service account tokens.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use http::Uri;
use pilothouse_types::clock::Clock;

use super::Command;
use crate::pki::{self, PkiError};

/// Give several servers the same CA and the same key of service account tokens.
///
/// Each directory gets `ca.crt`, `ca.key`, `sa.key` and `sa.pub`: those that another one has, or else new ones. What is there stays, so
/// this can be run before every start. Directories with different keys are refused.
#[derive(Debug, Parser)]
#[command(bin_name = "pilothouse share-keys", no_binary_name = true)]
pub(super) struct Options {
    /// Directories of keys, one of each server: --cert-dir, or `pki` in its data directory.
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Also write a kubeconfig for an administrator; needs --server.
    #[arg(long, requires = "server", value_name = "FILE")]
    admin_kubeconfig: Option<PathBuf>,
    /// The URL of the servers in that kubeconfig.
    #[arg(long, requires = "admin_kubeconfig", value_name = "URL")]
    server: Option<ServerUrl>,
}

/// A URL with the scheme https and no path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServerUrl(String);

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerUrl, String> {
        let uri: Uri = text.parse().map_err(|reason| format!("\"{text}\" is not a URL: {reason}"))?;
        match (uri.scheme_str(), uri.authority(), uri.path()) {
            (Some("https"), Some(authority), "" | "/") => Ok(ServerUrl(format!("https://{authority}"))),
            _ => Err(format!("\"{text}\" is not a URL such as https://api.example.org:6443")),
        }
    }
}

impl Command for Options {
    const NAME: &str = "share-keys";
    type Failure = PkiError;

    fn run(&self) -> Result<(), PkiError> {
        let clock = Clock::system();
        let keys = pki::share(&self.directories, &clock)?;
        if let (Some(path), Some(ServerUrl(server))) = (&self.admin_kubeconfig, &self.server) {
            keys.write_admin_kubeconfig(path, server, &clock)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_url_has_a_host_and_no_path() {
        for (text, url) in [
            ("https://api.example.org:6443", "https://api.example.org:6443"),
            ("https://[::1]:6443/", "https://[::1]:6443"),
        ] {
            assert_eq!(text.parse(), Ok(ServerUrl(url.to_owned())));
        }
        for text in ["", "api.example.org", "http://api.example.org", "https://a/b", "https://a\nb: c"] {
            assert!(text.parse::<ServerUrl>().is_err(), "{text:?}");
        }
    }
}
