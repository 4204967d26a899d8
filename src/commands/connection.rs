//! The connection of a command to an API server: flags, kubeconfig files and the service account of a pod, as kubectl has them.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;
use pilothouse_apimachinery::well_known::POD_CREDENTIALS;
use pilothouse_client::api_server::ApiServer;
use pilothouse_client::kubeconfig::{Access, Credentials};
use pilothouse_client::upstream;
use pilothouse_types::host_port::bracketed;

/// Flags of the connection to an API server.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
pub(super) struct ConnectionFlags {
    /// The kubeconfig [default: $KUBECONFIG, then ~/.kube/config; in a pod, its service account].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The URL of the server. Without --kubeconfig or --context, nothing but these flags is used to connect to it.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// A file with a bearer token. It is read for each request.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The CA of the server's certificate [default: those of the system].
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
    /// A client certificate; needs --client-key.
    #[arg(long, requires = "client_key", value_name = "FILE")]
    client_certificate: Option<PathBuf>,
    /// The private key of --client-certificate.
    #[arg(long, requires = "client_certificate", value_name = "FILE")]
    client_key: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the host of the URL.
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// Do not verify the server's certificate. Whoever is on the way to it can then read and change everything.
    #[arg(long, conflicts_with = "certificate_authority")]
    insecure_skip_tls_verify: bool,
}

impl ConnectionFlags {
    /// The flags that name a kubeconfig and nothing else.
    pub(super) fn with_kubeconfig(path: PathBuf) -> ConnectionFlags {
        ConnectionFlags { kubeconfig: Some(path), ..ConnectionFlags::default() }
    }

    /// The server that the flags name. It is not connected to yet.
    pub(super) fn api_server(&self) -> Result<ApiServer, String> {
        let environment = Environment {
            kubeconfig: env::var_os("KUBECONFIG").filter(|value| !value.is_empty()).map(PathBuf::from),
            home: env::var_os("HOME").map(PathBuf::from),
            service: env::var("KUBERNETES_SERVICE_HOST").ok().zip(env::var("KUBERNETES_SERVICE_PORT").ok()),
        };
        ApiServer::new(self.access(&environment)?).map_err(|error| error.to_string())
    }

    fn access(&self, environment: &Environment) -> Result<Access, String> {
        let mut access = match &self.server {
            // The credentials of a kubeconfig are for its own server, so they are not sent to another one unless that is asked for.
            Some(server) if self.kubeconfig.is_none() && self.context.is_none() => Access::to_server(server),
            server => {
                let mut access = self.configured_access(environment)?;
                if let Some(server) = server {
                    access.server.clone_from(server);
                }
                access
            }
        };
        let read = |path: &Path| upstream::read(path).map_err(|error| error.to_string());
        if let Some(path) = &self.certificate_authority {
            (access.authority_pem, access.insecure) = (Some(read(path)?), false);
        }
        if self.insecure_skip_tls_verify {
            (access.authority_pem, access.insecure) = (None, true);
        }
        if let Some(name) = &self.tls_server_name {
            access.server_name = Some(name.clone());
        }
        if let Some(path) = &self.token_file {
            (access.credentials, access.identity_pem) = (Credentials::TokenFile(path.clone()), None);
        }
        if let (Some(certificate), Some(key)) = (&self.client_certificate, &self.client_key) {
            access.identity_pem = Some((read(certificate)?, read(key)?));
        }
        Ok(access)
    }

    fn configured_access(&self, environment: &Environment) -> Result<Access, String> {
        let path = match (&self.kubeconfig, &environment.kubeconfig) {
            (Some(path), _) => path.clone(),
            (None, Some(path)) if path.to_string_lossy().contains(':') => {
                return Err("$KUBECONFIG names several files: name one with --kubeconfig".to_owned());
            }
            (None, Some(path)) => path.clone(),
            (None, None) => {
                let path = environment.home.as_ref().map(|home| home.join(".kube/config"));
                match (path, &environment.service) {
                    (Some(path), _) if path.is_file() => path,
                    (_, Some((host, port))) if self.context.is_none() => return pod_access(host, port),
                    _ => {
                        return Err(
                            "no server to connect to: use --kubeconfig, $KUBECONFIG or --server".to_owned()
                        );
                    }
                }
            }
        };
        let access = Access::read_context(&path, self.context.as_deref());
        // An error about the file itself begins with its path.
        access.map_err(|error| match error.starts_with(&*path.to_string_lossy()) {
            true => error,
            false => format!("{}: {error}", path.display()),
        })
    }
}

/// What the environment says about the server.
#[derive(Default)]
struct Environment {
    /// `$KUBECONFIG`.
    kubeconfig: Option<PathBuf>,
    /// The home directory.
    home: Option<PathBuf>,
    /// The host and port of the API server, as a pod is told.
    service: Option<(String, String)>,
}

fn pod_access(host: &str, port: &str) -> Result<Access, String> {
    let file = |name: &str| Path::new(POD_CREDENTIALS).join(name);
    let mut access = Access::to_server(format!("https://{}:{port}", bracketed(host)));
    access.authority_pem = Some(upstream::read(&file("ca.crt")).map_err(|error| error.to_string())?);
    access.credentials = Credentials::TokenFile(file("token"));
    Ok(access)
}

/// Runs a command to its end, or until it is interrupted: then everything it holds is dropped, such as an incomplete file. A signal
/// is noticed while the command waits for the server, so a command that reads its input does that before.
pub(super) fn run_until_interrupted<T>(
    command: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
        let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return command.await };
        tokio::select! {
            result = command => result,
            _ = interrupt.recv() => Err("interrupted".to_owned()),
            _ = terminate.recv() => Err("terminated".to_owned()),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        connection: ConnectionFlags,
    }

    const KUBECONFIG: &str = "
current-context: a
contexts: [{name: a, context: {cluster: a, user: u}}, {name: b, context: {cluster: b}}]
clusters: [{name: a, cluster: {server: 'https://a'}}, {name: b, cluster: {server: 'https://b'}}]
users: [{name: u, user: {token: t}}]
";

    fn access(line: &[&str], environment: &Environment) -> Result<Access, String> {
        let line = Line::try_parse_from(line).map_err(|error| error.to_string())?;
        line.connection.access(environment)
    }

    #[test]
    fn flags_precede_environment_and_home() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("config");
        fs::write(&path, KUBECONFIG).unwrap();
        let flag = format!("--kubeconfig={}", path.display());
        let nothing = Environment::default();
        let server =
            |line: &[&str], environment: &Environment| access(line, environment).map(|found| found.server);
        assert_eq!(server(&[&flag], &nothing).unwrap(), "https://a");
        assert_eq!(server(&[&flag, "--context=b"], &nothing).unwrap(), "https://b");
        assert_eq!(server(&[&flag, "--server=https://c"], &nothing).unwrap(), "https://c");
        let environment = Environment { kubeconfig: Some(path.clone()), ..Environment::default() };
        assert_eq!(server(&["--context=b"], &environment).unwrap(), "https://b");
        fs::create_dir(home.path().join(".kube")).unwrap();
        fs::rename(&path, home.path().join(".kube/config")).unwrap();
        let environment = Environment { home: Some(home.path().to_owned()), ..Environment::default() };
        assert_eq!(server(&[], &environment).unwrap(), "https://a");
        let error = server(&["--context=c"], &environment).unwrap_err();
        assert!(error.ends_with(".kube/config: there is no context \"c\""), "{error}");
        assert!(server(&[], &nothing).unwrap_err().starts_with("no server to connect to"));
        let several = Environment { kubeconfig: Some("a:b".into()), ..Environment::default() };
        assert!(server(&[], &several).unwrap_err().contains("several files"));
    }

    #[test]
    fn credentials_of_kubeconfig_stay_with_its_server() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".kube")).unwrap();
        fs::write(home.path().join(".kube/config"), KUBECONFIG).unwrap();
        let environment = Environment { home: Some(home.path().to_owned()), ..Environment::default() };
        let other = access(&["--server=https://c"], &environment).unwrap();
        assert!(other.credentials == Credentials::None);
        let own = access(&["--server=https://c", "--context=a"], &environment).unwrap();
        assert!(own.credentials == Credentials::Token("t".to_owned()));
    }

    #[test]
    fn files_of_flags_replace_those_of_the_kubeconfig() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        fs::write(&file, "x").unwrap();
        let path = file.to_str().unwrap();
        let line = [
            "--server=https://c",
            "--tls-server-name=d",
            "--certificate-authority",
            path,
            "--token-file",
            path,
            "--client-certificate",
            path,
            "--client-key",
            path,
        ];
        let access = access(&line, &Environment::default()).unwrap();
        assert_eq!(access.authority_pem.as_deref(), Some(&b"x"[..]));
        assert_eq!(access.server_name.as_deref(), Some("d"));
        assert!(access.credentials == Credentials::TokenFile(file.clone()) && access.identity_pem.is_some());
        let refused = ["--insecure-skip-tls-verify", "--certificate-authority", path];
        assert!(super::tests::access(&refused, &Environment::default()).is_err());
        assert!(super::tests::access(&["--client-key", path], &Environment::default()).is_err());
    }
}
