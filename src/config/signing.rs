//! The flags of the signers of certificate requests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use pilothouse_apimachinery::well_known::signers;

use super::values::go_duration;

/// The flags of the signers of certificate requests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Certificate signing")]
pub struct Signing {
    /// Certificate of the CA that signs certificate requests; without any of these files the server's own CA signs.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// Private key of that CA.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_key_file: Option<PathBuf>,
    /// Certificate of the CA that signs for kubernetes.io/kubelet-serving. Signers without files of their
    /// own sign nothing if another signer has some.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    /// Private key of that CA.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_serving_key_file: Option<PathBuf>,
    /// Certificate of the CA that signs for kubernetes.io/kube-apiserver-client-kubelet.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_client_cert_file: Option<PathBuf>,
    /// Private key of that CA.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_client_key_file: Option<PathBuf>,
    /// Certificate of the CA that signs for kubernetes.io/kube-apiserver-client.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,
    /// Private key of that CA.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kube_apiserver_client_key_file: Option<PathBuf>,
    /// Certificate of the CA that signs for kubernetes.io/legacy-unknown.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_legacy_unknown_cert_file: Option<PathBuf>,
    /// Private key of that CA.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_legacy_unknown_key_file: Option<PathBuf>,
    /// Maximum lifetime of signed certificates.
    #[arg(long, default_value = "8760h0m0s", value_parser = go_duration, value_name = "DURATION")]
    pub cluster_signing_duration: Duration,
}

/// The files of one signer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SigningFiles<'a> {
    /// The name of the signer.
    pub signer: &'static str,
    /// Its certificate and its key; `None` if it signs nothing.
    pub pair: Option<(&'a Path, &'a Path)>,
}

/// The CA of the signers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SigningAuthority<'a> {
    /// The server's own, for every signer.
    Own,
    /// The one of these files, for every signer.
    Shared(&'a Path, &'a Path),
    /// Separate ones for each signer.
    Separate([SigningFiles<'a>; 4]),
}

type Files<'a> = (Option<&'a Path>, Option<&'a Path>);

impl Signing {
    fn files_by_signer(&self) -> [(&'static str, &'static str, Files<'_>); 4] {
        [
            (
                signers::SERVING,
                "cluster-signing-kubelet-serving",
                (
                    self.cluster_signing_kubelet_serving_cert_file.as_deref(),
                    self.cluster_signing_kubelet_serving_key_file.as_deref(),
                ),
            ),
            (
                signers::KUBELET,
                "cluster-signing-kubelet-client",
                (
                    self.cluster_signing_kubelet_client_cert_file.as_deref(),
                    self.cluster_signing_kubelet_client_key_file.as_deref(),
                ),
            ),
            (
                signers::CLIENT,
                "cluster-signing-kube-apiserver-client",
                (
                    self.cluster_signing_kube_apiserver_client_cert_file.as_deref(),
                    self.cluster_signing_kube_apiserver_client_key_file.as_deref(),
                ),
            ),
            (
                signers::LEGACY,
                "cluster-signing-legacy-unknown",
                (
                    self.cluster_signing_legacy_unknown_cert_file.as_deref(),
                    self.cluster_signing_legacy_unknown_key_file.as_deref(),
                ),
            ),
        ]
    }

    /// The CA of the signers, if the flags are consistent.
    pub fn signing_authority(&self) -> Result<SigningAuthority<'_>, String> {
        let check_pair = |flag: &str, (certificate, key): Files<'_>| match (certificate, key) {
            (Some(_), None) => Err(format!("{flag:?}: cannot specify cert without key")),
            (None, Some(_)) => Err(format!("{flag:?}: cannot specify key without cert")),
            _ => Ok(()),
        };
        let shared = (self.cluster_signing_cert_file.as_deref(), self.cluster_signing_key_file.as_deref());
        let files_by_signer = self.files_by_signer();
        check_pair("cluster-signing", shared)?;
        files_by_signer.iter().try_for_each(|(_, flag, files)| check_pair(flag, *files))?;
        let has_separate = files_by_signer.iter().any(|(.., (certificate, _))| certificate.is_some());
        match (shared, has_separate) {
            ((Some(_), _), true) => Err("cannot specify --cluster-signing-{cert,key}-file and other \
                                         --cluster-signing-*-file flags at the same time"
                .to_owned()),
            ((Some(certificate), Some(key)), false) => Ok(SigningAuthority::Shared(certificate, key)),
            (_, true) => {
                Ok(SigningAuthority::Separate(files_by_signer.map(|(signer, _, (certificate, key))| {
                    SigningFiles { signer, pair: certificate.zip(key) }
                })))
            }
            _ => Ok(SigningAuthority::Own),
        }
    }

    /// All files that the flags name.
    pub fn files(&self) -> Vec<&Path> {
        let shared = (self.cluster_signing_cert_file.as_deref(), self.cluster_signing_key_file.as_deref());
        let pairs = self.files_by_signer().map(|(.., files)| files).into_iter().chain([shared]);
        pairs.flat_map(|(certificate, key)| [certificate, key]).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn signing(flags: &str) -> Signing {
        Config::parse(["pilothouse"].into_iter().chain(flags.split_whitespace())).unwrap().signing
    }

    #[test]
    fn signing_flags_select_shared_or_separate_cas() {
        assert_eq!(signing("").signing_authority(), Ok(SigningAuthority::Own));
        let shared = signing("--cluster-signing-cert-file=a --cluster-signing-key-file=b");
        assert_eq!(shared.signing_authority(), Ok(SigningAuthority::Shared(Path::new("a"), Path::new("b"))));
        assert_eq!(shared.files(), [Path::new("a"), Path::new("b")]);
        let flags =
            "--cluster-signing-kubelet-client-cert-file=a --cluster-signing-kubelet-client-key-file=b";
        let separate = signing(flags);
        let Ok(SigningAuthority::Separate(files_by_signer)) = separate.signing_authority() else {
            panic!("{separate:?}")
        };
        let signers: Vec<&str> =
            files_by_signer.iter().filter(|files| files.pair.is_some()).map(|files| files.signer).collect();
        assert_eq!(signers, ["kubernetes.io/kube-apiserver-client-kubelet"]);
    }

    #[test]
    fn inconsistent_signing_flags_are_refused() {
        for (flags, expected) in [
            ("--cluster-signing-cert-file=a", "\"cluster-signing\": cannot specify cert without key"),
            (
                "--cluster-signing-legacy-unknown-key-file=a",
                "\"cluster-signing-legacy-unknown\": cannot specify key without cert",
            ),
            (
                "--cluster-signing-cert-file=a --cluster-signing-key-file=b \
                 --cluster-signing-kubelet-serving-cert-file=c --cluster-signing-kubelet-serving-key-file=d",
                "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time",
            ),
        ] {
            assert_eq!(signing(flags).signing_authority().unwrap_err(), expected, "{flags}");
        }
    }
}
