//! Reloads keys and certificates while the server runs. New connections get the new serving certificate, and new requests are
//! checked against the new CAs. Rotation needs no restart.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::controller_setup;
use crate::application::StartContext;
use crate::auth::certificate::CertificateVerifier;
use crate::auth::front_proxy::FrontProxy;
use crate::config::{Aggregation, Kubelets};
use crate::controllers::start::Authorities;
use crate::http::handler::worker::Shared;
use crate::limits::{PKI_LOOK_EVERY, PKI_RENEW_EVERY};
use crate::pki::{self, Pki};
use crate::upstream::{self, CertificateAndKey, TlsError, TlsFiles};

/// Modification time and size: a change that is visible without reading the file.
type Mark = Option<(SystemTime, u64)>;

/// The task that reloads certificates.
pub struct Reload {
    /// The paths of the files, and the TLS contexts that get a new serving certificate.
    pub context: StartContext,
    /// The verifier that gets new client CAs.
    pub certificates: Arc<CertificateVerifier>,
    /// The verifier that gets new front proxy CAs.
    pub front_proxy: Option<Arc<FrontProxy>>,
    /// The certificates in use, which other parts read.
    pub trusted: Arc<ArcSwap<Pki>>,
    /// Where the control loops get new CAs and signers.
    pub authorities: Arc<watch::Sender<Arc<Authorities>>>,
    /// Tells when the server stops.
    pub shared: Arc<Shared>,
}

impl Reload {
    /// Checks the files periodically, until the server stops.
    pub async fn run(self) {
        // The first check finds changes since the start.
        let (mut own, mut signing) = (Look::default(), Look::default());
        let (mut shown, mut kubelets) = (Look::default(), Look::default());
        let mut turns = tokio::time::interval(PKI_LOOK_EVERY);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let renew = PKI_RENEW_EVERY.as_secs() / PKI_LOOK_EVERY.as_secs().max(1);
        let mut turn = 0_u64;
        while !self.shared.health.stopping.load(Ordering::Acquire) {
            turns.tick().await;
            turn += 1;
            // Without a directory to keep it in, every check would make a new CA.
            if self.context.config.cert_dir().is_some() {
                own.take(self.marks(), turn.is_multiple_of(renew.max(1)), || {
                    let StartContext { config, address, clock, .. } = &self.context;
                    pki::renew(config, *address, clock).map_err(text).and_then(|found| self.take(found))
                });
            }
            // Signing keys may lie outside of the directory, and the CA that the loops publish is the directory's.
            let marks = self.context.config.signing.files().into_iter().map(mark).collect();
            signing.take(marks, false, || self.take_signers());
            let aggregation = &self.context.config.aggregation;
            let files = [&aggregation.proxy_client_cert_file, &aggregation.proxy_client_key_file];
            let marks = files.into_iter().flatten().map(|path| mark(path)).collect();
            shown.take(marks, false, || {
                let identity = proxy_identity(aggregation).map_err(text)?;
                self.shared.connecting.upstream.show_to_extensions(identity).map_err(text)
            });
            let files = kubelet_files(&self.context.config.kubelets);
            let named = files.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
            let marks = named.chain(&files.authority).map(|path| mark(path)).collect();
            kubelets.take(marks, false, || {
                self.shared.connecting.upstream.show_to_kubelets(&files).map_err(text)
            });
        }
    }

    fn take(&self, found: Pki) -> Result<(), String> {
        let used = self.trusted.load();
        let serving = found.serving != used.serving || found.named != used.named;
        let authorities =
            found.client_ca_pem != used.client_ca_pem || found.proxy_ca_pem != used.proxy_ca_pem;
        if !serving && !authorities {
            return Ok(());
        }
        // The TLS handshake lists the client CAs, so both kinds of change replace it.
        self.context.tls.replace(&self.context.config.serving, &found).map_err(text)?;
        self.certificates.trust(&found.client_ca_pem).map_err(text)?;
        if let (Some(proxy), Some(pem)) = (&self.front_proxy, &found.proxy_ca_pem) {
            proxy.trust(pem).map_err(text)?;
        }
        tracing::info!(serving, authorities, "certificates were reloaded");
        self.trusted.store(Arc::new(found));
        self.take_signers()
    }

    /// Sends new CAs and signers to the control loops.
    fn take_signers(&self) -> Result<(), String> {
        let found =
            controller_setup::authorities(&self.context.config, &self.trusted.load()).map_err(text)?;
        self.authorities.send_if_modified(|known| {
            let is_new = *found != **known;
            if is_new {
                tracing::info!("the controllers use the reloaded certificates");
                *known = found;
            }
            is_new
        });
        Ok(())
    }

    fn marks(&self) -> Vec<Mark> {
        let config = &self.context.config;
        let named = [
            &config.serving.tls_cert_file,
            &config.serving.tls_private_key_file,
            &config.authentication.client_ca_file,
            &config.front_proxy.requestheader_client_ca_file,
        ];
        let made = ["ca.crt", "ca.key", "apiserver.crt", "apiserver.key"];
        let folder = config.cert_dir();
        let made = made.iter().filter_map(|name| folder.as_ref().map(|folder| folder.join(name)));
        let for_names = config.serving.tls_sni_cert_key.iter().flat_map(|one| [&one.certificate, &one.key]);
        let files = named.into_iter().flatten().chain(for_names).cloned().chain(made);
        files.map(|path| mark(&path)).collect()
    }
}

/// The client certificate and key (PEM) for connections to extension API servers; `None` if either is missing.
pub(super) fn proxy_identity(files: &Aggregation) -> Result<Option<CertificateAndKey>, TlsError> {
    let Some((certificate, key)) =
        files.proxy_client_cert_file.as_ref().zip(files.proxy_client_key_file.as_ref())
    else {
        return Ok(None);
    };
    Ok(Some((upstream::read(certificate)?, upstream::read(key)?)))
}

/// The files for TLS between this server and kubelets.
pub(super) fn kubelet_files(flags: &Kubelets) -> TlsFiles {
    TlsFiles {
        authority: flags.kubelet_certificate_authority.clone(),
        identity: flags.kubelet_client_certificate.clone().zip(flags.kubelet_client_key.clone()),
    }
}

fn mark(path: &Path) -> Mark {
    let known = std::fs::metadata(path).ok()?;
    Some((known.modified().ok()?, known.len()))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The state of some files at the last check.
#[derive(Default)]
struct Look {
    seen: Option<Vec<Mark>>,
    /// The last error, so that it is logged only once.
    told: String,
}

impl Look {
    /// Reloads the files if they have changed, or if a reload is due anyway.
    fn take(&mut self, marks: Vec<Mark>, due: bool, take: impl FnOnce() -> Result<(), String>) {
        if self.seen.as_ref() == Some(&marks) && !due {
            return;
        }
        match take() {
            Ok(()) => {
                self.seen = Some(marks);
                self.told.clear();
            }
            // The files are tried again at the next check: they may be half written, or not readable yet.
            Err(error) if error == self.told => {}
            Err(error) => {
                tracing::warn!(%error, "changed certificates cannot be loaded; the previous ones stay in use");
                self.told = error;
            }
        }
    }
}
