//! Who answers requests for certificates, and for how long.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use pilothouse_apimachinery::well_known::signers;

use super::values::go_duration;

/// Who answers requests for certificates.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Certificate signing")]
pub struct Signing {
    /// The certificate of the authority that signs requests; without any of these files our own.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_key_file: Option<PathBuf>,
    /// The certificate of the authority that signs for kubernetes.io/kubelet-serving. Signers without files of their own sign
    /// nothing if another one has some.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_serving_key_file: Option<PathBuf>,
    /// The certificate of the authority that signs for kubernetes.io/kube-apiserver-client-kubelet.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_client_cert_file: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_client_key_file: Option<PathBuf>,
    /// The certificate of the authority that signs for kubernetes.io/kube-apiserver-client.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kube_apiserver_client_key_file: Option<PathBuf>,
    /// The certificate of the authority that signs for kubernetes.io/legacy-unknown.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_legacy_unknown_cert_file: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_legacy_unknown_key_file: Option<PathBuf>,
    /// How long signed certificates live at most.
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

/// Whose authority signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignedBy<'a> {
    /// Our own, for every signer.
    Own,
    /// That of these files, for every signer.
    One(&'a Path, &'a Path),
    /// That of the files of each signer.
    Each([SigningFiles<'a>; 4]),
}

type Files<'a> = (Option<&'a Path>, Option<&'a Path>);

impl Signing {
    fn each(&self) -> [(&'static str, &'static str, Files<'_>); 4] {
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

    /// Whose authority signs, if the files go together.
    pub fn signed_by(&self) -> Result<SignedBy<'_>, String> {
        let pair = |flag: &str, (certificate, key): Files<'_>| match (certificate, key) {
            (Some(_), None) => Err(format!("{flag:?}: cannot specify cert without key")),
            (None, Some(_)) => Err(format!("{flag:?}: cannot specify key without cert")),
            _ => Ok(()),
        };
        let one = (self.cluster_signing_cert_file.as_deref(), self.cluster_signing_key_file.as_deref());
        let each = self.each();
        pair("cluster-signing", one)?;
        each.iter().try_for_each(|(_, flag, files)| pair(flag, *files))?;
        let any = each.iter().any(|(.., (certificate, _))| certificate.is_some());
        match (one, any) {
            ((Some(_), _), true) => Err("cannot specify --cluster-signing-{cert,key}-file and other \
                                         --cluster-signing-*-file flags at the same time"
                .to_owned()),
            ((Some(certificate), Some(key)), false) => Ok(SignedBy::One(certificate, key)),
            (_, true) => {
                Ok(SignedBy::Each(each.map(|(signer, _, (certificate, key))| SigningFiles {
                    signer,
                    pair: certificate.zip(key),
                })))
            }
            _ => Ok(SignedBy::Own),
        }
    }

    /// Every file that is named.
    pub fn files(&self) -> Vec<&Path> {
        let one = (self.cluster_signing_cert_file.as_deref(), self.cluster_signing_key_file.as_deref());
        let all = self.each().map(|(.., files)| files).into_iter().chain([one]);
        all.flat_map(|(certificate, key)| [certificate, key]).flatten().collect()
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
    fn one_authority_signs_for_all_or_each_signer_has_its_own() {
        assert_eq!(signing("").signed_by(), Ok(SignedBy::Own));
        let one = signing("--cluster-signing-cert-file=a --cluster-signing-key-file=b");
        assert_eq!(one.signed_by(), Ok(SignedBy::One(Path::new("a"), Path::new("b"))));
        assert_eq!(one.files(), [Path::new("a"), Path::new("b")]);
        let flags =
            "--cluster-signing-kubelet-client-cert-file=a --cluster-signing-kubelet-client-key-file=b";
        let some = signing(flags);
        let Ok(SignedBy::Each(each)) = some.signed_by() else { panic!("{some:?}") };
        let signs: Vec<&str> =
            each.iter().filter(|files| files.pair.is_some()).map(|files| files.signer).collect();
        assert_eq!(signs, ["kubernetes.io/kube-apiserver-client-kubelet"]);
    }

    #[test]
    fn halves_and_mixtures_are_refused() {
        for (flags, why) in [
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
            assert_eq!(signing(flags).signed_by().unwrap_err(), why, "{flags}");
        }
    }
}
